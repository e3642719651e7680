//! One attempt to move one route, whichever end of it is here.

use super::destination::{self, Destination};
use super::message::WaitingOn;
use super::refusal::{Failure, Refusal};
use super::source::{self, Source};
use super::{Flow, JobId};
use crate::lease::LeaseKey;

/// A transfer and whose it is. Memory: about 500 bytes, and what [`Destination`] keeps of streams.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// What the agent is told about it. It lives and dies with the connection named there.
    pub(crate) flow: Flow,
    pub(crate) side: Side,
    pub(crate) role: Role,
    /// Whether the agent was told to read or to receive, so that a fence is needed.
    pub(crate) under_way: bool,
    /// The most places that binding it takes, where a peer has asked for it; those of an invited push count as a whole.
    pub(crate) places: u64,
    /// What the peer has said last that it waits for.
    pub(crate) waiting: Option<WaitingOn>,
    /// How many bytes had moved when that was looked at last.
    pub(crate) moved: u64,
}

/// Which of the two ends is here.
#[derive(Debug)]
pub(crate) enum Role {
    Source(Source),
    Destination(Destination),
}

/// On whose behalf it runs.
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

impl Transfer {
    pub(crate) fn is_fencing(&self) -> bool {
        self.why().is_some()
    }

    /// Why it is being fenced, if it is.
    pub(crate) fn why(&self) -> Option<&Why> {
        match &self.role {
            Role::Source(source) => match source.phase() {
                source::Phase::Fencing(why) => Some(why),
                _ => None,
            },
            Role::Destination(destination) => match destination.phase() {
                destination::Phase::Fencing(why) => Some(why),
                _ => None,
            },
        }
    }

    pub(crate) fn fence(&mut self, why: Why) {
        match &mut self.role {
            Role::Source(source) => source.fence(why),
            Role::Destination(destination) => destination.fence(why),
        }
    }

    pub(crate) fn is_committed(&self) -> bool {
        match &self.role {
            Role::Source(source) => *source.phase() == source::Phase::Committed,
            Role::Destination(_) => false,
        }
    }

    pub(crate) fn source(&mut self) -> Option<&mut Source> {
        match &mut self.role {
            Role::Source(source) => Some(source),
            Role::Destination(_) => None,
        }
    }

    pub(crate) fn destination(&mut self) -> Option<&mut Destination> {
        match &mut self.role {
            Role::Source(_) => None,
            Role::Destination(destination) => Some(destination),
        }
    }
}
