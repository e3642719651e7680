//! The servers known: their states, what is in flight at each, and which one is chosen.
//!
//! A server is known while somebody names it: the command line, a discovery, or a request of a sidecar. One that nobody names any
//! more is *draining* while requests are in flight there, and is then forgotten.

mod choose;
mod health;
pub(crate) mod prefix;
mod probe;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(crate) use self::choose::Wanted;
use self::probe::ask;
pub(crate) use self::probe::probe_all;
pub(crate) use self::table::Origin;
use self::table::Table;
use crate::Role;
use crate::observe::{FailureKind, ServerStatus};
use crate::settings::Policy;
use crate::target::ServerUrl;
use crate::upstream::Upstream;

/// All servers known. Its lock is held for moments only.
#[derive(Debug)]
pub struct Servers {
    table: Mutex<Table>,
}

impl Servers {
    /// Begins without any. Where there is but one decode server, as beside a sidecar, it is asked whatever it did before.
    #[must_use]
    pub fn new(only_decode: bool) -> Self {
        Self { table: Mutex::new(Table::new(only_decode)) }
    }

    /// Names all servers of a role that this origin knows; those that it named before and does not name now are not its any more.
    pub fn set(&self, origin: Origin, role: Role, urls: &[ServerUrl]) {
        self.lock().set(origin, role, urls);
    }

    /// Takes the server that a request names, unless requests to it have failed lately.
    pub(crate) fn claim(self: &Arc<Self>, role: Role, url: &ServerUrl, tokens: u64, now: Instant) -> Option<Claim> {
        let taken = self.lock().claim(role, url, tokens, now);
        taken.then(|| self.taken(role, url.clone(), tokens))
    }

    /// Takes the server that a request names and has asked before, also where it has failed.
    pub(crate) fn claim_again(self: &Arc<Self>, role: Role, url: &ServerUrl, tokens: u64, now: Instant) -> Claim {
        self.lock().named(role, url).take(tokens, now);
        self.taken(role, url.clone(), tokens)
    }

    /// Takes one of the servers of a role, by this policy.
    ///
    /// Servers that are down or have failed lately are left out. Where all decode servers are, one of them is taken all the same:
    /// an error in place of an answer helps nobody. Prefill servers are then left alone, since decode servers can do without.
    pub(crate) fn choose(
        self: &Arc<Self>,
        role: Role,
        wanted: &Wanted<'_>,
        policy: Policy,
        now: Instant,
    ) -> Option<Claim> {
        let url = self.lock().choose(role, wanted, policy, now)?;
        Some(self.taken(role, url, wanted.tokens))
    }

    fn taken(self: &Arc<Self>, role: Role, url: ServerUrl, tokens: u64) -> Claim {
        Claim { servers: self.clone(), role, url, tokens, prefill: None, judged: AtomicBool::new(false) }
    }

    /// Whether any server of a role is known.
    pub(crate) fn any(&self, role: Role) -> bool {
        self.lock().known(role).next().is_some()
    }

    /// The servers of both roles that somebody but requests names.
    pub(crate) fn named(&self) -> Vec<(Role, ServerUrl)> {
        let table = self.lock();
        [Role::Prefill, Role::Decode]
            .into_iter()
            .flat_map(|role| table.known(role).map(move |url| (role, url.clone())))
            .collect()
    }

    /// Takes what a probe has found; whether that is news.
    pub(crate) fn probed(&self, role: Role, url: &ServerUrl, healthy: bool) -> bool {
        self.lock().probed(role, url, healthy)
    }

    /// Takes how a request to a server ended, and tells the log what changes by that.
    fn judge(&self, role: Role, url: &ServerUrl, failed: Option<FailureKind>, now: Instant) {
        let news = self.lock().judged(role, url, failed.is_some(), now);
        told(role, url, news, || {
            let why = failed.map_or("", FailureKind::name);
            format!("several requests in a row have failed, the last one as {why}")
        });
    }

