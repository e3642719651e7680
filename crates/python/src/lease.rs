//! Leases: an owner's promise to keep blocks.

use pyo3::prelude::*;
use transload::layout::Rank;
use transload::transfer::{
    self, ContentDigest, LeaseControl, LeaseEnd, LeaseEndError, LeaseOpenError, LeaseRequest, LeaseSetId, LeaseUseError,
};

use crate::completion::{Completion, outcome};
use crate::errors::{AgentError, LeaseError, chain, raise};
use crate::mark::Mark;
use crate::runtime::{Made, Quiet, seconds};
use crate::tables;

/// A promise to keep blocks as they are until `ended`. Dropping it does not end it.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Lease {
    control: LeaseControl,
    /// Ends with why: "completed", "cancelled", "expired", "peer lost", "device lost" or "device stalled". Nothing touches the
    /// blocks any more then; so where a device stalls, which the log tells at once, it ends when the device has gone on.
    #[pyo3(get)]
    ended: Completion,
    made: Made,
}

impl Lease {
    pub(crate) fn of(lease: transfer::Lease, quiet: Quiet) -> PyResult<Self> {
        let (control, made) = (lease.control(), Made::here());
        let ended = made.later(async move {
            let ended = lease.ended().await.map(|ended| ended.end);
            let ended = match ended {
                Err(LeaseEndError::Stalled) => {
                    // Engines hand blocks out again when they hear of an end, so they hear of it when nothing touches the blocks.
                    quiet.reached().await;
                    Ok(LeaseEnd::DeviceStalled)
                }
                ended => ended,
            };
            let ended = ended.map(|end| end.to_string());
            outcome(move |py| match &ended {
                Ok(end) => Ok(end.into_pyobject(py)?.into_any().unbind()),
                Err(error) => Err(AgentError::new_err(error.to_string())),
            })
        })?;
        Ok(Self { control, ended, made })
    }
}

#[pymethods]
impl Lease {
    /// The lease set, 16 bytes.
    #[getter]
    fn set(&self) -> [u8; 16] {
        self.control.key().set.0
    }

    /// The rank whose blocks they are.
    #[getter]
    fn rank(&self) -> u32 {
        self.control.key().rank.0
    }

    /// Whether somebody with a ticket has asked for the blocks yet, or has renewed the lease.
    #[getter]
    fn is_claimed(&self) -> bool {
        self.control.is_claimed()
    }

    /// Reports that the first `tokens` tokens of a global layer are computed: now, or after a `Mark`. That is not waited for,
    /// and nobody hears of a lease that has ended by then. Where it can never be reached, the lease is cancelled.
    ///
    /// Raises:
    ///     LeaseError: it has ended, or it is for fewer tokens.
    ///     AgentError: the agent has stopped.
    #[pyo3(signature = (layer, tokens, *, after = None))]
    fn ready(&self, py: Python<'_>, layer: u32, tokens: u64, after: Option<&Mark>) -> PyResult<()> {
        let Some(mark) = after else {
            let told = self.made.wait(py, self.control.ready(layer, tokens))?;
            return told.map_err(not_used);
        };
        let told = self.control.ready_after(mark.after(), layer, tokens);
        self.made.wait(py, told)?.map_err(raise!(AgentError))
    }

    /// Reports that the prefill is over: everything may be read. With `after` as `ready` does.
    ///
    /// Raises:
    ///     LeaseError: it has ended.
    ///     AgentError: the agent has stopped.
    #[pyo3(signature = (*, after = None))]
    fn finish_prefill(&self, py: Python<'_>, after: Option<&Mark>) -> PyResult<()> {
        let Some(mark) = after else {
            let told = self.made.wait(py, self.control.finish_prefill())?;
            return told.map_err(not_used);
        };
        let told = self.control.finish_prefill_after(mark.after());
        self.made.wait(py, told)?.map_err(raise!(AgentError))
    }

    /// Lets it live for `ttl` seconds from now at least.
    ///
    /// Raises:
    ///     LeaseError: it has ended.
    fn renew(&self, py: Python<'_>, ttl: f64) -> PyResult<()> {
        let ttl = seconds("ttl", ttl)?;
        self.made.wait(py, self.control.renew(ttl))?.map_err(not_used)
    }

    /// Gives it up. Wait for `ended` before the blocks are used again.
    ///
    /// Raises:
    ///     AgentError: the agent has stopped.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.made.wait(py, self.control.cancel())?.map_err(raise!(AgentError))
    }

    fn __repr__(&self) -> String {
        let key = self.control.key();
        format!("<transload.Lease {} of rank {}>", key.set, key.rank)
    }
}

pub(crate) fn lease_request(
    (set, rank): ([u8; 16], u32),
    tables: &Bound<'_, PyAny>,
    content: [u8; 32],
    valid_tokens: u64,
    (ttl, hard_bound): (f64, f64),
) -> PyResult<LeaseRequest> {
    let (set, content) = (LeaseSetId(set), ContentDigest(content));
    let tables = tables::read(tables)?;
    let mut request = LeaseRequest::new(set, Rank(rank), tables, content, valid_tokens);
    request.ttl = seconds("ttl", ttl)?;
    request.hard_bound = seconds("hard_bound", hard_bound)?;
    Ok(request)
}

pub(crate) fn not_opened(error: LeaseOpenError) -> PyErr {
    match error {
        LeaseOpenError::Gone(gone) => AgentError::new_err(gone.to_string()),
        error => LeaseError::new_err(chain(&error)),
    }
}

fn not_used(error: LeaseUseError) -> PyErr {
    match error {
        LeaseUseError::Gone(gone) => AgentError::new_err(gone.to_string()),
        error => LeaseError::new_err(chain(&error)),
    }
}
