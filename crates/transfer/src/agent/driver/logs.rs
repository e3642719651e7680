//! What the driver tells whoever reads the log: who came and went, what was refused, and what failed.
//!
//! Warnings are what somebody should look at; a refusal is one at both sides.

use super::Driver;
use crate::agent::error::TransferError;
use crate::agent::metrics::JobUnderWay;
use crate::content::{ContentDigest, ContentFingerprint};
use crate::ids::TransferId;
use crate::lease::{LeaseEnd, LeaseKey};
use crate::wire::{CloseReason, ConnId, HelloRefusal, JobError, Refusal};

impl Driver {
    /// The machine closes a connection.
    pub(super) fn log_close(&self, conn: ConnId, reason: &CloseReason) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        let (agent, address) = (connection.name(), connection.address);
        match reason {
            CloseReason::Refused(HelloRefusal::Specs(why)) => tracing::warn!(
                %agent, %address, field = %why.field, ours = %why.ours, theirs = %why.theirs,
                "refused an agent that caches something else"
            ),
            CloseReason::Unwelcome(HelloRefusal::Specs(why)) => tracing::warn!(
                %agent, %address, field = %why.field, ours = %why.ours, theirs = %why.theirs,
                "refused by an agent that caches something else"
            ),
            CloseReason::Refused(why) => tracing::warn!(%agent, %address, %why, "refused an agent"),
            CloseReason::Unwelcome(why) => {
                tracing::warn!(%agent, %address, %why, "refused by an agent");
            }
            CloseReason::HelloLate | CloseReason::Violation(_) | CloseReason::PathFailed(_) => {
                tracing::warn!(%agent, %address, why = %reason, "hung up on an agent");
            }
            CloseReason::Replaced => {
                tracing::info!(%agent, %address, why = %reason, "hung up on an agent");
            }
        }
    }

    /// A transfer that a peer has asked for is refused.
    pub(super) fn log_refused(&self, conn: ConnId, transfer: TransferId, why: &Refusal) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        let agent = connection.name();
        match why {
            // It is tried again, or was.
            Refusal::Busy { .. } | Refusal::Superseded { .. } => {
                tracing::debug!(%agent, %transfer, %why, "refused a transfer");
            }
            _ => tracing::warn!(%agent, %transfer, %why, "refused a transfer"),
        }
    }

    /// A peer has stated other content than a lease holds. Those who compare logs of two agents see by the
    /// fingerprints which of them is wrong; nobody learns what would have been right.
    pub(super) fn log_other_content(
        &self,
        key: LeaseKey,
        held: &ContentDigest,
        stated: &ContentDigest,
    ) {
        let (held, stated) = (self.fingerprint(held), self.fingerprint(stated));
        tracing::warn!(lease = %key, %held, %stated, "a peer has asked for other content than is leased");
    }

    fn fingerprint(&self, content: &ContentDigest) -> ContentFingerprint {
        content.fingerprint(self.endpoints.ticket_secret().as_bytes())
    }

    pub(super) fn log_job_failed(&self, job: JobUnderWay, error: &TransferError) {
        let JobUnderWay {
            direction,
            set,
            content,
        } = job;
        let kind = error.kind();
        match error {
            TransferError::Job(JobError::Cancelled | JobError::ShuttingDown) => {
                tracing::info!(%direction, %set, kind, %error, "a transfer was given up");
            }
            _ if kind == "content" => {
                let stated = self.fingerprint(&content);
                tracing::warn!(%direction, %set, kind, %stated, %error, "a transfer has failed");
            }
            _ => tracing::warn!(%direction, %set, kind, %error, "a transfer has failed"),
        }
    }

    /// A push that a peer has invited is refused.
    pub(super) fn log_not_pushed(&self, conn: ConnId, why: &Refusal) {
        if let Some(connection) = self.connections.get(&conn) {
            tracing::warn!(agent = %connection.name(), %why, "refused to push");
        }
    }
}

pub(super) fn log_lease_ended(key: LeaseKey, end: LeaseEnd) {
    match end {
        LeaseEnd::Completed | LeaseEnd::Cancelled => {
            tracing::debug!(lease = %key, %end, "a lease has ended");
        }
        LeaseEnd::Expired | LeaseEnd::PeerLost => {
            tracing::warn!(lease = %key, %end, "a lease has ended");
        }
    }
}

/// A push that a peer has invited, out of blocks that are leased to it.
pub(super) fn log_invited_push_failed(key: LeaseKey, error: &TransferError) {
    let kind = error.kind();
    match error {
        // The peer has given it up, or the lease has ended in another way, which is logged.
        TransferError::Job(JobError::LeaseEnded { .. } | JobError::ShuttingDown) => {
            tracing::info!(lease = %key, kind, %error, "a push was given up");
        }
        _ => tracing::warn!(lease = %key, kind, %error, "a push has failed"),
    }
}
