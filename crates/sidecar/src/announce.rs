//! Announces a server at an etcd, for as long as the announcer runs.
//!
//! Processes that discover servers through etcd ([`discover`](crate::discover)) see the server at once. They lose it at
//! once when the announcer shuts down cleanly, and otherwise when its lease expires.

use std::convert::Infallible;
use std::time::Duration;

use serde_json::json;
use thiserror::Error;

use crate::Role;
use crate::etcd::{Client, Cluster, EtcdError, LEASE, is_name};
use crate::settings::UpstreamTls;
use crate::target::ServerUrl;
use crate::tls::TlsError;

/// The time between two renewals of the lease. The lease outlives two renewals that fail.
const RENEWAL: Duration = Duration::from_secs(3);

const DOING: &str = "announce the server";

/// A server to announce, and the etcd to announce it at.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// The etcd cluster that gets the announcement.
    pub etcd: Cluster,
    /// The half of a request that the server computes.
    pub role: Role,
    /// The server's URL as other hosts reach it.
    pub url: ServerUrl,
    /// The server's name in etcd, unique within its role. `None` uses its `HOST:PORT`.
    pub name: Option<String>,
    /// The trusted authorities and the client certificate for an etcd over TLS.
    pub tls: UpstreamTls,
}

/// A reason why a server cannot be announced.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AnnounceError {
    /// The name cannot be part of a key.
    #[error("the name {0:?} is not of 1 to 256 letters, digits and any of - _ . : [ ]")]
    Name(String),
    /// The certificates for etcd cannot be loaded.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Announces a server until `shutdown` completes, then withdraws the announcement.
///
/// An unreachable etcd is retried until it answers, at the start and later. The server is announced again when etcd has
/// lost its lease. A key that an operator deletes is not put back, so deleting it drains the server.
///
/// # Errors
/// [`AnnounceError`], returned before anything is announced.
pub async fn announce(announcement: Announcement, shutdown: impl Future<Output = ()>) -> Result<(), AnnounceError> {
    let mut announcer = Announcer::new(announcement)?;
    tokio::select! {
        never = announcer.run() => match never {},
        () = shutdown => {}
    }
    announcer.withdraw().await;
    Ok(())
}

struct Announcer {
    client: Client,
    key: String,
    value: String,
    lease: Option<Lease>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    id: i64,
    /// The key has been put under this lease.
    holds: bool,
}

impl Announcer {
    fn new(announcement: Announcement) -> Result<Self, AnnounceError> {
        let Announcement { etcd, role, url, name, tls } = announcement;
        let name = name.unwrap_or_else(|| url.target.to_string());
        if !is_name(&name, b"") {
            return Err(AnnounceError::Name(name));
        }
        Ok(Self {
            key: etcd.key(role, &name),
            value: json!({ "url": url.to_string() }).to_string(),
            client: Client::new(etcd, &tls)?,
            lease: None,
        })
    }

    async fn run(&mut self) -> Infallible {
        loop {
            let error = match self.keep().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            if matches!(error, EtcdError::LeaseEnded) {
                self.lease = None;
            }
            let wait = self.client.failed(DOING, &error);
            tokio::time::sleep(wait).await;
        }
    }

    /// Announces the server if it is not announced yet, then renews its lease until a call fails.
    async fn keep(&mut self) -> Result<Infallible, EtcdError> {
        let mut lease = match self.lease {
            Some(lease) => lease,
            None => Lease { id: self.client.grant(LEASE).await?, holds: false },
        };
        // Stored before the key is put: a put that fails may still have reached etcd, and then has to be withdrawn.
        self.lease = Some(lease);
        if !lease.holds {
            let (key, value) = (&self.key, self.value.as_bytes());
            self.client.put(key, value, lease.id).await?;
            tracing::info!(etcd = %self.client.endpoint(), key, "the server is announced");
            lease.holds = true;
            self.lease = Some(lease);
        }
        loop {
            self.client.keep_alive(lease.id).await?;
            self.client.succeeded(DOING);
            tokio::time::sleep(RENEWAL).await;
        }
    }

    async fn withdraw(mut self) {
        let Some(lease) = self.lease else { return };
        for _ in 0..self.client.cluster().endpoints() {
            match self.client.revoke(lease.id).await {
                Ok(()) | Err(EtcdError::LeaseEnded) => return,
                Err(error) => {
                    let _ = self.client.failed("withdraw the announcement", &error);
                }
            }
        }
        tracing::warn!("the announcement could not be withdrawn; it expires within {LEASE:?}");
    }
}
