//! What a job is to do.

use std::collections::BTreeSet;
use std::time::Duration;

use transload_plan::Request;
use transload_plan::content::ContentDigest;
use transload_plan::ids::Rank;

use crate::message::Invitation;
use crate::outcome::JobError;
use crate::path::PathSet;
use crate::ticket::{Claims, Ticket};

/// What to pull or push. Which of the two, the ticket says.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// The ticket.
    pub ticket: Ticket,
    /// The local ranks that take part, all with these blocks.
    pub ranks: BTreeSet<Rank>,
    /// Which tokens, and whether layers may move before the prefill is over; of a push, the tokens of the ticket.
    pub request: Request,
    /// What the content is taken to be.
    pub content: ContentDigest,
    /// How many lanes to use for each route.
    pub lanes: u16,
    /// The paths that may be taken.
    pub paths: PathSet,
    /// How long all of it may take.
    pub timeout: Duration,
    /// Whether the leases live on where this fails, so that it may be tried again while they do.
    /// Otherwise they are cancelled.
    pub keep_leases: bool,
    /// Of a push: whether the blocks hold everything already. Otherwise
    /// [`Machine::job_ready`](crate::Machine::job_ready) tells how far the prefill has come, and
    /// [`Machine::job_prefilled`](crate::Machine::job_prefilled) that it is over. Of a pull: true.
    pub prefilled: bool,
    /// Of a pull: a ticket that opens these blocks, if the owner shall push into them. It names all ranks
    /// of this deployment, each of which pulls with the same; the ranks here are opened under it.
    pub into: Option<Ticket>,
}

impl JobSpec {
    /// The paths that its bytes may take.
    pub(crate) fn travels_by(&self) -> PathSet {
        self.paths.carrying(self.request.codec)
    }

    /// The push out of a lease that its holder has invited, into what its own ticket `into` opens.
    pub(crate) fn invited(rank: Rank, invitation: Invitation, into: &Claims, prefilled: bool) -> Self {
        Self {
            ticket: invitation.into,
            ranks: BTreeSet::from([rank]),
            request: into.request(invitation.by_layer),
            content: invitation.content,
            lanes: invitation.lanes,
            paths: invitation.paths,
            // The lease stops it when its own time is over, which its owner may still put off.
            timeout: Duration::MAX,
            keep_leases: false,
            prefilled,
            into: None,
        }
    }
}

/// A job that was not begun. The blocks are given back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct JobRefused<B> {
    /// Why not.
    pub error: Box<JobError>,
    /// The blocks.
    pub blocks: B,
}
