//! The context of one device, which the engine of the process uses too.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::driver::{self, check};
use crate::error::{CallError, DeviceError};
use crate::sys::{CU_STREAM_CAPTURE_MODE_RELAXED, CUcontext, CUdevice, CUresult};

/// For how long the driver says of one event that something unknown is wrong, before the device counts as lost.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);

/// The primary context of a device, kept for as long as this is.
#[derive(Debug)]
pub(crate) struct Context {
    ordinal: u32,
    device: CUdevice,
    context: CUcontext,
    /// The process that opened it.
    process: u32,
    /// The first error that nothing in it survives.
    lost: OnceLock<CallError>,
    /// Turns true when `lost` is set.
    told: watch::Sender<bool>,
}

// SAFETY: a context may be used from any thread; each makes it its current one first.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of a device that the driver counts from 0, as `CUDA_VISIBLE_DEVICES` leaves them.
    pub(crate) fn open(ordinal: u32) -> Result<Arc<Self>, DeviceError> {
        driver::available()?;
        let mut devices = 0;
        // SAFETY: the number goes into a local variable, here and below.
        check("cuDeviceGetCount", unsafe { driver::cuDeviceGetCount(&mut devices) })?;
        let devices = devices.unsigned_abs();
        if ordinal >= devices {
            return Err(DeviceError::NoDevice { ordinal, devices });
        }
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: as above.
        check("cuDeviceGet", unsafe { driver::cuDeviceGet(&mut device, ordinal as i32) })?;
        // SAFETY: as above; it is released when this is dropped.
        let retained = unsafe { driver::cuDevicePrimaryCtxRetain(&mut context, device) };
        check("cuDevicePrimaryCtxRetain", retained)?;
        Ok(Arc::new(Self {
            ordinal,
            device,
            context,
            process: std::process::id(),
            lost: OnceLock::new(),
            told: watch::Sender::new(false),
        }))
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The driver's handle, for calls that name two contexts.
    pub(crate) fn raw(&self) -> CUcontext {
        self.context
    }

    /// The name of the device.
    pub(crate) fn name(&self) -> Result<String, DeviceError> {
        let mut name = [0; 128];
        // SAFETY: the driver writes no more than it is told there is room for, and a zero at the end.
        let named = unsafe { driver::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, self.device) };
        self.check("cuDeviceGetName", named)?;
        let name: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    /// Makes it the current context of this thread until what it gives is dropped, and lets no call void a graph that the
    /// engine captures meanwhile on another thread. Where it is entered already, the driver is asked for nothing more: who has several
    /// calls enters once for all.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        self.check_process()?;
        self.check_lost()?;
        let outer = INNERMOST.get();
        if outer != self.context {
            // SAFETY: the context is kept by `self`.
            self.check("cuCtxPushCurrent_v2", unsafe { driver::cuCtxPushCurrent_v2(self.context) })?;
            INNERMOST.set(self.context);
        }
        let mut entered = Entered { _thread: PhantomData, context: self, outer, mode: CU_STREAM_CAPTURE_MODE_RELAXED };
        if !entered.is_nested() {
            entered.exchange_mode();
        }
        Ok(entered)
    }

    /// Has something given back in it, and says whether it was. Where the context is lost, all that is in it is lost with it, and nothing
    /// is given back.
    ///
    /// Only entering it is tried again: a call that gives something back may have done so although it failed. What it has not
    /// is there until the context goes.
    pub(crate) fn give_back(&self, call: &'static str, give_back: impl FnOnce() -> CUresult) -> bool {
        let entered = self.enter().or_else(|_| self.enter());
        entered.is_ok_and(|_entered| self.check(call, give_back()).is_ok())
    }

    /// A child that was forked off has the handles, but they are good for nothing there.
    pub(crate) fn check_process(&self) -> Result<(), DeviceError> {
        let ordinal = self.ordinal;
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(DeviceError::Forked { ordinal }),
        }
    }

    /// The error of a call, if it gave one. One that the context does not survive is the answer to all that follow.
    pub(crate) fn check(&self, call: &'static str, result: CUresult) -> Result<(), DeviceError> {
        match check(call, result) {
            Err(why) if why.is_sticky() => self.lose(why),
            checked => Ok(checked?),
        }
    }

    /// Tells whether a stream has come to an event, by the result of a call about that event. An unknown error that goes on is the end of
    /// the device, since otherwise the driver would be asked for ever.
    pub(crate) fn check_event(
        &self,
        call: &'static str,
        result: CUresult,
        unknown: &mut Unknown,
    ) -> Result<bool, DeviceError> {
        if result != CUresult::UNKNOWN {
            *unknown = Unknown::default();
        } else if unknown.goes_on(Instant::now()) {
            check(call, result).or_else(|why| self.lose(why))?;
        }
        match result {
            CUresult::NOT_READY => Ok(false),
            result => self.check(call, result).map(|()| true),
        }
    }

    fn lose(&self, why: CallError) -> Result<(), DeviceError> {
        if self.lost.set(why).is_ok() {
            self.told.send_replace(true);
        }
        self.check_lost()
    }

    /// Whether it can be used still. Where it cannot, the driver is asked for nothing any more: a call might never return.
    pub(crate) fn check_lost(&self) -> Result<(), DeviceError> {
        match self.lost.get() {
            None => Ok(()),
            Some(why) => Err(DeviceError::Lost { ordinal: self.ordinal, why: why.clone() }),
        }
    }

    /// What was submitted has no end in time.
    pub(crate) fn stalled(&self, within: Duration) -> DeviceError {
        let ordinal = self.ordinal;
        DeviceError::Stalled { ordinal, within }
    }

    /// Turns true when it is lost.
    pub(crate) fn lost(&self) -> watch::Receiver<bool> {
        self.told.subscribe()
    }
}

