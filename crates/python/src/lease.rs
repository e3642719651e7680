//! Leases: an owner's promise to keep blocks.

use std::future::Future;

use pyo3::prelude::*;
use transload::layout::Rank;
use transload::transfer::agent::{
    self, LeaseControl, LeaseEndError, LeaseOpenError, LeaseRequest, LeaseUseError,
};
use transload::transfer::content::ContentDigest;
use transload::transfer::ids::LeaseSetId;

use crate::completion::{Completion, outcome};
use crate::errors::{AgentError, LeaseError, chain, raise};
use crate::mark::{self, Mark};
use crate::runtime::{Made, seconds};
use crate::tables;

/// A promise to keep blocks as they are until `ended`. Dropping it does not end it.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Lease {
    control: LeaseControl,
    /// Ends with why: "completed", "cancelled", "expired" or "peer lost". Nothing touches the blocks any more then; so it
    /// never ends where memory is not done with them, which the log tells.
    #[pyo3(get)]
    ended: Completion,
    made: Made,
}

impl Lease {
    pub(crate) fn of(lease: agent::Lease) -> PyResult<Self> {
        let (control, made) = (lease.control(), Made::here());
        let ended = made.later(async move {
            let ended = lease.ended().await;
            if ended == Err(LeaseEndError::Stalled) {
                // Engines hand blocks out again when they hear of an end, so they must not hear of one.
                std::future::pending::<()>().await;
            }
            let ended = ended.map(|ended| ended.end.to_string());
            outcome(move |py| match &ended {
                Ok(end) => Ok(end.into_pyobject(py)?.into_any().unbind()),
                Err(error) => Err(AgentError::new_err(error.to_string())),
            })
        })?;
        Ok(Self {
            control,
            ended,
            made,
        })
    }

    /// Tells something of it now, or when a mark is reached.
    fn tell(
        &self,
        py: Python<'_>,
        after: Option<&Mark>,
        told: impl Future<Output = Result<(), LeaseUseError>> + Send + 'static,
    ) -> PyResult<()> {
        let after = mark::after(after);
        if after.is_done() {
            return self.made.wait(py, told)?.map_err(not_used);
        }
        let control = self.control.clone();
        self.made.spawn(async move {
            let key = control.key();
            match after.done().await {
                Ok(()) => {
                    if let Err(error) = told.await {
                        tracing::debug!(%key, %error, "too late for what was told of a lease");
                    }
                }
                Err(why) => {
                    tracing::warn!(%key, why, "cancelled what can never be read");
                    // It is over with its agent.
                    let _ = control.cancel().await;
                }
            }
        })
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

    /// Reports that the first `tokens` tokens of a global layer are computed: now, or after a `Mark`, where this returns at
    /// once, and what is wrong is logged. A mark that can never be reached cancels the lease.
    ///
    /// Raises:
    ///     LeaseError: it has ended, or it is for fewer tokens.
    #[pyo3(signature = (layer, tokens, *, after = None))]
    fn ready(&self, py: Python<'_>, layer: u32, tokens: u64, after: Option<&Mark>) -> PyResult<()> {
        let control = self.control.clone();
        self.tell(py, after, async move { control.ready(layer, tokens).await })
    }

    /// Reports that the prefill is over: everything may be read. With `after` as `ready` does.
    ///
    /// Raises:
    ///     LeaseError: it has ended.
    #[pyo3(signature = (*, after = None))]
    fn finish_prefill(&self, py: Python<'_>, after: Option<&Mark>) -> PyResult<()> {
        let control = self.control.clone();
        self.tell(py, after, async move { control.finish_prefill().await })
    }

    /// Lets it live for `ttl` seconds from now at least.
    ///
    /// Raises:
    ///     LeaseError: it has ended.
    fn renew(&self, py: Python<'_>, ttl: f64) -> PyResult<()> {
        let ttl = seconds("ttl", ttl)?;
        self.made
            .wait(py, self.control.renew(ttl))?
            .map_err(not_used)
    }

    /// Gives it up. Wait for `ended` before the blocks are used again.
    ///
    /// Raises:
    ///     AgentError: the agent has stopped.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.made
            .wait(py, self.control.cancel())?
            .map_err(raise!(AgentError))
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
