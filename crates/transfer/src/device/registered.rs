//! Memory of somebody else's on the host, which copy engines reach.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::CU_MEMHOSTREGISTER_PORTABLE;

use super::context::Context;
use super::driver;
use super::error::DeviceError;
use super::gpu::Gpu;

/// Copy engines of all devices reach memory of the host for as long as this is there.
#[derive(Debug)]
pub(crate) struct Registered {
    context: Arc<Context>,
    start: NonNull<u8>,
}

// SAFETY: the address is a number that any thread may give to the driver.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Gpu {
    /// Has copy engines reach memory of the host, until what this gives is dropped.
    ///
    /// # Safety
    /// The bytes stay mapped until then.
    ///
    /// # Errors
    /// What the driver says, if it does not take such memory.
    pub(crate) unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<Registered, DeviceError> {
        let (context, from) = (self.context(), start.as_ptr().cast());
        let _entered = context.enter()?;
        // A process registers a range once, so it is for all contexts.
        // SAFETY: the caller keeps the bytes where they are.
        let registered =
            unsafe { driver::cuMemHostRegister_v2(from, len, CU_MEMHOSTREGISTER_PORTABLE) };
        context.check("cuMemHostRegister_v2", registered)?;
        Ok(Registered {
            context: context.clone(),
            start,
        })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: registered with this, and taken back only here. An error says that the context is lost.
            let _ = unsafe { driver::cuMemHostUnregister(self.start.as_ptr().cast()) };
        }
    }
}
