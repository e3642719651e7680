//! The table of servers: who names each one, and the requests in flight there.

use std::collections::HashMap;
use std::time::Instant;

use super::choose::{Policy, Wanted, choose};
use super::entry::Entry;
use super::health::Health;
use crate::Role;
use crate::observe::ServerStatus;
use crate::target::ServerUrl;

/// The most servers that are known only because requests have named them. The idle one that was used least recently is
/// forgotten first.
const MOST_NAMED_BY_REQUESTS: usize = 1024;

/// The source that names a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The command line or the configuration.
    Settings,
    /// A file, DNS or etcd.
    Discovery,
}

#[derive(Debug)]
pub(super) struct Table {
    /// There is only one decode server, which is used whatever failures it has had.
    only_decode: bool,
    prefill: Servers,
    decode: Servers,
    next: u64,
    /// The health of pairs of a prefill and a decode server, where the decode server has recently failed with the
    /// prefill server's blocks.
    misfits: HashMap<(ServerUrl, ServerUrl), Health>,
}

#[derive(Debug, Default)]
struct Servers {
    entries: HashMap<ServerUrl, Entry>,
    /// The number of the server that was chosen last.
    last: u64,
}

impl Table {
    pub(super) fn new(only_decode: bool) -> Self {
        Self { only_decode, prefill: Servers::default(), decode: Servers::default(), next: 0, misfits: HashMap::new() }
    }

    /// Returns whether failures of a role's servers open their circuit breakers.
    const fn breaks(&self, role: Role) -> bool {
        matches!(role, Role::Prefill) || !self.only_decode
    }

    fn role(&self, role: Role) -> &Servers {
        match role {
            Role::Prefill => &self.prefill,
            Role::Decode => &self.decode,
        }
    }

    fn role_mut(&mut self, role: Role) -> &mut Servers {
        match role {
            Role::Prefill => &mut self.prefill,
            Role::Decode => &mut self.decode,
        }
    }

    fn entry(&mut self, role: Role, url: &ServerUrl) -> &mut Entry {
        self.next += 1;
        let number = self.next;
        self.role_mut(role).entries.entry(url.clone()).or_insert_with(|| Entry {
            url: url.clone(),
            number,
            named: [false; 2],
            by_request: false,
            in_flight: 0,
            tokens: 0,
            requests: 0,
            failures: 0,
            health: Health::default(),
            used: None,
        })
    }

    pub(super) fn set(&mut self, origin: Origin, role: Role, urls: &[ServerUrl]) {
        for entry in self.role_mut(role).entries.values_mut() {
            entry.named[origin as usize] = false;
        }
        for url in urls {
            self.entry(role, url).named[origin as usize] = true;
        }
        self.role_mut(role).entries.retain(|_, entry| !entry.is_over());
        self.forget_pairs();
    }

    /// Forgets pairs with a server that is no longer known: under the same URL there may later be another server.
    fn forget_pairs(&mut self) {
        let (prefill, decode) = (&self.prefill.entries, &self.decode.entries);
        self.misfits.retain(|(from, to), _| prefill.contains_key(from) && decode.contains_key(to));
    }

    pub(super) fn known(&self, role: Role) -> impl Iterator<Item = &ServerUrl> {
        self.role(role).entries.values().filter(|entry| entry.is_named()).map(|entry| &entry.url)
    }

    /// Claims a server. Returns false if it has to be left alone.
    pub(super) fn claim(&mut self, role: Role, url: &ServerUrl, tokens: u64, now: Instant) -> bool {
        let fits = role == Role::Decode || self.fits_any(url, now);
        let entry = self.named(role, url);
        let admits = fits && entry.health.admits(now);
        if admits {
            entry.take(tokens, now);
            let pairs = self.misfits.iter_mut();
            for (_, health) in pairs.filter(|((prefill, _), _)| prefill == url) {
                health.asked(now);
            }
        }
        admits
    }

    /// Returns the entry of a server that a request names, and creates it if necessary.
    pub(super) fn named(&mut self, role: Role, url: &ServerUrl) -> &mut Entry {
        let is_new = !self.role(role).entries.contains_key(url);
        if is_new {
            self.make_room(role);
        }
        let entry = self.entry(role, url);
        entry.by_request |= is_new;
        entry
    }

    fn make_room(&mut self, role: Role) {
        let entries = &mut self.role_mut(role).entries;
        if entries.len() < MOST_NAMED_BY_REQUESTS {
            return;
        }
        let idle = entries.values().filter(|entry| !entry.is_named() && entry.in_flight == 0);
        if let Some(url) = idle.min_by_key(|entry| entry.used).map(|entry| entry.url.clone()) {
            entries.remove(&url);
            self.forget_pairs();
        }
    }

