//! The known servers: their states, the requests in flight at each, and the choice among them.
//!
//! A server is known while the command line, a discovery or a request to a sidecar names it. A server that is no longer
//! named is *draining* while requests are in flight there, and is then forgotten.

mod choose;
mod entry;
mod health;
pub(crate) mod prefix;
mod probe;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::choose::Policy;
pub(crate) use self::choose::Wanted;
pub(crate) use self::probe::probe_all;
pub(crate) use self::table::Origin;
use self::table::Table;
use crate::Role;
use crate::observe::{FailureKind, ServerStatus};
use crate::target::ServerUrl;
use crate::upstream::{SendError, Upstream};

/// The time that a probe waits for its answer. In vLLM and SGLang the loop that answers `/health` also reads prompts
/// and writes tokens. A busy server may take many seconds, and if it were left out for that, its load would fall on
/// others that are as busy. llm-d gives its own probes 15 s. A server that is gone refuses the connection, and one
/// whose engine has died answers 503, both at once. So only a server that hangs is detected this late.
const WITHIN: Duration = Duration::from_secs(15);

/// All known servers. The lock is held only briefly.
#[derive(Debug)]
pub struct Servers {
    table: Mutex<Table>,
}

impl Servers {
    /// Creates an empty set. With `only_decode`, the only decode server is used whatever failures it has had, as in a
    /// sidecar.
    #[must_use]
    pub fn new(only_decode: bool) -> Self {
        Self { table: Mutex::new(Table::new(only_decode)) }
    }

    /// Sets the servers of a role that an origin names. Servers that it named before and does not name now lose this
    /// origin.
    pub fn set(&self, origin: Origin, role: Role, urls: &[ServerUrl]) {
        self.lock().set(origin, role, urls);
    }

    /// Claims the server that a request names, unless recent requests to it have failed.
    pub(crate) fn claim(self: &Arc<Self>, role: Role, url: &ServerUrl, tokens: u64, now: Instant) -> Option<Claim> {
        let taken = self.lock().claim(role, url, tokens, now);
        taken.then(|| self.taken(role, url.clone(), tokens))
    }

    /// Claims the server that a request names and has used before, even if it has failed.
    pub(crate) fn claim_again(self: &Arc<Self>, role: Role, url: &ServerUrl, tokens: u64, now: Instant) -> Claim {
        self.lock().named(role, url).take(tokens, now);
        self.taken(role, url.clone(), tokens)
    }

    /// Chooses a server of a role by the policy and claims it.
    ///
    /// Servers that are down or have failed recently are left out. If all decode servers are, one of them is chosen
    /// nevertheless, since it may still answer. Prefill servers are not chosen then, since decode servers can do
    /// without them.
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

    pub(crate) fn any(&self, role: Role) -> bool {
        self.lock().known(role).next().is_some()
    }

    /// Returns the servers of both roles that the command line or a discovery names.
    pub(crate) fn named(&self) -> Vec<(Role, ServerUrl)> {
        let table = self.lock();
        [Role::Prefill, Role::Decode]
            .into_iter()
            .flat_map(|role| table.known(role).map(move |url| (role, url.clone())))
            .collect()
    }

    /// Records the result of a probe. Returns whether it changes the server's state.
    pub(crate) fn probed(&self, role: Role, url: &ServerUrl, healthy: bool) -> bool {
        self.lock().probed(role, url, healthy)
    }

    fn judge(&self, role: Role, url: &ServerUrl, failed: Option<FailureKind>, now: Instant) {
        let change = self.lock().judged(role, url, failed.is_some(), now);
        log_change(role, url, change, || {
            let why = failed.map_or("", FailureKind::name);
            format!("several requests in a row have failed, the last one as {why}")
        });
    }

    /// Returns the current status of all servers, prefill servers first.
    #[must_use]
    pub fn snapshot(&self) -> Vec<ServerStatus> {
        self.lock().snapshot(Instant::now())
    }

    /// Locks the table. A panic of an earlier holder is ignored: every change is made whole, so the table is
    /// consistent.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Probes one server. The error says why it is not well. Returns `None` if nothing was learned, since this process has
/// no file descriptor.
async fn ask(upstream: &Upstream, role: Role, url: &ServerUrl) -> Option<Result<(), String>> {
    match upstream.probe(url, role, "/health", WITHIN).await {
        Ok(status) if status.is_success() => Some(Ok(())),
        Ok(status) => Some(Err(format!("GET /health answers with status {}", status.as_u16()))),
        Err(SendError::NoFiles) => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

fn log_change(role: Role, server: &ServerUrl, well: Option<bool>, why: impl FnOnce() -> String) {
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

/// A request's share of a server's load. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    servers: Arc<Servers>,
    role: Role,
    url: ServerUrl,
    tokens: u64,
    /// Used by decode legs only: the prefill server whose blocks are fetched.
    prefill: Option<ServerUrl>,
    judged: AtomicBool,
}

impl Claim {
    pub(crate) fn fetching_from(mut self, prefill: Option<&ServerUrl>) -> Self {
        self.prefill = prefill.cloned();
        self
    }

    pub(crate) const fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Records that the server's answer has begun well. Whether it also ends well may take minutes to know.
    pub(crate) fn answered(&self) {
        if !self.judged.load(Ordering::Relaxed) {
            let change = self.servers.lock().answered(self.role, &self.url);
            log_change(self.role, &self.url, change, String::new);
        }
    }

    /// Records that the server has answered well. Only the first judgement counts.
    pub(crate) fn succeeded(&self, now: Instant) {
        self.judge(None, now);
    }

    pub(crate) fn failed(&self, kind: FailureKind, now: Instant) {
        self.judge(Some(kind), now);
    }

    /// Records that the request ended because the server was silent for too long. After several in a row a probe judges
    /// the server, since a costly request also makes a healthy server silent.
    pub(crate) fn leave_to(&self, upstream: Upstream) {
        let (servers, role, url) = (self.servers.clone(), self.role, self.url.clone());
        if self.judged.swap(true, Ordering::Relaxed) || !servers.lock().silent(role, &url) {
            return;
        }
        tokio::spawn(async move {
            if let Some(Err(why)) = ask(&upstream, role, &url).await {
                let change = servers.lock().dead(role, &url, Instant::now());
                log_change(role, &url, change, || format!("it is silent, and {why}"));
            }
        });
    }

    /// Returns the decode server and the prefill server from which it fetches, if there is one.
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

/// A prefill server and a decode server that fetches from it.
#[derive(Debug)]
pub(crate) struct Pair {
    servers: Arc<Servers>,
    prefill: ServerUrl,
    decode: ServerUrl,
}

impl Pair {
    /// Records that the decode server failed with the blocks it fetched and answered without them.
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
