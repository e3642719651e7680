//! The primary context of a device, which the engine in this process uses too.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::driver::{self, check};
use crate::error::{CallError, DeviceError};
use crate::sys::{CU_STREAM_CAPTURE_MODE_RELAXED, CUcontext, CUdevice, CUresult};

/// How long the driver may report an unknown error for one event before the device counts as lost.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);

/// The primary context of a device, retained until this is dropped.
#[derive(Debug)]
pub(crate) struct Context {
    ordinal: u32,
    device: CUdevice,
    context: CUcontext,
    /// The process that retained the context. A forked child cannot use it.
    process: u32,
    /// The first error after which nothing in the context works any more.
    lost: OnceLock<CallError>,
    lost_signal: watch::Sender<bool>,
}

// SAFETY: a context may be used from any thread; each makes it its current one first.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains a device's context. Ordinals count from 0 among the devices that `CUDA_VISIBLE_DEVICES` leaves.
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
            lost_signal: watch::Sender::new(false),
        }))
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub(crate) fn raw(&self) -> CUcontext {
        self.context
    }

    pub(crate) fn name(&self) -> Result<String, DeviceError> {
        let mut name = [0; 128];
        // SAFETY: the driver writes no more than it is told there is room for, and a zero at the end.
        let named = unsafe { driver::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, self.device) };
        self.check("cuDeviceGetName", named)?;
        let name: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    /// Makes this the thread's current context until the returned guard is dropped. The guard also sets the capture
    /// mode to relaxed, so that no call invalidates a graph that the engine captures on another thread meanwhile.
    ///
    /// Entering a context again costs no driver call, so a caller with several calls enters once around them all.
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

    /// Frees a resource in this context, and returns whether that succeeded. If the context is lost, its resources are
    /// lost with it, and nothing is freed.
    ///
    /// Only entering the context is retried: a call that frees a resource may have done so although it failed. What it
    /// did not free stays until the context is released.
    pub(crate) fn give_back(&self, call: &'static str, give_back: impl FnOnce() -> CUresult) -> bool {
        let entered = self.enter().or_else(|_| self.enter());
        entered.is_ok_and(|_entered| self.check(call, give_back()).is_ok())
    }

    /// Fails in a forked child: it has the handles, but the driver does not accept them there.
    pub(crate) fn check_process(&self) -> Result<(), DeviceError> {
        let ordinal = self.ordinal;
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(DeviceError::Forked { ordinal }),
        }
    }

    /// Turns a call's result into an error. After a sticky error the context is lost, and every later call returns that
    /// error.
    pub(crate) fn check(&self, call: &'static str, result: CUresult) -> Result<(), DeviceError> {
        match check(call, result) {
            Err(why) if why.is_sticky() => self.lose(why),
            checked => Ok(checked?),
        }
    }

    /// Returns whether a stream has reached an event, from the result of a call about that event. An unknown error that
    /// persists makes the device count as lost; otherwise the event would be polled for ever.
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
            self.lost_signal.send_replace(true);
        }
        self.check_lost()
    }

    /// Fails if the device is lost. Then the driver must not be called any more, since a call might never return.
    pub(crate) fn check_lost(&self) -> Result<(), DeviceError> {
        match self.lost.get() {
            None => Ok(()),
            Some(why) => Err(DeviceError::Lost { ordinal: self.ordinal, why: why.clone() }),
        }
    }

    pub(crate) fn stalled(&self, within: Duration) -> DeviceError {
        let ordinal = self.ordinal;
        DeviceError::Stalled { ordinal, within }
    }

    pub(crate) fn lost(&self) -> watch::Receiver<bool> {
        self.lost_signal.subscribe()
    }
}

/// The times of the first and the last of consecutive unknown errors for one event.
#[derive(Debug, Default)]
pub(crate) struct Unknown(Option<(Instant, Instant)>);

impl Unknown {
    /// Records one more unknown error, and returns whether they persist. After a pause the count starts again, since
    /// the driver was not asked in between.
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
    /// The context that this thread entered last and has not left yet.
    static INNERMOST: Cell<CUcontext> = const { Cell::new(ptr::null_mut()) };
}

pub(crate) struct Entered<'a> {
    context: &'a Context,
    /// The context that the thread had entered before. If it is the same one, dropping this guard leaves nothing.
    outer: CUcontext,
    mode: u32,
    /// A context is left on the thread that entered it, so this is not `Send`.
    _thread: PhantomData<*const ()>,
}

impl Entered<'_> {
    fn is_nested(&self) -> bool {
        self.outer == self.context.context
    }

    fn exchange_mode(&mut self) {
        // SAFETY: the mode is this thread's, and goes back when the context is left.
        let exchanged = unsafe { driver::cuThreadExchangeStreamCaptureMode(&mut self.mode) };
        // The mode is valid, so this fails only if the device is lost.
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
        // This thread pushed the context, so this fails only if the device is lost.
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
