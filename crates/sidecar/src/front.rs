//! HTTP around exchanges: listeners, connections of clients, and what becomes of each request.

mod connections;
mod driver;
pub(crate) mod forms;
mod headers;
mod incoming;
mod pass;
mod reply;
mod serve;
mod service;
mod workers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::watch;

pub(crate) use self::reply::Clients;
pub(crate) use self::serve::{Listeners, Phase};
use crate::Role;
use crate::exchange::Rules;
use crate::observe::Observer;
use crate::servers::{Claim, Servers, Wanted};
use crate::settings::{Mode, Settings};
use crate::target::ServerUrl;
use crate::telemetry::Telemetry;
use crate::tls;
use crate::upstream::Upstream;

/// What requests share. Clones share it too, each with connections to servers of its own after [`Front::apart`].
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) settings: Arc<Settings>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) servers: Arc<Servers>,
    pub(crate) upstream: Upstream,
    pub(crate) observer: Observer,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) phase: watch::Sender<Phase>,
    /// What clients are shown; `None` is plain HTTP.
    pub(crate) serving_tls: Option<Arc<tls::Serving>>,
    #[cfg(feature = "tickets")]
    pub(crate) tickets: Option<Arc<crate::release::Tickets>>,
}

/// Which servers a request may be sent to.
#[derive(Default)]
pub(crate) struct Choice {
    /// The only prefill server, where the request names one.
    prefill: Option<ServerUrl>,
    /// The only decode server, where there is but one.
    decode: Option<ServerUrl>,
    /// How much work the prompt is, in tokens.
    tokens: u64,
    /// What prompts share that begin alike.
    prefix: Option<u64>,
    /// The prefill server that was asked is asked again, though it has failed.
    again: bool,
    /// The place of its first prefill leg, where the server had to be known before.
    taken: Option<Claim>,
}

impl Front {
    /// Shares everything but connections to servers, which are those of one of so many runtimes. To be called within it.
    fn apart(&self, of: usize) -> Self {
        Self { upstream: self.upstream.apart(of), ..self.clone() }
    }

    /// Takes a server for a leg, other than these; `None` where there is none. A decode server may have to fetch caches from a
    /// prefill server.
    fn claim(
        &self,
        role: Role,
        choice: &Choice,
        avoid: &[ServerUrl],
        fetched_from: Option<&ServerUrl>,
        now: Instant,
    ) -> Option<Claim> {
        let only = match role {
            Role::Prefill => &choice.prefill,
            Role::Decode => &choice.decode,
        };
        let claim = match (only, &self.settings.mode) {
            (Some(url), _) if avoid.contains(url) => None,
            (Some(url), _) if choice.again => Some(self.servers.claim_again(role, url, choice.tokens, now)),
            (Some(url), _) => self.servers.claim(role, url, choice.tokens, now),
            (None, Mode::Proxy(choosing)) => {
                let wanted = Wanted { tokens: choice.tokens, prefix: choice.prefix, avoid, prefill: fetched_from };
                self.servers.choose(role, &wanted, choosing.policy, now)
            }
            (None, Mode::Sidecar(_)) => None,
        };
        claim.map(|claim| claim.fetching_from(fetched_from))
    }

    /// Has a prefill server give up the blocks that these parameters name, where it can be told to.
    #[cfg_attr(not(feature = "tickets"), expect(unused_variables, clippy::unused_self, reason = "leases expire"))]
    fn release(&self, params: Bytes) {
        #[cfg(feature = "tickets")]
        if let Some(tickets) = &self.tickets {
            tickets.give_up(params);
        }
    }
}

/// The answer to a client broke off: the connection is closed, so that nobody takes it for a whole one.
#[derive(Debug, Clone, Copy, Error)]
#[error("the server's answer broke off")]
pub(crate) struct Broken;

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    /// The data-parallel rank whose port it has connected to.
    pub(crate) rank: u16,
}
