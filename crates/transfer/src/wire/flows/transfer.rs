//! One attempt to move one route, whichever end of it is here.

use std::sync::Arc;

use super::destination::{self, Destination};
use super::source::{self, Source};
use crate::path::PathSet;
use crate::path::negotiation::Way;
use crate::wire::action::Flow;
use crate::wire::awaited::Awaited;
use crate::wire::message::WaitingOn;
use crate::wire::news::{Side, Why};
use crate::wire::planner::{Planned, Planner};

/// A transfer and whose it is. Memory: about 500 bytes, and what [`Destination`] keeps of streams.
#[derive(Debug)]
pub(in crate::wire) struct Transfer<P: Planner> {
    /// What the agent is told about it. It lives and dies with the connection named there.
    pub(in crate::wire) flow: Flow,
    pub(in crate::wire) plan: Arc<Planned<P::Plan>>,
    pub(in crate::wire) side: Side,
    pub(in crate::wire) role: Role,
    /// The paths that may be taken.
    pub(in crate::wire) paths: PathSet,
    /// Whether the agent was told to read or to receive, so that a fence is needed.
    pub(in crate::wire) under_way: bool,
    /// The most places that binding it takes, where a peer has asked for it; those of an invited push count as a whole.
    pub(in crate::wire) places: u64,
    /// What the peer has said last that it waits for.
    pub(in crate::wire) waiting: Option<WaitingOn>,
    /// How many bytes had moved when that was looked at last.
    pub(in crate::wire) moved: u64,
}

/// Which of the two ends is here.
#[derive(Debug)]
pub(in crate::wire) enum Role {
    Source(Source),
    Destination(Destination),
}

impl<P: Planner> Transfer<P> {
    pub(in crate::wire) fn is_fencing(&self) -> bool {
        self.why().is_some()
    }

    /// Why it is being fenced, if it is.
    pub(in crate::wire) fn why(&self) -> Option<&Why> {
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

    pub(in crate::wire) fn fence(&mut self, why: Why) {
        match &mut self.role {
            Role::Source(source) => source.fence(why),
            Role::Destination(destination) => destination.fence(why),
        }
    }

    pub(in crate::wire) fn is_committed(&self) -> bool {
        match &self.role {
            Role::Source(source) => *source.phase() == source::Phase::Committed,
            Role::Destination(_) => false,
        }
    }

    /// Whether nothing is left to read, so that only the lease decides about the commit.
    pub(in crate::wire) fn is_read(&self) -> bool {
        match &self.role {
            Role::Source(source) => source.is_read(),
            Role::Destination(_) => false,
        }
    }

    /// Which way its bytes go.
    pub(in crate::wire) fn way(&self) -> Way {
        match &self.role {
            Role::Source(_) => Way::Out,
            Role::Destination(_) => Way::In,
        }
    }

    pub(in crate::wire) fn source(&mut self) -> Option<&mut Source> {
        match &mut self.role {
            Role::Source(source) => Some(source),
            Role::Destination(_) => None,
        }
    }

    pub(in crate::wire) fn destination(&mut self) -> Option<&mut Destination> {
        match &mut self.role {
            Role::Source(_) => None,
            Role::Destination(destination) => Some(destination),
        }
    }

    /// Whether the peer has still to accept it.
    pub(super) fn is_asking(&self) -> bool {
        match &self.role {
            Role::Source(source) => *source.phase() == source::Phase::Asking,
            Role::Destination(destination) => *destination.phase() == destination::Phase::Asking,
        }
    }

    /// The peer accepts. Tells whether that is news.
    pub(super) fn accept(&mut self) -> bool {
        match &mut self.role {
            Role::Source(source) => source.accept(),
            Role::Destination(destination) => destination.accept(),
        }
    }

    /// What it waits for.
    pub(in crate::wire) fn awaits(&self) -> Awaited {
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
