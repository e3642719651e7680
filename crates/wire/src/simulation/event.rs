//! Events of a world.

use std::collections::BTreeSet;
use std::time::Duration;

use transload_plan::ids::{AgentId, Rank, TransferId};

use crate::message::Envelope;
use crate::path::Path;
use crate::path::negotiation::Report;
use crate::stream::StreamHeader;
use crate::{ConnId, PlanAsk, Planned};

/// Nanoseconds since the world began.
pub(super) type Time = u64;

pub(super) const MS: Time = 1_000_000;
pub(super) const S: Time = 1000 * MS;

/// The time after which nothing breaks any more.
pub(super) const CALM: Time = 8 * S;

pub(super) enum Event {
    Timer(usize, u32, u64),
    Dial(usize, u32, AgentId),
    DialFailed(usize, u32, AgentId),
    /// The agent at the other end, and whether it was dialled.
    Connected(usize, u32, ConnId, AgentId, bool),
    Disconnected(usize, u32, ConnId),
    /// The number is the index of the receiving end.
    Deliver(ConnId, usize, Envelope),
    Compiled(usize, u32, PlanAsk, Result<Planned<()>, String>),
    /// The flag says whether streams have stopped by then, as they must.
    Fenced(usize, u32, TransferId, bool),
    Stream(usize, u32, TransferId, StreamEvent),
    Channel(usize, u32, ConnId, Path, ChannelEvent),
    Step(Step),
}

pub(super) enum Step {
    OpenLease {
        node: usize,
        rank: Rank,
        request: usize,
    },
    StartJob {
        node: usize,
        ranks: BTreeSet<Rank>,
        request: usize,
        wrong: bool,
        timeout: Duration,
    },
    /// A layer of a source's blocks is computed, or without a layer all of them.
    Computed {
        blocks: u64,
        layer: Option<u32>,
    },
    /// The mark of blocks is reached, or lost with its device.
    Marked {
        blocks: u64,
        done: bool,
    },
    CancelBlocks {
        blocks: u64,
    },
    RenewLease {
        blocks: u64,
    },
    CancelTicket {
        node: usize,
        request: usize,
    },
    RenewTicket {
        node: usize,
        request: usize,
    },
    Break(ConnId),
    BreakAny,
    /// Two nodes cannot reach each other for this long.
    Part(usize, usize, Time),
    Heal(usize, usize),
    Kill(usize),
    /// A node loses the device of its first rank until it restarts.
    LoseDevice(usize),
    /// Every node of a deployment dies, and starts another life.
    Restart {
        deployment: usize,
        clock_back: bool,
    },
    Boot {
        node: usize,
        reopen: bool,
    },
}

#[derive(Debug)]
pub(super) enum StreamEvent {
    /// Reads one half of a piece into a buffer.
    Gather(usize, u64),
    Transmit(usize),
    Arrive(AgentId, StreamHeader, Vec<u64>, u32),
    /// Places one half of a stream.
    Place(u32, u64, bool),
    Break,
    Stall,
}

pub(super) enum ChannelEvent {
    Report(Report),
    Lanes,
    /// An offer has not been taken in time.
    Lapse(u64),
    Fetch(u64),
    /// A ring breaks, reported at the sending end.
    Tear,
}
