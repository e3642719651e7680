//! A GPU with the kernels loaded on it.

use std::ffi::CStr;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{ptr, thread};

use bytemuck::Zeroable;
use tokio::sync::watch;

use crate::arena::Arena;
use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::launch::{ENTRIES, Launch};
use crate::peer::Peers;
use crate::queue::Queue;
use crate::resources::Stream;
use crate::sum::{self, Fold};
use crate::sys::{CUfunction, CUmodule, CUresult};
use crate::threads;
use crate::waiter::Waiters;

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

/// The number of multiprocessors that work at a time for bytes that cross the bus: enough to be faster than the bus,
/// and few enough for the engine not to notice.
pub const DEFAULT_MULTIPROCESSORS: u32 = 16;

/// Settings of a [`Gpu`]. The default suits most programs.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// The longest time to wait for a [`copy`](super::copy()), for the upload of a table, or for a dropped GPU to
    /// finish. The default is 30 s, since compiling an engine's kernels, or a debugger, can hold a device for a while.
    /// Transfers of an agent have their own setting, `device_stall` of `transload-wire`.
    pub stall: Duration,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self { stall: Duration::from_secs(30) }
    }
}

/// A GPU of this process. Clones refer to the same one.
///
/// It uses the *primary* context, which the engine uses too, with streams of its own, and never waits for the engine's
/// work. While it is open it keeps 32 MiB of device memory and 32 MiB of pinned memory, through which bytes cross the
/// bus, and at least 4 MiB of device memory for tables.
///
/// When the last clone is dropped, its threads end and all memory is returned to the driver. The driver waits for
/// everything that was submitted to the device, so the drop waits too, for [`GpuOptions::stall`] at most; a background
/// thread does the rest. It does not wait for marks that their streams have not reached: callbacks of such marks run
/// later, or never. If one of the GPU's threads drops the last clone, as in
/// [`Mark::when_done`](super::Mark::when_done), it waits for nothing.
#[derive(Clone, Debug)]
pub struct Gpu {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared(ManuallyDrop<Open>);

#[derive(Debug)]
struct Open {
    waiters: Waiters,
    queue: Queue,
    arena: Arc<Arena>,
    stream: Stream,
    peers: Peers,
    kernels: Arc<Kernels>,
    name: String,
    stall: Duration,
    /// Has one clone for each ring that was made on this GPU.
    rings: Arc<()>,
}

impl Gpu {
    /// Opens the device with this ordinal, counted from 0 among those that `CUDA_VISIBLE_DEVICES` leaves.
    ///
    /// On the first call on a machine the driver compiles the kernels for its kind of GPU, which takes a moment.
    ///
    /// # Errors
    /// [`NoCuda`](super::NoCuda), [`DeviceError::NoDevice`], or an error of the driver.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        Self::open_with(ordinal, &GpuOptions::default())
    }

    /// Opens a device as [`open`](Self::open) does, with other settings.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(ordinal: u32, options: &GpuOptions) -> Result<Self, DeviceError> {
        let stall = options.stall;
        let context = Context::open(ordinal)?;
        let stream = Stream::normal(&context)?;
        let kernels = Arc::new(Kernels::load(&context, TEXTS, &stream, stall)?);
        let waiters = Waiters::new(&context);
        let open = Open {
            queue: Queue::start(&kernels, waiters.pending())?,
            waiters,
            arena: Arena::new(&context, stall)?,
            stream,
            peers: Peers::default(),
            name: context.name()?,
            stall,
            rings: Arc::default(),
            kernels,
        };
        Ok(Self { shared: Arc::new(Shared(ManuallyDrop::new(open))) })
    }

    /// Returns the ordinal of the device whose context is current in this thread, if there is one. An engine's default
    /// stream belongs to that context.
    ///
    /// # Errors
    /// [`NoCuda`](super::NoCuda), or an error of the driver.
    pub fn current_ordinal() -> Result<Option<u32>, DeviceError> {
        driver::available()?;
        let mut device = 0;
        // SAFETY: the number goes into a local variable.
        match unsafe { driver::cuCtxGetDevice(&mut device) } {
            CUresult::INVALID_CONTEXT => Ok(None),
            asked => {
                driver::check("cuCtxGetDevice", asked)?;
                Ok(Some(device.unsigned_abs()))
            }
        }
    }

    /// Returns the device's ordinal in this process.
    pub fn ordinal(&self) -> u32 {
        self.context().ordinal()
    }

    /// Returns the vendor's name of the device.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns a channel that becomes true, for good, when the device is lost.
    #[doc(hidden)]
    pub fn lost(&self) -> watch::Receiver<bool> {
        self.context().lost()
    }

    /// Returns the device's UUID, which is the same in every process, whatever ordinal the device has there.
    #[doc(hidden)]
    pub fn uuid(&self) -> Result<[u8; 16], DeviceError> {
        super::shared::uuid(self.context())
    }

    /// Returns the other GPUs of this process whose memory this one's kernels can access, over NVLink or the bus.
    #[doc(hidden)]
    pub fn reached(&self) -> Result<Vec<[u8; 16]>, DeviceError> {
        super::shared::reached(self.context())
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.shared.kernels.context()
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.shared.kernels
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.shared.arena
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.shared.queue
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.shared.waiters
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.shared.peers
    }

    /// Returns a clone that the owner of a new ring on this GPU keeps, so that rings are counted.
    pub(crate) fn rings(&self) -> Arc<()> {
        self.shared.rings.clone()
    }

    pub(crate) fn check_rings(&self, most: usize) -> Result<(), DeviceError> {
        let ordinal = self.ordinal();
        match Arc::strong_count(&self.shared.rings) <= most {
            true => Ok(()),
            false => Err(DeviceError::TooManyRings { ordinal, most }),
        }
    }

    pub(crate) fn stall(&self) -> Duration {
        self.shared.stall
    }

    /// Returns the stream of copies within this GPU.
    pub(crate) fn stream(&self) -> &Stream {
        &self.shared.stream
    }
}

impl Deref for Shared {
    type Target = Open;

    fn deref(&self) -> &Open {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Threads and handles are those of the process that opened it.
        if self.kernels.context().check_process().is_err() {
            return;
        }
        let stall = self.stall;
        // SAFETY: taken once, since this is dropped.
        let open = unsafe { ManuallyDrop::take(&mut self.0) };
        let (ended, end) = mpsc::channel::<()>();
        let close = move || {
            drop(open);
            drop(ended);
        };
        // If no thread can be started, the GPU is closed here, when the closure is dropped. One of the GPU's own
        // threads must not wait, since closing waits for that thread.
        if thread::Builder::new().spawn(close).is_ok() && !threads::is_ours() {
            let _ = end.recv_timeout(stall);
        }
    }
}

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
    /// Has the driver compile [both texts](TEXTS), or take them from its cache. Each entry is then launched once with
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
