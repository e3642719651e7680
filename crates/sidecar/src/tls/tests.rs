//! Real handshakes, over a pipe in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::{ClientConfig, ProtocolVersion};
use rustls_pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use super::serving::AcceptError;
use super::*;
use crate::Role;
use crate::settings::{ServingTls, UpstreamTls};
use crate::warnings::Warnings;

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("ca.crt"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// Returns a certificate and its key, in PEM.
    fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let mut params = CertificateParams::new(["localhost".to_string()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn issue(&self) {
        self.write(&self.sign(|_| ()));
    }

    fn write(&self, (certificate, key): &(String, String)) {
        std::fs::write(self.path("tls.crt"), certificate).unwrap();
        std::fs::write(self.path("tls.key"), key).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serving(&self) -> ServingTls {
        ServingTls { folder: Some(self.folder.path().into()), client_ca: None }
    }

    fn trusted(&self) -> UpstreamTls {
        UpstreamTls { ca: Some(self.path("ca.crt")), ..UpstreamTls::default() }
    }
}

fn first(path: &Path) -> Vec<u8> {
    let file = pem::File { path: path.into(), bytes: std::fs::read(path).unwrap() };
    file.certificates().unwrap()[0].to_vec()
}

#[derive(Debug, PartialEq, Eq)]
struct Agreed {
    version: ProtocolVersion,
    server: Vec<u8>,
    client: Option<Vec<u8>>,
}

/// Performs a handshake between a client and a server. Returns what they agree on, or the error of either.
async fn talk(serving: &Serving, config: Arc<ClientConfig>) -> Result<Agreed, String> {
    let (near, far) = tokio::io::duplex(1 << 16);
    let server = async {
        let mut stream = serving.accept(far).await.map_err(|wrong| wrong.to_string())?;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let client = stream.get_ref().1.peer_certificates().map(|chain| chain[0].to_vec());
        stream.write_all(b"x").await.map_err(|wrong| wrong.to_string())?;
        stream.flush().await.map_err(|wrong| wrong.to_string())?;
        Ok::<_, String>(client)
    };
    let client = async {
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(config).connect(name, near).await;
        let mut stream = stream.map_err(|wrong| wrong.to_string())?;
        stream.read_u8().await.map_err(|wrong| wrong.to_string())?;
        let (_, session) = stream.get_ref();
        Ok::<_, String>((session.protocol_version().unwrap(), session.peer_certificates().unwrap()[0].to_vec()))
    };
    let (server, client) = tokio::join!(server, client);
    match (server, client) {
        (Ok(client), Ok((version, server))) => Ok(Agreed { version, server, client }),
        (server, client) => Err(format!("server: {:?}; client: {:?}", server.err(), client.err())),
    }
}

async fn talk_to(serving: &Serving, upstream: &UpstreamTls) -> Result<Agreed, String> {
    talk(serving, Upstream::load(upstream).unwrap().config(Role::Prefill)).await
}

#[tokio::test]
async fn clients_are_shown_the_folders_certificate() {
    let authority = Authority::new();
    authority.issue();
    let serving = Serving::load(&authority.serving()).unwrap();
    let agreed = talk_to(&serving, &authority.trusted()).await.unwrap();
    assert_eq!(agreed.version, ProtocolVersion::TLSv1_3);
    assert_eq!(agreed.server, first(&authority.path("tls.crt")));

    let client = |versions: &[&'static rustls::SupportedProtocolVersion], protocol: &[u8]| {
        let file = pem::File { path: "ca".into(), bytes: authority.issuer.pem().into() };
        let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(versions);
        let config = config.unwrap().with_root_certificates(file.authorities().unwrap());
        let mut config = config.with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    };
    let agreed = talk(&serving, client(&[&rustls::version::TLS12], ALPN)).await.unwrap();
    assert_eq!(agreed.version, ProtocolVersion::TLSv1_2);
    let wrong = talk(&serving, client(VERSIONS, b"h2")).await.unwrap_err();
    assert!(wrong.contains("no_application_protocol") || wrong.contains("NoApplicationProtocol"), "{wrong}");
}

#[tokio::test]
async fn older_versions_and_other_protocols_do_not_get_in() {
    let serving = Serving::load(&ServingTls::default()).unwrap();
    for version in [0u8, 1, 2] {
        // A hello of SSL 3, TLS 1.0 or 1.1 with ciphers of its time.
        let mut hello = vec![3, version];
        hello.extend([7; 32]);
        hello.extend([0, 0, 4, 0x00, 0x2f, 0xc0, 0x13, 1, 0]);
        // What else rustls wants of a client: groups and signatures.
        hello.extend([0, 18, 0, 10, 0, 4, 0, 2, 0, 0x17, 0, 13, 0, 6, 0, 4, 4, 3, 8, 4]);
        let mut bytes = vec![22, 3, version, 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8];
        bytes.extend(hello);
        let (mut near, far) = tokio::io::duplex(1 << 16);
        near.write_all(&bytes).await.unwrap();
        assert!(matches!(serving.accept(far).await, Err(AcceptError::Handshake(_))));
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.unwrap();
        // One alert: fatal, protocol version.
        assert_eq!((answer[0], &answer[5..]), (21, &[2, 70][..]), "3.{version}");
    }
    let (mut near, far) = tokio::io::duplex(1 << 16);
    near.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert!(matches!(serving.accept(far).await, Err(AcceptError::Handshake(_))));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_not_waited_for() {
    let serving = Serving::load(&ServingTls::default()).unwrap();
    let (_near, far) = tokio::io::duplex(1 << 16);
    assert!(matches!(serving.accept(far).await, Err(AcceptError::Timeout(_))));
}

#[tokio::test]
async fn without_a_folder_the_certificate_is_signed_by_itself() {
    let serving = Serving::load(&ServingTls::default()).unwrap();
    let skip = UpstreamTls { skip_verify_prefill: true, ..UpstreamTls::default() };
    let upstream = Upstream::load(&skip).unwrap();
    talk(&serving, upstream.config(Role::Prefill)).await.unwrap();
    // Each role for itself; the system's authorities have not signed it.
    let wrong = talk(&serving, upstream.config(Role::Decode)).await.unwrap_err();
    assert!(wrong.contains("UnknownIssuer"), "{wrong}");
}

#[tokio::test]
async fn bad_certificates_of_servers_are_refused() {
    let authority = Authority::new();
    for (change, word) in [
        ((|params| params.not_after = date_time_ymd(2020, 1, 1)) as fn(&mut CertificateParams), "expired"),
        (|params| params.not_before = date_time_ymd(4000, 1, 1), "not valid yet"),
        (|params| params.subject_alt_names.clear(), "not valid for"),
        (
            |params| params.subject_alt_names = vec![rcgen::SanType::DnsName("other".try_into().unwrap())],
            "not valid for",
        ),
    ] {
        authority.write(&authority.sign(change));
        let serving = Serving::load(&authority.serving()).unwrap();
        let wrong = talk_to(&serving, &authority.trusted()).await.unwrap_err();
        assert!(wrong.contains(word), "{word}: {wrong}");
    }
    authority.issue();
    let serving = Serving::load(&authority.serving()).unwrap();
    let wrong = talk_to(&serving, &Authority::new().trusted()).await.unwrap_err();
    assert!(wrong.contains("UnknownIssuer") || wrong.contains("BadSignature"), "{wrong}");
    talk_to(&serving, &authority.trusted()).await.unwrap();
}

#[tokio::test]
async fn clients_have_to_show_a_certificate_of_their_authority() {
    let (servers, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    for authority in [&servers, &clients, &others] {
        authority.issue();
    }
    let settings = ServingTls { client_ca: Some(clients.path("ca.crt")), ..servers.serving() };
    let serving = Serving::load(&settings).unwrap();
    let showing = |authority: &Authority| UpstreamTls {
        client: Some((authority.path("tls.crt"), authority.path("tls.key"))),
        ..servers.trusted()
    };
    let wrong = talk_to(&serving, &servers.trusted()).await.unwrap_err();
    assert!(wrong.contains("server: Some") && wrong.contains("client: Some"), "{wrong}");
    assert!(wrong.to_lowercase().contains("certificate"), "{wrong}");
    assert!(talk_to(&serving, &showing(&others)).await.is_err());
    let agreed = talk_to(&serving, &showing(&clients)).await.unwrap();
    assert_eq!(agreed.client, Some(first(&clients.path("tls.crt"))));

    // What the clients of servers show is renewed as well, and so are authorities.
    let upstream = Upstream::load(&showing(&clients)).unwrap();
    clients.issue();
    upstream.renew();
    let agreed = talk(&serving, upstream.config(Role::Decode)).await.unwrap();
    assert_eq!(agreed.client, Some(first(&clients.path("tls.crt"))));
    std::fs::copy(others.path("ca.crt"), clients.path("ca.crt")).unwrap();
    serving.renew();
    assert!(talk(&serving, upstream.config(Role::Decode)).await.is_err());
    talk_to(&serving, &showing(&others)).await.unwrap();

    let made = Serving::load(&ServingTls { client_ca: Some(others.path("ca.crt")), folder: None }).unwrap();
    let skip = |upstream| UpstreamTls { skip_verify_prefill: true, ca: None, ..upstream };
    talk_to(&made, &skip(showing(&others))).await.unwrap();
    assert!(talk_to(&made, &skip(servers.trusted())).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_used_keeps_what_was_before_and_is_told_once() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let authority = Authority::new();
    let good = authority.sign(|_| ());
    authority.write(&good);
    let serving = Serving::load(&authority.serving()).unwrap();
    let before = first(&authority.path("tls.crt"));
    let other = authority.sign(|_| ());
    let bad: [&dyn Fn(); 5] = [
        &|| authority.write(&(other.0.clone(), good.1.clone())),
        &|| authority.write(&("garbage".into(), good.1.clone())),
        &|| authority.write(&(good.0.clone(), String::new())),
        &|| authority.write(&(good.0[..good.0.len() / 2].into(), good.1.clone())),
        &|| std::fs::remove_file(authority.path("tls.key")).unwrap(),
    ];
    for (number, change) in (1..).zip(bad) {
        change();
        for _ in 0..3 {
            serving.renew();
        }
        assert_eq!(warnings.said().len(), number);
        let agreed = talk_to(&serving, &authority.trusted()).await.unwrap();
        assert_eq!(agreed.server, before);
    }
    authority.write(&other);
    serving.renew();
    assert_eq!(warnings.said().len(), bad.len());
    let agreed = talk_to(&serving, &authority.trusted()).await.unwrap();
    assert_eq!(agreed.server, first(&authority.path("tls.crt")));
    assert_ne!(agreed.server, before);
}

#[tokio::test]
async fn a_change_is_seen_without_being_asked_for() {
    let authority = Authority::new();
    // As Kubernetes does it: the files are behind a link that is turned.
    let (one, two) = (Authority::new(), Authority::new());
    one.write(&authority.sign(|_| ()));
    two.write(&authority.sign(|_| ()));
    let link = authority.path("link");
    std::os::unix::fs::symlink(one.folder.path(), &link).unwrap();
    let serving = Serving::load(&ServingTls { folder: Some(link.clone()), client_ca: None }).unwrap();
    let agreed = talk_to(&serving, &authority.trusted()).await.unwrap();
    assert_eq!(agreed.server, first(&one.path("tls.crt")));
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(two.folder.path(), &link).unwrap();
    let wanted = first(&two.path("tls.crt"));
    let seen = async {
        while talk_to(&serving, &authority.trusted()).await.unwrap().server != wanted {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), seen).await.expect("it is never seen");
}

#[tokio::test]
async fn errors_name_the_file_and_what_is_wrong() {
    let authority = Authority::new();
    let wrong = Serving::load(&authority.serving()).err().unwrap().to_string();
    assert!(wrong.starts_with("cannot read ") && wrong.contains("/tls.crt: "), "{wrong}");
    let (one, two) = (authority.sign(|_| ()), authority.sign(|_| ()));
    authority.write(&(one.0.clone(), two.1));
    let wrong = Serving::load(&authority.serving()).err().unwrap();
    assert!(matches!(wrong, TlsError::Pair { .. }), "{wrong}");
    assert!(wrong.to_string().contains("tls.key: "), "{wrong}");
    authority.write(&(one.0, "x".into()));
    let wrong = Serving::load(&authority.serving()).err().unwrap().to_string();
    assert!(wrong.ends_with("tls.key holds no private key in PEM"), "{wrong}");
    authority.issue();
    let settings = UpstreamTls { ca: Some(authority.path("tls.key")), ..UpstreamTls::default() };
    let wrong = Upstream::load(&settings).err().unwrap().to_string();
    assert!(wrong.ends_with("tls.key holds no certificate in PEM"), "{wrong}");
}
