//! What is waited for: what errors say where it has not come in time.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::destination;
use super::job::JobError;
use super::message::WaitingOn;
use super::planner::Planner;
use super::source;
use super::transfer::{Role, Side, Transfer};
use super::{JobId, Machine};
use crate::ids::AgentId;
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
    /// Its address in the ticket: host and port.
    pub address: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { on, agent, address } = self;
        write!(f, "{on} (agent {agent} at {address})")
    }
}

/// An address of a ticket as errors show it.
pub(super) fn shown(address: &RankAddress) -> String {
    match address.host.contains(':') {
        true => format!("[{}]:{}", address.host, address.port),
        false => format!("{}:{}", address.host, address.port),
    }
}

impl Transfer {
    /// What it waits for.
    pub(super) fn awaits(&self) -> Awaited {
        let asked = match self.waiting {
            None => Awaited::Answer,
            Some(WaitingOn::Lease) => Awaited::Lease,
            Some(WaitingOn::Prefill) => Awaited::Prefill,
            Some(WaitingOn::Fence) => Awaited::Fence,
        };
        let (moved, planned) = (self.moved, self.flow.bytes);
        let bytes = Awaited::Bytes { moved, planned };
        match &self.role {
            Role::Source(source) => match source.phase() {
                source::Phase::Asking => asked,
                source::Phase::Waiting => Awaited::Prefill,
                source::Phase::Reading => bytes,
                source::Phase::Committed => Awaited::Landing,
                source::Phase::Fencing(_) => Awaited::Fence,
            },
            Role::Destination(destination) => match destination.phase() {
                destination::Phase::Asking => asked,
                destination::Phase::Receiving if moved >= planned => Awaited::Commit,
                destination::Phase::Receiving if self.waiting == Some(WaitingOn::Prefill) => asked,
                destination::Phase::Receiving => bytes,
                destination::Phase::Fencing(_) => Awaited::Fence,
            },
        }
    }
}

impl<B, P: Planner> Machine<B, P> {
    /// What a pull or a push waits for.
    pub(super) fn job_awaits(&self, id: JobId) -> Option<Waiting> {
        let (address, transfer, idle) = match (self.jobs.get(&id), self.invited.get(&id)) {
            (Some(job), _) => job.first_open()?,
            (None, Some(job)) => {
                let (address, idle) = job.first_unheard()?;
                let opened = |transfer: &&Transfer| matches!(transfer.side, Side::Lease(key) if job.opened(&key));
                let pushed = self.transfers.values().find(opened);
                (address, pushed.map(|transfer| transfer.flow.transfer), idle)
            }
            (None, None) => return None,
        };
        let on = match transfer.and_then(|transfer| self.transfers.get(&transfer)) {
            Some(transfer) => transfer.awaits(),
            None if self.connection(&address.agent).is_none() => Awaited::Connection,
            None => idle,
        };
        Some(Waiting {
            on,
            agent: address.agent.clone(),
            address: shown(address),
        })
    }

    /// A pull or a push takes longer than it may.
    pub(super) fn late(&self, id: JobId, timeout: Duration) -> JobError {
        let waiting = self.job_awaits(id);
        JobError::TimedOut { timeout, waiting }
    }
}
