//! How a function of the driver begins: it is counted, told to fail if a test said so, and refused where the driver,
//! or a context, is missing.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::board::{board, current};
use crate::code::*;
use crate::faults;
use crate::settings::settings;
use crate::stream;

/// Defines functions of the driver: `fn name(arguments) how |context| work;`, with one of the functions below as `how`.
macro_rules! driver {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $how:ident $work:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $crate::code::Code {
            $crate::entry::$how(stringify!($name), $work)
        }
    )*};
}
pub(crate) use driver;

/// Where a function leaves a result. Its caller keeps the contract of the ABI: it is null or can be written to.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Leaves it; null is CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn give(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller of the driver gave a pointer that can be written to; some callers' are not aligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// The `index`th of an array.
    pub(crate) fn nth(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// The same place, for another type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Whether there is a place.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// Where a function finds an argument. Its caller keeps the contract of the ABI: it is null or can be read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T> From<Out<T>> for In<T> {
    fn from(out: Out<T>) -> Self {
        Self(out.0)
    }
}

impl<T: Copy> In<T> {
    /// Reads it; null is CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn read(self) -> Result<T> {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller of the driver gave a pointer that can be read.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The `index`th of an array.
    pub(crate) fn nth(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    pub(crate) fn pointer(self) -> *const T {
        self.0
    }
}

/// The process that called `cuInit`, or 0.
static INITIALIZED: AtomicU32 = AtomicU32::new(0);

/// Whether the process ends.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Begins a function that works without a driver.
pub(crate) fn anywhere(name: &'static str, work: impl FnOnce() -> Result) -> Code {
    code(begin(name).and_then(|()| work()))
}

/// Begins a function that works without a context.
pub(crate) fn initialized(name: &'static str, work: impl FnOnce() -> Result) -> Code {
    let ready = || match INITIALIZED.load(Ordering::Acquire) {
        0 => Err(CUDA_ERROR_NOT_INITIALIZED),
        _ => Ok(()),
    };
    code(begin(name).and_then(|()| ready()).and_then(|()| work()))
}

/// Begins a function that works without a context, but not in one that is lost.
pub(crate) fn not_lost(name: &'static str, work: impl FnOnce() -> Result) -> Code {
    initialized(name, || {
        let lost = current().and_then(|device| board().contexts[device].lost);
        lost.map_or_else(work, Err)
    })
}

/// Begins a function that needs a current context, whose device it gets.
pub(crate) fn in_context(name: &'static str, work: impl FnOnce(usize) -> Result) -> Code {
    initialized(name, || {
        let device = current().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        board().usable(device)?;
        work(device)
    })
}

/// Begins a function that allocates, pins, registers or loads in the current context.
pub(crate) fn allocating(name: &'static str, work: impl FnOnce(usize) -> Result) -> Code {
    in_context(name, |device| {
        if settings().alloc_waits {
            stream::wait_for_all(device)?;
        }
        work(device)
    })
}

unsafe extern "C" {
    safe fn atexit(work: extern "C" fn()) -> c_int;
}

/// Marks the driver as initialized, by this process, with which it is shut down.
pub(crate) fn initialize() {
    extern "C" fn end() {
        ENDS.store(true, Ordering::Release);
    }
    if INITIALIZED.swap(std::process::id(), Ordering::AcqRel) == 0 {
        atexit(end);
    }
}

/// After a fork there are no threads, and locks may be held forever, so nothing else comes before this.
fn begin(name: &'static str) -> Result {
    let by = INITIALIZED.load(Ordering::Acquire);
    if by != 0 && by != std::process::id() {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    if ENDS.load(Ordering::Acquire) {
        return Err(CUDA_ERROR_DEINITIALIZED);
    }
    faults::count(name).inspect_err(|&code| {
        if let Some(device) = current().filter(|_| is_sticky(code)) {
            board().lose(device, code);
        }
    })
}

fn code(result: Result) -> Code {
    result.err().unwrap_or(CUDA_SUCCESS)
}
