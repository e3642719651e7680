//! One lease: what it promises, who holds it, and when it is due.

use std::collections::{BTreeMap, BTreeSet};

use transload_plan::Request;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, LeaseSetId, Rank, TransferId};

use super::{Holder, LeaseEnd, LeasePush, LeaseSpec, LeaseUse, UseError, covers};
use crate::moment::Moment;

/// Memory of one record is bounded by the ranks of its holder (a few words each) and by the layers
/// that progress is kept for.
#[derive(Debug)]
pub(super) struct Record<B> {
    pub(super) spec: LeaseSpec,
    pub(super) blocks: B,
    /// When it expires unless renewed, used or pinned.
    pub(super) deadline: Moment,
    /// When it expires whatever holds it.
    pub(super) hard: Moment,
    /// How many tokens of each layer are ready.
    pub(super) progress: BTreeMap<u32, u64>,
    pub(super) prefilled: bool,
    pub(super) state: State,
    /// Whether memory has not been done with the blocks in time.
    pub(super) stalled: bool,
    /// Whether somebody with a ticket has asked for it, or has renewed it.
    pub(super) claimed: bool,
    pub(super) bound: Option<Bound>,
    pub(super) pins: BTreeSet<TransferId>,
    pub(super) push: Option<Push>,
}

/// A push of the blocks that the holder has asked for.
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

/// What is known of the holder.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) holder: Holder,
    /// Each rank belongs to the agent that used it first, and one agent more may have invited a push, which takes
    /// no rank of its. That one is never `lost`: the push tells by itself whether its peers are there.
    pub(super) agents: BTreeMap<AgentId, Agent>,
    pub(super) attempts: BTreeMap<Rank, u32>,
    /// Used by write leases only: who has to write, known from the first push on.
    pub(super) writers: Option<BTreeSet<Rank>>,
    pub(super) landed: BTreeSet<Rank>,
    pub(super) done: BTreeSet<Rank>,
}

#[derive(Debug, Default)]
pub(super) struct Agent {
    pub(super) ranks: BTreeSet<Rank>,
    /// When the lease ends if the agent stays away.
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

    /// The agent is away. One that is done with all the ranks it used is not waited for.
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

    /// When it ends if nothing happens, and how. Nothing for one that is ending: that waits for its
    /// fences.
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

    /// Using a lease renews it, within the hard bound.
    pub(super) fn touch(&mut self, now: Moment) {
        self.extend(now + self.spec.ttl);
    }

    pub(super) fn extend(&mut self, until: Moment) {
        self.deadline = self.deadline.max(until.min(self.hard));
    }

    /// Whether `wanted` may be done now. Changes nothing.
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

    /// Whether the blocks may be pushed so, and whether that is new. Changes nothing.
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

    /// Whether the blocks hold that, and all of it.
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

    /// Whether it is alive, and bound to no other deployment.
    pub(super) fn check_holder(&self, holder: &Holder) -> Result<(), UseError> {
        if let State::Ending(end) = self.state {
            return Err(UseError::Ended { end });
        }
        match self.bound.as_ref().is_some_and(|b| b.holder != *holder) {
            true => Err(UseError::Holder),
            false => Ok(()),
        }
    }

    /// Whether this peer may speak for these ranks here.
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

    /// Binds to the holder, if the lease is unbound, and notes whose the ranks are.
    pub(super) fn bind(&mut self, holder: Holder, agent: &AgentId, ranks: &[Rank]) -> &mut Bound {
        let bound = self.bound.get_or_insert_with(|| Bound::new(holder));
        let known = bound.agents.entry(agent.clone()).or_default();
        known.ranks.extend(ranks);
        known.lost = None;
        bound
    }
}
