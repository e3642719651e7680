//! Host memory of other owners, registered so that copy engines can access it.

use std::any::Any;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::gpu::Gpu;
use crate::sys::CU_MEMHOSTREGISTER_PORTABLE;

/// A registration of host memory. While it exists, copy engines of all devices can access the memory.
#[derive(Debug)]
pub struct Registered {
    context: Arc<Context>,
    start: NonNull<u8>,
    /// Taken when this is dropped.
    mapping: Option<Mapping>,
}

/// An owner that keeps host memory mapped.
pub(crate) type Mapping = Arc<dyn Any + Send + Sync>;

// SAFETY: the address is a number that any thread may give to the driver.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Gpu {
    /// Registers host memory so that copy engines can access it until the result is dropped.
    ///
    /// # Safety
    /// The bytes stay valid for as long as `mapping` exists.
    ///
    /// # Errors
    /// An error of the driver, if it does not accept such memory.
    pub unsafe fn register(&self, start: NonNull<u8>, len: usize, mapping: Mapping) -> Result<Registered, DeviceError> {
        let (context, from) = (self.context(), start.as_ptr().cast());
        let _entered = context.enter()?;
        // A process can register a range only once, so this registration is for all contexts.
        // SAFETY: the mapping keeps the bytes where they are.
        let registered = unsafe { driver::cuMemHostRegister_v2(from, len, CU_MEMHOSTREGISTER_PORTABLE) };
        context.check("cuMemHostRegister_v2", registered)?;
        Ok(Registered { context: context.clone(), start, mapping: Some(mapping) })
    }
}

impl Drop for Registered {
    /// Unregisters the memory. If the driver refuses, for example because the context is lost, the bytes stay mapped
    /// for good: otherwise other devices would copy to the old pages instead of whatever is mapped there later.
    fn drop(&mut self) {
        // SAFETY: registered with this, and taken back only here.
        let unregister = || unsafe { driver::cuMemHostUnregister(self.start.as_ptr().cast()) };
        if !self.context.give_back("cuMemHostUnregister", unregister) {
            mem::forget(self.mapping.take());
        }
    }
}
