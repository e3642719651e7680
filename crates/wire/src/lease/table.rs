//! The leases of one agent.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, Direction, Incarnation, LeaseSetId, Rank, TransferId};

use super::record::{Bound, Push, Record, State};
use super::{
    Holder, LeaseDone, LeaseEnd, LeaseError, LeaseEvent, LeaseKey, LeaseLimits, LeasePush, LeaseSpec, LeaseUse,
    OpenFault, UseError,
};
use crate::moment::{Moment, Timers};

/// The highest number of layers whose progress is recorded. No model has a tenth of them.
pub(crate) const MAX_LAYERS: u32 = 4096;

/// The leases of one agent, for its local ranks.
///
/// Methods that check or renew a lease first end what is due, so that a late timer never lets one be used after its
/// time.
#[derive(Debug)]
pub(crate) struct LeaseTable<B> {
    limits: LeaseLimits,
    /// Ordered, so that events that concern many leases have a deterministic order.
    open: BTreeMap<LeaseKey, Record<B>>,
    timers: Timers<LeaseKey>,
    ended: HashMap<LeaseKey, Ended>,
    ended_order: VecDeque<LeaseKey>,
    events: VecDeque<LeaseEvent<B>>,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    end: LeaseEnd,
    /// The set that its blocks were pushed to, if they were.
    into: Option<LeaseSetId>,
}

