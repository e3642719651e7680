//! Pulls and pushes, and their failures.

use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::sync::Notify;
use tokio::time::timeout;
use transload::layout::Rank;
use transload::transfer::plan::codec::{Codec, NoCodec};
use transload::transfer::{
    self, After, ContentDigest, JobError, NoticeError, Path, PathSet, PullReport, PullRequest, TransferControl,
    TransferError as Failed,
};

use crate::completion::{Completion, outcome};
use crate::errors::{AgentError, TransferError, chain, raise};
use crate::mark::Mark;
use crate::runtime::{Made, Quiet, quiet, seconds};
use crate::tables;
use crate::ticket::Ticket;

/// A running pull or push. Dropping the object does not end it.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Transfer {
    control: Control,
    /// Ends with a report, a dict of `bytes`, `seconds` (of which it was `queued` until its first byte moved), `routes`,
    /// and the names of groups of drafts that were `skipped_here` and `skipped_there` because only that side has them; or
    /// with a `TransferError`. By then nothing touches the blocks any more. So if a device stalls, which
    /// is logged at once, this ends when the device has recovered.
    #[pyo3(get)]
    ended: Completion,
    made: Made,
}

enum Control {
    Begun(TransferControl),
    /// The pull was waiting for a mark when it was made, so it can only be cancelled.
    Cancel(Arc<Notify>),
}

impl Transfer {
    pub(crate) fn of(transfer: transfer::Transfer, quiet: Quiet) -> PyResult<Self> {
        let (control, made) = (transfer.control(), Made::here());
        Self::new(Control::Begun(control), made, transfer.finish(), quiet)
    }

    /// Starts a pull once `request.after` is done. Faults of the request are raised at once.
    pub(crate) fn of_pull(
        py: Python<'_>,
        made: Made,
        agent: &transfer::Agent,
        mut request: PullRequest,
    ) -> PyResult<Self> {
        let (after, bound) = (request.after.clone(), request.timeout);
        let awaited = !after.is_done();
        let (keeper, quiet) = quiet();
        request.keeper = Some(keeper);
        let agent = agent.clone();
        let mut start = Box::pin(async move { agent.start_pull(request).await });
        let started = made.wait(py, async {
            match awaited {
                true => tokio::select! {
                    biased;
                    started = &mut start => Some(started),
                    () = ready(()) => None,
                },
                false => Some((&mut start).await),
            }
        })?;
        if let Some(started) = started {
            return Self::of(started.map_err(|error| failed(py, &error))?, quiet);
        }
        let cancel = Arc::new(Notify::new());
        let finished = pull_later(start, after, bound, cancel.clone());
        Self::new(Control::Cancel(cancel), made, finished, quiet)
    }

    fn new(
        control: Control,
        made: Made,
        finished: impl Future<Output = Result<PullReport, Failed>> + Send + 'static,
        quiet: Quiet,
    ) -> PyResult<Self> {
        let ended = made.later(async move {
            let finished = finished.await;
            if let Err(Failed::Job(JobError::DeviceStalled { .. })) = finished {
                // Engines reuse blocks when they learn of the end, so the end is reported only when nothing touches the
                // blocks any more.
                quiet.reached().await;
            }
            outcome(move |py| match &finished {
                Ok(done) => Ok(report(py, done)?.into_any().unbind()),
                Err(error) => Err(failed(py, error)),
            })
        })?;
        Ok(Self { control, ended, made })
    }
}

/// Waits for `after`, for at most `bound`, then runs the pull to its end. It can be cancelled at any time.
async fn pull_later(
    start: impl Future<Output = Result<transfer::Transfer, Failed>>,
    after: After,
    bound: Duration,
    cancel: Arc<Notify>,
) -> Result<PullReport, Failed> {
    let late = |_| JobError::TimedOut { timeout: bound, waiting: None };
    // `start` checks the outcome of `after` itself. Before that it has asked the agent for nothing, so it may be
    // dropped only here.
    tokio::select! {
        biased;
        () = cancel.notified() => return Err(JobError::Cancelled.into()),
        done = timeout(bound, after.done()) => drop(done.map_err(late)?),
    }
    let transfer = start.await?;
    let control = transfer.control();
    let mut finish = pin!(transfer.finish());
    tokio::select! {
        finished = &mut finish => return finished,
        () = cancel.notified() => {}
    }
    // If the agent has stopped, the pull has ended with it.
    let _ = control.cancel().await;
    finish.await
}