    /// All servers as they are now, prefill servers first.
    #[must_use]
    pub fn snapshot(&self) -> Vec<ServerStatus> {
        self.lock().snapshot(Instant::now())
    }

    /// A table whose holder has panicked is as good as before: every change of it is whole.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the log that a server is left alone from now on, or is asked again.
fn told(role: Role, server: &ServerUrl, well: Option<bool>, why: impl FnOnce() -> String) {
    match well {
        Some(true) => {
            tracing::warn!(%server, role = role.name(), "a server is back: it answers again");
        }
        Some(false) => {
            tracing::warn!(%server, role = role.name(), why = why(), "a server is down");
        }
        None => {}
    }
}

/// A request's place among what a server has to do. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    servers: Arc<Servers>,
    role: Role,
    url: ServerUrl,
    tokens: u64,
    /// Used by decode legs only: the prefill server whose caches are fetched.
    prefill: Option<ServerUrl>,
    judged: AtomicBool,
}

impl Claim {
    /// Says from which prefill server a decode server fetches.
    pub(crate) fn fetching_from(mut self, prefill: Option<&ServerUrl>) -> Self {
        self.prefill = prefill.cloned();
        self
    }

    /// Where the server is.
    pub(crate) const fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Says that the server's answer has begun as it should; whether it also ends so may take minutes to know.
    pub(crate) fn answered(&self) {
        if !self.judged.load(Ordering::Relaxed) {
            let news = self.servers.lock().answered(self.role, &self.url);
            told(self.role, &self.url, news, String::new);
        }
    }

    /// Says that the server has answered as it should. Only the first judgement counts.
    pub(crate) fn succeeded(&self, now: Instant) {
        self.judge(None, now);
    }

    /// Says that the server has failed. Only the first judgement counts.
    pub(crate) fn failed(&self, kind: FailureKind, now: Instant) {
        self.judge(Some(kind), now);
    }

    /// Leaves the judgement to a probe, if this is so often in a row: the server was silent for long, which a request that is costly
    /// brings about, too.
    pub(crate) fn leave_to(&self, upstream: Upstream) {
        let (servers, role, url) = (self.servers.clone(), self.role, self.url.clone());
        if self.judged.swap(true, Ordering::Relaxed) || !servers.lock().silent(role, &url) {
            return;
        }
        tokio::spawn(async move {
            if let Some(Err(why)) = ask(&upstream, role, &url).await {
                let news = servers.lock().dead(role, &url, Instant::now());
                told(role, &url, news, || format!("it is silent, and {why}"));
            }
        });
    }

    /// The decode server, and the prefill server whose caches it fetches: they may not fit each other.
    pub(crate) fn pair(&self) -> Option<Pair> {
        Some(Pair { servers: self.servers.clone(), prefill: self.prefill.clone()?, decode: self.url.clone() })
    }

    fn judge(&self, failed: Option<FailureKind>, now: Instant) {
        if !self.judged.swap(true, Ordering::Relaxed) {
            if let (None, Some(prefill)) = (failed, &self.prefill) {
                self.servers.lock().pair_fits(prefill, &self.url);
            }
            self.servers.judge(self.role, &self.url, failed, now);
        }
    }
}

/// A prefill server, and a decode server that fetches from it.
#[derive(Debug)]
pub(crate) struct Pair {
    servers: Arc<Servers>,
    prefill: ServerUrl,
    decode: ServerUrl,
}

impl Pair {
    /// Says that the decode server failed with what it fetched, and answered without.
    pub(crate) fn misfits(&self, now: Instant) {
        let Self { servers, prefill, decode } = self;
        if servers.lock().pair_misfits(prefill, decode, now) == Some(false) {
            tracing::warn!(
                %prefill, %decode,
                "a decode server fails with what a prefill server gives it, and answers without: the two are kept apart for a while"
            );
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = self.servers.lock();
        table.left(self.role, &self.url, self.tokens);
    }
}

#[cfg(test)]
mod tests;
