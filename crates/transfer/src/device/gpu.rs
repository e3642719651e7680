//! A GPU with the kernel loaded.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUfunction, CUmodule};

use super::context::Context;
use super::driver;
use super::error::DeviceError;
use super::launch::Launch;
use super::resources::Stream;
use super::staging::Staging;

/// `cuda/walk.cu`, compiled for a virtual GPU; the driver compiles that for the real one, once, and keeps the result.
const KERNEL: &CStr = match CStr::from_bytes_with_nul(
    concat!(include_str!("../../../../cuda/walk.ptx"), "\0").as_bytes(),
) {
    Ok(text) => text,
    Err(_) => panic!("a zero byte in cuda/walk.ptx"),
};

/// Its entries, for units of 1, 2, 4, 8 and 16 bytes.
const ENTRIES: [&CStr; 5] = [c"walk_1", c"walk_2", c"walk_4", c"walk_8", c"walk_16"];

/// Threads of a block, as many as there can be.
const BLOCK: u32 = 1024;

/// Units that a thread has on their way at a time: `AHEAD` in `cuda/walk.cu`.
const AHEAD: u32 = 4;

/// How many multiprocessors may work for a transfer by default: enough to be faster than the bus, and few enough for the
/// engine not to notice.
pub const DEFAULT_MULTIPROCESSORS: u32 = 16;

/// One GPU of this process. Clones are the same.
///
/// It uses the context that the engine uses (the *primary* one), with streams of its own, and never waits for the
/// engine's work.
#[derive(Clone, Debug)]
pub struct Gpu {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    staging: Mutex<Option<Staging>>,
    stream: Stream,
    kernels: [CUfunction; ENTRIES.len()],
    module: CUmodule,
    name: String,
    context: Arc<Context>,
}

// SAFETY: the driver's handles are numbers that any thread may use.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Gpu {
    /// The device that the driver counts so, from 0, among those that `CUDA_VISIBLE_DEVICES` leaves.
    ///
    /// The first call on a machine compiles the kernel for this kind of GPU.
    ///
    /// # Errors
    /// [`NoCuda`](super::NoCuda), [`DeviceError::NoDevice`], or what the driver says.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        let context = Context::open(ordinal)?;
        let stream = Stream::new(&context)?;
        let entered = context.enter()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the text ends with a zero.
        let loaded = unsafe { driver::cuModuleLoadData(&mut module, KERNEL.as_ptr().cast()) };
        context.check("cuModuleLoadData", loaded)?;
        drop(entered);
        let mut shared = Shared {
            staging: Mutex::new(None),
            stream,
            kernels: [std::ptr::null_mut(); ENTRIES.len()],
            module,
            name: context.name()?,
            context,
        };
        shared.find_entries()?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The number that the driver gives it in this process.
    pub fn ordinal(&self) -> u32 {
        self.shared.context.ordinal()
    }

    /// What its maker calls it.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.shared.stream
    }

    /// The buffers for copies between the device and the host, which are made when they are first needed.
    pub(super) fn staging(&self) -> MutexGuard<'_, Option<Staging>> {
        // What a panic left behind is only buffers.
        self.shared
            .staging
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits launches to the stream; `multiprocessors` bounds how many of the GPU's work for them.
    pub(super) fn launch(
        &self,
        launches: &[Launch],
        multiprocessors: Option<u32>,
    ) -> Result<(), DeviceError> {
        let context = self.context();
        let _entered = context.enter()?;
        for launch in launches {
            let kernel = self.shared.kernels[launch.unit.trailing_zeros() as usize];
            let wanted = launch.units().div_ceil(BLOCK * AHEAD);
            let blocks = wanted.min(multiprocessors.unwrap_or(u32::MAX));
            let mut parameters = launch.parameters;
            let mut arguments = [(&raw mut parameters).cast()];
            // SAFETY: the kernel takes one argument of this type, which is copied before this returns. What it touches was checked,
            // and is kept until the stream was waited for.
            let launched = unsafe {
                let stream = self.shared.stream.raw;
                driver::cuLaunchKernel(
                    kernel,
                    blocks,
                    1,
                    1,
                    BLOCK,
                    1,
                    1,
                    0,
                    stream,
                    arguments.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            context.check("cuLaunchKernel", launched)?;
        }
        Ok(())
    }
}

impl Shared {
    fn find_entries(&mut self) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        for (kernel, name) in self.kernels.iter_mut().zip(ENTRIES) {
            // SAFETY: the handle goes into a field, the name ends with a zero.
            let found = unsafe { driver::cuModuleGetFunction(kernel, self.module, name.as_ptr()) };
            self.context.check("cuModuleGetFunction", found)?;
        }
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: loaded once, and no launch is under way: each was waited for.
            let _ = unsafe { driver::cuModuleUnload(self.module) };
        }
    }
}