#[pymethods]
impl Transfer {
    /// Reports to a push whose blocks are still being computed that the first `tokens` tokens of a layer are ready:
    /// now, or after a `Mark`. This method does not wait for the mark. If it can never be reached, the push is
    /// cancelled.
    ///
    /// Raises:
    ///     AgentError: the agent has stopped.
    #[pyo3(signature = (rank, layer, tokens, *, after = None))]
    fn ready(&self, py: Python<'_>, rank: u32, layer: u32, tokens: u64, after: Option<&Mark>) -> PyResult<()> {
        // A pull ignores reports.
        let Control::Begun(control) = &self.control else {
            return Ok(());
        };
        let reported = match after {
            None => self.made.wait(py, control.ready(Rank(rank), layer, tokens)),
            Some(mark) => {
                let reported = control.ready_after(mark.after(), Rank(rank), layer, tokens);
                self.made.wait(py, reported)
            }
        };
        reported?.map_err(raise!(AgentError))
    }

    /// Reports to a push whose blocks were still being computed that everything is ready, now or after a `Mark`.
    ///
    /// Raises:
    ///     AgentError: the agent has stopped.
    #[pyo3(signature = (*, after = None))]
    fn finish_prefill(&self, py: Python<'_>, after: Option<&Mark>) -> PyResult<()> {
        let Control::Begun(control) = &self.control else {
            return Ok(());
        };
        let reported = match after {
            None => self.made.wait(py, control.finish_prefill()),
            Some(mark) => self.made.wait(py, control.finish_prefill_after(mark.after())),
        };
        reported?.map_err(raise!(AgentError))
    }

    /// Cancels the transfer. Wait for `ended` before reusing the blocks.
    ///
    /// Raises:
    ///     AgentError: the agent has stopped.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        match &self.control {
            Control::Begun(control) => self.made.wait(py, control.cancel())?.map_err(raise!(AgentError)),
            Control::Cancel(cancel) => {
                cancel.notify_one();
                Ok(())
            }
        }
    }
}

pub(crate) fn transfer_request(
    ticket: &Ticket,
    ranks: Vec<u32>,
    tables: &Bound<'_, PyAny>,
    content: [u8; 32],
    (start, tokens): (u64, u64),
    (paths, timeout): (&str, f64),
) -> PyResult<PullRequest> {
    let (ticket, content) = (ticket.inner.clone(), ContentDigest(content));
    let ranks = ranks.into_iter().map(Rank);
    let mut request = PullRequest::new(ticket, ranks, tables::read(tables)?, content, tokens);
    request.request.start = start;
    request.paths = path_set(paths)?;
    request.timeout = seconds("timeout", timeout)?;
    Ok(request)
}

pub(crate) fn named_codec(name: &str) -> PyResult<Codec> {
    name.parse().map_err(|error: NoCodec| PyValueError::new_err(error.to_string()))
}

fn path_set(name: &str) -> PyResult<PathSet> {
    match name {
        "any" => Ok(PathSet::ANY),
        "quic" => Ok(PathSet::QUIC),
        "local" => Ok(PathSet::LOCAL),
        "ring" => Ok(Path::RING.into()),
        "device" => Ok(Path::DEVICE.into()),
        other => Err(PyValueError::new_err(format!(
            "paths is {other:?}: give \"any\", \"quic\", \"local\", \"ring\" or \"device\""
        ))),
    }
}

fn report<'py>(py: Python<'py>, done: &PullReport) -> PyResult<Bound<'py, PyDict>> {
    let routes = done.routes.iter().map(|route| {
        let item = PyDict::new(py);
        item.set_item("rank", route.rank.0)?;
        item.set_item("peer_rank", route.peer_rank.0)?;
        item.set_item("bytes", route.bytes)?;
        item.set_item("path", route.path.to_string())?;
        item.set_item("attempts", route.attempts)?;
        Ok(item)
    });
    let report = PyDict::new(py);
    report.set_item("bytes", done.bytes)?;
    report.set_item("seconds", done.took.as_secs_f64())?;
    report.set_item("queued", done.queued.as_secs_f64())?;
    report.set_item("skipped_here", &done.unpaired.ours)?;
    report.set_item("skipped_there", &done.unpaired.theirs)?;
    report.set_item("routes", routes.collect::<PyResult<Vec<_>>>()?)?;
    Ok(report)
}

pub(crate) fn notice_failed(py: Python<'_>, error: &NoticeError) -> PyErr {
    match error {
        NoticeError::Ticket(error) => failed(py, &Failed::Job(error.clone())),
        error => AgentError::new_err(chain(error)),
    }
}

pub(crate) fn failed(py: Python<'_>, error: &Failed) -> PyErr {
    if let Failed::Gone(gone) = error {
        return AgentError::new_err(gone.to_string());
    }
    let raised = TransferError::new_err(chain(error));
    // If setting an attribute fails, the exception is still correct.
    let _ = raised.value(py).setattr("kind", error.kind());
    let _ = raised.value(py).setattr("is_misfit", error.is_misfit());
    raised
}
