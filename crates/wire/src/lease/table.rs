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

/// Most layers that progress is kept for; no model has a tenth of them.
pub(crate) const MAX_LAYERS: u32 = 4096;

/// The leases of one agent, for its local ranks.
///
/// Every method that takes `now` first ends what is due, so that nothing is ever used after its
/// time because a timer was late.
#[derive(Debug)]
pub(crate) struct LeaseTable<B> {
    limits: LeaseLimits,
    /// Ordered, so that what happens to many leases at a time happens in the same order always.
    open: BTreeMap<LeaseKey, Record<B>>,
    timers: Timers<LeaseKey>,
    ended: HashMap<LeaseKey, Ended>,
    ended_order: VecDeque<LeaseKey>,
    events: VecDeque<LeaseEvent<B>>,
}

/// What is remembered of a lease.
#[derive(Clone, Copy, Debug)]
struct Ended {
    end: LeaseEnd,
    /// Where its blocks were pushed to, if they were.
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

    /// What happened, in order. To be called until there is nothing, after every other call.
    pub(crate) fn poll_event(&mut self) -> Option<LeaseEvent<B>> {
        self.events.pop_front()
    }

    /// When [`on_deadline`](Self::on_deadline) has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// How many leases are open, those that are ending included.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// How many keep their blocks since memory is not done with them.
    pub(crate) fn stalled(&self) -> usize {
        self.open.values().filter(|record| record.stalled).count()
    }

    /// Whether the lease is open or is remembered to have ended.
    pub(crate) fn knows(&self, key: &LeaseKey) -> bool {
        self.open.contains_key(key) || self.ended.contains_key(key)
    }

    /// The keys of all open leases, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &LeaseKey> {
        self.open.keys()
    }

    /// What an open lease promises.
    pub(crate) fn spec(&self, key: &LeaseKey) -> Option<&LeaseSpec> {
        self.open.get(key).map(|record| &record.spec)
    }

    /// The blocks of an open lease, which stay as they are until it has ended.
    pub(crate) fn blocks(&self, key: &LeaseKey) -> Option<&B> {
        self.open.get(key).map(|record| &record.blocks)
    }

    /// How many tokens of each layer are ready, ascending; and whether the prefill is over. Of none that is not open.
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

/// What the owner does.
impl<B> LeaseTable<B> {
    /// Whether such a lease could be opened. Changes nothing but what is due.
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

    /// Opens what [`check_open`](Self::check_open) has found to be all right.
    pub(crate) fn insert(&mut self, now: Moment, spec: LeaseSpec, blocks: B) {
        let key = spec.key;
        self.open.insert(key, Record::new(now, spec, blocks));
        self.settle(key);
    }

    /// Notes that the first `tokens` tokens of `layer` are ready. Tells whether that is news.
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
        let news = tokens > *known && !record.prefilled;
        *known = tokens.max(*known);
        Ok(news)
    }

    /// Notes that everything is ready. Tells whether that is news.
    pub(crate) fn finish_prefill(&mut self, key: LeaseKey) -> Result<bool, LeaseError> {
        let record = self.alive_mut(key)?;
        Ok(!std::mem::replace(&mut record.prefilled, true))
    }

    /// Lets the lease live for `ttl` from now at least, and moves its hard bound as far.
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

    /// Ends the leases of a rank whose memory is lost.
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

/// What the holder of a ticket does.
impl<B> LeaseTable<B> {
    /// Whether `wanted` would be admitted. Claims the lease where it would.
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

    /// Admits what [`check`](Self::check) has found to be all right: binds the lease to the holder, if it is unbound, renews
    /// it and pins it. Of a push, `writers` tells which ranks of the holder have to write, all of them together.
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

