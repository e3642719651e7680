//! Resources of a context, which are freed when they are dropped.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::context::{Context, Entered, Unknown};
use crate::driver;
use crate::error::DeviceError;
use crate::sys::*;

/// The end of work is polled without a pause for this long, and then with [`PAUSE`] between polls.
const SPIN: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    pub(crate) raw: CUstream,
}

#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: CUevent,
    unknown: Mutex<Unknown>,
}

#[derive(Debug)]
pub(crate) struct Buffer {
    context: Arc<Context>,
    pub(crate) address: CUdeviceptr,
    pub(crate) len: usize,
}

#[derive(Debug)]
pub(crate) struct Pinned {
    context: Arc<Context>,
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: the driver's handles and addresses are numbers that any thread may use.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}
// SAFETY: as above.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}
// SAFETY: as above; the bytes are reached through pointers only.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Stream {
    /// Makes a stream that does not wait for the engine's default stream. Its kernels run before those that the engine
    /// has launched but the GPU has not begun: they are short, and would otherwise wait for a whole step of the engine.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the numbers go into local variables.
        context.check("cuCtxGetStreamPriorityRange", unsafe {
            driver::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        Self::of_priority(context, greatest)
    }

    /// Makes a stream of normal priority, for kernels that use all multiprocessors, so that an engine's kernels do not
    /// wait for them.
    pub(crate) fn normal(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Self::of_priority(context, 0)
    }

    fn of_priority(context: &Arc<Context>, priority: i32) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let (mut raw, flags) = (std::ptr::null_mut(), CU_STREAM_NON_BLOCKING);
        // SAFETY: the handle goes into a local variable.
        context.check("cuStreamCreateWithPriority", unsafe {
            driver::cuStreamCreateWithPriority(&mut raw, flags, priority)
        })?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Submits work and waits until it is done, for `within` at most. `used` is what the work accesses; it is returned
    /// when the work is done, and dropped if the device is lost. If neither is known in time, `if_late` gets it, with
    /// an event behind the work if one could be recorded.
    pub(crate) fn run<U>(
        &self,
        within: Duration,
        used: U,
        submit: impl FnOnce(&U) -> Result<(), DeviceError>,
        if_late: impl FnOnce(Option<Event>, U),
    ) -> Result<U, DeviceError> {
        let event = Event::new(&self.context)?;
        let submitted = submit(&used);
        let (begun, mut recorded) = (Instant::now(), false);
        loop {
            match self.has_come_to(&event, &mut recorded) {
                Ok(true) => return submitted.map(|()| used),
                Err(lost @ DeviceError::Lost { .. }) => return Err(lost),
                // Other failures are retried: without an answer it is unknown what is still accessed.
                Ok(false) | Err(_) => {}
            }
            match begun.elapsed() {
                waited if waited > within => {
                    if_late(recorded.then_some(event), used);
                    return Err(self.context.stalled(within));
                }
                waited if waited < SPIN => thread::yield_now(),
                _ => thread::sleep(PAUSE),
            }
        }
    }

    pub(crate) fn finish(&self, within: Duration) -> Result<(), DeviceError> {
        self.run(within, (), |()| Ok(()), |_, ()| {})
    }

    /// Records the event unless it is `recorded`, and returns whether the work before it is done.
    fn has_come_to(&self, event: &Event, recorded: &mut bool) -> Result<bool, DeviceError> {
        let entered = self.context.enter()?;
        if !*recorded {
            event.record(self)?;
            *recorded = true;
        }
        event.is_done(&entered)
    }

    /// Makes later work of this stream wait for an event, which may be another device's. An event that was never
    /// recorded holds up nothing.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: both are there for as long as these are; the only flag is 0.
        self.context.check("cuStreamWaitEvent", unsafe { driver::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }
}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Self::with(context, CU_EVENT_DISABLE_TIMING)
    }

