//! KVBoost's eviction policy, as an order of opaque keys.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The default number of most recently used keys that are never evicted.
pub(super) const RECENCY_WINDOW: usize = 8;

/// Orders keys for eviction: lower weights first, then fewer puts, then less recent use. Pinned keys and the most
/// recently used ones are never evicted.
///
/// A policy knows no sizes: the caller calls [`evict`](Self::evict) until there is enough room. Evicted keys do not
/// come back if the room does not suffice in the end. Each call takes time logarithmic in the number of keys.
#[derive(Clone, Debug)]
pub struct Policy<K> {
    window: usize,
    uses: u64,
    entries: HashMap<K, Entry>,
    /// Keys by last use, oldest first.
    order: BTreeMap<u64, K>,
    /// Keys that are not pinned, in eviction order.
    candidates: BTreeMap<Rank, K>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    rank: Rank,
    pinned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    weight: Weight,
    frequency: u64,
    last_use: u64,
}

#[derive(Clone, Copy, Debug)]
struct Weight(f64);

impl Ord for Weight {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Weight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Weight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Weight {}

impl<K: Clone + Eq + Hash> Policy<K> {
    /// Returns a policy without keys that never evicts the `window` most recently used ones.
    pub fn new(window: usize) -> Self {
        Self { window, uses: 0, entries: HashMap::new(), order: BTreeMap::new(), candidates: BTreeMap::new() }
    }

    /// Adds a key. An existing one keeps its weight and counts one more use and put.
    pub fn put(&mut self, key: K, weight: f64) {
        if !self.renew(&key, 1) {
            self.uses += 1;
            let rank = Rank {
                // Adding 0.0 turns -0.0 into 0.0, so both weigh the same.
                weight: Weight(weight + 0.0),
                frequency: 1,
                last_use: self.uses,
            };
            let pinned = false;
            self.insert(key, Entry { rank, pinned });
        }
    }

    /// Counts a use of a key, but no put. Returns whether the key exists.
    pub fn hit(&mut self, key: &K) -> bool {
        self.renew(key, 0)
    }

    /// Removes a key. Returns whether it existed.
    pub fn remove(&mut self, key: &K) -> bool {
        self.take(key).is_some()
    }

    /// Pins or unpins an existing key. A pinned key is not evicted.
    pub fn pin(&mut self, key: &K, pinned: bool) {
        if let Some((key, entry)) = self.take(key) {
            self.insert(key, Entry { pinned, ..entry });
        }
    }

    /// Removes and returns the next key in eviction order, if any may be evicted.
    pub fn evict(&mut self) -> Option<K> {
        let newest = self.order.keys().rev();
        // If the window is larger than the number of keys, nothing may be evicted.
        let kept_from = match self.window {
            0 => u64::MAX,
            window => *newest.take(window).last()?,
        };
        let mut oldest = self.candidates.iter();
        let (_, key) = oldest.find(|(rank, _)| rank.last_use < kept_from)?;
        let key = key.clone();
        self.remove(&key);
        Some(key)
    }

    /// Returns the keys by last use, oldest first.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.order.values()
    }

    /// Returns how often an existing key was put.
    pub fn frequency(&self, key: &K) -> Option<u64> {
        Some(self.entries.get(key)?.rank.frequency)
    }

    fn renew(&mut self, key: &K, puts: u64) -> bool {
        let Some((key, mut entry)) = self.take(key) else {
            return false;
        };
        self.uses += 1;
        entry.rank.last_use = self.uses;
        entry.rank.frequency += puts;
        self.insert(key, entry);
        true
    }

    fn take(&mut self, key: &K) -> Option<(K, Entry)> {
        let (key, entry) = self.entries.remove_entry(key)?;
        self.order.remove(&entry.rank.last_use);
        self.candidates.remove(&entry.rank);
        Some((key, entry))
    }

    fn insert(&mut self, key: K, entry: Entry) {
        self.order.insert(entry.rank.last_use, key.clone());
        if !entry.pinned {
            self.candidates.insert(entry.rank, key.clone());
        }
        self.entries.insert(key, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Chooses the same chunk as KVBoost, which sorts all unpinned ones at each eviction.
    fn sorted(order: &[(u8, f64, u64, bool)], window: usize) -> Option<u8> {
        let old = &order[..order.len().saturating_sub(window)];
        let mut free: Vec<_> = old.iter().filter(|(.., pinned)| !pinned).collect();
        free.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2)));
        free.first().map(|key| key.0)
    }

    proptest! {
        #[test]
        fn goes_as_sorting_says(
            window in 0..4_usize,
            steps in prop::collection::vec((0..6_u8, 0..7_u8, 0..3_u8), 0..80),
        ) {
            let mut policy = Policy::new(window);
            let mut order: Vec<(u8, f64, u64, bool)> = Vec::new();
            for (what, key, weight) in steps {
                let at = order.iter().position(|there| there.0 == key);
                let there = at.map(|at| order.remove(at));
                match (what, there) {
                    (0 | 1, there) => {
                        policy.put(key, weight.into());
                        let (weight, puts, pinned) =
                            there.map_or((weight.into(), 0, false), |(_, w, n, p)| (w, n, p));
                        order.push((key, weight, puts + 1, pinned));
                    }
                    (2, Some(there)) => {
                        prop_assert!(policy.hit(&key));
                        order.push(there);
                    }
                    (3, there) => prop_assert_eq!(policy.remove(&key), there.is_some()),
                    (4, Some(there)) => {
                        policy.pin(&key, weight > 0);
                        order.insert(at.unwrap(), (there.0, there.1, there.2, weight > 0));
                    }
                    (_, there) => {
                        if let Some(there) = there {
                            order.insert(at.unwrap(), there);
                        }
                        let goes = sorted(&order, window);
                        prop_assert_eq!(policy.evict(), goes);
                        order.retain(|there| Some(there.0) != goes);
                    }
                }
                let keys: Vec<u8> = policy.keys().copied().collect();
                prop_assert_eq!(keys, order.iter().map(|there| there.0).collect::<Vec<_>>());
                for (key, _, puts, _) in &order {
                    prop_assert_eq!(policy.frequency(key), Some(*puts));
                }
            }
        }
    }
}
