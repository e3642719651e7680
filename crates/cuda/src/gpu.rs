//! A GPU with the kernels loaded.

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

/// `cuda/walk.cu` and `cuda/crc32c.cu`, compiled for a virtual GPU; the driver compiles that for the real one, once, and
/// keeps the result.
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

/// Threads of a block of `cuda/walk.cu`, its launch bound: few, so that one fits beside an engine's kernels.
const BLOCK: u32 = 256;

/// Blocks for each multiprocessor that is to work: half of what fits there. An idle GPU spreads them over more.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

/// How many multiprocessors work at a time for what crosses the bus: enough to be faster than the bus, and few enough for the
/// engine not to notice.
pub const DEFAULT_MULTIPROCESSORS: u32 = 16;

/// Settings of a [`Gpu`]. `Default` is right for most.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// How long may take what is waited for at once: a [`copy`](super::copy()), a table that is uploaded, or the end of a GPU that is
    /// dropped (30 s). The compilation of an engine's kernels or a debugger can hold a device for a while. Transfers of an agent have a setting of
    /// their own, `device_stall` of `transload-wire`.
    pub stall: Duration,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self { stall: Duration::from_secs(30) }
    }
}

/// One GPU of this process. Clones are the same.
///
/// It uses the context that the engine uses (the *primary* one), with streams of its own, and never waits for the
/// engine's work. While it is open it keeps 32 MiB of device memory and 32 MiB of pinned memory, which bytes go through on
/// their way over the bus, and 4 MiB of device memory or more for tables.
///
/// When the last clone is dropped, its threads end and all is given back to the driver. That waits for what was submitted to the device,
/// since the driver does, but for [`GpuOptions::stall`] at most; the rest is done in the background, once the device goes on. It waits for
/// no mark that its stream has not come to: whoever waits for such a mark is told later, or never. Where the last clone is dropped by one
/// of the GPU's threads, as in [`Mark::when_done`](super::Mark::when_done), it waits for nothing.
#[derive(Clone, Debug)]
pub struct Gpu {
    shared: Arc<Shared>,
}

/// A GPU that is closed when the last clone is dropped.
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
    /// Has a clone for each ring that was made here.
    rings: Arc<()>,
}

impl Gpu {
    /// The device that the driver counts so, from 0, among those that `CUDA_VISIBLE_DEVICES` leaves.
    ///
    /// The first call on a machine has the driver compile the kernel for its kind of GPU, which takes a moment.
    ///
    /// # Errors
    /// [`NoCuda`](super::NoCuda), [`DeviceError::NoDevice`], or what the driver says.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        Self::open_with(ordinal, &GpuOptions::default())
    }

    /// The same, with other settings.
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

    /// The ordinal of the device whose context is current in this thread, if any: whose default stream an engine means here.
    ///
    /// # Errors
    /// [`NoCuda`](super::NoCuda), or what the driver says.
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

    /// The number that the driver gives it in this process.
    pub fn ordinal(&self) -> u32 {
        self.context().ordinal()
    }

    /// What its maker calls it.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Turns true when it is lost, for good.
    #[doc(hidden)]
    pub fn lost(&self) -> watch::Receiver<bool> {
        self.context().lost()
    }

    /// Which GPU it is, whatever number this process gives it.
    #[doc(hidden)]
    pub fn uuid(&self) -> Result<[u8; 16], DeviceError> {
        super::shared::uuid(self.context())
    }

    /// The other GPUs of this process whose memory its kernels reach, over NVLink or the bus.
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

    /// Who waits for marks.
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.shared.waiters
    }

    /// What copies to other GPUs go through.
    pub(crate) fn peers(&self) -> &Peers {
        &self.shared.peers
    }

    /// What a ring on this GPU has a clone of.
    pub(crate) fn rings(&self) -> Arc<()> {
        self.shared.rings.clone()
    }

    /// Proves that there are fewer rings than the most.
    pub(crate) fn check_rings(&self, most: usize) -> Result<(), DeviceError> {
        let ordinal = self.ordinal();
        match Arc::strong_count(&self.shared.rings) <= most {
            true => Ok(()),
            false => Err(DeviceError::TooManyRings { ordinal, most }),
        }
    }

    /// How long may take what is waited for at once.
    pub(crate) fn stall(&self) -> Duration {
        self.shared.stall
    }

    /// The stream of copies within it.
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
        // Without a thread it is closed here, as the closure goes; a thread of its own does not wait for its own end.
        if thread::Builder::new().spawn(close).is_ok() && !threads::is_ours() {
            let _ = end.recv_timeout(stall);
        }
    }
}

/// The kernels, on one device.
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
    /// Has the driver compile [both texts](TEXTS), or find what it has made of them before. Each entry is launched once, to do nothing:
    /// a driver may load one only then, which had better not be while somebody waits for bytes.
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
        let found = unsafe { driver::cuModuleGetFunction(&mut entry, module, name.as_ptr()) };
        self.context.check("cuModuleGetFunction", found)?;
        Ok(entry)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Submits launches to a stream; `multiprocessors` bounds how many of the GPU's work for each.
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
            // SAFETY: the kernel takes one argument of this type. What it touches was checked, and is kept until all of this is
            // done.
            unsafe { self.start(stream, entry, blocks, BLOCK, launch.parameters)? };
        }
        Ok(())
    }

    /// Submits the folding of a text, by so many threads. Whoever does keeps both texts until it is done.
    pub(crate) fn fold(&self, stream: &Stream, fold: Fold, threads: u32) -> Result<(), DeviceError> {
        let blocks = threads / sum::BLOCK;
        // SAFETY: as above.
        unsafe { self.start(stream, self.fold, blocks, sum::BLOCK, fold) }
    }

    /// Submits one kernel.
    ///
    /// # Safety
    /// It takes one argument of this type. What it touches is there, and kept until it is done.
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
        // SAFETY: the caller's word; the argument is copied before this returns.
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
