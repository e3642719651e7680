//! The kernels, loaded on one device.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;
use std::{mem, ptr};

use bytemuck::Zeroable;

use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::launch::{ENTRIES, Launch};
use crate::resources::Stream;
use crate::sum::{self, Fold};
use crate::sys::{CUfunction, CUmodule};

/// `cuda/walk.cu` and `cuda/crc32c.cu`, compiled for a virtual GPU. The driver compiles them for the real GPU once, and
/// caches the result.
pub(crate) const TEXTS: [&CStr; 2] = [
    ptx(concat!(include_str!("../ptx/walk.ptx"), "\0").as_bytes()),
    ptx(concat!(include_str!("../ptx/crc32c.ptx"), "\0").as_bytes()),
];

const fn ptx(text: &'static [u8]) -> &'static CStr {
    match CStr::from_bytes_with_nul(text) {
        Ok(text) => text,
        Err(_) => panic!("a zero byte in PTX"),
    }
}

/// Threads of a block of `cuda/walk.cu`, its launch bound: few, so that a block fits next to an engine's kernels.
const BLOCK: u32 = 256;

/// Blocks per multiprocessor: half of what fits there. An idle GPU spreads them over more multiprocessors.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

#[derive(Debug)]
pub(crate) struct Kernels {
    context: Arc<Context>,
    modules: Vec<CUmodule>,
    walk: [CUfunction; ENTRIES.len()],
    fold: CUfunction,
}

// SAFETY: the driver's handles are numbers that any thread may use.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Makes the driver compile [both texts](TEXTS) or take them from its cache. Each entry is then launched once with
    /// nothing to do: a driver may load an entry only at its first launch, and that must not delay a transfer.
    pub(crate) fn load(
        context: &Arc<Context>,
        [walk, sum]: [&CStr; 2],
        stream: &Stream,
        within: Duration,
    ) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let mut kernels = Self {
            context: context.clone(),
            modules: Vec::new(),
            walk: [ptr::null_mut(); ENTRIES.len()],
            fold: ptr::null_mut(),
        };
        let walk = kernels.load_module(walk)?;
        for (number, name) in ENTRIES.into_iter().enumerate() {
            kernels.walk[number] = kernels.entry(walk, name)?;
        }
        let sum = kernels.load_module(sum)?;
        kernels.fold = kernels.entry(sum, c"fold")?;
        let nothing: [_; ENTRIES.len()] = std::array::from_fn(Launch::nothing);
        let launch_all = |kernels: &Self| {
            kernels.launch(stream, &nothing, None)?;
            kernels.fold(stream, Fold::zeroed(), sum::BLOCK)
        };
        stream.run(within, kernels, launch_all, |_, kernels| mem::forget(kernels))
    }

    fn load_module(&mut self, text: &CStr) -> Result<CUmodule, DeviceError> {
        let mut module = ptr::null_mut();
        // SAFETY: the text ends with a zero.
        let loaded = unsafe { driver::cuModuleLoadData(&mut module, text.as_ptr().cast()) };
        self.context.check("cuModuleLoadData", loaded)?;
        self.modules.push(module);
        Ok(module)
    }

    fn entry(&self, module: CUmodule, name: &CStr) -> Result<CUfunction, DeviceError> {
        let mut entry = ptr::null_mut();
        // SAFETY: the handle goes into a local variable, the name ends with a zero.
        let status = unsafe { driver::cuModuleGetFunction(&mut entry, module, name.as_ptr()) };
        self.context.check("cuModuleGetFunction", status)?;
        Ok(entry)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Submits launches to a stream. `multiprocessors` limits how many multiprocessors work for each launch.
    pub(crate) fn launch(
        &self,
        stream: &Stream,
        launches: &[Launch],
        multiprocessors: Option<u32>,
    ) -> Result<(), DeviceError> {
        for launch in launches {
            let entry = self.walk[launch.entry];
            let most = multiprocessors.map_or(u32::MAX, |count| count * BLOCKS_PER_MULTIPROCESSOR);
            let blocks = launch.threads().div_ceil(BLOCK).min(most);
            // SAFETY: the kernel takes one argument of this type. The memory that it accesses was checked, and is kept
            // until all of this is done.
            unsafe { self.start(stream, entry, blocks, BLOCK, launch.parameters)? };
        }
        Ok(())
    }

    /// Submits the folding of a text by that many threads. The caller keeps both texts until it is done.
    pub(crate) fn fold(&self, stream: &Stream, fold: Fold, threads: u32) -> Result<(), DeviceError> {
        let blocks = threads / sum::BLOCK;
        // SAFETY: as above.
        unsafe { self.start(stream, self.fold, blocks, sum::BLOCK, fold) }
    }

    /// # Safety
    /// The kernel takes one argument of type `P`. The memory that it accesses is valid, and kept until it is done.
    unsafe fn start<P: Copy>(
        &self,
        stream: &Stream,
        entry: CUfunction,
        blocks: u32,
        block: u32,
        mut parameters: P,
    ) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        let mut arguments = [(&raw mut parameters).cast()];
        let (grid, block, extra) = ((blocks, 1, 1), (block, 1, 1), ptr::null_mut());
        // SAFETY: the caller vouches for the argument and the memory; the argument is copied before this returns.
        let launched = unsafe {
            driver::cuLaunchKernel(
                entry,
                grid.0,
                grid.1,
                grid.2,
                block.0,
                block.1,
                block.2,
                0,
                stream.raw,
                arguments.as_mut_ptr(),
                extra,
            )
        };
        self.context.check("cuLaunchKernel", launched)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        for module in &self.modules {
            // SAFETY: loaded once, and no launch is under way: each was waited for.
            let unload = || unsafe { driver::cuModuleUnload(*module) };
            self.context.give_back("cuModuleUnload", unload);
        }
    }
}
