//! The beginning of every driver function: it is counted, fails if a test has requested that, and is refused without an
//! initialised driver or a context.

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

/// A pointer for a result. By the ABI's contract it is null or writable.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result. A null pointer is CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn give(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller of the driver gave a pointer that can be written to; some callers' are not aligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    pub(crate) fn nth(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// A pointer to an argument. By the ABI's contract it is null or readable.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T> From<Out<T>> for In<T> {
    fn from(out: Out<T>) -> Self {
        Self(out.0)
    }
}

impl<T: Copy> In<T> {
    /// Reads the argument. A null pointer is CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn read(self) -> Result<T> {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller of the driver gave a pointer that can be read.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub(crate) fn nth(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    pub(crate) fn pointer(self) -> *const T {
        self.0
    }
}

/// The process that called `cuInit`, or 0.
static INITIALIZED: AtomicU32 = AtomicU32::new(0);

/// Whether the process is exiting.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Runs a function that works without an initialised driver.
pub(crate) fn anywhere(name: &'static str, work: impl FnOnce() -> Result) -> Code {
    code(begin(name).and_then(|()| work()))
}

/// Runs a function that works without a context.
pub(crate) fn initialized(name: &'static str, work: impl FnOnce() -> Result) -> Code {
    let ready = || match INITIALIZED.load(Ordering::Acquire) {
        0 => Err(CUDA_ERROR_NOT_INITIALIZED),
        _ => Ok(()),
    };
    code(begin(name).and_then(|()| ready()).and_then(|()| work()))
}

/// Runs a function that works without a context, but fails if the current context is lost.
pub(crate) fn not_lost(name: &'static str, work: impl FnOnce() -> Result) -> Code {
    initialized(name, || {
        let lost = current().and_then(|device| board().contexts[device].lost);
        lost.map_or_else(work, Err)
    })
}

pub(crate) fn in_context(name: &'static str, work: impl FnOnce(usize) -> Result) -> Code {
    initialized(name, || {
        let device = current().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        board().usable(device)?;
        work(device)
    })
}

/// Runs a function that allocates, pins, registers or loads in the current context.
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

/// Marks the driver as initialised by this process. It is shut down when the process exits.
pub(crate) fn initialize() {
    extern "C" fn end() {
        ENDS.store(true, Ordering::Release);
    }
    if INITIALIZED.swap(std::process::id(), Ordering::AcqRel) == 0 {
        atexit(end);
    }
}

/// Performs the common checks. After a fork there are no threads and locks may be held forever, so the check for that
/// comes first.
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