    /// Makes an event for [`wait`](Self::wait): the driver then blocks the thread (`CU_EVENT_BLOCKING_SYNC`) and does
    /// not spin.
    pub(crate) fn awaited(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Self::with(context, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)
    }

    pub(crate) fn timed(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Self::with(context, CU_EVENT_DEFAULT)
    }

    fn with(context: &Arc<Context>, flags: u32) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle goes into a local variable.
        context.check("cuEventCreate", unsafe { driver::cuEventCreate(&mut raw, flags) })?;
        Ok(Self { context: context.clone(), raw, unknown: Mutex::default() })
    }

    pub(crate) fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: the stream is there, and of the context of all that the crate makes for this GPU.
        unsafe { self.record_raw(stream.raw) }
    }

    /// # Safety
    /// The stream exists, and belongs to this context.
    pub(crate) unsafe fn record_raw(&self, stream: CUstream) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: the event is there for as long as this is, the stream by the caller's word.
        let recorded = unsafe { driver::cuEventRecord(self.raw, stream) };
        self.check("cuEventRecord", recorded).map(drop)
    }

    /// Returns the time the GPU took between this event and `later`. Both are [timed](Self::timed).
    pub(crate) fn elapsed(&self, later: &Self) -> Result<Duration, DeviceError> {
        let _entered = self.context.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: both are there; the number goes into a local variable.
        self.context.check("cuEventElapsedTime", unsafe {
            driver::cuEventElapsedTime(&mut milliseconds, self.raw, later.raw)
        })?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }

    /// Returns whether its stream has reached the event. The caller enters the context, since this is called often.
    pub(crate) fn is_done(&self, _: &Entered<'_>) -> Result<bool, DeviceError> {
        // SAFETY: the event is there for as long as this is.
        let asked = unsafe { driver::cuEventQuery(self.raw) };
        self.check("cuEventQuery", asked)
    }

    /// Blocks this thread until the stream reaches the event. Returns `false` if the driver did not wait.
    pub(crate) fn wait(&self) -> Result<bool, DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: as above.
        let waited = unsafe { driver::cuEventSynchronize(self.raw) };
        self.check("cuEventSynchronize", waited)
    }

    fn check(&self, call: &'static str, result: CUresult) -> Result<bool, DeviceError> {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        self.context.check_event(call, result, &mut unknown)
    }
}

impl Buffer {
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Self, DeviceError> {
        let mut address = 0;
        if len > 0 {
            let _entered = context.enter()?;
            // SAFETY: the address goes into a local variable.
            context.check("cuMemAlloc_v2", unsafe { driver::cuMemAlloc_v2(&mut address, len) })?;
        }
        Ok(Self { context: context.clone(), address, len })
    }
}

impl Pinned {
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the address goes into a local variable. No flag: write-combined memory would be slow to read.
        context.check("cuMemHostAlloc", unsafe { driver::cuMemHostAlloc(&mut start, len, 0) })?;
        let start: NonNull<u8> = NonNull::new(start.cast()).unwrap_or(NonNull::dangling());
        // SAFETY: that many bytes were just allocated.
        unsafe { start.write_bytes(0, len) };
        Ok(Self { context: context.clone(), start, len })
    }
}

macro_rules! given_back {
    ($resource:ty, $give_back:ident, $this:ident => $handle:expr) => {
        impl Drop for $resource {
            fn drop(&mut self) {
                let $this = self;
                // SAFETY: made with this, and given back only here.
                let give_back = || unsafe { driver::$give_back($handle) };
                $this.context.give_back(stringify!($give_back), give_back);
            }
        }
    };
}

given_back!(Stream, cuStreamDestroy_v2, it => it.raw);
given_back!(Event, cuEventDestroy_v2, it => it.raw);
given_back!(Buffer, cuMemFree_v2, it => it.address);
given_back!(Pinned, cuMemFreeHost, it => it.start.as_ptr().cast());
