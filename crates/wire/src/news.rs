//! What the parts of the machine tell those above them.

use std::sync::Arc;

use transload_plan::ids::{AgentId, Incarnation, Rank, TransferId};

use crate::ids::{ConnId, JobId};
use crate::lease::LeaseKey;
use crate::message::{Invitation, NoticeKind};
use crate::path::Path;
use crate::refusal::{Failure, HelloRefusal, Refusal, Text};
use crate::ticket::{Claims, Ticket};

/// On whose behalf a transfer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// We own the lease that a peer uses.
    Lease(LeaseKey),
    /// We hold a ticket; this is one route of our job.
    Job { job: JobId, route: usize },
}

/// Why a transfer ended without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Failed(Failure),
    Refused(Refusal),
}

/// Something that has happened in one part and concerns others.
#[derive(Debug)]
pub(crate) enum News {
    /// Peers: an agent is connected, and both sides are welcome.
    Up(AgentId, Incarnation),
    /// Peers: a connection is gone. `agent`, where that is known, `was_up` on it or not.
    Lost { conn: ConnId, agent: Option<AgentId>, was_up: bool },
    /// Peers: an agent and we do not talk to each other.
    Unwelcome(AgentId, HelloRefusal),
    /// Peers: no connection to an agent is up, and the last one, or the last attempt, is over. Why,
    /// where no more patience is left with it.
    Away(AgentId, Option<Text>),

    /// Flows: the first bytes of a transfer are about to move.
    Moves(Side),
    /// Flows: a peer lets a route of ours in, though it has to wait.
    Admitted(JobId),
    /// Flows: a peer has let a route of a job of ours in, and this is its path.
    Accepted(TransferId, JobId, usize, Path),
    /// Flows: a transfer takes a path from now on.
    Travels(TransferId),
    /// Flows: a transfer is being fenced.
    Stopped(ConnId, TransferId),
    /// Flows: the last byte has been read. Its blocks' owner decides about the commit.
    Read(TransferId),
    /// Flows: every byte has arrived, and the commit. Its blocks' owner decides whether it lands.
    Whole(TransferId),
    /// Flows: the destination has said that everything landed.
    Landed(TransferId),
    /// Flows: an attempt with this rank of the peer is over without success, and fenced.
    Gone(TransferId, Side, Rank, Why),

    /// Flows: memory of this rank is not done with a transfer that was stopped long ago. Jobs: nor with an invited push.
    Stalled(Side, Rank, Option<TransferId>),

    /// Paths: what has taken a path that is lost has failed.
    PathLost(Vec<TransferId>, Text),
    /// Paths: a connection is of no use any more.
    HangUp(ConnId, Text),

    /// Owner: a push into what a pull has opened is refused for good.
    PushRefused(JobId, ConnId, Refusal),
    /// Owner: a lease is to be pushed, as its holder wants it.
    Invited {
        job: JobId,
        key: LeaseKey,
        invitation: Arc<Invitation>,
        into: Claims,
        /// What is ready of the blocks, and whether that is all.
        ready: (Vec<(u32, u64)>, bool),
    },

    /// Jobs: what was opened for a pull is to be given up.
    GiveUp(Vec<LeaseKey>),
    /// Jobs: an invited push touches the blocks of its lease no more.
    PushOver { key: LeaseKey, landed: bool },
    /// Jobs: the agents of a ticket are to be told.
    Notify(Box<Notify>),
}

/// What the agents of a ticket are to be told.
#[derive(Debug)]
pub(crate) struct Notify {
    pub(crate) ticket: Ticket,
    pub(crate) claims: Claims,
    pub(crate) says: NoticeKind,
    /// Whether to connect to agents for it.
    pub(crate) dials: bool,
    /// Whether somebody wants to know how it went.
    pub(crate) reported: bool,
}
