//! HTTP around exchanges: listeners, client connections, and the handling of each request.

mod connections;
mod driver;
pub(crate) mod forms;
mod headers;
mod incoming;
mod meetings;
mod params;
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

pub(crate) use self::meetings::Meetings;
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

/// The state that all requests share. Clones share it, too, each with its own connections to servers after
/// [`Front::apart`].
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) settings: Arc<Settings>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) servers: Arc<Servers>,
    pub(crate) upstream: Upstream,
    pub(crate) observer: Observer,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) meetings: Arc<Meetings>,
    pub(crate) phase: watch::Sender<Phase>,
    /// The TLS configuration for clients; `None` serves plain HTTP.
    pub(crate) serving_tls: Option<Arc<tls::Serving>>,
    #[cfg(feature = "tickets")]
    pub(crate) tickets: Option<Arc<crate::release::Tickets>>,
}

#[derive(Default)]
pub(crate) struct Choice {
    /// The only allowed prefill server, if the request names one.
    prefill: Option<ServerUrl>,
    /// The only allowed decode server, if there is just one.
    decode: Option<ServerUrl>,
    /// The estimated number of tokens in the prompt.
    tokens: u64,
    /// A hash that prompts with the same beginning share.
    prefix: Option<u64>,
    /// The prefill leg is a retry, so its server may be claimed although it has failed.
    again: bool,
    /// The claim of the first prefill leg, if its server had to be known beforehand.
    taken: Option<Claim>,
}

impl Front {
    /// Creates a handle for one of `of` runtimes, with its own connections to servers. Must be called within that
    /// runtime.
    fn apart(&self, of: usize) -> Self {
        Self { upstream: self.upstream.apart(of), ..self.clone() }
    }

    /// Claims a server for a leg, other than those in `avoid`. Returns `None` if there is none. A decode leg passes the
    /// prefill server from which it will fetch.
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

    /// Tells a prefill server to release the blocks behind these parameters, if that is possible.
    #[cfg_attr(not(feature = "tickets"), expect(unused_variables, clippy::unused_self, reason = "leases expire"))]
    fn release(&self, params: Bytes) {
        #[cfg(feature = "tickets")]
        if let Some(tickets) = &self.tickets {
            tickets.give_up(params);
        }
    }
}

/// The error for an answer that broke off: the client's connection is closed, so that the answer cannot be taken for a
/// complete one.
#[derive(Debug, Clone, Copy, Error)]
#[error("the server's answer broke off")]
pub(crate) struct Broken;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    /// The data-parallel rank whose port the client connected to.
    pub(crate) rank: u16,
}
