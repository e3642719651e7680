//! Results that arrive later: waited for, polled, or awaited.

use std::future::Future;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::runtime::{Made, SIGNALS, handle, seconds};

/// A function that makes the result, or the exception, of something that has ended. It is called for each request of
/// the result.
pub(crate) type Outcome = Arc<dyn Fn(Python<'_>) -> PyResult<Py<PyAny>> + Send + Sync>;

pub(crate) fn outcome(make: impl Fn(Python<'_>) -> PyResult<Py<PyAny>> + Send + Sync + 'static) -> Outcome {
    Arc::new(make)
}

/// The end of a lease, a transfer or a notice.
///
/// Poll it with `done`, wait with `wait` or `result`, await it in asyncio, or add a callback.
#[pyclass(frozen, eq, hash, module = "transload")]
#[derive(Clone, Default)]
pub(crate) struct Completion {
    shared: Arc<Shared>,
}

/// All handles of the same end are equal.
impl PartialEq for Completion {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Hash for Completion {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.shared).hash(state);
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    callbacks: Vec<Py<PyAny>>,
}

impl Completion {
    /// Sets the outcome. Called once, from any thread.
    pub(crate) fn end(&self, outcome: Outcome) {
        let callbacks = {
            let mut state = self.state();
            state.outcome = Some(outcome);
            std::mem::take(&mut state.callbacks)
        };
        self.shared.ended.notify_all();
        if callbacks.is_empty() {
            return;
        }
        let completion = self.clone();
        let run_callbacks = move || {
            // Callbacks are dropped once the interpreter has ended.
            let _ = Python::try_attach(|py| {
                for callback in callbacks {
                    completion.call(py, &callback);
                }
            });
        };
        // A callback may block, so it runs on a blocking thread.
        match handle() {
            Ok(handle) => drop(handle.spawn_blocking(run_callbacks)),
            Err(_) => run_callbacks(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, py: Python<'_>, callback: &Py<PyAny>) {
        if let Err(error) = callback.call1(py, (self.clone(),)) {
            error.write_unraisable(py, Some(callback.bind(py)));
        }
    }
}

#[pymethods]
impl Completion {
    /// Returns whether it has ended.
    fn done(&self) -> bool {
        self.state().outcome.is_some()
    }

    /// Waits until it has ended, at most `timeout` seconds. Returns whether it has.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = timeout.map(|given| seconds("timeout", given)).transpose()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => SIGNALS,
            };
            let ended = py.detach(|| {
                let waited = self
                    .shared
                    .ended
                    .wait_timeout_while(self.state(), left.min(SIGNALS), |state| state.outcome.is_none());
                let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                state.outcome.is_some()
            });
            if ended {
                return Ok(true);
            }
            py.check_signals()?;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(false);
            }
        }
    }

    /// Waits like `wait`, and returns the result.
    ///
    /// Raises:
    ///     TimeoutError: it has not ended in time. It continues.
    ///     TransferError: the transfer failed.
    ///     AgentError: the agent has stopped.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        if !self.wait(py, timeout)? {
            return Err(PyTimeoutError::new_err("it has not ended yet"));
        }
        let outcome = self.state().outcome.clone();
        match outcome {
            Some(outcome) => outcome(py),
            None => Err(PyTimeoutError::new_err("it has not ended yet")),
        }
    }

    /// Calls `callback(completion)` when it has ended: at once if it already has, otherwise on a thread of Transload.
    fn add_done_callback(&self, py: Python<'_>, callback: Py<PyAny>) {
        {
            let mut state = self.state();
            if state.outcome.is_none() {
                state.callbacks.push(callback);
                return;
            }
        }
        self.call(py, &callback);
    }

    /// Removes a callback that has not been called yet. Returns whether there was one.
    fn remove_done_callback(&self, callback: &Bound<'_, PyAny>) -> bool {
        let removed = {
            let mut state = self.state();
            let at = state.callbacks.iter().position(|one| one.is(callback));
            at.map(|at| state.callbacks.swap_remove(at))
        };
        removed.is_some()
    }

    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let helper = py.import("transload._asyncio")?;
        helper.call_method1("wait_for", (self.clone(),))?.call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        let state = match self.done() {
            true => "ended",
            false => "under way",
        };
        format!("<transload.Completion: {state}>")
    }
}

impl Made {
    pub(crate) fn later(self, work: impl Future<Output = Outcome> + Send + 'static) -> PyResult<Completion> {
        self.check()?;
        let completion = Completion::default();
        let ending = completion.clone();
        handle()?.spawn(async move { ending.end(work.await) });
        Ok(completion)
    }
}
