//! What the driver hears: from the network, from transfers, and from the agent's users.

use std::time::Duration;

use tokio::sync::oneshot;

use super::driver::Bound;
use super::lease::{Lease, OpenRefused};
use super::metrics::{AgentMetrics, JobUnderWay};
use super::request::Keeper;
use super::transfer::Transfer;
use super::{Blocks, NoticeOutcome};
use crate::content::ContentDigest;
use crate::data::Landing;
use crate::ids::{AgentId, Rank, TransferId};
use crate::lease::{LeaseError, LeaseKey, LeaseSpec};
use crate::path::Path;
use crate::path::negotiation::{Ending, Report};
use crate::plan::Plan;
use crate::quic::ControlConnection;
use crate::ticket::Ticket;
use crate::wire::message::Envelope;
use crate::wire::stream::{StreamHeader, StreamTrailer};
use crate::wire::{ConnId, Gauges, JobError, JobId, JobSpec, PlanAsk, Planned};

/// One thing that has happened, or that somebody wants.
pub(super) enum Event {
    /// A peer has connected to us.
    Arrived(ControlConnection),
    /// An attempt to connect is over.
    Dialled {
        agent: AgentId,
        result: Result<ControlConnection, String>,
    },
    /// A message has come.
    Received { conn: ConnId, envelope: Envelope },
    /// A control connection is gone.
    Lost { conn: ConnId, why: String },
    /// The carrier of a path has something to tell.
    Path {
        conn: ConnId,
        path: Path,
        report: Report,
    },

    /// A data stream of ours is written, or has failed: one of the transfer that the driver has given this number.
    Sending {
        transfer: TransferId,
        number: u64,
        sending: Sending,
    },
    /// A data stream wants in.
    Admit {
        agent: AgentId,
        header: StreamHeader,
        answer: oneshot::Sender<Option<Landing>>,
    },
    /// A plan is compiled, or cannot be.
    Compiled {
        ask: PlanAsk,
        plan: Result<Planned<Plan>, String>,
    },
    /// A route is bound to memory, or cannot be: that of the transfer that the driver has given this number.
    Bound {
        transfer: TransferId,
        number: u64,
        bound: Bound,
    },
    /// A data stream has arrived whole.
    Landed {
        header: StreamHeader,
        trailer: StreamTrailer,
        crc: u32,
    },
    /// A data stream that came has failed.
    StreamFailed { transfer: TransferId, why: String },
    /// Nothing of a transfer is read or placed any more.
    Fenced { transfer: TransferId },

    /// A user of the agent wants something.
    Command(Command),
}

/// What has become of a data stream of ours.
pub(super) enum Sending {
    /// It is written whole.
    Written { bytes: u64 },
    /// It has failed; `path` says how where that is the fault of its path.
    Failed { why: String, path: Option<Ending> },
}

/// What users of an agent want.
pub(super) enum Command {
    Lease {
        spec: LeaseSpec<Blocks>,
        keeper: Option<Keeper>,
        opened: oneshot::Sender<Result<Lease, OpenRefused>>,
    },
    Ready {
        key: LeaseKey,
        layer: u32,
        tokens: u64,
        answer: oneshot::Sender<Result<(), LeaseError>>,
    },
    FinishPrefill {
        key: LeaseKey,
        answer: oneshot::Sender<Result<(), LeaseError>>,
    },
    Renew {
        key: LeaseKey,
        ttl: Duration,
        answer: oneshot::Sender<Result<(), LeaseError>>,
    },
    CancelLease {
        key: LeaseKey,
    },
    Start {
        spec: JobSpec<Blocks>,
        job: JobUnderWay,
        keeper: Option<Keeper>,
        started: oneshot::Sender<Result<Transfer, JobError>>,
    },
    JobReady {
        job: JobId,
        rank: Rank,
        layer: u32,
        tokens: u64,
    },
    JobPrefilled {
        job: JobId,
    },
    CancelJob {
        job: JobId,
    },
    CancelTicket {
        ticket: Ticket,
        content: Option<ContentDigest>,
        answer: oneshot::Sender<NoticeBegun>,
    },
    RenewTicket {
        ticket: Ticket,
        ttl: Duration,
        answer: oneshot::Sender<NoticeBegun>,
    },
    Gauges {
        answer: oneshot::Sender<Gauges>,
    },
    Metrics {
        answer: oneshot::Sender<Box<AgentMetrics>>,
    },
    /// Take nothing new; answer once idle or after the patience, then stop.
    Shutdown {
        patience: Duration,
        done: oneshot::Sender<()>,
    },
}

/// Where the outcome of a notice will be, or why there is none.
pub(super) type NoticeBegun = Result<oneshot::Receiver<NoticeOutcome>, JobError>;
