//! The handle of one pull or push.

use std::ops::Deref;

use super::after::After;
use super::client::Client;
use super::driver::Driver;
use super::error::{AgentGone, TransferError};
use super::promise::{CancelOnDrop, Handle};
#[cfg(doc)]
use super::request::PullRequest;
use transload_layout::Rank;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{Direction, LeaseSetId};
use transload_wire::{JobId, JobReport};

/// What a pull or a push has done.
pub type PullReport = JobReport;

pub(super) type JobResult = Result<PullReport, TransferError>;

pub(super) type Started = (JobId, CancelOnDrop<JobResult>);

/// Names a pull or a push in counters and logs.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobLabel {
    pub(super) direction: Direction,
    pub(super) set: LeaseSetId,
    pub(super) content: ContentDigest,
}

/// A pull or push under way.
///
/// Await [`finish`](Self::finish). Dropping it cancels the transfer; its blocks must not be used before
/// it is over, so prefer [`cancel`](TransferControl::cancel) and `finish`, or give the request a
/// [`keeper`](PullRequest::keeper). What can be told of it is on [`TransferControl`], which it derefs to.
#[derive(Debug)]
#[must_use = "dropping a transfer cancels it"]
pub struct Transfer {
    control: TransferControl,
    result: CancelOnDrop<JobResult>,
}

/// What is told of a transfer, also while somebody waits for its [end](Transfer::finish).
///
/// Cheap to clone. Dropping it does nothing.
#[derive(Clone, Debug)]
pub struct TransferControl {
    job: JobId,
    client: Client,
}

impl Deref for Transfer {
    type Target = TransferControl;

    fn deref(&self) -> &TransferControl {
        &self.control
    }
}

impl Transfer {
    pub(super) fn new((job, result): Started, client: Client) -> Self {
        let control = TransferControl { job, client };
        Self { control, result }
    }

    /// A handle that outlives this one.
    pub fn control(&self) -> TransferControl {
        self.control.clone()
    }

    /// Waits until all routes of all ranks have landed, or it has failed for good. Either way nothing touches the blocks any
    /// more, but after [`DeviceStalled`](transload_wire::JobError::DeviceStalled).
    ///
    /// # Errors
    /// [`TransferError`].
    pub async fn finish(self) -> Result<PullReport, TransferError> {
        self.result.end().await?
    }
}

impl TransferControl {
    /// Reports, of a push whose blocks are still being computed, that the first `tokens` tokens of a layer are ready.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn ready(&self, rank: Rank, layer: u32, tokens: u64) -> Result<(), AgentGone> {
        let job = self.job;
        let ready = move |driver: &mut Driver| driver.machine.job_ready(job, rank, layer, tokens);
        self.client.tell(ready).await
    }

    /// Reports so once something else is done. This does not wait for that. Where it will never be done, the push is cancelled.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn ready_after(&self, after: After, rank: Rank, layer: u32, tokens: u64) -> Result<(), AgentGone> {
        let (job, later) = (self.job, self.client.later());
        let ready = move |driver: &mut Driver| driver.machine.job_ready(job, rank, layer, tokens);
        self.client.tell(move |_| Driver::tell_after(Handle::Job(job), &after, later, ready)).await
    }

    /// Reports, of a push whose blocks are still being computed, that everything is ready.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn finish_prefill(&self) -> Result<(), AgentGone> {
        let job = self.job;
        let prefilled = move |driver: &mut Driver| driver.machine.job_prefilled(driver.now(), job);
        self.client.tell(prefilled).await
    }

    /// Reports so once something else is done, as [`ready_after`](Self::ready_after) does.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn finish_prefill_after(&self, after: After) -> Result<(), AgentGone> {
        let (job, later) = (Handle::Job(self.job), self.client.later());
        self.client.tell(move |_| Driver::prefill_after(job, &after, later)).await
    }

    /// Gives it up. [`finish`](Transfer::finish) tells when nothing touches the blocks any more.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn cancel(&self) -> Result<(), AgentGone> {
        let job = Handle::Job(self.job);
        self.client.tell(move |driver| driver.cancel(job)).await
    }
}
