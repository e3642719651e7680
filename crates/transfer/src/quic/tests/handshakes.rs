//! Tests which peers are accepted.

use std::time::SystemTime;

use quinn::{ConnectionError, crypto::rustls::QuicServerConfig};
use rustls::{AlertDescription, server::WebPkiClientVerifier};

use super::*;
use crate::identity::{PeerIdentityError, Validity};

fn alert(error: &ConnectionError) -> Option<AlertDescription> {
    let ConnectionError::ConnectionClosed(close) = error else {
        return None;
    };
    let code = u64::from(close.error_code).checked_sub(0x100)?;
    Some(AlertDescription::from(u8::try_from(code).ok()?))
}

fn expired() -> Validity {
    let day = Duration::from_secs(24 * 60 * 60);
    let now = SystemTime::now();
    Validity { from: now - 2 * day, until: now - day }
}

const URI: &str = "transload://test/agent/stranger?roles=pull";

/// Returns the answer of `server` to a client with this certificate. The server must go on serving others.
async fn verdict(authority: &Authority, certificate: Option<Certificate>, alpn: &[u8]) -> String {
    let server = bind(authority, "server", impatient());
    let stranger = Stranger::new(authority, certificate, alpn);
    let mut said = Vec::new();
    for port in [server.control_addr().port(), server.lane_ports()[0]] {
        let error = stranger.turned_away(loopback(port)).await;
        said.push(match alert(&error) {
            Some(alert) => format!("{alert:?}"),
            None => format!("{error:?}"),
        });
    }
    assert_serves(&server, authority).await;
    assert_eq!(said[0], said[1], "control and lanes differ");
    said.remove(0)
}

#[tokio::test]
async fn without_a_certificate() {
    let said = verdict(&authority(), None, tls::ALPN).await;
    assert_eq!(said, "CertificateRequired");
}

#[tokio::test]
async fn with_a_certificate_of_another_authority() {
    let ours = authority();
    // Of another name, and of the same.
    let elsewhere = Authority::new("elsewhere".parse().unwrap()).unwrap();
    for (other, expected) in [(elsewhere, "UnknownCA"), (authority(), "DecryptError")] {
        let foreign = other.sign(&[URI], Validity::of_agent()).unwrap();
        let said = verdict(&ours, Some(foreign), tls::ALPN).await;
        assert_eq!(said, expected);
    }
}

#[tokio::test]
async fn with_an_expired_certificate() {
    let authority = authority();
    let certificate = authority.sign(&[URI], expired()).unwrap();
    let said = verdict(&authority, Some(certificate), tls::ALPN).await;
    assert_eq!(said, "CertificateExpired");
}

#[tokio::test]
async fn with_a_certificate_that_names_nobody_or_somebody_elsewhere() {
    let authority = authority();
    for uris in [
        &[][..],
        &["https://example.org/"],
        &[URI, URI],
        &["transload://other/agent/stranger?roles=pull"],
        &["transload://test/agent/stranger?roles=root"],
        &["transload://test/authority"],
    ] {
        let certificate = authority.sign(uris, Validity::of_agent()).unwrap();
        let said = verdict(&authority, Some(certificate), tls::ALPN).await;
        assert_eq!(said, "CertificateUnknown", "{uris:?}");
    }
}

#[tokio::test]
async fn with_another_protocol() {
    let authority = authority();
    let certificate = authority.sign(&[URI], Validity::of_agent()).unwrap();
    let said = verdict(&authority, Some(certificate), b"h3").await;
    assert_eq!(said, "NoApplicationProtocol");
}

/// Makes a server that speaks QUIC and TLS, with any certificate and protocol.
fn impostor(trusted: &Authority, certificate: Certificate, alpn: &[u8]) -> quinn::Endpoint {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.certificate().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), tls::provider()).build().unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate.0], certificate.1)
        .unwrap();
    config.alpn_protocols = vec![alpn.to_vec()];
    let crypto = QuicServerConfig::try_from(config).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let endpoint = quinn::Endpoint::server(config, loopback(0)).unwrap();
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            tokio::spawn(async move {
                if let Ok(connection) = incoming.await {
                    connection.closed().await;
                }
            });
        }
    });
    endpoint
}

async fn connecting_to(
    authority: &Authority,
    certificate: Certificate,
    alpn: &[u8],
    expected: Option<&str>,
) -> ConnectError {
    let impostor = impostor(authority, certificate, alpn);
    let client = bind(authority, "client", impatient());
    let addr = impostor.local_addr().unwrap();
    let expected = expected.map(service);
    client.connect(addr, expected.as_ref()).await.unwrap_err()
}

#[tokio::test]
async fn impostors_are_found_out() {
    let authority = authority();
    let good = || authority.sign(&[URI], Validity::of_agent()).unwrap();

    let error = connecting_to(&authority, good(), tls::ALPN, Some("decode")).await;
    assert_eq!(
        error,
        ConnectError::Identity(PeerIdentityError::WrongService {
            expected: service("decode"),
            actual: service("stranger")
        })
    );
    let nobody = authority.sign(&[], Validity::of_agent()).unwrap();
    let error = connecting_to(&authority, nobody, tls::ALPN, None).await;
    assert_eq!(error, ConnectError::Identity(PeerIdentityError::NoAgent));

    let old = authority.sign(&[URI], expired()).unwrap();
    let error = connecting_to(&authority, old, tls::ALPN, None).await;
    assert!(matches!(&error, ConnectError::Certificate { reason } if reason.contains("expired")), "{error:?}");

    let foreign = self::authority().sign(&[URI], Validity::of_agent()).unwrap();
    let error = connecting_to(&authority, foreign, tls::ALPN, None).await;
    assert!(matches!(error, ConnectError::Certificate { .. }), "{error:?}");

    let error = connecting_to(&authority, good(), b"h3", None).await;
    assert_eq!(error, ConnectError::Protocol);

    // One who has all of that, and then says nothing.
    let error = connecting_to(&authority, good(), tls::ALPN, Some("stranger")).await;
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
}

