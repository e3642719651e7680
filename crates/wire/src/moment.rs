//! Time in the pure modules: an argument of every call.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::ops::Add;
use std::time::Duration;

/// A point on the monotonic clock of one process, as the time since an arbitrary start.
///
/// Moments of two processes cannot be compared and are never sent. Only durations are, as hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub Duration);

impl Moment {
    /// Returns the time from `earlier` to this moment, or zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    /// Saturates: a deadline beyond the clock's range never comes.
    fn add(self, rhs: Duration) -> Moment {
        Moment(self.0.saturating_add(rhs))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.0.as_secs_f64())
    }
}

/// Deadlines by key, at most one per key.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    at: HashMap<K, Moment>,
    order: BTreeSet<(Moment, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { at: HashMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord> Timers<K> {
    pub(crate) fn set(&mut self, key: K, at: Moment) {
        if let Some(old) = self.at.insert(key.clone(), at) {
            if old == at {
                return;
            }
            self.order.remove(&(old, key.clone()));
        }
        self.order.insert((at, key));
    }

    pub(crate) fn clear(&mut self, key: &K) {
        if let Some(at) = self.at.remove(key) {
            self.order.remove(&(at, key.clone()));
        }
    }

    pub(crate) fn is_set(&self, key: &K) -> bool {
        self.at.contains_key(key)
    }

    pub(crate) fn next(&self) -> Option<Moment> {
        self.order.first().map(|(at, _)| *at)
    }

    pub(crate) fn pop_due(&mut self, now: Moment) -> Option<K> {
        let (at, _) = self.order.first()?;
        if *at > now {
            return None;
        }
        let (_, key) = self.order.pop_first()?;
        self.at.remove(&key);
        Some(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.at.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    #[test]
    fn a_key_has_one_deadline_and_the_earliest_comes_first() {
        let mut timers = Timers::default();
        timers.set("b", at(5));
        timers.set("a", at(7));
        timers.set("a", at(3));
        assert_eq!(timers.next(), Some(at(3)));
        assert_eq!(timers.pop_due(at(2)), None);
        assert_eq!(timers.pop_due(at(6)), Some("a"));
        assert_eq!(timers.pop_due(at(6)), Some("b"));
        assert_eq!(timers.pop_due(at(6)), None);
        timers.set("c", at(1));
        timers.clear(&"c");
        assert_eq!((timers.next(), timers.len()), (None, 0));
    }

    #[test]
    fn a_deadline_beyond_the_clock_never_comes() {
        let never = at(1) + Duration::MAX;
        assert!(never > at(u64::MAX - 1));
        assert_eq!(at(1).since(at(2)), Duration::ZERO);
    }
}
