//! Memory of somebody else's on the host, which copy engines reach.

use std::any::Any;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::gpu::Gpu;
use crate::sys::CU_MEMHOSTREGISTER_PORTABLE;

/// Copy engines of all devices reach memory of the host for as long as this is there.
#[derive(Debug)]
pub struct Registered {
    context: Arc<Context>,
    start: NonNull<u8>,
    /// Taken when this is dropped.
    mapping: Option<Mapping>,
}

/// What keeps memory of the host mapped.
pub(crate) type Mapping = Arc<dyn Any + Send + Sync>;

// SAFETY: the address is a number that any thread may give to the driver.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Gpu {
    /// Has copy engines reach memory of the host, until what this gives is dropped.
    ///
    /// # Safety
    /// The bytes are there for as long as their mapping.
    ///
    /// # Errors
    /// What the driver says, if it does not take such memory.
    pub unsafe fn register(&self, start: NonNull<u8>, len: usize, mapping: Mapping) -> Result<Registered, DeviceError> {
        let (context, from) = (self.context(), start.as_ptr().cast());
        let _entered = context.enter()?;
        // A process registers a range once, so it is for all contexts.
        // SAFETY: the mapping keeps the bytes where they are.
        let registered = unsafe { driver::cuMemHostRegister_v2(from, len, CU_MEMHOSTREGISTER_PORTABLE) };
        context.check("cuMemHostRegister_v2", registered)?;
        Ok(Registered { context: context.clone(), start, mapping: Some(mapping) })
    }
}

impl Drop for Registered {
    /// Bytes that the driver still takes for registered, as where the context is lost, stay mapped for good: copies of other devices to what
    /// would be mapped there later would go to the pages of before.
    fn drop(&mut self) {
        // SAFETY: registered with this, and taken back only here.
        let unregister = || unsafe { driver::cuMemHostUnregister(self.start.as_ptr().cast()) };
        if !self.context.give_back("cuMemHostUnregister", unregister) {
            mem::forget(self.mapping.take());
        }
    }
}