    /// Whether the holder may have the blocks pushed so, and whether that is still to be done: it says so
    /// from each of its ranks, and late ones find it begun or over. Claims the lease where it may.
    pub(crate) fn check_push(&mut self, now: Moment, key: LeaseKey, wanted: &LeasePush<'_>) -> Result<bool, UseError> {
        self.on_deadline(now);
        if let Some(&Ended { end, into }) = self.ended.get(&key)
            && (end, into) == (LeaseEnd::Completed, Some(wanted.into))
        {
            return Ok(false);
        }
        let record = self.known_mut(now, key, Direction::Pull)?;
        let news = record.check_push(wanted)?;
        self.claim(key);
        Ok(news)
    }

    /// Binds the lease to the holder and pins it until [`push_over`](Self::push_over), where
    /// [`check_push`](Self::check_push) has found that still to be done.
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

    /// The push touches the blocks no more, and ends the lease. Gives what pinned it.
    pub(crate) fn push_over(&mut self, key: LeaseKey, landed: bool) -> Option<TransferId> {
        let record = self.open.get_mut(&key)?;
        let pin = record.push?.pin;
        record.pins.remove(&pin);
        let end = match landed {
            true => LeaseEnd::Completed,
            false => LeaseEnd::Cancelled,
        };
        self.end(key, end);
        // Where it was ending already, it waited for this.
        self.settle(key);
        Some(pin)
    }

    /// The transfers that a lease waits for.
    pub(crate) fn pins(&self, key: &LeaseKey) -> impl Iterator<Item = &TransferId> {
        self.open.get(key).into_iter().flat_map(|record| &record.pins)
    }

    /// How often the holder's `rank` has tried.
    pub(crate) fn attempts(&self, key: &LeaseKey, rank: Rank) -> u32 {
        let attempts = self.bound(key).and_then(|bound| bound.attempts.get(&rank));
        attempts.copied().unwrap_or(0)
    }

    /// Whether the lease is alive at this moment: what a commit needs.
    pub(crate) fn is_alive(&mut self, now: Moment, key: LeaseKey) -> bool {
        self.on_deadline(now);
        self.alive_mut(key).is_ok()
    }

    /// The transfer touches the blocks no more: it has read its last, or has been fenced.
    pub(crate) fn unpin(&mut self, now: Moment, key: LeaseKey, transfer: TransferId) {
        // Renew first: a transfer that kept its lease past the time to live must leave its holder
        // the time to say that it is done.
        if let Some(record) = self.open.get_mut(&key)
            && record.pins.remove(&transfer)
        {
            record.touch(now);
            self.settle(key);
        }
        self.on_deadline(now);
    }

    /// Notes that what moves between this lease and the holder's `rank` has landed.
    pub(crate) fn landed(&mut self, key: LeaseKey, rank: Rank) {
        if let Some(bound) = self.bound_mut(&key) {
            bound.landed.insert(rank);
        }
    }

    /// Which ranks of the holder have to write, once one of them was let in to do so.
    pub(crate) fn writers(&self, key: &LeaseKey) -> Option<&BTreeSet<Rank>> {
        self.bound(key)?.writers.as_ref()
    }

    /// The holder's `ranks` are done. Ends the lease once all ranks of the holder are.
    ///
    /// A rank that had to write and has not landed, and yet says that it is done, cancels the lease.
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

    /// The holder gives up, or somebody who could have become the holder and names the content.
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

    /// Lets the lease live for `ttl` from now at least, within its hard bound. Tells how long it
    /// lives now.
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

    /// No connection to `agent` is left: where it was in the midst of something, its grace begins.
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

    /// `agent` is there, in this life. What it used in another life ends at once. What only others
    /// used does not, though it be bound to the same life: which life that is they have merely said.
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

    /// A lease that may be ending, after what is due.
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

/// How leases end.
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

    /// Memory is not done with what a transfer reads or writes, or else a push that was invited: ends the lease, and gives its
    /// blocks where that is news.
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

    /// Brings timer and state in line after a change: the one place where a lease is let go.
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
    /// A lease that the agent uses, and that is bound to another life of it than this.
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
