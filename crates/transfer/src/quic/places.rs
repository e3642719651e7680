//! A few places for handshakes in progress, which are shared fairly among those that ask for them.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::sleep};

/// The number of failed connections that may still be closing, for each place. QUIC keeps them for three of its
/// timeouts.
const CLOSING: usize = 4;

/// How long a failed connection counts as closing: three probe timeouts (RFC 9000, section 10.2), each three times the
/// initially assumed round trip time.
pub(super) const CLOSED_AFTER: Duration = super::path::INITIAL_RTT.saturating_mul(9);

/// The origin of a connection: an IPv4 address, or the 64-bit network of an IPv6 address, because a user who has one
/// address of a network has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source(IpAddr);

impl From<SocketAddr> for Source {
    fn from(addr: SocketAddr) -> Self {
        let IpAddr::V6(v6) = addr.ip().to_canonical() else {
            return Self(addr.ip().to_canonical());
        };
        let network = v6.to_bits() >> 64 << 64;
        Self(Ipv6Addr::from_bits(network).into())
    }
}

/// A bounded number of places. If all are taken, a newcomer gets one from the holder with the most places, the oldest
/// one. So a holder that takes many places loses its own; and a user behind the same address as a flood gets through if
/// it is fast enough.
#[derive(Debug)]
pub(super) struct Places<K: Eq + Hash> {
    table: Arc<Mutex<Table<K>>>,
    most: usize,
}

#[derive(Debug)]
struct Table<K> {
    next: u64,
    /// The number of taken places, and of connections that had one and are closing.
    taken: usize,
    closing: usize,
    holders: HashMap<K, Holder>,
}

#[derive(Debug, Default)]
struct Holder {
    /// Its places, the oldest first. Dropping the sender takes a place away.
    places: VecDeque<(u64, oneshot::Sender<()>)>,
    closing: usize,
}

/// A place. Dropping it returns it.
#[derive(Debug)]
pub(super) struct Place<K: Clone + Eq + Hash> {
    table: Arc<Mutex<Table<K>>>,
    key: K,
    id: u64,
    lost: oneshot::Receiver<()>,
}

impl<K: Clone + Eq + Hash> Places<K> {
    pub(super) fn new(most: usize) -> Self {
        let table = Table { next: 0, taken: 0, closing: 0, holders: HashMap::new() };
        Self { table: Arc::new(Mutex::new(table)), most }
    }

    /// Takes a place. Returns `None` if too many connections are closing and `key` has its share of them.
    pub(super) fn take(&self, key: K) -> Option<Place<K>> {
        let mut table = lock(&self.table);
        let own = table.holders.get(&key).map_or(0, |holder| holder.closing);
        let share = CLOSING * self.most / (table.holders.len() + 1);
        // Holders below their share are admitted up to a second bound, which does not depend on the number of holders.
        if table.closing >= 2 * CLOSING * self.most || (table.closing >= CLOSING * self.most && own >= share) {
            return None;
        }
        if table.taken >= self.most {
            table.evict();
        }
        let id = table.next;
        table.next += 1;
        table.taken += 1;
        let (hold, lost) = oneshot::channel();
        let holder = table.holders.entry(key.clone()).or_default();
        holder.places.push_back((id, hold));
        Some(Place { table: self.table.clone(), key, id, lost })
    }

    pub(super) fn taken(&self) -> usize {
        lock(&self.table).taken
    }

    /// Returns the number of connections that have a place, or are closing after they had one.
    pub(super) fn connections(&self) -> usize {
        let table = lock(&self.table);
        table.taken + table.closing
    }
}

impl<K: Eq + Hash> Table<K> {
    fn evict(&mut self) {
        let oldest = |holder: &Holder| holder.places.front().map_or(u64::MAX, |(id, _)| *id);
        let holders = self.holders.values_mut();
        let largest = holders.max_by_key(|holder| (holder.places.len(), u64::MAX - oldest(holder)));
        if largest.is_some_and(|largest| largest.places.pop_front().is_some()) {
            self.taken -= 1;
        }
    }

    fn forget(&mut self, key: &K) {
        let over = |holder: &Holder| holder.places.is_empty() && holder.closing == 0;
        if self.holders.get(key).is_some_and(over) {
            self.holders.remove(key);
        }
    }
}

impl<K: Clone + Eq + Hash> Place<K> {
    /// Waits until the place is taken away.
    pub(super) async fn lost(&mut self) {
        // The channel never carries a value.
        let _ = (&mut self.lost).await;
    }

    /// Returns the place, and counts the connection until QUIC has forgotten it.
    pub(super) async fn close(self) {
        let (table, key) = (self.table.clone(), self.key.clone());
        {
            let mut table = lock(&table);
            table.closing += 1;
            table.holders.entry(key.clone()).or_default().closing += 1;
        }
        drop(self);
        sleep(CLOSED_AFTER).await;
        let mut table = lock(&table);
        table.closing -= 1;
        if let Some(holder) = table.holders.get_mut(&key) {
            holder.closing -= 1;
        }
        table.forget(&key);
    }
}

impl<K: Clone + Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        if let Some(holder) = table.holders.get_mut(&self.key) {
            let before = holder.places.len();
            holder.places.retain(|(id, _)| *id != self.id);
            table.taken -= before - holder.places.len();
        }
        table.forget(&self.key);
    }
}

fn lock<K>(table: &Mutex<Table<K>>) -> MutexGuard<'_, Table<K>> {
    // Nothing panics while it is held.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_lost<K: Clone + Eq + Hash>(place: &mut Place<K>) -> bool {
        place.lost.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn a_newcomer_gets_a_place_of_whoever_has_the_most() {
        let places = Places::new(4);
        let mut flood: Vec<_> = (0..4).map(|_| places.take("flood").unwrap()).collect();
        let mut quiet = [places.take("a").unwrap(), places.take("b").unwrap()];
        let lost: Vec<_> = flood.iter_mut().map(is_lost).collect();
        assert_eq!(lost, [true, true, false, false]);
        for _ in 0..100 {
            flood.push(places.take("flood").unwrap());
        }
        assert!(!quiet.iter_mut().any(is_lost), "a flood takes from itself");
        assert_eq!(places.taken(), 4);
        // Among equals it is the oldest one that goes.
        let mut late = [places.take("c").unwrap(), places.take("d").unwrap()];
        assert_eq!(quiet.each_mut().map(is_lost), [true, false]);
        assert!(!late.iter_mut().any(is_lost));
        drop((flood, quiet, late));
        assert_eq!(places.connections(), 0);
        assert!(lock(&places.table).holders.is_empty());
    }

    #[tokio::test]
    async fn closing_connections_are_bounded_and_shared_too() {
        let places = Arc::new(Places::new(2));
        let mut closing = Vec::new();
        let close = |key| {
            let place = places.take(key)?;
            Some(tokio::spawn(place.close()))
        };
        for _ in 0..100 {
            closing.extend(close("flood"));
            tokio::task::yield_now().await;
        }
        assert_eq!(places.connections(), 2 * CLOSING, "it waits from here on");
        assert!(close("quiet").is_some());
        for task in closing {
            task.await.unwrap();
        }
        assert!(close("flood").is_some());
    }

    #[test]
    fn networks_of_ipv6_count_as_one_address() {
        let of = |text: &str| Source::from(text.parse::<SocketAddr>().unwrap());
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:0:0:2]:9"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_eq!(of("[::ffff:10.0.0.1]:1"), of("10.0.0.1:2"));
        assert_ne!(of("10.0.0.1:1"), of("10.0.0.2:1"));
    }
}
