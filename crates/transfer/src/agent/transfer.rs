//! The handle of a pull or push.

use std::ops::Deref;

use super::after::After;
use super::client::Client;
use super::driver::Driver;
use super::error::{AgentGone, TransferError};
use super::outcome::{JobResult, PullReport, Started};
use super::promise::{CancelOnDrop, Handle};
#[cfg(doc)]
use super::request::PullRequest;
use transload_layout::Rank;
use transload_wire::JobId;

/// A pull or push in progress.
///
/// Await [`finish`](Self::finish). Dropping this cancels the transfer. Its blocks must not be used before it is over,
/// so prefer [`cancel`](TransferControl::cancel) and `finish`, or give the request a [`keeper`](PullRequest::keeper).
/// Further operations are on [`TransferControl`], to which it dereferences.
#[derive(Debug)]
#[must_use = "dropping a transfer cancels it"]
pub struct Transfer {
    control: TransferControl,
    result: CancelOnDrop<JobResult>,
}

/// Operations on a transfer, which can be used while another task waits for its [end](Transfer::finish).
///
/// It is cheap to clone. Dropping it does nothing.
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

    /// Returns a handle that can outlive this one.
    pub fn control(&self) -> TransferControl {
        self.control.clone()
    }

    /// Waits until all routes of all ranks have landed, or the transfer has failed for good. Either way nothing touches
    /// the blocks any more, except after [`DeviceStalled`](crate::wire::JobError::DeviceStalled).
    ///
    /// # Errors
    /// [`TransferError`].
    pub async fn finish(self) -> Result<PullReport, TransferError> {
        self.result.end().await?
    }
}

impl TransferControl {
    /// Reports that the first `tokens` tokens of a layer are computed. Used by pushes that are not prefilled.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn ready(&self, rank: Rank, layer: u32, tokens: u64) -> Result<(), AgentGone> {
        let job = self.job;
        let ready = move |driver: &mut Driver| driver.machine.job_ready(job, rank, layer, tokens);
        self.client.tell(ready).await
    }

    /// Reports tokens as [`ready`](Self::ready) does, once a condition is met. This call does not wait for that. If the
    /// condition becomes impossible, the push is cancelled.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn ready_after(&self, after: After, rank: Rank, layer: u32, tokens: u64) -> Result<(), AgentGone> {
        let (job, later) = (self.job, self.client.later());
        let ready = move |driver: &mut Driver| driver.machine.job_ready(job, rank, layer, tokens);
        self.client.tell(move |_| later.tell_after(Handle::Job(job), &after, ready)).await
    }

    /// Reports that everything is computed. Used by pushes that are not prefilled.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn finish_prefill(&self) -> Result<(), AgentGone> {
        let job = self.job;
        let prefilled = move |driver: &mut Driver| driver.machine.job_prefilled(driver.now(), job);
        self.client.tell(prefilled).await
    }

    /// Reports the end of the prefill once a condition is met, as [`ready_after`](Self::ready_after) does for tokens.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn finish_prefill_after(&self, after: After) -> Result<(), AgentGone> {
        let (job, later) = (Handle::Job(self.job), self.client.later());
        self.client.tell(move |_| later.prefill_after(job, &after)).await
    }

    /// Cancels the transfer. [`finish`](Transfer::finish) returns when nothing touches the blocks any more.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn cancel(&self) -> Result<(), AgentGone> {
        let job = Handle::Job(self.job);
        self.client.tell(move |driver| driver.cancel(job)).await
    }
}
