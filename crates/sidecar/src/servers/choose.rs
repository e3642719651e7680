//! The choice of a server by policy.

use super::entry::Entry;
use super::prefix::hash;
use crate::target::ServerUrl;

/// The policy for choosing among several servers of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Takes the servers in turn.
    #[default]
    RoundRobin,
    /// Takes the server with the fewest tokens in flight.
    LeastLoaded,
    /// Takes the server that a hash of the prompt's beginning selects, unless it is much busier than others.
    Prefix,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The estimated number of tokens in the prompt.
    pub tokens: u64,
    /// A hash that prompts with the same beginning share.
    pub prefix: Option<u64>,
    /// The servers that had this request before.
    pub avoid: &'a [ServerUrl],
    /// The prefill server from which a decode server is to fetch.
    pub prefill: Option<&'a ServerUrl>,
}

/// The load, relative to the average, above which a server gets no requests by prefix: 5/4 leaves few servers idle and
/// moves few prefixes.
const BOUND: (u64, u64) = (5, 4);

/// Chooses one of these servers by the policy. `last` is the number of the server that was chosen last.
pub(super) fn choose<'a>(policy: Policy, prefix: Option<u64>, last: u64, servers: &[&'a Entry]) -> Option<&'a Entry> {
    // Orders servers round-robin, beginning after the last one.
    let turn = |entry: &Entry| (entry.number <= last, entry.number);
    match (policy, prefix) {
        (Policy::LeastLoaded, _) => {
            servers.iter().min_by_key(|entry| (entry.tokens, entry.in_flight, turn(entry))).copied()
        }
        (Policy::Prefix, Some(prefix)) => by_prefix(prefix, servers),
        (Policy::RoundRobin | Policy::Prefix, _) => servers.iter().min_by_key(|entry| turn(entry)).copied(),
    }
}

/// Chooses by rendezvous hashing of the prefix, so that a server that comes or goes moves only its own share. A server
/// that is busier than the others is skipped.
fn by_prefix<'a>(prefix: u64, servers: &[&'a Entry]) -> Option<&'a Entry> {
    let total: u64 = servers.iter().map(|entry| entry.in_flight).sum();
    let average = (total + 1) * BOUND.0;
    let most = average.div_ceil(BOUND.1 * (servers.len() as u64).max(1));
    let rank = |entry: &&&Entry| hash(&(prefix, &entry.url));
    let idle_enough = servers.iter().filter(|entry| entry.in_flight < most);
    idle_enough.max_by_key(rank).copied()
}
