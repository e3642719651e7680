//! Announces a server at an etcd, for as long as the announcer runs.
//!
//! Whoever looks for servers there ([`discover`](crate::discover)) finds it at once, and loses it at once when the announcer
//! ends as it should, else within the life of a lease.

use std::convert::Infallible;
use std::time::Duration;

use serde_json::json;
use thiserror::Error;

use crate::Role;
use crate::etcd::{Client, Cluster, EtcdError, LEASE, is_name};
use crate::settings::UpstreamTls;
use crate::target::ServerUrl;
use crate::tls::TlsError;

/// How often the lease is renewed: it outlives two renewals that fail.
const RENEWAL: Duration = Duration::from_secs(3);

const DOING: &str = "announce the server";

/// What is announced, and where.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// The etcd.
    pub etcd: Cluster,
    /// Which half of requests the server computes.
    pub role: Role,
    /// Where it listens, as those see it that are to find it.
    pub url: ServerUrl,
    /// What it is called there, which is what tells it from others of its role; `None` is its `HOST:PORT`.
    pub name: Option<String>,
    /// How an etcd over TLS is checked, and what it is shown.
    pub tls: UpstreamTls,
}

/// Why a server cannot be announced.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AnnounceError {
    /// The name cannot be part of a key.
    #[error("the name {0:?} is not of 1 to 256 letters, digits and any of - _ . : [ ]")]
    Name(String),
    /// The certificates for etcd cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Announces a server until `shutdown`, and takes the announcement back then.
///
/// An etcd that is away, at the start or later, is waited for; one that has forgotten the announcement is told again. A key that
/// somebody deletes is not put back: that is how a server is drained by hand.
///
/// # Errors
/// [`AnnounceError`], before anything is announced.
pub async fn announce(announcement: Announcement, shutdown: impl Future<Output = ()>) -> Result<(), AnnounceError> {
    let mut announcer = Announcer::new(announcement)?;
    tokio::select! {
        never = announcer.run() => match never {},
        () = shutdown => {}
    }
    announcer.take_back().await;
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
    /// The key hangs on it.
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

    /// Announces the server where it is not announced, and renews its lease from then on.
    async fn keep(&mut self) -> Result<Infallible, EtcdError> {
        let mut lease = match self.lease {
            Some(lease) => lease,
            None => Lease { id: self.client.grant(LEASE).await?, holds: false },
        };
        // From here on there is something to take back.
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

    async fn take_back(mut self) {
        let Some(lease) = self.lease else { return };
        for _ in 0..self.client.cluster().endpoints() {
            match self.client.revoke(lease.id).await {
                Ok(()) | Err(EtcdError::LeaseEnded) => return,
                Err(error) => {
                    let _ = self.client.failed("take the announcement back", &error);
                }
            }
        }
        tracing::warn!("the announcement could not be taken back; it ends within {LEASE:?}");
    }
}
