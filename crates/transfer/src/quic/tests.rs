//! Endpoints against each other and against peers that misbehave.

mod frames;
mod handshakes;
mod hostile;
mod lanes;
mod relay;
mod settings;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::timeout;

use super::*;
use crate::identity::{Authority, Identity, PeerIdentity, tls};
use transload_plan::ids::{AgentId, Nonce, ServiceName};
use transload_wire::Roles;

/// A time limit far above what anything here takes, so that a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn authority() -> Authority {
    Authority::new("test".parse().unwrap()).unwrap()
}

/// Returns the only agent of a service.
fn id(peer: &PeerIdentity) -> AgentId {
    AgentId::from(&peer.service)
}

fn service(name: &str) -> ServiceName {
    name.parse().unwrap()
}

fn identity(authority: &Authority, name: &str) -> Identity {
    authority.issue(&service(name), Roles::all()).unwrap()
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn framed(body: &[u8]) -> Bytes {
    [&(body.len() as u32).to_le_bytes(), body].concat().into()
}

async fn next_piece(stream: &mut DataReceiver) -> Result<Option<Bytes>, StreamError> {
    let mut pieces = [Bytes::new()];
    let count = stream.recv_chunks(&mut pieces).await?;
    Ok(count.map(|_| std::mem::take(&mut pieces[0])))
}

/// Returns options with short timeouts.
fn impatient() -> QuicOptions {
    QuicOptions {
        lanes: 1,
        handshake_timeout: Duration::from_millis(800),
        frame_timeout: Duration::from_millis(400),
        stall_timeout: Duration::from_millis(600),
        ..QuicOptions::default()
    }
}

fn bind(authority: &Authority, name: &str, options: QuicOptions) -> Endpoints {
    Endpoints::bind(identity(authority, name), options, loopback(0)).unwrap()
}

/// Two agents with a control connection between them.
struct Pair {
    a: Endpoints,
    b: Endpoints,
    /// The two ends of the connection that `a` opened.
    at_a: ControlConnection,
    at_b: ControlConnection,
}

impl Pair {
    async fn with(a: QuicOptions, b: QuicOptions) -> Self {
        let authority = authority();
        let (a, b) = (bind(&authority, "a", a), bind(&authority, "b", b));
        let (at_a, at_b) = tokio::join!(a.connect(b.control_addr(), None), b.accept());
        Self { at_a: at_a.unwrap(), at_b: at_b.unwrap(), a, b }
    }

    async fn new() -> Self {
        Self::with(impatient(), impatient()).await
    }

    /// Makes a lane, and returns its end at `a` and its end at `b`.
    async fn lane(&self) -> (Lane, Lane) {
        self.lane_to(self.b.lane_ports()[0]).await
    }

    async fn lane_to(&self, port: u16) -> (Lane, Lane) {
        let mut session = self.b.expect_lanes(&id(self.at_b.peer()), 1).unwrap();
        let lane = self.a.connect_lane(0, loopback(port), &id(self.at_a.peer()), session.token()).await.unwrap();
        (lane, session.accept().await.unwrap())
    }
}

/// Checks that `server` still accepts an agent of its cluster.
async fn assert_serves(server: &Endpoints, authority: &Authority) {
    let friend = bind(authority, "friend", impatient());
    let (ours, theirs) = tokio::join!(
        friend.connect(server.control_addr(), None),
        // Those who came before and misbehaved may still be in the queue.
        async {
            loop {
                let connection = server.accept().await.unwrap();
                if connection.peer().service == service("friend") {
                    return connection;
                }
            }
        }
    );
    let (mut ours, mut theirs) = (ours.unwrap(), theirs);
    ours.sender.send(framed(b"hello")).await.unwrap();
    assert_eq!(theirs.receiver.recv().await.unwrap(), &b"hello"[..]);
}

/// A peer that speaks QUIC and TLS, and violates everything else.
struct Stranger {
    endpoint: quinn::Endpoint,
    config: quinn::ClientConfig,
}

type Certificate = (CertificateDer<'static>, PrivateKeyDer<'static>);

impl Stranger {
    /// Makes a peer that trusts `authority` and presents `certificate`.
    fn new(authority: &Authority, certificate: Option<Certificate>, alpn: &[u8]) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate().clone()).unwrap();
        let builder = rustls::ClientConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut tls = match certificate {
            Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
            None => builder.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![alpn.to_vec()];
        let crypto = QuicClientConfig::try_from(tls).unwrap();
        Self {
            endpoint: quinn::Endpoint::client(loopback(0)).unwrap(),
            config: quinn::ClientConfig::new(Arc::new(crypto)),
        }
    }

    /// Makes a misbehaving agent of the cluster.
    fn traitor(authority: &Authority) -> Self {
        let identity = identity(authority, "traitor");
        let certificate = (identity.chain()[0].clone(), identity.key().clone_key());
        Self::new(authority, Some(certificate), tls::ALPN)
    }

    async fn connect(&self, addr: SocketAddr) -> Result<quinn::Connection, quinn::ConnectionError> {
        self.endpoint.connect_with(self.config.clone(), addr, tls::SERVER_NAME).unwrap().await
    }

    /// Returns how the connection ends. In TLS 1.3 the client may consider it open before it is rejected.
    async fn turned_away(&self, addr: SocketAddr) -> quinn::ConnectionError {
        match self.connect(addr).await {
            Ok(connection) => connection.closed().await,
            Err(error) => error,
        }
    }
}
