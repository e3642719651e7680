//! One lease: its terms, its holder, and its deadlines.

use std::collections::{BTreeMap, BTreeSet};

use transload_plan::Request;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, LeaseSetId, Rank, TransferId};

use super::{Holder, LeaseEnd, LeasePush, LeaseSpec, LeaseUse, UseError, covers};
use crate::moment::Moment;

/// The state of one lease. Its memory is bounded by the ranks of its holder, a few words each, and by
/// [`MAX_LAYERS`](super::table::MAX_LAYERS).
#[derive(Debug)]
pub(super) struct Record<B> {
    pub(super) spec: LeaseSpec,
    pub(super) blocks: B,
    /// The time when it expires unless renewed, used or pinned.
    pub(super) deadline: Moment,
    /// The time when it expires even if it is pinned.
    pub(super) hard: Moment,
    /// The number of ready tokens of each layer.
    pub(super) progress: BTreeMap<u32, u64>,
    pub(super) prefilled: bool,
    pub(super) state: State,
    /// Whether memory did not finish its work on the blocks in time.
    pub(super) stalled: bool,
    pub(super) claimed: bool,
    pub(super) bound: Option<Bound>,
    pub(super) pins: BTreeSet<TransferId>,
    pub(super) push: Option<Push>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Push {
    pub(super) into: LeaseSetId,
    pub(super) pin: TransferId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Alive,
    Ending(LeaseEnd),
}

#[derive(Debug)]
pub(super) struct Bound {
    pub(super) holder: Holder,
    /// The agents that used the lease. Each rank belongs to the agent that used it first. One more agent may have
    /// invited a push, without any rank; that one is never `lost`, because the push itself notices missing peers.
    pub(super) agents: BTreeMap<AgentId, Agent>,
    pub(super) attempts: BTreeMap<Rank, u32>,
    /// Used by write leases only: the ranks that must write, known from the first push on.
    pub(super) writers: Option<BTreeSet<Rank>>,
    pub(super) landed: BTreeSet<Rank>,
    pub(super) done: BTreeSet<Rank>,
}

#[derive(Debug, Default)]
pub(super) struct Agent {
    pub(super) ranks: BTreeSet<Rank>,
    /// The time when the lease ends unless the agent comes back.
    pub(super) lost: Option<Moment>,
}

impl Bound {
    fn new(holder: Holder) -> Self {
        Self {
            holder,
            agents: BTreeMap::new(),
            attempts: BTreeMap::new(),
            writers: None,
            landed: BTreeSet::new(),
            done: BTreeSet::new(),
        }
    }

    /// Records that an agent is disconnected. It is not waited for if it is done with all ranks that it used.
    pub(super) fn lose(&mut self, agent: &AgentId, until: Moment) {
        if let Some(known) = self.agents.get_mut(agent)
            && !known.ranks.is_subset(&self.done)
        {
            known.lost = Some(known.lost.map_or(until, |already| already.min(until)));
        }
    }

    pub(super) fn find(&mut self, agent: &AgentId) {
        if let Some(known) = self.agents.get_mut(agent) {
            known.lost = None;
        }
    }

    fn is_of_other(&self, rank: Rank, agent: &AgentId) -> bool {
        let mut others = self.agents.iter().filter(|(other, _)| *other != agent);
        others.any(|(_, other)| other.ranks.contains(&rank))
    }
}

impl<B> Record<B> {
    pub(super) fn new(now: Moment, spec: LeaseSpec, blocks: B) -> Self {
        let hard = now + spec.hard_bound;
        Self {
            deadline: (now + spec.ttl).min(hard),
            hard,
            progress: BTreeMap::new(),
            prefilled: spec.prefilled,
            state: State::Alive,
            stalled: false,
            claimed: false,
            bound: None,
            pins: BTreeSet::new(),
            push: None,
            spec,
            blocks,
        }
    }

