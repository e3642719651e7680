//! The interface for tests: requested failures, call counts, live objects, and held streams.

use std::collections::HashMap;
use std::env;
use std::ffi::{CStr, c_char};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread;

use crate::board::{self, Handle, board};
use crate::code::*;
use crate::memory;

/// The code that makes a call never return.
const NEVER: Code = u32::MAX;

/// The code with which a call succeeds and stops all streams, as [`fake_cuda_hold`] does. A test that held them from a thread of
/// its own could come too late on a busy machine.
const HOLD: Code = u32::MAX - 1;

#[derive(Default)]
struct Function {
    calls: u64,
    /// The number of calls until each fault, and its code.
    faults: Vec<(u32, Code)>,
    /// The code that all calls return, if set.
    always: Option<Code>,
}

static FUNCTIONS: LazyLock<Mutex<HashMap<String, Function>>> = LazyLock::new(|| {
    let mut functions: HashMap<String, Function> = HashMap::new();
    let text = env::var("FAKE_CUDA_FAIL").unwrap_or_default();
    for fault in text.split(',').filter(|fault| !fault.is_empty()) {
        let (name, nth, code) =
            parse(fault).unwrap_or_else(|| panic!("FAKE_CUDA_FAIL is not FUNCTION:NTH:CODE,...: {fault}"));
        functions.entry(name).or_default().faults.push((nth, code));
    }
    Mutex::new(functions)
});

fn parse(fault: &str) -> Option<(String, u32, Code)> {
    let mut parts = fault.split(':');
    let name = parts.next()?.to_owned();
    let nth = parts.next()?.parse().ok().filter(|nth| *nth > 0)?;
    let code = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((name, nth, code))
}

fn functions() -> MutexGuard<'static, HashMap<String, Function>> {
    FUNCTIONS.lock().unwrap()
}

/// Counts a call, and fails it if a test has requested that.
pub(crate) fn count(name: &'static str) -> Result {
    let mut functions = functions();
    let function = functions.entry(name.to_owned()).or_default();
    function.calls += 1;
    for fault in &mut function.faults {
        fault.0 -= 1;
    }
    let due = function.faults.iter().find(|fault| fault.0 == 0);
    let due = due.map(|fault| fault.1).or(function.always);
    function.faults.retain(|fault| fault.0 > 0);
    drop(functions);
    match due {
        Some(NEVER) => stay(),
        Some(HOLD) => board().held = true,
        Some(code) => return Err(code),
        None => {}
    }
    Ok(())
}

fn stay() -> ! {
    loop {
        thread::park();
    }
}

/// # Safety
/// `name` has to be text that ends with NUL.
unsafe fn text(name: *const c_char) -> String {
    // SAFETY: the caller keeps it.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()
}

/// Makes the `nth` next call of a function (1 is the next) do nothing and return this code. A sticky code loses the
/// current context. With 0, earlier requests are cancelled.
///
/// A call with the code [`NEVER`] does not return, and one with the code [`HOLD`] stops all streams and succeeds.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_fail(name: *const c_char, nth: u32, code: u32) {
    // SAFETY: tests give text.
    let name = unsafe { text(name) };
    let mut functions = functions();
    let function = functions.entry(name).or_default();
    match nth {
        0 => (function.faults, function.always) = (Vec::new(), None),
        nth => function.faults.push((nth, code)),
    }
}

/// Makes all further calls of a function do nothing and return this code.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_fail_always(name: *const c_char, code: u32) {
    // SAFETY: tests give text.
    let name = unsafe { text(name) };
    functions().entry(name).or_default().always = Some(code);
}

/// Returns how often a function was called, or an entry of a module launched, including failed calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_calls(name: *const c_char) -> u64 {
    // SAFETY: tests give text.
    let name = unsafe { text(name) };
    functions().get(&name).map_or(0, |function| function.calls)
}

/// Returns the number of objects that a program has to free: allocations, streams, events, modules, registrations,
/// handles, reservations and mappings of memory.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_live() -> u64 {
    let made = board().live();
    (made + memory::read().live()) as u64
}

/// Stops all streams before their next operation, until this is called with 0.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_hold(on: u32) {
    board().held = on != 0;
    board::NEWS.notify_all();
}

/// Stops all streams of one device before their next operation, until this is called with 0.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_hold_device(device: u32, on: u32) {
    board().contexts[device as usize].held = on != 0;
    board::NEWS.notify_all();
}

/// Stops one stream before its next operation, until this is called with 0.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_hold_stream(stream: Handle, on: u32) {
    let mut board = board();
    let line = board.lines.get_mut(&stream);
    line.expect("a stream that was made").held = on != 0;
    board::NEWS.notify_all();
}

/// Makes a stream claim to be captured into a graph, until this is called with 0.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_capture(stream: Handle, on: u32) {
    let mut board = board();
    let line = board.lines.get_mut(&stream);
    line.expect("a stream that was made").capturing = on != 0;
}
