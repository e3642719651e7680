//! Chooses among servers that may be asked.

use super::prefix::hash;
use super::table::Entry;
use crate::settings::Policy;
use crate::target::ServerUrl;

/// What a request wants of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// About how many tokens its prompt has.
    pub tokens: u64,
    /// What prompts share that begin alike.
    pub prefix: Option<u64>,
    /// Servers that it was sent to before.
    pub avoid: &'a [ServerUrl],
    /// The prefill server whose caches a decode server is to fetch.
    pub prefill: Option<&'a ServerUrl>,
}

/// How many requests more than the average a server may have, as a share, before a prefix does not bind to it: 5/4 leaves few
/// servers idle, and moves few prefixes.
const BOUND: (u64, u64) = (5, 4);

/// One of these servers, by the policy. `last` is the number of the server that was taken last.
pub(super) fn choose<'a>(policy: Policy, prefix: Option<u64>, last: u64, servers: &[&'a Entry]) -> Option<&'a Entry> {
    // In the order in which they come after the last one.
    let turn = |entry: &Entry| (entry.number <= last, entry.number);
    match (policy, prefix) {
        (Policy::LeastLoaded, _) => {
            servers.iter().min_by_key(|entry| (entry.tokens, entry.in_flight, turn(entry))).copied()
        }
        (Policy::Prefix, Some(prefix)) => by_prefix(prefix, servers),
        (Policy::RoundRobin | Policy::Prefix, _) => servers.iter().min_by_key(|entry| turn(entry)).copied(),
    }
}

/// The server that a prefix falls to by rendezvous hashing, where a server that comes or goes moves only its own share; the next
/// one if that is busier than the others.
fn by_prefix<'a>(prefix: u64, servers: &[&'a Entry]) -> Option<&'a Entry> {
    let total: u64 = servers.iter().map(|entry| entry.in_flight).sum();
    let average = (total + 1) * BOUND.0;
    let most = average.div_ceil(BOUND.1 * (servers.len() as u64).max(1));
    let rank = |entry: &&&Entry| hash(&(prefix, &entry.url));
    let idle_enough = servers.iter().filter(|entry| entry.in_flight < most);
    idle_enough.max_by_key(rank).copied()
}
