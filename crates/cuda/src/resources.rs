//! What a context owns: each is given back when it is dropped.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::context::{Context, Entered, Unknown};
use crate::driver;
use crate::error::DeviceError;
use crate::sys::*;

/// For how long it is asked without a pause whether something is done, and the pause after that.
const SPIN: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(50);

/// A queue of operations that are done in order.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    pub(crate) raw: CUstream,
}

/// A place in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: CUevent,
    /// See [`Context::check_event`].
    unknown: Mutex<Unknown>,
}

/// Memory of the device.
#[derive(Debug)]
pub(crate) struct Buffer {
    context: Arc<Context>,
    pub(crate) address: CUdeviceptr,
    pub(crate) len: usize,
}

/// Memory of the host that copy engines reach.
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
    /// A stream that does not wait for the engine's default stream. Its kernels come before those that the engine has launched but
    /// the GPU has not begun: they are short, and would wait for a whole step otherwise.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the numbers go into local variables.
        context.check("cuCtxGetStreamPriorityRange", unsafe {
            driver::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        Self::of_priority(context, greatest)
    }

    /// A stream of the normal priority, for kernels that take all multiprocessors: those of an engine are not to wait for them.
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

    /// Has something submitted, and waits until it is done, at most for so long. `used` is what it touches: that is given back
    /// when it is done or the device is lost. Where neither is known in time, it goes to `late`, with an event behind it.
    pub(crate) fn run<U>(
        &self,
        within: Duration,
        used: U,
        submit: impl FnOnce(&U) -> Result<(), DeviceError>,
        late: impl FnOnce(Option<Event>, U),
    ) -> Result<U, DeviceError> {
        let event = Event::new(&self.context)?;
        let submitted = submit(&used);
        let (begun, mut recorded) = (Instant::now(), false);
        loop {
            match self.has_come_to(&event, &mut recorded) {
                Ok(true) => return submitted.map(|()| used),
                Err(lost @ DeviceError::Lost { .. }) => return Err(lost),
                // A call that failed for another reason is tried again: without an answer, nobody knows what is still touched.
                Ok(false) | Err(_) => {}
            }
            match begun.elapsed() {
                waited if waited > within => {
                    late(recorded.then_some(event), used);
                    return Err(self.context.stalled(within));
                }
                waited if waited < SPIN => thread::yield_now(),
                _ => thread::sleep(PAUSE),
            }
        }
    }

    /// Waits until all that it was given until now is done, at most for so long.
    pub(crate) fn finish(&self, within: Duration) -> Result<(), DeviceError> {
        self.run(within, (), |()| Ok(()), |_, ()| {})
    }

    /// Whether all that it was given until the event was recorded is done; records it first.
    fn has_come_to(&self, event: &Event, recorded: &mut bool) -> Result<bool, DeviceError> {
        let entered = self.context.enter()?;
        if !*recorded {
            event.record(self)?;
            *recorded = true;
        }
        event.is_done(&entered)
    }

    /// Has what is submitted from now on wait for an event, also one of another device. It waits for nothing where that was never recorded.
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

    /// Makes an event for [`wait`](Self::wait): the driver then blocks the thread (`CU_EVENT_BLOCKING_SYNC`) instead of spinning.
    pub(crate) fn awaited(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Self::with(context, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)
    }

    /// One that tells when it was come to.
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

    /// Moves it behind all that the stream was given until now.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: the stream is there, and of the context of all that the crate makes for this GPU.
        unsafe { self.record_raw(stream.raw) }
    }

    /// Moves it behind all that a stream of somebody else was given until now.
    ///
    /// # Safety
    /// The stream is there, and one of this context.
    pub(crate) unsafe fn record_raw(&self, stream: CUstream) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: the event is there for as long as this is, the stream by the caller's word.
        let recorded = unsafe { driver::cuEventRecord(self.raw, stream) };
        self.check("cuEventRecord", recorded).map(drop)
    }

    /// How much later than this another one was come to. Both are [timed](Self::timed).
    pub(crate) fn elapsed(&self, later: &Self) -> Result<Duration, DeviceError> {
        let _entered = self.context.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: both are there; the number goes into a local variable.
        self.context.check("cuEventElapsedTime", unsafe {
            driver::cuEventElapsedTime(&mut milliseconds, self.raw, later.raw)
        })?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }

    /// Tells whether its stream has come to it. Its context is entered already: this is asked often.
    pub(crate) fn is_done(&self, _: &Entered<'_>) -> Result<bool, DeviceError> {
        // SAFETY: the event is there for as long as this is.
        let asked = unsafe { driver::cuEventQuery(self.raw) };
        self.check("cuEventQuery", asked)
    }

    /// Has this thread sleep until its stream has come to it, and tells whether it has.
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

/// Gives a resource back in its context when it is dropped.
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
