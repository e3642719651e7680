//! Events that peers, the data plane and background work send to the driver.

use tokio::sync::oneshot;

use super::bound::BoundRoute;
use super::dial::DialError;
use crate::data::{Landing, SendEvent};
use crate::quic::ControlConnection;
use transload_plan::Plan;
use transload_plan::ids::{AgentId, TransferId};
use transload_wire::internal::negotiation::Report;
use transload_wire::internal::stream::{StreamHeader, StreamTrailer};
use transload_wire::message::Envelope;
use transload_wire::{ConnId, Path, PlanAsk, Planned};

/// An event of control connections. Senders wait while too many are queued (back-pressure).
pub(super) enum ControlEvent {
    Arrived(ControlConnection),
    Dialled { agent: AgentId, result: Result<ControlConnection, DialError> },
    Received { conn: ConnId, envelope: Envelope },
    Lost { conn: ConnId, why: String },
}

/// An event of data: a few for each stream. Its senders cannot wait, so the queue is unbounded.
pub(super) enum DataEvent {
    /// The carrier of a path reports something.
    Path { conn: ConnId, path: Path, report: Report },
    /// A plan is compiled, or cannot be.
    Compiled { ask: PlanAsk, plan: Result<Planned<Plan>, String> },
    /// A route is bound to memory, or cannot be. `number` is the driver's own number of the transfer.
    Bound { transfer: TransferId, number: u64, bound: BoundRoute },
    /// An outgoing data stream is written, or has failed. `number` is the driver's own number of the transfer.
    Sending { transfer: TransferId, number: u64, event: SendEvent },
    /// An incoming data stream asks to be admitted.
    Admit { agent: AgentId, header: StreamHeader, answer: oneshot::Sender<Landing> },
    /// An incoming data stream has arrived completely.
    Landed { header: StreamHeader, trailer: StreamTrailer, crc: u32 },
    /// An incoming data stream has failed.
    StreamFailed { transfer: TransferId, why: String },
    /// No byte of the transfer is read or placed any more.
    Fenced { transfer: TransferId },
    /// The memory of some rank is lost.
    MemoryLost,
}
