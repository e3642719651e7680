//! A GPU with the kernels loaded on it.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tokio::sync::watch;

use crate::arena::Arena;
use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::kernels::{Kernels, TEXTS};
use crate::queue::Queue;
use crate::resources::Stream;
use crate::slots::Peers;
use crate::sys::CUresult;
use crate::threads;
use crate::waiter::Waiters;

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