#[tokio::test]
async fn agents_of_two_authorities_do_not_meet() {
    let (ours, theirs) = (authority(), authority());
    let (a, b) = (bind(&ours, "a", impatient()), bind(&theirs, "b", impatient()));
    let error = a.connect(b.control_addr(), None).await.unwrap_err();
    assert!(matches!(error, ConnectError::Certificate { .. }), "{error:?}");
}

#[tokio::test]
async fn nobody_there_is_a_timeout() {
    let a = bind(&authority(), "a", impatient());
    let unused = std::net::UdpSocket::bind(loopback(0)).unwrap();
    let addr = unused.local_addr().unwrap();
    assert_eq!(
        a.connect(addr, None).await.unwrap_err(),
        ConnectError::TimedOut { addr, after: impatient().handshake_timeout }
    );
    assert_eq!(a.connect(loopback(0), None).await.unwrap_err(), ConnectError::Address(loopback(0)));
    a.close(CloseCode::DONE, "").await;
    assert_eq!(a.connect(addr, None).await.unwrap_err(), ConnectError::Closed);
}

/// A host without a process at the port says so: the client does not wait for an answer, and a short dial is not
/// reported as unanswered.
#[tokio::test]
async fn a_closed_port_is_heard_of() {
    // An address of its own, so that no other test is given the port meanwhile.
    let alone = std::net::UdpSocket::bind((Ipv4Addr::new(127, 77, 3, 1), 0)).unwrap();
    let addr = alone.local_addr().unwrap();
    drop(alone);
    let peer = AgentId::from(&service("b"));
    for long in [2 * PATIENCE, Duration::from_millis(500)] {
        let options = QuicOptions { handshake_timeout: long, idle_timeout: long, keep_alive: long / 4, ..impatient() };
        let a = bind(&authority(), "a", options);
        let dialled = timeout(PATIENCE, async {
            tokio::join!(a.connect(addr, None), a.connect_lane(0, addr, &peer, &Nonce([0; 16])))
        });
        let (control, lane) = dialled.await.expect("it is heard of");
        assert_eq!(control.unwrap_err(), ConnectError::PortClosed(addr));
        assert_eq!(lane.unwrap_err(), ConnectError::PortClosed(addr));
    }
    let told = ConnectError::PortClosed(addr).to_string();
    assert!(told.contains(&addr.to_string()), "{told}");
}

#[tokio::test]
async fn closing_tells_the_peer_and_ends_accepting() {
    let Pair { a, b, at_a, at_b } = Pair::new().await;
    b.close(CloseCode(263), "maintenance").await;
    assert_eq!(
        at_a.closed().await,
        ConnectionLost::ClosedByPeer { code: CloseCode(263), reason: "maintenance".to_owned() }
    );
    assert_eq!(at_b.closed().await, ConnectionLost::ClosedHere);
    assert!(b.accept().await.is_none());
    assert!(a.connect(b.control_addr(), None).await.is_err());
}

#[tokio::test]
async fn dropping_the_endpoints_tells_the_peer() {
    let Pair { a, b, at_a, at_b } = Pair::new().await;
    drop((b, at_b));
    assert!(matches!(at_a.closed().await, ConnectionLost::ClosedByPeer { .. }));
    drop(a);
}

/// Agents that have shown their certificate and send nothing hold few places, and none that another agent needs.
#[tokio::test]
async fn agents_that_say_nothing_keep_nobody_out() {
    let authority = authority();
    let options = QuicOptions { max_handshakes: 4, ..impatient() };
    let server = bind(&authority, "server", options);
    let traitor = Stranger::traitor(&authority);
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.extend(traitor.connect(server.control_addr()).await);
        if silent.len() % 5 == 0 {
            assert_serves(&server, &authority).await;
        }
    }
    assert!(silent.len() > 4, "a traitor takes places from itself");
    // Whoever was let in and said nothing is shown the door.
    for connection in silent {
        connection.closed().await;
    }
    assert_serves(&server, &authority).await;
}

/// Our own connections take no places of peers.
#[tokio::test]
async fn only_peers_that_have_come_count_among_connections() {
    let authority = authority();
    let options = QuicOptions { max_connections: 1, ..impatient() };
    let server = bind(&authority, "server", options);
    let other = bind(&authority, "other", impatient());
    let mut open = Vec::new();
    for _ in 0..2 {
        let connection = server.connect(other.control_addr(), None).await.unwrap();
        open.push((connection, other.accept().await.unwrap()));
    }
    let client = bind(&authority, "client", impatient());
    let came = client.connect(server.control_addr(), None).await;
    assert!(came.is_ok(), "{came:?}");
}

#[tokio::test]
async fn connections_are_limited() {
    let authority = authority();
    let options = QuicOptions { max_connections: 2, ..impatient() };
    let server = bind(&authority, "server", options);
    let client = bind(&authority, "client", impatient());
    let mut open = Vec::new();
    for _ in 0..2 {
        let connection = client.connect(server.control_addr(), None).await.unwrap();
        open.push((connection, server.accept().await.unwrap()));
    }
    let error = client.connect(server.control_addr(), None).await.unwrap_err();
    assert_eq!(error, ConnectError::Busy);
    drop(open);
    while server.open_connections() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_serves(&server, &authority).await;
}
