//! What came before its lease: kept for a bounded time, in bounded number.
//!
//! A worker may learn of a lease after its scheduler has handed the ticket out, so an authentic
//! ticket for a lease that is not known yet is no error. It is also a way to make an agent
//! remember things, hence the bounds.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::LeaseKey;
use crate::ids::{AgentId, ServiceName};
use crate::moment::{Moment, Timers};

/// Things that wait for a bounded time, in bounded number, each from one agent and for one lease.
#[derive(Debug)]
pub(crate) struct Early<T> {
    wait: Duration,
    most: usize,
    most_per_agent: usize,
    most_per_service: usize,
    waiting: HashMap<u64, Waiting<T>>,
    by_lease: HashMap<LeaseKey, Vec<u64>>,
    per_agent: HashMap<AgentId, usize>,
    per_service: HashMap<ServiceName, usize>,
    timers: Timers<u64>,
    next: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    key: LeaseKey,
    agent: AgentId,
    item: T,
}

impl<T> Early<T> {
    pub(crate) fn new(
        wait: Duration,
        most: usize,
        most_per_agent: usize,
        most_per_service: usize,
    ) -> Self {
        Self {
            wait,
            most,
            most_per_agent,
            most_per_service,
            waiting: HashMap::new(),
            by_lease: HashMap::new(),
            per_agent: HashMap::new(),
            per_service: HashMap::new(),
            timers: Timers::default(),
            next: 0,
        }
    }

    /// Keeps `item` until it is taken; says whether there was room.
    #[must_use]
    pub(crate) fn keep(&mut self, now: Moment, key: LeaseKey, agent: &AgentId, item: T) -> bool {
        let of_agent = self.per_agent.get(agent).copied().unwrap_or(0);
        let service = ServiceName::from(agent);
        let of_service = self.per_service.get(&service).copied().unwrap_or(0);
        if self.waiting.len() >= self.most
            || of_agent >= self.most_per_agent
            || of_service >= self.most_per_service
        {
            return false;
        }
        let id = self.next;
        self.next += 1;
        *self.per_agent.entry(agent.clone()).or_default() += 1;
        *self.per_service.entry(service).or_default() += 1;
        self.by_lease.entry(key).or_default().push(id);
        self.timers.set(id, now + self.wait);
        let agent = agent.clone();
        self.waiting.insert(id, Waiting { key, agent, item });
        true
    }

    /// Takes what waited for `key`, in the order of arrival.
    pub(crate) fn take(&mut self, key: &LeaseKey) -> Vec<T> {
        let ids = self.by_lease.remove(key).unwrap_or_default();
        ids.into_iter().filter_map(|id| self.forget(id)).collect()
    }

    /// Takes everything that `gone` says is of no use any more.
    pub(crate) fn take_if(&mut self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        let ids = self
            .waiting
            .iter()
            .filter(|(_, waiting)| gone(&waiting.item));
        let mut ids: Vec<u64> = ids.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.forget(id)).collect()
    }

    /// Takes the first thing that is like this.
    pub(crate) fn pop_if(&mut self, like: impl Fn(&T) -> bool) -> Option<T> {
        let waiting = self.waiting.iter();
        let waiting = waiting.filter(|(_, waiting)| like(&waiting.item));
        let first = waiting.map(|(id, _)| *id).min()?;
        self.forget(first)
    }

    /// Whether anything that waits for `key` is like this.
    pub(crate) fn any_for(&self, key: &LeaseKey, like: impl Fn(&T) -> bool) -> bool {
        let ids = self.by_lease.get(key).into_iter().flatten();
        ids.filter_map(|id| self.waiting.get(id))
            .any(|waiting| like(&waiting.item))
    }

    /// Whether anything that waits is like this.
    pub(crate) fn any(&self, like: impl Fn(&T) -> bool) -> bool {
        self.waiting.values().any(|waiting| like(&waiting.item))
    }

    /// Takes one thing that has waited for too long.
    pub(crate) fn pop_due(&mut self, now: Moment) -> Option<T> {
        let id = self.timers.pop_due(now)?;
        self.forget(id)
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        self.timers.next()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn forget(&mut self, id: u64) -> Option<T> {
        let Waiting { key, agent, item } = self.waiting.remove(&id)?;
        self.timers.clear(&id);
        if let Some(ids) = self.by_lease.get_mut(&key) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_lease.remove(&key);
            }
        }
        count_down(&mut self.per_service, &ServiceName::from(&agent));
        count_down(&mut self.per_agent, &agent);
        Some(item)
    }
}

fn count_down<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{LeaseSetId, Rank};

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn key(rank: u32) -> LeaseKey {
        LeaseKey {
            set: LeaseSetId([0; 16]),
            rank: Rank(rank),
        }
    }

    #[test]
    fn waits_for_a_bounded_time_and_in_bounded_number() {
        let (a, b) = (AgentId::new("a").unwrap(), AgentId::new("b").unwrap());
        let mut early = Early::new(Duration::from_secs(10), 3, 2, 3);
        assert!(early.keep(at(0), key(0), &a, 1));
        assert!(early.keep(at(1), key(1), &a, 2));
        assert!(!early.keep(at(1), key(1), &a, 3), "too many of one agent");
        assert!(early.keep(at(2), key(0), &b, 4));
        assert!(!early.keep(at(2), key(0), &b, 5), "too many in all");
        assert!(
            early.any_for(&key(0), |item| *item == 4) && !early.any_for(&key(0), |item| *item == 2)
        );
        assert!(early.any(|item| *item == 2) && !early.any(|item| *item == 5));
        assert_eq!(early.pop_due(at(9)), None);
        assert_eq!(early.pop_due(at(10)), Some(1));
        assert_eq!(early.take(&key(0)), [4]);
        assert_eq!(early.take_if(|item| *item == 2), [2]);
        assert_eq!((early.len(), early.next_deadline()), (0, None));
        assert!(early.by_lease.is_empty() && early.per_agent.is_empty());
        assert!(early.per_service.is_empty());
    }

    #[test]
    fn names_below_one_service_make_no_room() {
        let mut early = Early::new(Duration::from_secs(10), 9, 2, 3);
        let mut keep = |agent: &str| {
            let agent = AgentId::new(agent).unwrap();
            early.keep(at(0), key(0), &agent, ())
        };
        assert!(keep("a/1") && keep("a/2") && keep("a/3"));
        assert!(!keep("a/4"), "too many of one service");
        assert!(keep("b/1"));
    }
}