/// When the driver gave an unknown error for one event, and no other answer since: first, and last.
#[derive(Debug, Default)]
pub(crate) struct Unknown(Option<(Instant, Instant)>);

impl Unknown {
    /// Notes one more, and tells whether they go on. After a pause they begin anew: nobody knows what the driver would have said meanwhile.
    fn goes_on(&mut self, now: Instant) -> bool {
        let began = self.0.filter(|(_, last)| now - *last < 2 * UNKNOWN_FOR).map_or(now, |(began, _)| began);
        self.0 = Some((began, now));
        now - began >= UNKNOWN_FOR
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            // SAFETY: retained once when it was opened. An error says that the process is ending.
            let _ = unsafe { driver::cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }
}

thread_local! {
    /// The context that this thread has entered last and not left yet.
    static INNERMOST: Cell<CUcontext> = const { Cell::new(ptr::null_mut()) };
}

/// The context is this thread's current one for as long as this is there.
pub(crate) struct Entered<'a> {
    context: &'a Context,
    /// The context that the thread had entered before. If it is this one, dropping this leaves nothing.
    outer: CUcontext,
    mode: u32,
    /// It is left on the thread that has entered it.
    _thread: PhantomData<*const ()>,
}

impl Entered<'_> {
    fn is_nested(&self) -> bool {
        self.outer == self.context.context
    }

    fn exchange_mode(&mut self) {
        // SAFETY: the mode is this thread's, and goes back when the context is left.
        let exchanged = unsafe { driver::cuThreadExchangeStreamCaptureMode(&mut self.mode) };
        // With a mode from the list it fails only where the device is lost.
        let _ = self.context.check("cuThreadExchangeStreamCaptureMode", exchanged);
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.is_nested() {
            return;
        }
        self.exchange_mode();
        INNERMOST.set(self.outer);
        let mut context = ptr::null_mut();
        // SAFETY: pushed when it was entered, by this thread, since this is not `Send`.
        let popped = unsafe { driver::cuCtxPopCurrent_v2(&mut context) };
        // As above.
        let _ = self.context.check("cuCtxPopCurrent_v2", popped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_errors_go_on_unless_there_is_a_pause() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut unknown = Unknown::default();
        assert!(!unknown.goes_on(start) && !unknown.goes_on(after(999)) && unknown.goes_on(after(1000)));
        assert!(unknown.goes_on(after(2500)), "asked once a second or so");
        assert!(!unknown.goes_on(after(10_000)), "hours may lie between");
        assert!(unknown.goes_on(after(11_000)));
    }
}
