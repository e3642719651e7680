//! How many clients are connected, and which one goes where there are too many.
//!
//! Connections cost files, and so do servers that are dialled: were clients to take them all, those that are in would not be
//! answered.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::socket;

/// The most connections, however many files there may be.
const MOST: u64 = 65_536;

/// Files that clients leave to listeners, certificates, look-ups of names and the admin address.
const KEPT_BACK: u64 = 64;

/// All connections of clients.
pub(super) struct Connections {
    most: usize,
    /// Counts what happens, in place of a clock.
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
    /// When it began to be idle.
    idle_since: AtomicU64,
    closed: Notify,
}

/// The place of one connection, which is free again once all that the connection has begun is over.
pub(super) struct Seat {
    all: Arc<Connections>,
    network: IpAddr,
    id: u64,
    state: Arc<State>,
}

/// A request under way, or what has become of it. While there is one its connection is not idle.
pub(super) struct Busy(Arc<Seat>);

impl Connections {
    /// Lets in so many; by default so many that there are two files for servers to each of a client.
    pub(super) fn new(most: Option<usize>) -> Arc<Self> {
        let files = socket::files();
        let by_files = (files.saturating_sub(KEPT_BACK) / 3).clamp(1, MOST);
        let most = most.unwrap_or(usize::try_from(by_files).unwrap_or(usize::MAX));
        tracing::debug!(files, connections = most, "the bound on connections");
        Arc::new(Self { most, turn: AtomicU64::new(0), seats: Mutex::default() })
    }

    /// Gives a client a place, if need be that of another one; `None` where all have requests under way.
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

    /// Closes an idle connection, if there is one.
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
    /// Closes the connection that has been idle for longest, of the address that has the most; where none of its are idle, of
    /// the one that comes next.
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
    /// Begins a request.
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
        // First the time: without requests it would be taken for that of the request before.
        state.idle_since.store(self.0.all.turn(), Ordering::Relaxed);
        state.requests.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.all.seats().remove(self.network, self.id);
    }
}

/// What counts as one address: of IPv6 a network of 64 bits, which any of its hosts may have all of.
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
