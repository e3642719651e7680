//! What stands between a backend and its consumer: panics become codes, errors become lines.

use std::any::Any;
use std::ffi::c_int;
use std::io::Write;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Plugin;
use super::input::Opened;
use super::refusal::Refusal;
use crate::abi::Handle;

/// Runs `body` on the backend of `handle`; whatever happens there, a code comes back.
///
/// # Safety
/// `handle` is NULL or comes from `open` of the same plugin and was not closed.
pub(super) unsafe fn guard<P: Plugin>(
    call: &'static str,
    handle: Handle,
    body: impl FnOnce(&P) -> Result<c_int, Refusal>,
) -> c_int {
    // SAFETY: `open` made it of a Box of this type, and the caller has not closed it. It is only ever
    // shared: `Backend` is Sync.
    match unsafe { handle.cast::<Opened<P>>().as_ref() } {
        Some(opened) => guard_value(&opened.scheme, call, || body(&opened.backend)),
        None => guard_value("", call, || Err(Refusal::Argument("the handle is NULL".into()))),
    }
    .unwrap_or_else(|code| code)
}

/// Runs `body`. A refusal or a panic is reported, and its code is the error.
///
/// What a panic may have left half done is the backend's to know: its locks are poisoned, and it says so at
/// the next call.
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
    // Printing and dropping an error may run code of the backend's, too.
    let reported = catch_unwind(AssertUnwindSafe(move || {
        report(scheme, call, &refusal.text());
    }));
    if let Err(payload) = reported {
        message(payload);
    }
    Err(code)
}

/// What a panic said. The payload is leaked: its `Drop` might panic again.
fn message(payload: Box<dyn Any + Send>) -> String {
    let said = if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "it did not say why".to_owned()
    };
    mem::forget(payload);
    said
}

/// One line, in one write, so that lines of several threads do not mix.
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
    // There is nobody to tell that stderr is closed.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
