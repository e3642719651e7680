//! The guard between a backend and its consumer: turns panics into codes and errors into lines on stderr.

use std::any::Any;
use std::ffi::c_int;
use std::io::Write;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Plugin;
use super::input::Opened;
use super::refusal::Refusal;
use crate::abi::Handle;

/// Runs `body` on the backend of `handle`, and returns a code even if it fails or panics.
///
/// # Safety
/// `handle` is NULL or comes from `open` of the same plugin and was not closed.
pub(super) unsafe fn guard<P: Plugin>(
    call: &'static str,
    handle: Handle,
    body: impl FnOnce(&P) -> Result<c_int, Refusal>,
) -> c_int {
    // SAFETY: `open` made it from a Box of this type, and the caller has not closed it. It is only shared, and
    // `Backend` is Sync.
    match unsafe { handle.cast::<Opened<P>>().as_ref() } {
        Some(opened) => guard_value(&opened.scheme, call, || body(&opened.backend)),
        None => guard_value("", call, || Err(Refusal::Argument("the handle is NULL".into()))),
    }
    .unwrap_or_else(|code| code)
}

/// Runs `body`. Reports a refusal or a panic and returns its code as the error.
/// After a panic the backend's locks are poisoned, so the backend itself refuses later calls if needed.
pub(super) fn guard_value<T>(
    scheme: &str,
    call: &'static str,
    body: impl FnOnce() -> Result<T, Refusal>,
) -> Result<T, c_int> {
    let refusal = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(refusal)) => refusal,
        Err(payload) => Refusal::Panic(message(payload)),
    };
    let code = refusal.code();
    // Printing and dropping an error may run the backend's code too.
    let reported = catch_unwind(AssertUnwindSafe(move || {
        report(scheme, call, &refusal.text());
    }));
    if let Err(payload) = reported {
        message(payload);
    }
    Err(code)
}

/// Returns a panic's message. The payload is leaked, because its `Drop` might panic again.
fn message(payload: Box<dyn Any + Send>) -> String {
    let text = if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "it did not say why".to_owned()
    };
    mem::forget(payload);
    text
}

/// Prints one line in one write, so that the lines of several threads do not mix.
fn report(scheme: &str, call: &str, text: &str) {
    let library = if scheme.is_empty() { "libkv_store".to_owned() } else { format!("libkv_store_{scheme}") };
    let mut line = format!("{library}: {call}: ");
    for letter in text.chars() {
        if letter.is_control() {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
    }
    line.push('\n');
    // An error means that stderr is closed, so it cannot be reported.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