    pub(super) fn choose(
        &mut self,
        role: Role,
        wanted: &Wanted<'_>,
        policy: Policy,
        now: Instant,
    ) -> Option<ServerUrl> {
        let servers = self.role(role);
        let named: Vec<&Entry> =
            servers.entries.values().filter(|entry| entry.is_named() && !wanted.avoid.contains(&entry.url)).collect();
        let select = |fit: &dyn Fn(&Health) -> bool| -> Vec<&Entry> {
            let fit = named.iter().filter(|entry| fit(&entry.health));
            fit.copied().collect()
        };
        let mut fit = select(&|health| health.admits(now));
        match (role, wanted.prefill) {
            (Role::Prefill, _) => fit.retain(|entry| self.fits_any(&entry.url, now)),
            (Role::Decode, Some(prefill)) => {
                let mut compatible = fit.clone();
                compatible.retain(|entry| self.fits(prefill, &entry.url, now));
                if !compatible.is_empty() {
                    fit = compatible;
                }
            }
            (Role::Decode, None) => {}
        }
        if fit.is_empty() && role == Role::Decode {
            // A server that accepts connections is more likely to answer than one that is down.
            fit = select(&|health| !health.is_down());
            if fit.is_empty() {
                fit = named;
            }
        }
        let chosen = choose(policy, wanted.prefix, servers.last, &fit)?;
        let (number, url) = (chosen.number, chosen.url.clone());
        let servers = self.role_mut(role);
        servers.last = number;
        servers.entries.get_mut(&url)?.take(wanted.tokens, now);
        if let Some(pair) = wanted.prefill.map(|prefill| (prefill.clone(), url.clone()))
            && let Some(health) = self.misfits.get_mut(&pair)
        {
            health.asked(now);
        }
        Some(url)
    }

    fn fits(&self, prefill: &ServerUrl, decode: &ServerUrl, now: Instant) -> bool {
        if self.misfits.is_empty() {
            return true;
        }
        let health = self.misfits.get(&(prefill.clone(), decode.clone()));
        health.is_none_or(|health| health.admits(now))
    }

    /// Returns whether any decode server may fetch from a prefill server. Otherwise a prefill would be wasted.
    fn fits_any(&self, prefill: &ServerUrl, now: Instant) -> bool {
        let mut decode = self.known(Role::Decode).peekable();
        decode.peek().is_none() || decode.any(|decode| self.fits(prefill, decode, now))
    }

    /// Records that a decode server failed with a prefill server's blocks and answered without them. Returns the pair's
    /// new state (false: does not fit) if it has changed.
    pub(super) fn pair_misfits(&mut self, prefill: &ServerUrl, decode: &ServerUrl, now: Instant) -> Option<bool> {
        let are_known = self.prefill.entries.contains_key(prefill) && self.decode.entries.contains_key(decode);
        if !are_known {
            return None;
        }
        if self.misfits.len() >= MOST_NAMED_BY_REQUESTS {
            self.misfits.clear();
        }
        let pair = (prefill.clone(), decode.clone());
        self.misfits.entry(pair).or_default().judged(true, now)
    }

    /// Records that a decode server has answered with a prefill server's blocks.
    pub(super) fn pair_fits(&mut self, prefill: &ServerUrl, decode: &ServerUrl) {
        if !self.misfits.is_empty() {
            self.misfits.remove(&(prefill.clone(), decode.clone()));
        }
    }

    pub(super) fn probed(&mut self, role: Role, url: &ServerUrl, healthy: bool) -> bool {
        let Some(entry) = self.role_mut(role).entries.get_mut(url) else {
            return false;
        };
        let changed = entry.health.probed(healthy);
        entry.failures += u64::from(changed && !healthy);
        changed
    }

    pub(super) fn answered(&mut self, role: Role, url: &ServerUrl) -> Option<bool> {
        let entry = self.role_mut(role).entries.get_mut(url)?;
        entry.health.answered()
    }

    pub(super) fn silent(&mut self, role: Role, url: &ServerUrl) -> bool {
        let entry = self.role_mut(role).entries.get_mut(url);
        entry.is_some_and(|entry| entry.health.silent())
    }

    pub(super) fn dead(&mut self, role: Role, url: &ServerUrl, now: Instant) -> Option<bool> {
        let entry = self.role_mut(role).entries.get_mut(url)?;
        entry.failures += 1;
        entry.health.dead(now)
    }

    pub(super) fn judged(&mut self, role: Role, url: &ServerUrl, failed: bool, now: Instant) -> Option<bool> {
        let breaks = self.breaks(role);
        let entry = self.role_mut(role).entries.get_mut(url)?;
        entry.failures += u64::from(failed);
        breaks.then(|| entry.health.judged(failed, now)).flatten()
    }

    pub(super) fn left(&mut self, role: Role, url: &ServerUrl, tokens: u64) {
        let entries = &mut self.role_mut(role).entries;
        if let Some(entry) = entries.get_mut(url) {
            entry.in_flight -= 1;
            entry.tokens = entry.tokens.saturating_sub(tokens);
            if entry.is_over() {
                entries.remove(url);
                self.forget_pairs();
            }
        }
    }

    pub(super) fn snapshot(&self, now: Instant) -> Vec<ServerStatus> {
        let mut all = Vec::new();
        for role in [Role::Prefill, Role::Decode] {
            let mut entries: Vec<&Entry> = self.role(role).entries.values().collect();
            entries.sort_unstable_by_key(|entry| entry.number);
            all.extend(entries.into_iter().map(|entry| entry.status(role)));
        }
        for status in all.iter_mut().filter(|each| each.role == Role::Decode) {
            let apart = self.misfits.iter().filter(|(_, health)| !health.admits(now));
            let from = apart.filter(|((_, decode), _)| *decode == status.url);
            status.misfits = from.map(|((prefill, _), _)| prefill.clone()).collect();
            status.misfits.sort_unstable_by_key(ToString::to_string);
        }
        all
    }
}
