//! The runtime of the process, which runs agents and the waiting for them.

use std::any::Any;
use std::future::Future;
use std::pin::pin;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::errors::AgentError;

/// The threads for control messages and waiting. Bytes are moved by other threads.
const THREADS: usize = 2;

/// The longest time for which a wait delays Ctrl-C.
pub(crate) const SIGNALS: Duration = Duration::from_millis(100);

/// The process that made the runtime, and the runtime. Engines fork their workers, and threads do not survive a fork,
/// so a child makes its own runtime and leaks the one it cannot use.
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
    // It lives until the process ends: joining its threads when the interpreter ends could block forever.
    let made: &'static Runtime = Box::leak(Box::new(made));
    *runtime = Some((here, made));
    Ok(made.handle().clone())
}

/// The process in which something was made. Agents do not survive a fork, since their threads do not.
#[derive(Clone, Copy)]
pub(crate) struct Made(u32);

impl Made {
    pub(crate) fn here() -> Self {
        Self(process::id())
    }

    pub(crate) fn check(self) -> PyResult<()> {
        if self.0 == process::id() {
            return Ok(());
        }
        Err(AgentError::new_err("this was made before the process forked: make an agent of its own in each process"))
    }

    /// Waits for an agent's answer without the interpreter's lock. Ctrl-C ends the wait.
    pub(crate) fn wait<T: Send>(self, py: Python<'_>, answer: impl Future<Output = T> + Send) -> PyResult<T> {
        self.check()?;
        let handle = handle()?;
        let mut answer = pin!(answer);
        loop {
            let answered = py.detach(|| handle.block_on(async { timeout(SIGNALS, &mut answer).await }));
            if let Ok(answer) = answered {
                return Ok(answer);
            }
            py.check_signals()?;
        }
    }
}

pub(crate) fn seconds(what: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{what} is {seconds}: give seconds, from 0 to 1e18")))
}

pub(crate) fn patience(what: &str, given: f64) -> PyResult<Duration> {
    match (0.1..=86_400.0).contains(&given) {
        true => seconds(what, given),
        false => Err(PyValueError::new_err(format!("{what} is {given}: give seconds, from 0.1 to 86400"))),
    }
}

/// Creates a keeper for a request's blocks, and a receiver that learns when the keeper is dropped. Nothing touches the
/// blocks any more then.
pub(crate) fn quiet() -> (Arc<dyn Any + Send + Sync>, Quiet) {
    let (keeper, gone) = oneshot::channel::<()>();
    (Arc::new(keeper), Quiet(gone))
}

/// Learns when nothing touches a request's blocks any more, even if the request's end was reported before that.
pub(crate) struct Quiet(oneshot::Receiver<()>);

impl Quiet {
    pub(crate) async fn reached(self) {
        // The keeper is never sent; dropping it completes this with an error.
        let _ = self.0.await;
    }
}
