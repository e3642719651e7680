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

pub use self::choose::Wanted;
pub(crate) use self::probe::probe_all;
pub use self::table::Origin;
use self::table::Table;
use crate::Role;
use crate::observe::{FailureKind, ServerStatus};
use crate::settings::Policy;
use crate::target::ServerUrl;

/// All servers known. Its lock is held for moments only.
#[derive(Debug)]
pub struct Servers {
    table: Mutex<Table>,
}

impl Servers {
    /// Begins without any. Where there is but one decode server, as beside a sidecar, it is asked whatever it did before.
    #[must_use]
    pub fn new(only_decode: bool) -> Self {
        Self {
            table: Mutex::new(Table::new(only_decode)),
        }
    }

    /// Names all servers of a role that this origin knows; those that it named before and does not name now are not its any more.
    pub fn set(&self, origin: Origin, role: Role, urls: &[ServerUrl]) {
        self.lock().set(origin, role, urls);
    }

    /// Takes the server that a request names, unless requests to it have failed lately.
    pub(crate) fn claim(
        self: &Arc<Self>,
        role: Role,
        url: &ServerUrl,
        tokens: u64,
        now: Instant,
    ) -> Option<Claim> {
        let taken = self.lock().claim(role, url, tokens, now);
        taken.then(|| self.taken(role, url.clone(), tokens))
    }

    /// Takes the server that a request names and has asked before, also where it has failed.
    pub(crate) fn claim_again(
        self: &Arc<Self>,
        role: Role,
        url: &ServerUrl,
        tokens: u64,
        now: Instant,
    ) -> Claim {
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
        Claim {
            servers: self.clone(),
            role,
            url,
            tokens,
            judged: AtomicBool::new(false),
        }
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

    /// All servers as they are now, prefill servers first.
    #[must_use]
    pub fn snapshot(&self) -> Vec<ServerStatus> {
        self.lock().snapshot()
    }

    /// A table whose holder has panicked is as good as before: every change of it is whole.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's place among what a server has to do. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    servers: Arc<Servers>,
    role: Role,
    url: ServerUrl,
    tokens: u64,
    judged: AtomicBool,
}

impl Claim {
    /// Where the server is.
    pub(crate) const fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Says that the server's answer has begun as it should; whether it also ends so may take minutes to know.
    pub(crate) fn answered(&self) {
        if !self.judged.load(Ordering::Relaxed) {
            self.servers.lock().answered(self.role, &self.url);
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

    fn judge(&self, failed: Option<FailureKind>, now: Instant) {
        if !self.judged.swap(true, Ordering::Relaxed) {
            self.servers
                .lock()
                .judged(self.role, &self.url, failed.is_some(), now);
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
