//! The life of a sidecar or proxy, from its settings to its end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::StatusCode;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::budget::Budget;
use crate::discover::follow;
use crate::exchange::{RemoteHosts, Rules};
use crate::front::{Clients, Front, Listeners, Phase};
use crate::observe::{Observer, ServerStatus};
#[cfg(feature = "tickets")]
use crate::release::Tickets;
use crate::servers::{Origin, Servers, probe_all};
use crate::settings::{Beside, Mode, Settings};
use crate::telemetry::Telemetry;
use crate::upstream::Upstream;
use crate::{Role, admin, target, tls};

/// The time that `/readyz` waits for a decode server. Kubernetes waits for one second.
const READY: Duration = Duration::from_millis(800);

/// A running sidecar or proxy.
pub struct Running {
    front: Arc<Front>,
    listeners: Listeners,
    admin: Option<SocketAddr>,
    _tasks: Vec<AbortOnDrop>,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A reason why a sidecar or proxy does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// Listening at an address failed.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The threads that serve clients cannot be started.
    #[error("no threads to serve clients: {0}")]
    Threads(#[source] io::Error),
    /// The certificates for clients or servers cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The certificates of a cluster cannot be used.
    #[cfg(feature = "tickets")]
    #[error("--certs: {0}")]
    Tickets(#[from] crate::release::TicketsError),
    /// Listening at the admin address failed.
    #[error("cannot listen at the admin address {address}: {source}")]
    Admin {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

impl Running {
    /// Starts a sidecar or proxy. When this returns, clients can connect.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        if let Mode::Sidecar(Beside { allow: None, .. }) = &settings.mode {
            tracing::warn!(
                "any client may name any prefill server, whose parameters the decode server acts on; say which servers there are: \
                 --allow-prefill HOST:PORT"
            );
        }
        let (mode, ranks, elsewhere, remote_hosts) = match &settings.mode {
            Mode::Sidecar(beside) => (
                "sidecar",
                beside.ranks,
                false,
                match beside.verify_remote_host {
                    true => RemoteHosts::Asked(beside.allow.clone()),
                    false => RemoteHosts::Any,
                },
            ),
            Mode::Proxy(_) => ("proxy", 1, true, RemoteHosts::Any),
        };
        let mut listeners = Vec::new();
        for rank in 0..ranks {
            let mut address = settings.listen;
            if address.port() != 0 {
                address.set_port(address.port().saturating_add(rank));
            }
            let listening = TcpListener::bind(address).await;
            listeners.push(listening.map_err(|source| StartError::Listen { address, source })?);
        }
        let admin = match settings.admin {
            Some(address) => {
                let wrong = |source| StartError::Admin { address, source };
                let listener = TcpListener::bind(address).await.map_err(wrong)?;
                Some((listener.local_addr().map_err(wrong)?, listener))
            }
            None => None,
        };
        let servers = Arc::new(Servers::new(!elsewhere));
        match &settings.mode {
            Mode::Sidecar(beside) => {
                let decode: Vec<_> = (0..beside.ranks).map(|rank| beside.decode_of(rank)).collect();
                servers.set(Origin::Settings, Role::Decode, &decode);
            }
            Mode::Proxy(choosing) => {
                servers.set(Origin::Settings, Role::Prefill, &choosing.prefill);
                servers.set(Origin::Settings, Role::Decode, &choosing.decode);
            }
        }
        let rules = Rules {
            connector: settings.connector,
            prefill_timeout: settings.limits.prefill_timeout,
            prefill_failure: settings.prefill_failure,
            prefill_retries: settings.prefill_retries,
            prefill_backoff: settings.prefill_backoff,
            decode_chunk: settings.decode_chunk,
            body_limit: usize::try_from(settings.limits.body).unwrap_or(usize::MAX),
            bodies: Budget::new(settings.limits.body_memory),
            elsewhere,
            remote_hosts,
        };
        let upstream = tls::Upstream::load(&settings.upstream_tls)?;
        let limits = &settings.limits;
        let telemetry = settings.otlp.as_ref().and_then(Telemetry::start).map(Arc::new);
        let front = Arc::new(Front {
            rules: Arc::new(rules),
            servers: servers.clone(),
            upstream: Upstream::new(
                upstream,
                limits.connect_timeout,
                limits.idle_connections,
                // Server names that operators configure may resolve to any address; those that clients name may not.
                if elsewhere { |_| true } else { target::may_dial },
            ),
            serving_tls: settings.serving_tls.as_ref().map(tls::Serving::load).transpose()?.map(Arc::new),
            observer: Observer::new(mode, env!("CARGO_PKG_VERSION"), Instant::now()),
            telemetry,
            clients: Clients::new(limits.requests_per_client),
            meetings: Arc::default(),
            phase: watch::Sender::new(Phase::Serving),
            #[cfg(feature = "tickets")]
            tickets: settings.certs.as_deref().map(Tickets::load).transpose()?.map(Arc::new),
            settings: Arc::new(settings),
        });
        let listeners = Listeners::start(&front, listeners)?;
        let mut tasks = Vec::new();
        if let Mode::Proxy(choosing) = &front.settings.mode {
            if let Some(source) = choosing.discover.clone() {
                let upstream_tls = &front.settings.upstream_tls;
                let finding = tokio::spawn(follow(source, servers.clone(), upstream_tls)?);
                tasks.push(AbortOnDrop(finding.abort_handle()));
            }
            let probing = tokio::spawn(probe_all(servers, front.upstream.clone()));
            tasks.push(AbortOnDrop(probing.abort_handle()));
        }
        let admin = admin.map(|(address, listener)| {
            let serving = tokio::spawn(admin::serve(listener, front.clone()));
            tasks.push(AbortOnDrop(serving.abort_handle()));
            address
        });
        Ok(Self { front, listeners, admin, _tasks: tasks })
    }

    /// Returns the admin address, if there is one.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Returns the addresses for clients, rank 0 first.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        self.listeners.addresses()
    }

    /// Reloads the certificates for clients and for servers.
    pub fn reload(&self) {
        if let Some(tls) = &self.front.serving_tls {
            tls.renew();
        }
        self.front.upstream.renew();
    }

    /// Shuts down: accepts no further connections, and waits at most `within` for requests in flight. Exporting the
    /// last spans may take some seconds more.
    pub async fn drain(self, within: Duration) {
        self.listeners.drain(within).await;
        #[cfg(feature = "tickets")]
        if let Some(tickets) = &self.front.tickets {
            tickets.settle().await;
        }
        if let Some(telemetry) = &self.front.telemetry {
            telemetry.flush().await;
        }
    }
}

impl admin::Source for Front {
    fn observer(&self) -> &Observer {
        &self.observer
    }

