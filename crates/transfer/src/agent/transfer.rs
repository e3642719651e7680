//! The handle of one pull or push.

use std::ops::Deref;

use tokio::sync::{mpsc, oneshot};

use super::error::{AgentGone, TransferError};
use super::event::{Command, Event};
#[cfg(doc)]
use super::request::PullRequest;
use crate::ids::Rank;
use crate::wire::{JobId, JobReport};

/// What a pull or a push has done.
pub type PullReport = JobReport;

/// A pull or push under way.
///
/// Await [`finish`](Self::finish). Dropping it cancels the transfer; its blocks must not be used before
/// it is over, so prefer [`cancel`](TransferControl::cancel) and `finish`, or give the request a
/// [`keeper`](PullRequest::keeper). What can be told of it is on [`TransferControl`], which it derefs to.
#[derive(Debug)]
#[must_use = "dropping a transfer cancels it"]
pub struct Transfer {
    control: TransferControl,
    /// Taken when it has been told.
    result: Option<oneshot::Receiver<Result<PullReport, TransferError>>>,
    urgent: mpsc::UnboundedSender<Event>,
}

/// What is told of a transfer, also while somebody waits for its [end](Transfer::finish).
///
/// Cheap to clone. Dropping it does nothing.
#[derive(Clone, Debug)]
pub struct TransferControl {
    job: JobId,
    events: mpsc::Sender<Event>,
}

impl Deref for Transfer {
    type Target = TransferControl;

    fn deref(&self) -> &TransferControl {
        &self.control
    }
}

impl Transfer {
    pub(super) fn new(
        job: JobId,
        result: oneshot::Receiver<Result<PullReport, TransferError>>,
        events: mpsc::Sender<Event>,
        urgent: mpsc::UnboundedSender<Event>,
    ) -> Self {
        Self {
            control: TransferControl { job, events },
            result: Some(result),
            urgent,
        }
    }

    /// A handle that outlives this one.
    pub fn control(&self) -> TransferControl {
        self.control.clone()
    }

    /// Waits until all routes of all ranks have landed, or it has failed for good. Either way nothing
    /// touches the blocks any more.
    ///
    /// # Errors
    /// [`TransferError`].
    pub async fn finish(mut self) -> Result<PullReport, TransferError> {
        // It stays here while it is waited for, so that dropping the future cancels it too.
        let Some(result) = &mut self.result else {
            return Err(AgentGone.into());
        };
        let told = result.await.unwrap_or(Err(AgentGone.into()));
        self.result = None;
        told
    }
}

impl TransferControl {
    /// Of a push whose blocks are still being computed: the first `tokens` tokens of a layer are ready.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn ready(&self, rank: Rank, layer: u32, tokens: u64) -> Result<(), AgentGone> {
        let job = self.job;
        self.send(Command::JobReady {
            job,
            rank,
            layer,
            tokens,
        })
        .await
    }

    /// Of a push whose blocks are still being computed: everything is ready.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn finish_prefill(&self) -> Result<(), AgentGone> {
        let job = self.job;
        self.send(Command::JobPrefilled { job }).await
    }

    /// Gives it up. [`finish`](Transfer::finish) tells when nothing touches the blocks any more.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn cancel(&self) -> Result<(), AgentGone> {
        let job = self.job;
        self.send(Command::CancelJob { job }).await
    }

    async fn send(&self, command: Command) -> Result<(), AgentGone> {
        let sent = self.events.send(Event::Command(command)).await;
        sent.map_err(|_| AgentGone)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.result.is_some() {
            let cancel = Event::Command(Command::CancelJob {
                job: self.control.job,
            });
            // The agent is gone where this fails, and its jobs with it.
            let _ = self.urgent.send(cancel);
        }
    }
}
