//! Limits the number of client connections, and chooses which one to close when there are too many.
//!
//! Client connections use file descriptors, and so do connections to servers. If clients could take all of them, none
//! would be answered.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::socket;

/// The most connections, whatever the limit on file descriptors.
const MOST: u64 = 65_536;

/// The file descriptors reserved for listeners, certificates, DNS look-ups and the admin address.
const KEPT_BACK: u64 = 64;

pub(super) struct Connections {
    most: usize,
    /// A counter of events that serves as a clock.
    turn: AtomicU64,
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    count: usize,
    of: HashMap<IpAddr, BTreeMap<u64, Arc<State>>>,
}

#[derive(Default)]
struct State {
    requests: AtomicU32,
    /// The turn at which the connection became idle.
    idle_since: AtomicU64,
    closed: Notify,
}

/// The slot of one connection. It is freed once everything that the connection has started is over.
pub(super) struct Seat {
    all: Arc<Connections>,
    network: IpAddr,
    id: u64,
    state: Arc<State>,
}

/// A request in flight, or its continuation. Its connection does not count as idle.
pub(super) struct Busy(Arc<Seat>);

impl Connections {
    /// Creates a limit. The default leaves two file descriptors for servers to each client.
    pub(super) fn new(most: Option<usize>) -> Arc<Self> {
        let files = socket::files();
        let by_files = (files.saturating_sub(KEPT_BACK) / 3).clamp(1, MOST);
        let most = most.unwrap_or(usize::try_from(by_files).unwrap_or(usize::MAX));
        tracing::debug!(files, connections = most, "the bound on connections");
        Arc::new(Self { most, turn: AtomicU64::new(0), seats: Mutex::default() })
    }

    /// Admits a client, if necessary by closing an idle connection. Returns `None` if all connections have requests in
    /// flight.
    pub(super) fn enter(self: &Arc<Self>, client: IpAddr) -> Option<Arc<Seat>> {
        let (network, id) = (network(client), self.turn());
        let state = Arc::new(State::default());
        state.idle_since.store(id, Ordering::Relaxed);
        let mut seats = self.seats();
        if seats.count >= self.most && !seats.make_room() {
            return None;
        }
        seats.count += 1;
        let of = seats.of.entry(network).or_default();
        of.insert(id, state.clone());
        drop(seats);
        Some(Arc::new(Seat { all: self.clone(), network, id, state }))
    }

    pub(super) fn make_room(&self) -> bool {
        self.seats().make_room()
    }

    fn turn(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    /// Closes the connection that has been idle longest, of the address with the most connections. If none of its
    /// connections is idle, the address with the next most is tried.
    fn make_room(&mut self) -> bool {
        let idle = |(network, of): (&IpAddr, &BTreeMap<u64, Arc<State>>)| {
            let idle = of.iter().filter(|(_, state)| state.requests.load(Ordering::Relaxed) == 0);
            let oldest = idle.min_by_key(|(_, state)| state.idle_since.load(Ordering::Relaxed));
            oldest.map(|(id, _)| (*network, *id))
        };
        let most = self.of.iter().max_by_key(|(_, of)| of.len());
        let found = most.and_then(idle).or_else(|| {
            let mut networks: Vec<_> = self.of.iter().collect();
            networks.sort_by_key(|(_, of)| std::cmp::Reverse(of.len()));
            networks.into_iter().find_map(idle)
        });
        let state = found.and_then(|(network, id)| self.remove(network, id));
        if let Some(state) = &state {
            state.closed.notify_one();
        }
        state.is_some()
    }

    fn remove(&mut self, network: IpAddr, id: u64) -> Option<Arc<State>> {
        let of = self.of.get_mut(&network)?;
        let state = of.remove(&id)?;
        self.count -= 1;
        if of.is_empty() {
            self.of.remove(&network);
        }
        Some(state)
    }
}

impl Seat {
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.state.requests.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Waits until the connection has to be closed.
    pub(super) async fn closed(&self) {
        self.state.closed.notified().await;
    }
}

impl Clone for Busy {
    fn clone(&self) -> Self {
        self.0.busy()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let state = &self.0.state;
        // The time is stored first: once the count is 0 the connection may be chosen by it.
        state.idle_since.store(self.0.all.turn(), Ordering::Relaxed);
        state.requests.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.all.seats().remove(self.network, self.id);
    }
}

/// Returns the key under which an address is counted. For IPv6 it is the /64 network, since a host may have all of its
/// addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn the_longest_idle_of_the_address_with_the_most_goes() {
        let all = Connections::new(Some(4));
        let enter = |text| all.enter(address(text));
        let is_closed =
            |seat: &Option<Arc<Seat>>| seat.as_ref().is_some_and(|seat| seat.closed().now_or_never().is_some());
        let one = enter("10.0.0.1");
        let greedy = [enter("2001:db8::1"), enter("2001:db8::2"), enter("2001:db8::3")];
        let seat = greedy[0].as_ref().expect("a place");
        // The first one was idle last, and the second has a request.
        drop(seat.busy());
        let busy = greedy[1].as_ref().map(|seat| seat.busy());
        let newcomer = enter("::ffff:10.0.0.2");
        assert_eq!(greedy.each_ref().map(is_closed), [false, false, true]);
        drop(greedy);
        drop(busy);
        assert!(!is_closed(&one) && newcomer.is_some());
        // The places of those that have left are free.
        assert_eq!(all.seats().count, 2);
        let more = [enter("10.0.0.2"), enter("10.0.0.3")];
        let requests: Vec<_> =
            [&one, &newcomer, &more[0], &more[1]].map(|seat| seat.as_ref().map(|seat| seat.busy())).into();
        assert!(enter("10.0.0.4").is_none(), "all are busy");
        drop(requests);
        assert!(enter("10.0.0.4").is_some());
        assert_eq!([&one, &newcomer, &more[0], &more[1]].map(is_closed).iter().filter(|closed| **closed).count(), 1);
    }
}
