//! The one runtime of the process, on which agents and what waits for them run.

use std::future::Future;
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads for control messages and for waiting. The bytes move on threads of their own.
const THREADS: usize = 2;

/// The process that made the runtime, and the runtime. Engines fork their workers, and threads do not survive
/// that: a child makes its own, and forgets the one that it cannot use.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

pub(crate) fn handle() -> PyResult<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let here = process::id();
    if let Some((made, runtime)) = *runtime
        && made == here
    {
        return Ok(runtime.handle().clone());
    }
    let made = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("transload")
        .enable_all()
        .build()
        .map_err(|error| PyRuntimeError::new_err(format!("no threads for Transload: {error}")))?;
    // It lives as long as the process: joining its threads when the interpreter ends could wait for ever.
    let made: &'static Runtime = Box::leak(Box::new(made));
    *runtime = Some((here, made));
    Ok(made.handle().clone())
}

/// Waits for a short answer of an agent, without the interpreter's lock.
pub(crate) fn wait<T: Send>(py: Python<'_>, answer: impl Future<Output = T> + Send) -> PyResult<T> {
    let handle = handle()?;
    if Handle::try_current().is_ok() {
        return Err(PyRuntimeError::new_err(
            "this waits, and cannot be called from a callback of a completion",
        ));
    }
    Ok(py.detach(|| handle.block_on(answer)))
}

/// A time in seconds from Python.
pub(crate) fn seconds(what: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{what} is {seconds}: give seconds, 0 or more")))
}
