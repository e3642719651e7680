//! Events: peers, the data plane and background work tell the driver what has happened.

use tokio::sync::oneshot;

use super::dial::DialError;
use super::transfers::BoundRoute;
use crate::data::{Landing, SendEvent};
use crate::quic::ControlConnection;
use transload_plan::Plan;
use transload_plan::ids::{AgentId, TransferId};
use transload_wire::internal::negotiation::Report;
use transload_wire::internal::stream::{StreamHeader, StreamTrailer};
use transload_wire::message::Envelope;
use transload_wire::{ConnId, Path, PlanAsk, Planned};

/// Tells of control connections. Peers wait while too many of these events are queued (back-pressure).
pub(super) enum ControlEvent {
    Arrived(ControlConnection),
    Dialled { agent: AgentId, result: Result<ControlConnection, DialError> },
    Received { conn: ConnId, envelope: Envelope },
    Lost { conn: ConnId, why: String },
}

/// Tells of data: a few events for each stream, from senders that cannot wait.
pub(super) enum DataEvent {
    /// The carrier of a path has something to report.
    Path { conn: ConnId, path: Path, report: Report },
    /// A plan is compiled, or cannot be.
    Compiled { ask: PlanAsk, plan: Result<Planned<Plan>, String> },
    /// A route is bound to memory, or cannot be: that of the transfer that was given this number here.
    Bound { transfer: TransferId, number: u64, bound: BoundRoute },
    /// A data stream of ours is written, or has failed: one of the transfer that was given this number here.
    Sending { transfer: TransferId, number: u64, event: SendEvent },
    /// A data stream wants in.
    Admit { agent: AgentId, header: StreamHeader, answer: oneshot::Sender<Landing> },
    /// A data stream has arrived whole.
    Landed { header: StreamHeader, trailer: StreamTrailer, crc: u32 },
    /// A data stream that came has failed.
    StreamFailed { transfer: TransferId, why: String },
    /// Nothing of a transfer is read or placed any more.
    Fenced { transfer: TransferId },
    /// The memory of some rank is lost.
    MemoryLost,
}
