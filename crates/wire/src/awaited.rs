//! What is waited for: what errors say where it has not come in time.

use std::fmt;

use serde::{Deserialize, Serialize};
use transload_plan::ids::AgentId;

use crate::ticket::RankAddress;

/// What a transfer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Awaited {
    /// A connection.
    Connection,
    /// An answer to what was asked.
    Answer,
    /// A lease that its owner does not know yet.
    Lease,
    /// The end of an earlier attempt.
    Fence,
    /// The end of the prefill.
    Prefill,
    /// The next attempt, after one that failed.
    Attempt,
    /// More bytes.
    Bytes {
        /// How many have moved.
        moved: u64,
        /// How many there are.
        planned: u64,
    },
    /// The source's word that all bytes were read from a lease that was alive.
    Commit,
    /// The destination's word that all has landed.
    Landing,
    /// Its turn, behind other transfers: the owner is busy with so many, of ours or of others.
    Turn,
    /// The owner's push, which has not begun, or its word that all is pushed.
    Push,
    /// The plan of what moves, which is compiled here.
    Plan,
}

impl Awaited {
    /// Whether an owner tells whoever waits so.
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

/// What a pull or a push waits for, and of which agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// What it is.
    pub on: Awaited,
    /// The agent.
    pub agent: AgentId,
    /// Where it was asked: host and port. None where it has connected to us, or need not be asked.
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

/// An address of a ticket as errors show it.
pub(crate) fn shown(address: &RankAddress) -> String {
    match address.host.contains(':') {
        true => format!("[{}]:{}", address.host, address.port),
        false => format!("{}:{}", address.host, address.port),
    }
}
