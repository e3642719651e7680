//! The events that transfers wait for. Errors report them when a wait has taken too long.

use std::fmt;

use serde::{Deserialize, Serialize};
use transload_plan::ids::AgentId;

use crate::ticket::RankAddress;

/// The event that a transfer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Awaited {
    /// A connection.
    Connection,
    /// An answer to the ask.
    Answer,
    /// A lease that its owner does not know yet.
    Lease,
    /// The end of an earlier attempt.
    Fence,
    /// The end of the prefill.
    Prefill,
    /// The next attempt, after a failed one.
    Attempt,
    /// Further bytes.
    Bytes {
        /// The number of bytes that have moved.
        moved: u64,
        /// The number of bytes of the route.
        planned: u64,
    },
    /// The source's commit: its statement that all bytes were read while the lease was alive.
    Commit,
    /// The destination's confirmation that everything has landed.
    Landing,
    /// The transfer's turn: the owner is busy with as many transfers as it allows.
    Turn,
    /// The begin of the owner's push, or its confirmation that everything is pushed.
    Push,
    /// The plan of the transfer, which this agent compiles.
    Plan,
}

impl Awaited {
    /// Returns whether owners announce such a wait to the peer.
    pub(crate) fn is_told(self) -> bool {
        matches!(self, Self::Lease | Self::Fence | Self::Prefill)
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Awaited::Connection => f.write_str("a connection"),
            Awaited::Answer => f.write_str("an answer"),
            Awaited::Lease => f.write_str("a lease that is unknown there"),
            Awaited::Fence => f.write_str("the end of an earlier attempt"),
            Awaited::Prefill => f.write_str("the end of the prefill"),
            Awaited::Attempt => f.write_str("the next attempt"),
            Awaited::Bytes { moved, planned } => {
                write!(f, "bytes, which stopped at {moved} of {planned}")
            }
            Awaited::Commit => f.write_str("the commit, after all bytes"),
            Awaited::Landing => f.write_str("word that all bytes have landed"),
            Awaited::Turn => f.write_str("its turn, behind other transfers there"),
            Awaited::Plan => f.write_str("its plan, which is compiled here"),
            Awaited::Push => f.write_str("the owner's push, or word that all is pushed"),
        }
    }
}

/// The event that a pull or a push waits for, and the agent that it depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The event.
    pub on: Awaited,
    /// The agent.
    pub agent: AgentId,
    /// The host and port at which the agent was dialled. `None` if the agent connected to us, or need not be reached.
    pub address: Option<String>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { on, agent, address } = self;
        write!(f, "{on} (agent {agent}")?;
        if let Some(address) = address {
            write!(f, " at {address}")?;
        }
        f.write_str(")")
    }
}

pub(crate) fn shown(address: &RankAddress) -> String {
    match address.host.contains(':') {
        true => format!("[{}]:{}", address.host, address.port),
        false => format!("{}:{}", address.host, address.port),
    }
}
