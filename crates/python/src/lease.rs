//! Leases: an owner's promises to keep blocks.

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

/// A promise to keep blocks unchanged until `ended`. Dropping the object does not end the lease.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Lease {
    control: LeaseControl,
    /// Ends with the reason: "completed", "cancelled", "expired", "peer lost", "device lost" or "device stalled". By
    /// then nothing touches the blocks any more. So if a device stalls, which is logged at once, this ends when the
    /// device has recovered.
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
                    // Engines reuse blocks when they learn of the end, so the end is reported only when nothing touches
                    // the blocks any more.
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

    /// True if a holder of a ticket has asked for the blocks, or has renewed the lease.
    #[getter]
    fn is_claimed(&self) -> bool {
        self.control.is_claimed()
    }

    /// Reports that the first `tokens` tokens of a global layer are computed: now, or after a `Mark`. This method does
    /// not wait for the mark. If the lease has ended by then the report is dropped; if the mark can never be reached,
    /// the lease is cancelled.
    ///
    /// Raises:
    ///     LeaseError: the lease has ended, or is for fewer tokens.
    ///     AgentError: the agent has stopped.
    #[pyo3(signature = (layer, tokens, *, after = None))]
    fn ready(&self, py: Python<'_>, layer: u32, tokens: u64, after: Option<&Mark>) -> PyResult<()> {
        let Some(mark) = after else {
            let reported = self.made.wait(py, self.control.ready(layer, tokens))?;
            return reported.map_err(not_used);
        };
        let reported = self.control.ready_after(mark.after(), layer, tokens);
        self.made.wait(py, reported)?.map_err(raise!(AgentError))
    }

    /// Reports that the prefill is over, so that everything may be read. `after` is as for `ready`.
    ///
    /// Raises:
    ///     LeaseError: the lease has ended.
    ///     AgentError: the agent has stopped.
    #[pyo3(signature = (*, after = None))]
    fn finish_prefill(&self, py: Python<'_>, after: Option<&Mark>) -> PyResult<()> {
        let Some(mark) = after else {
            let reported = self.made.wait(py, self.control.finish_prefill())?;
            return reported.map_err(not_used);
        };
        let reported = self.control.finish_prefill_after(mark.after());
        self.made.wait(py, reported)?.map_err(raise!(AgentError))
    }

    /// Extends the lease to at least `ttl` seconds from now.
    ///
    /// Raises:
    ///     LeaseError: the lease has ended.
    fn renew(&self, py: Python<'_>, ttl: f64) -> PyResult<()> {
        let ttl = seconds("ttl", ttl)?;
        self.made.wait(py, self.control.renew(ttl))?.map_err(not_used)
    }

    /// Cancels the lease. Wait for `ended` before reusing the blocks.
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