impl<B> LeaseTable<B> {
    pub(crate) fn new(limits: LeaseLimits) -> Self {
        Self {
            limits,
            open: BTreeMap::new(),
            timers: Timers::default(),
            ended: HashMap::new(),
            ended_order: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Returns the next event. Must be called until it returns `None`, after every other call.
    pub(crate) fn poll_event(&mut self) -> Option<LeaseEvent<B>> {
        self.events.pop_front()
    }

    /// Returns when [`on_deadline`](Self::on_deadline) must be called next.
    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// Returns the number of open leases, including those that are ending.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns the number of leases that keep their blocks because memory does not finish its work.
    pub(crate) fn stalled(&self) -> usize {
        self.open.values().filter(|record| record.stalled).count()
    }

    /// Returns whether the lease is open, or is remembered to have ended.
    pub(crate) fn knows(&self, key: &LeaseKey) -> bool {
        self.open.contains_key(key) || self.ended.contains_key(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &LeaseKey> {
        self.open.keys()
    }

    pub(crate) fn spec(&self, key: &LeaseKey) -> Option<&LeaseSpec> {
        self.open.get(key).map(|record| &record.spec)
    }

    /// Returns the blocks of an open lease, which do not change until it has ended.
    pub(crate) fn blocks(&self, key: &LeaseKey) -> Option<&B> {
        self.open.get(key).map(|record| &record.blocks)
    }

    /// Returns the number of ready tokens of each layer, in ascending order, and whether the prefill is over. A lease
    /// that is not open counts as prefilled.
    pub(crate) fn progress(&self, key: &LeaseKey) -> (Vec<(u32, u64)>, bool) {
        let record = self.open.get(key);
        let layers = record.iter().flat_map(|record| &record.progress);
        let layers = layers.map(|(&layer, &tokens)| (layer, tokens));
        (layers.collect(), record.is_none_or(|record| record.prefilled))
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }
}

impl<B> LeaseTable<B> {
    /// Checks whether such a lease could be opened. Changes nothing, except that due leases end.
    pub(crate) fn check_open(&mut self, now: Moment, spec: &LeaseSpec) -> Result<(), OpenFault> {
        self.on_deadline(now);
        let (key, start, valid_tokens) = (spec.key, spec.start, spec.valid_tokens);
        if self.open.contains_key(&key) {
            Err(OpenFault::Open)
        } else if let Some(&Ended { end, .. }) = self.ended.get(&key) {
            Err(OpenFault::Ended { end })
        } else if self.open.len() >= self.limits.leases {
            let limit = self.limits.leases;
            Err(OpenFault::TooMany { limit })
        } else if start > valid_tokens {
            Err(OpenFault::Tokens { start, valid_tokens })
        } else {
            Ok(())
        }
    }

    /// Opens a lease that passed [`check_open`](Self::check_open).
    pub(crate) fn insert(&mut self, now: Moment, spec: LeaseSpec, blocks: B) {
        let key = spec.key;
        self.open.insert(key, Record::new(now, spec, blocks));
        self.settle(key);
    }

    /// Records that the first `tokens` tokens of `layer` are ready. Returns whether that is new.
    pub(crate) fn ready(&mut self, key: LeaseKey, layer: u32, tokens: u64) -> Result<bool, LeaseError> {
        let record = self.alive_mut(key)?;
        let valid_tokens = record.spec.valid_tokens;
        if tokens > valid_tokens {
            return Err(LeaseError::Tokens { layer, tokens, valid_tokens });
        }
        if layer >= MAX_LAYERS {
            let limit = MAX_LAYERS;
            return Err(LeaseError::Layer { layer, limit });
        }
        let known = record.progress.entry(layer).or_insert(0);
        let is_new = tokens > *known && !record.prefilled;
        *known = tokens.max(*known);
        Ok(is_new)
    }

    /// Records that everything is ready. Returns whether that is new.
    pub(crate) fn finish_prefill(&mut self, key: LeaseKey) -> Result<bool, LeaseError> {
        let record = self.alive_mut(key)?;
        Ok(!std::mem::replace(&mut record.prefilled, true))
    }

    /// Extends the lease to at least `ttl` from now, and its hard bound accordingly.
    pub(crate) fn renew(&mut self, now: Moment, key: LeaseKey, ttl: Duration) -> Result<(), LeaseError> {
        self.on_deadline(now);
        let record = self.alive_mut(key)?;
        let hard = (now + record.spec.hard_bound).max(now + ttl);
        record.hard = record.hard.max(hard);
        record.extend(now + ttl);
        self.settle(key);
        Ok(())
    }

    pub(crate) fn cancel(&mut self, now: Moment, key: LeaseKey) -> Result<(), LeaseError> {
        self.on_deadline(now);
        self.alive_mut(key)?;
        self.end(key, LeaseEnd::Cancelled);
        Ok(())
    }

    pub(crate) fn lose(&mut self, rank: Rank) {
        let keys = self.open.keys().filter(|key| key.rank == rank);
        for key in keys.copied().collect::<Vec<_>>() {
            self.end(key, LeaseEnd::DeviceLost);
        }
    }

    pub(crate) fn on_deadline(&mut self, now: Moment) {
        while let Some(key) = self.timers.pop_due(now) {
            let due = self.open.get(&key).and_then(Record::due);
            match due {
                Some((at, end)) if at <= now => self.end(key, end),
                _ => self.settle(key),
            }
        }
    }

    fn alive_mut(&mut self, key: LeaseKey) -> Result<&mut Record<B>, LeaseError> {
        match self.open.get_mut(&key) {
            Some(record) if record.state == State::Alive => Ok(record),
            _ => Err(LeaseError::NotOpen { key }),
        }
    }
}

impl<B> LeaseTable<B> {
    /// Checks whether a use would be admitted. If so, claims the lease.
    pub(crate) fn check(
        &mut self,
        now: Moment,
        key: LeaseKey,
        direction: Direction,
        wanted: &LeaseUse<'_>,
    ) -> Result<(), UseError> {
        self.known_mut(now, key, direction)?.check(wanted)?;
        self.claim(key);
        Ok(())
    }

    /// Admits a use that passed [`check`](Self::check): binds the lease to the holder if it is unbound, renews it and
    /// pins it. For a push, `writers` returns the ranks of the holder that must all write.
    pub(crate) fn admit(
        &mut self,
        now: Moment,
        key: LeaseKey,
        wanted: &LeaseUse<'_>,
        writers: impl FnOnce() -> BTreeSet<Rank>,
    ) {
        let Some(record) = self.open.get_mut(&key) else {
            debug_assert!(false, "{key:?} was checked and is gone");
            return;
        };
        let direction = record.spec.direction;
        let bound = record.bind(wanted.holder, wanted.agent, &[wanted.rank]);
        bound.attempts.insert(wanted.rank, wanted.attempt);
        if direction == Direction::Push {
            bound.writers.get_or_insert_with(writers);
        }
        record.pins.insert(wanted.transfer);
        record.touch(now);
        self.settle(key);
    }

    /// Checks whether the holder may have the blocks pushed, and returns whether the push is still to begin: each rank
    /// of the holder asks for it, and later ones find it begun or over. Claims the lease if the push is allowed.
    pub(crate) fn check_push(&mut self, now: Moment, key: LeaseKey, wanted: &LeasePush<'_>) -> Result<bool, UseError> {
        self.on_deadline(now);
        if let Some(&Ended { end, into }) = self.ended.get(&key)
            && (end, into) == (LeaseEnd::Completed, Some(wanted.into))
        {
            return Ok(false);
        }
        let record = self.known_mut(now, key, Direction::Pull)?;
        let to_begin = record.check_push(wanted)?;
        self.claim(key);
        Ok(to_begin)
    }

    /// Begins a push for which [`check_push`](Self::check_push) returned `true`: binds the lease to the holder, and
    /// pins it until [`push_over`](Self::push_over).
    pub(crate) fn begin_push(&mut self, key: LeaseKey, wanted: &LeasePush<'_>) {
        let Some(record) = self.open.get_mut(&key) else {
            debug_assert!(false, "{key:?} was checked and is gone");
            return;
        };
        record.bind(wanted.holder, wanted.agent, &[]);
        let (into, pin) = (wanted.into, wanted.pin);
        record.push = Some(Push { into, pin });
        record.pins.insert(pin);
        self.settle(key);
    }

    /// Ends the lease after its push, which no longer touches the blocks. Returns the id that pinned it.
    pub(crate) fn push_over(&mut self, key: LeaseKey, landed: bool) -> Option<TransferId> {
        let record = self.open.get_mut(&key)?;
        let pin = record.push?.pin;
        record.pins.remove(&pin);
        let end = match landed {
            true => LeaseEnd::Completed,
            false => LeaseEnd::Cancelled,
        };
        self.end(key, end);
        // If the lease was ending already, it waited for this.
        self.settle(key);
        Some(pin)
    }

    pub(crate) fn pins(&self, key: &LeaseKey) -> impl Iterator<Item = &TransferId> {
        self.open.get(key).into_iter().flat_map(|record| &record.pins)
    }

    pub(crate) fn attempts(&self, key: &LeaseKey, rank: Rank) -> u32 {
        let attempts = self.bound(key).and_then(|bound| bound.attempts.get(&rank));
        attempts.copied().unwrap_or(0)
    }

    pub(crate) fn is_alive(&mut self, now: Moment, key: LeaseKey) -> bool {
        self.on_deadline(now);
        self.alive_mut(key).is_ok()
    }

    /// Unpins a transfer, which has read its last byte or has been fenced.
    pub(crate) fn unpin(&mut self, now: Moment, key: LeaseKey, transfer: TransferId) {
        // Renewed first: a transfer that kept its lease past the time to live must leave the holder enough time to say
        // that it is done.
        if let Some(record) = self.open.get_mut(&key)
            && record.pins.remove(&transfer)
        {
            record.touch(now);
            self.settle(key);
        }
        self.on_deadline(now);
    }

    pub(crate) fn landed(&mut self, key: LeaseKey, rank: Rank) {
        if let Some(bound) = self.bound_mut(&key) {
            bound.landed.insert(rank);
        }
    }

    /// Returns the ranks of the holder that must write, once one of them was admitted.
    pub(crate) fn writers(&self, key: &LeaseKey) -> Option<&BTreeSet<Rank>> {
        self.bound(key)?.writers.as_ref()
    }

    /// Records that the holder's `ranks` are done. Ends the lease once all ranks of the holder are.
    /// If a rank that must write says that it is done but has not landed, the lease is cancelled.
    pub(crate) fn done(
        &mut self,
        now: Moment,
        key: LeaseKey,
        direction: Direction,
        said: &LeaseDone<'_>,
    ) -> Result<(), UseError> {
        let record = self.known_mut(now, key, direction)?;
        record.check_peer(&said.holder, said.agent, said.ranks)?;
        if record.spec.content != *said.content {
            return Err(UseError::Content);
        }
        let bound = record.bind(said.holder, said.agent, said.ranks);
        let mut written = said.ranks.iter().filter(|rank| said.needed.contains(rank));
        if !written.all(|rank| bound.landed.contains(rank)) {
            self.end(key, LeaseEnd::Cancelled);
            return Ok(());
        }
        bound.done.extend(said.ranks);
        if bound.done.len() == said.holder.ranks as usize {
            self.end(key, LeaseEnd::Completed);
        } else {
            record.touch(now);
            self.settle(key);
        }
        Ok(())
    }

    /// Cancels the lease for its holder, or for an agent that could become the holder and names the content.
    pub(crate) fn cancel_by(
        &mut self,
        now: Moment,
        key: LeaseKey,
        direction: Direction,
        by: &Holder,
        content: Option<&ContentDigest>,
    ) -> Result<(), UseError> {
        let record = self.known_mut(now, key, direction)?;
        record.check_holder(by)?;
        if content.is_some_and(|content| *content != record.spec.content) {
            return Err(UseError::Content);
        }
        self.end(key, LeaseEnd::Cancelled);
        Ok(())
    }

    /// Extends the lease to at least `ttl` from now, within its hard bound. Returns how long it lives now.
    pub(crate) fn renew_by(
        &mut self,
        now: Moment,
        key: LeaseKey,
        direction: Direction,
        by: &Holder,
        ttl: Duration,
    ) -> Result<Duration, UseError> {
        let record = self.known_mut(now, key, direction)?;
        record.check_holder(by)?;
        record.extend(now + ttl);
        let left = record.deadline.since(now);
        self.claim(key);
        self.settle(key);
        Ok(left)
    }

    /// Starts the grace period of an agent, to which no connection is left, for the leases that it uses.
    pub(crate) fn agent_lost(&mut self, now: Moment, agent: &AgentId) {
        self.on_deadline(now);
        let grace = now + self.limits.peer_grace;
        for key in self.used_by(agent) {
            if let Some(bound) = self.bound_mut(&key) {
                bound.lose(agent, grace);
            }
            self.settle(key);
        }
    }

    /// Handles an agent that has connected in this life. Leases that it used in another life end at once. Leases that
    /// only other agents used do not, even if they are bound to the same life, which those agents merely claimed.
    pub(crate) fn agent_up(&mut self, now: Moment, agent: &AgentId, incarnation: Incarnation) {
        self.on_deadline(now);
        for key in self.used_by(agent) {
            let Some(bound) = self.bound_mut(&key) else {
                continue;
            };
            if bound.holder.incarnation == incarnation {
                bound.find(agent);
                self.settle(key);
            } else {
                self.end(key, LeaseEnd::PeerLost);
            }
        }
    }

    fn bound(&self, key: &LeaseKey) -> Option<&Bound> {
        self.open.get(key)?.bound.as_ref()
    }

    fn bound_mut(&mut self, key: &LeaseKey) -> Option<&mut Bound> {
        self.open.get_mut(key)?.bound.as_mut()
    }

    fn used_by(&self, agent: &AgentId) -> Vec<LeaseKey> {
        let uses = |bound: &Bound| bound.agents.contains_key(agent);
        let used = self.open.iter();
        let used = used.filter(|(_, record)| record.bound.as_ref().is_some_and(uses));
        used.map(|(key, _)| *key).collect()
    }

    fn claim(&mut self, key: LeaseKey) {
        if let Some(record) = self.open.get_mut(&key)
            && !std::mem::replace(&mut record.claimed, true)
        {
            self.events.push_back(LeaseEvent::Claimed { key });
        }
    }

    /// Ends what is due, and returns a lease that is open or ending.
    fn known_mut(&mut self, now: Moment, key: LeaseKey, direction: Direction) -> Result<&mut Record<B>, UseError> {
        self.on_deadline(now);
        match (self.open.get_mut(&key), self.ended.get(&key)) {
            (Some(record), _) if record.spec.direction != direction => {
                Err(UseError::Direction { leased: record.spec.direction })
            }
            (Some(record), _) => Ok(record),
            (None, Some(&Ended { end, .. })) => Err(UseError::Ended { end }),
            (None, None) => Err(UseError::Unknown),
        }
    }
}

impl<B> LeaseTable<B> {
    fn end(&mut self, key: LeaseKey, end: LeaseEnd) {
        let Some(record) = self.open.get_mut(&key) else {
            return;
        };
        if record.state != State::Alive {
            return;
        }
        record.state = State::Ending(end);
        if !record.pins.is_empty() {
            let transfers = record.pins.clone();
            self.events.push_back(LeaseEvent::Fence { end, transfers });
        }
        self.settle(key);
    }

    /// Ends a lease whose transfer or invited push memory does not finish. Returns the blocks, the first time only.
    pub(crate) fn stall(&mut self, key: LeaseKey, transfer: Option<TransferId>) -> Option<&B> {
        let record = self.open.get(&key)?;
        let pin = transfer.or_else(|| record.push.map(|push| push.pin))?;
        if !record.pins.contains(&pin) {
            return None;
        }
        self.end(key, LeaseEnd::DeviceStalled);
        let record = self.open.get_mut(&key)?;
        match std::mem::replace(&mut record.stalled, true) {
            true => None,
            false => Some(&record.blocks),
        }
    }

    /// Updates timer and state after a change. Only this removes a lease.
    fn settle(&mut self, key: LeaseKey) {
        let Some(record) = self.open.get(&key) else {
            self.timers.clear(&key);
            return;
        };
        if let Some((at, _)) = record.due() {
            self.timers.set(key, at);
            return;
        }
        self.timers.clear(&key);
        if record.pins.is_empty()
            && let State::Ending(end) = record.state
            && let Some(record) = self.open.remove(&key)
        {
            let into = record.push.map(|push| push.into);
            self.remember(key, Ended { end, into });
            let blocks = record.blocks;
            self.events.push_back(LeaseEvent::Ended { key, end, blocks });
        }
    }

    fn remember(&mut self, key: LeaseKey, ended: Ended) {
        self.ended.insert(key, ended);
        self.ended_order.push_back(key);
        while self.ended_order.len() > self.limits.ended {
            if let Some(oldest) = self.ended_order.pop_front() {
                self.ended.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
impl<B> LeaseTable<B> {
    /// Returns a lease that the agent uses, and that is bound to another life of it than this.
    pub(crate) fn bound_elsewhere(&self, agent: &AgentId, incarnation: Incarnation) -> Option<LeaseKey> {
        let elsewhere = |record: &Record<B>| {
            record.state == State::Alive
                && record
                    .bound
                    .as_ref()
                    .is_some_and(|bound| bound.agents.contains_key(agent) && bound.holder.incarnation != incarnation)
        };
        self.open.iter().find(|(_, record)| elsewhere(record)).map(|(key, _)| *key)
    }
}
