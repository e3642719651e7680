//! Log messages of the driver about refusals and failures.
//!
//! A warning needs an operator's attention. Both sides log a refusal as a warning.

use std::net::SocketAddr;

use crate::agent::error::TransferError;
use crate::agent::outcome::JobLabel;
use transload_plan::content::ContentFingerprint;
use transload_wire::message::Message;
use transload_wire::{CloseReason, HelloRefusal, JobError, LeaseEnd, LeaseKey, Refusal};

pub(super) fn closed(agent: &str, address: SocketAddr, reason: &CloseReason) {
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
        CloseReason::Replaced => {
            tracing::info!(%agent, %address, why = %reason, "hung up on an agent");
        }
        _ => tracing::warn!(%agent, %address, why = %reason, "hung up on an agent"),
    }
}

pub(super) fn lease_stalled(key: LeaseKey) {
    tracing::error!(lease = %key, "a lease has failed: its device is not done with the blocks, which stay held");
}

pub(super) fn refusal(agent: &str, message: &Message) {
    match message {
        // The asker tries again, or has done so already.
        Message::Refused { transfer, refusal: why @ (Refusal::Busy { .. } | Refusal::Superseded { .. }) } => {
            tracing::debug!(%agent, %transfer, %why, "refused a transfer")
        }
        Message::Refused { transfer, refusal: why } => tracing::warn!(%agent, %transfer, %why, "refused a transfer"),
        Message::Invited { outcome: Err(why), .. } => tracing::warn!(%agent, %why, "refused to push"),
        _ => {}
    }
}

/// Logs that a peer has stated other content than a lease holds. By the fingerprints, an operator with the logs of both
/// agents sees which of them is wrong; the content itself is not revealed.
pub(super) fn other_content(key: LeaseKey, held: &ContentFingerprint, stated: &ContentFingerprint) {
    tracing::warn!(lease = %key, %held, %stated, "a peer has asked for other content than is leased");
}

pub(super) fn job_failed(job: JobLabel, stated: &ContentFingerprint, error: &TransferError) {
    let JobLabel { direction, set, .. } = job;
    let kind = error.kind();
    match error {
        TransferError::Job(JobError::Cancelled | JobError::ShuttingDown) => {
            tracing::info!(%direction, %set, kind, %error, "a transfer was given up");
        }
        _ if kind == "content" => {
            tracing::warn!(%direction, %set, kind, %stated, %error, "a transfer has failed");
        }
        _ => tracing::warn!(%direction, %set, kind, %error, "a transfer has failed"),
    }
}

pub(super) fn lease_ended(key: LeaseKey, end: LeaseEnd) {
    match end {
        LeaseEnd::Completed | LeaseEnd::Cancelled => {
            tracing::debug!(lease = %key, %end, "a lease has ended");
        }
        LeaseEnd::Expired | LeaseEnd::PeerLost | LeaseEnd::DeviceLost | LeaseEnd::DeviceStalled => {
            tracing::warn!(lease = %key, %end, "a lease has ended");
        }
    }
}

/// Logs that an invited push has failed, of blocks that are leased to the inviting peer.
pub(super) fn invited_push_failed(key: LeaseKey, error: &TransferError) {
    let kind = error.kind();
    match error {
        // The peer has given it up, or the lease has ended for a reason that is logged elsewhere.
        TransferError::Job(JobError::LeaseEnded { .. } | JobError::ShuttingDown) => {
            tracing::info!(lease = %key, kind, %error, "a push was given up");
        }
        _ => tracing::warn!(lease = %key, kind, %error, "a push has failed"),
    }
}