    fn servers(&self) -> Vec<ServerStatus> {
        self.servers.snapshot()
    }

    async fn ready(&self) -> bool {
        if *self.phase.borrow() != Phase::Serving {
            return false;
        }
        let servers = self.servers.snapshot();
        let decode: Vec<_> = servers.iter().filter(|server| server.role == Role::Decode).collect();
        // All are asked at once, so that one that drops packets does not delay the others.
        let mut asked: FuturesUnordered<_> =
            decode.iter().map(|server| self.upstream.reaches(&server.url, READY)).collect();
        while let Some(reached) = asked.next().await {
            if reached {
                return true;
            }
        }
        false
    }

    async fn get(&self, server: &ServerStatus, path: &str, limit: usize, within: Duration) -> Option<Bytes> {
        // A sidecar contacts prefill servers only for requests.
        if server.role == Role::Prefill && matches!(self.settings.mode, Mode::Sidecar(_)) {
            return None;
        }
        let got = self.upstream.get(&server.url, server.role, path, limit, within).await;
        got.ok().filter(|(status, _)| *status == StatusCode::OK).map(|(_, body)| body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ServingTls;
    use crate::target::{AllowList, ServerUrl};
    use crate::warnings::Warnings;

    #[tokio::test]
    async fn a_sidecar_without_a_list_says_what_that_means() {
        let warnings = Warnings::default();
        let _guard = tracing::subscriber::set_default(warnings.clone());
        let decode = ServerUrl::parse("http://127.0.0.1:1").expect("a URL");
        for (list, said) in [(Some("p:1"), 0), (None, 1)] {
            let mut beside = Beside::new(decode.clone());
            beside.allow = list.map(|list| AllowList::parse([list]).expect("a list"));
            let listen = SocketAddr::from(([127, 0, 0, 1], 0));
            let running = Running::start(Settings::new(Mode::Sidecar(beside), listen)).await;
            assert!(running.is_ok());
            let about_it = |line: &String| line.contains("--allow-prefill HOST:PORT");
            assert_eq!(warnings.said().iter().filter(|line| about_it(line)).count(), said);
        }
    }

    #[tokio::test]
    async fn a_decode_server_that_is_not_trusted_is_a_bad_gateway() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let settings = |decode: String| {
            let decode = ServerUrl::parse(&decode).expect("a URL");
            let listen = SocketAddr::from(([127, 0, 0, 1], 0));
            Settings::new(Mode::Sidecar(Beside::new(decode)), listen)
        };
        let mut unsigned = settings("http://127.0.0.1:1".to_owned());
        unsigned.serving_tls = Some(ServingTls::default());
        let unsigned = Running::start(unsigned).await.expect("it starts");
        let decode = format!("https://{}", unsigned.addresses()[0]);
        let running = Running::start(settings(decode)).await.expect("it starts");
        for request in [
            "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        ] {
            let stream = tokio::net::TcpStream::connect(running.addresses()[0]).await;
            let mut stream = stream.expect("it listens");
            stream.write_all(request.as_bytes()).await.expect("it reads");
            let mut status = [0; 12];
            stream.read_exact(&mut status).await.expect("it answers");
            assert_eq!(String::from_utf8_lossy(&status), "HTTP/1.1 502", "{request}");
        }
    }
}