    /// Returns when and how the lease ends if nothing happens. `None` if it is ending already and waits for its fences.
    pub(super) fn due(&self) -> Option<(Moment, LeaseEnd)> {
        if self.state != State::Alive {
            return None;
        }
        let expires = if self.pins.is_empty() { self.deadline.min(self.hard) } else { self.hard };
        let agents = self.bound.iter().flat_map(|bound| bound.agents.values());
        match agents.filter_map(|agent| agent.lost).min() {
            Some(lost) if lost < expires => Some((lost, LeaseEnd::PeerLost)),
            _ => Some((expires, LeaseEnd::Expired)),
        }
    }

    pub(super) fn touch(&mut self, now: Moment) {
        self.extend(now + self.spec.ttl);
    }

    pub(super) fn extend(&mut self, until: Moment) {
        self.deadline = self.deadline.max(until.min(self.hard));
    }

    /// Checks whether a use is allowed now. Changes nothing.
    pub(super) fn check(&self, wanted: &LeaseUse<'_>) -> Result<(), UseError> {
        self.check_peer(&wanted.holder, wanted.agent, &[wanted.rank])?;
        self.check_tokens(&wanted.content, &wanted.request)?;
        if self.push.is_some() {
            return Err(UseError::Pushed);
        }
        let Some(bound) = &self.bound else {
            return Ok(());
        };
        let rank = wanted.rank;
        if bound.landed.contains(&rank) || bound.done.contains(&rank) {
            return Err(UseError::Consumed { rank });
        }
        match bound.attempts.get(&rank) {
            Some(&latest) if latest >= wanted.attempt => Err(UseError::Superseded { latest }),
            _ => Ok(()),
        }
    }

    /// Checks whether such a push is allowed, and returns whether it is still to begin. Changes nothing.
    pub(super) fn check_push(&self, wanted: &LeasePush<'_>) -> Result<bool, UseError> {
        self.check_peer(&wanted.holder, wanted.agent, &[])?;
        self.check_tokens(&wanted.content, &wanted.request)?;
        let attempts = self.bound.iter().flat_map(|bound| bound.attempts.keys());
        match (self.push, attempts.min()) {
            (Some(push), _) if push.into == wanted.into => Ok(false),
            (Some(_), _) => Err(UseError::Pushed),
            (None, Some(&rank)) => Err(UseError::Consumed { rank }),
            (None, None) => Ok(true),
        }
    }

    /// Checks that the blocks hold this content, and all requested tokens.
    fn check_tokens(&self, content: &ContentDigest, request: &Request) -> Result<(), UseError> {
        let spec = &self.spec;
        if spec.content != *content {
            return Err(UseError::Content);
        }
        let (start, valid_tokens) = (spec.start, spec.valid_tokens);
        match covers(spec.direction, (start, valid_tokens), request) {
            true => Ok(()),
            false => Err(UseError::Tokens { start, valid_tokens, asked: request.end() }),
        }
    }

    /// Checks that the lease is alive, and not bound to another deployment.
    pub(super) fn check_holder(&self, holder: &Holder) -> Result<(), UseError> {
        if let State::Ending(end) = self.state {
            return Err(UseError::Ended { end });
        }
        match self.bound.as_ref().is_some_and(|b| b.holder != *holder) {
            true => Err(UseError::Holder),
            false => Ok(()),
        }
    }

    /// Checks that this peer may speak for these ranks.
    pub(super) fn check_peer(&self, holder: &Holder, agent: &AgentId, ranks: &[Rank]) -> Result<(), UseError> {
        self.check_holder(holder)?;
        let of_other = |rank| {
            let bound = self.bound.as_ref();
            bound.is_some_and(|bound| bound.is_of_other(rank, agent))
        };
        match ranks.iter().find(|&&r| r.0 >= holder.ranks || of_other(r)) {
            Some(&rank) => Err(UseError::Rank { rank }),
            None => Ok(()),
        }
    }

    /// Binds the lease to the holder, if it is unbound, and assigns the ranks to the agent.
    pub(super) fn bind(&mut self, holder: Holder, agent: &AgentId, ranks: &[Rank]) -> &mut Bound {
        let bound = self.bound.get_or_insert_with(|| Bound::new(holder));
        let known = bound.agents.entry(agent.clone()).or_default();
        known.ranks.extend(ranks);
        known.lost = None;
        bound
    }
}
