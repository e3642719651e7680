//! The description of a job.

use std::collections::BTreeSet;
use std::time::Duration;

use transload_plan::Request;
use transload_plan::content::ContentDigest;
use transload_plan::ids::Rank;

use crate::message::Invitation;
use crate::outcome::JobError;
use crate::path::PathSet;
use crate::ticket::{Claims, Ticket};

/// Describes a pull or a push; the ticket decides which of the two.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// The ticket.
    pub ticket: Ticket,
    /// The local ranks that take part, all with the same blocks.
    pub ranks: BTreeSet<Rank>,
    /// The tokens, and whether layers may move before the prefill is over. For a push these are exactly the ticket's
    /// tokens.
    pub request: Request,
    /// The digest of the expected content.
    pub content: ContentDigest,
    /// The number of lanes for each route.
    pub lanes: u16,
    /// The acceptable paths.
    pub paths: PathSet,
    /// The time limit for the whole job.
    pub timeout: Duration,
    /// Whether the leases are kept if the job fails, so that it can be repeated while they live. Otherwise they are
    /// cancelled.
    pub keep_leases: bool,
    /// Whether the blocks hold everything already; always true for a pull. Otherwise
    /// [`Machine::job_ready`](crate::Machine::job_ready) reports the progress of the prefill, and
    /// [`Machine::job_prefilled`](crate::Machine::job_prefilled) its end.
    pub prefilled: bool,
    /// Used by pulls only: a ticket for write leases on these blocks, if the owner is to push into them. It names all
    /// ranks of this deployment, each of which pulls with the same ticket; this job opens the leases of its own ranks.
    pub into: Option<Ticket>,
}

impl JobSpec {
    /// Returns the paths that can carry its bytes in its codec.
    pub(crate) fn travels_by(&self) -> PathSet {
        self.paths.carrying(self.request.codec)
    }

    /// Describes the push from a lease on its holder's invitation, into the write leases of the ticket `into`.
    pub(crate) fn invited(rank: Rank, invitation: Invitation, into: &Claims, prefilled: bool) -> Self {
        Self {
            ticket: invitation.into,
            ranks: BTreeSet::from([rank]),
            request: into.request(invitation.by_layer),
            content: invitation.content,
            lanes: invitation.lanes,
            paths: invitation.paths,
            // The lease has its own time limit, which its owner may extend, and stops the push then.
            timeout: Duration::MAX,
            keep_leases: false,
            prefilled,
            into: None,
        }
    }
}

/// A job that could not begin. It returns the blocks.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct JobRefused<B> {
    /// The reason.
    pub error: Box<JobError>,
    /// The blocks.
    pub blocks: B,
}
