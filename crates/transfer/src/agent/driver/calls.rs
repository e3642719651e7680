//! The driver's operations for users.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Driver;
use crate::agent::outcome::{JobLabel, LeaseEnded, Started};
use crate::agent::promise::{CancelOnDrop, Handle};
use crate::agent::request::{Blocks, Keeper};
use transload_wire::{JobError, JobSpec, LeaseSpec, NoticeId, NoticeOutcome, OpenError};

impl Driver {
    pub(in crate::agent) fn lease(
        &mut self,
        spec: LeaseSpec,
        blocks: Blocks,
        claimed: Arc<AtomicBool>,
        keeper: Option<Keeper>,
    ) -> Result<CancelOnDrop<LeaseEnded>, OpenError<Blocks>> {
        let key = spec.key;
        self.machine.lease(self.now(), spec, blocks)?;
        self.counters.metrics.leases.opened += 1;
        Ok(self.promises.lease(key, keeper, claimed))
    }

    pub(in crate::agent) fn start(
        &mut self,
        spec: JobSpec,
        blocks: Blocks,
        label: JobLabel,
        keeper: Option<Keeper>,
    ) -> Result<Started, JobError> {
        let started = self.machine.start(self.now(), spec, blocks);
        let job = started.map_err(|refused| *refused.error)?;
        self.counters.transfers(label.direction).begun += 1;
        Ok((job, self.promises.job(job, keeper, label)))
    }

    /// Begins a notice, and returns the receiver of its outcome.
    pub(in crate::agent) fn notice(
        &mut self,
        begin: impl FnOnce(&mut Self) -> Result<NoticeId, JobError>,
    ) -> Result<oneshot::Receiver<NoticeOutcome>, JobError> {
        let notice = begin(self)?;
        Ok(self.promises.notice(notice))
    }

    pub(in crate::agent) fn cancel(&mut self, handle: Handle) {
        let now = self.now();
        match handle {
            // An error means that the lease is over already.
            Handle::Lease(key) => drop(self.machine.cancel_lease(now, key)),
            Handle::Job(job) => self.machine.cancel_job(now, job),
            Handle::Agent => self.shut_down(Duration::ZERO, None),
        }
    }

    /// Stops taking anything new, and lets everything in progress continue for `patience`.
    pub(in crate::agent) fn shut_down(&mut self, patience: Duration, done: Option<oneshot::Sender<()>>) {
        self.shutdown.begin(patience, done);
        let now = self.now();
        self.machine.drain(now);
    }
}
