//! Event: what parts of the machine report to the parts above them.

use std::sync::Arc;

use transload_plan::ids::{AgentId, Incarnation, Rank, TransferId};

use crate::ids::{ConnId, JobId};
use crate::lease::LeaseKey;
use crate::message::{Invitation, NoticeKind};
use crate::path::Path;
use crate::refusal::{Failure, HelloRefusal, Refusal, Text};
use crate::ticket::{Claims, Ticket};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// This agent owns the lease that the peer uses.
    Lease(LeaseKey),
    /// This agent holds a ticket, and the transfer is one route of its job.
    Job { job: JobId, route: usize },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Failed(Failure),
    Refused(Refusal),
}

/// An event in one part that concerns others.
#[derive(Debug)]
pub(crate) enum Event {
    /// Peers: an agent is connected, and both sides are welcome.
    Up(AgentId, Incarnation),
    /// Peers: a connection is lost. `was_up` says whether `agent`, if it is known, was welcome on it.
    Lost { conn: ConnId, agent: Option<AgentId>, was_up: bool },
    /// Peers: an agent refused this one, or was refused.
    Unwelcome(AgentId, HelloRefusal),
    /// Peers: no connection to an agent is left, and dialling has failed. With a reason, it has failed for too long.
    Away(AgentId, Option<Text>),

    /// Flows: the first bytes of a transfer are about to move.
    Moves(Side),
    /// Flows: a peer has admitted a route of this agent's job, which must still wait.
    Admitted(JobId),
    /// Flows: a peer has accepted a route of this agent's job, on this path.
    Accepted(TransferId, JobId, usize, Path),
    /// Flows: a transfer takes its path from now on.
    Travels(TransferId),
    /// Flows: a transfer is being fenced.
    Stopped(ConnId, TransferId),
    /// Flows: a transfer's last byte has been read. The owner of its blocks decides about the commit.
    Read(TransferId),
    /// Flows: every byte and the commit have arrived. The owner of the blocks decides whether the transfer lands.
    Whole(TransferId),
    /// Flows: the destination has confirmed that everything has landed.
    Landed(TransferId),
    /// Flows: an attempt with this rank of the peer has ended without success, and is fenced.
    Gone(TransferId, Side, Rank, Why),

    /// Flows: memory of this rank does not finish the work of a stopped transfer. Jobs: nor that of an invited push.
    Stalled(Side, Rank, Option<TransferId>),

    /// Paths: a path is lost, and with it the transfers that took it.
    PathLost(Vec<TransferId>, Text),
    /// Paths: a connection cannot be used further.
    HangUp(ConnId, Text),

    /// Owner: a push into a pull's write lease is refused for good.
    PushRefused(JobId, ConnId, Refusal),
    /// Owner: a lease is to be pushed, at its holder's invitation.
    Invited {
        job: JobId,
        key: LeaseKey,
        invitation: Arc<Invitation>,
        into: Claims,
        /// The ready tokens of each layer, and whether the prefill is over.
        ready: (Vec<(u32, u64)>, bool),
    },

    /// Jobs: the write leases of a pull are to be cancelled.
    GiveUp(Vec<LeaseKey>),
    /// Jobs: an invited push no longer touches the blocks of its lease.
    PushOver { key: LeaseKey, landed: bool },
    /// Jobs: a notice is to be sent to the agents of a ticket.
    Notify(Box<Notify>),
}

#[derive(Debug)]
pub(crate) struct Notify {
    pub(crate) ticket: Ticket,
    pub(crate) claims: Claims,
    pub(crate) says: NoticeKind,
    pub(crate) dials: bool,
    pub(crate) reported: bool,
}
