//! `transload sidecar` and `transload proxy` as processes: their output, their reaction to signals, and their exit codes.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use transload_test_servers::wire::{self, Kind, chunk, last_chunk};
use transload_test_servers::{Client, Etcd, Fake, Message, PATIENCE, Process, Script, arguments, get, request, soon};

/// The body of the process: the whole program except the three lines of its `main`.
#[test]
#[ignore = "the other process of the tests here"]
fn other_process() {
    if let Some(arguments) = arguments() {
        std::process::exit(transload::command::run(Vec::new(), arguments).into());
    }
}

const FIRST: &str = "data: {\"choices\":[{\"text\":\"one\"}]}\n\n";
const LAST: &str = "data: [DONE]\n\n";

/// Starts a model server. It answers each `POST` with one event at once, and with a second one and the end when it no
/// longer holds its answers.
fn server() -> Fake {
    let server = Fake::answering(|_, request| {
        if !request.first.starts_with("POST") {
            return Script::json(200, "{}");
        }
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        let first = [head.as_bytes(), &chunk(FIRST.as_bytes())].concat();
        let bytes = [&first[..], &chunk(LAST.as_bytes()), &last_chunk(&[])].concat();
        Script { held: Some(first.len()), bytes, ..Script::default() }
    });
    server.hold(true);
    server
}

/// Returns the requests that a server has seen whose first line begins with this text.
fn seen(server: &Fake, begin: &str) -> Vec<Message> {
    server.seen().into_iter().filter(|request| request.first.starts_with(begin)).collect()
}

/// Starts a streaming request, and returns its client after the first event.
async fn streaming(address: SocketAddr) -> Client {
    let mut client = Client::connect(address).await;
    let body = r#"{"model":"m","prompt":"a","stream":true}"#;
    client.send(request("POST", "/v1/completions", &[], body)).await.unwrap();
    assert_eq!(client.head().await.status(), 200);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        let read = timeout(PATIENCE, client.0.read_line(&mut line)).await;
        assert_ne!(read.expect("an event in time").unwrap(), 0, "the stream has ended");
    }
    assert_eq!(line.trim_end(), FIRST.trim_end());
    client
}

/// Returns the rest of an answer, until the connection ends in any way.
async fn rest(mut client: Client) -> String {
    let mut rest = Vec::new();
    // A connection may be reset in place of ended; a hang is what must not be.
    let _ = timeout(PATIENCE, client.0.read_to_end(&mut rest)).await.expect("it hangs");
    String::from_utf8(rest).unwrap()
}

const QUIET: [&str; 3] = ["--secure-proxy=false", "--port=0", "--admin=127.0.0.1:0"];

fn sidecar<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["sidecar"], &QUIET[..], arguments].concat()
}

#[tokio::test]
async fn a_signal_lets_streams_end_and_then_ends_the_process() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = server();
        let mut process = Process::start(&sidecar(&["--vllm-port", &server.port()]));
        let (clients, admin) = process.addresses().await;
        let admin = admin.unwrap();
        assert_eq!(get(clients[0], "/v1/models").await.status(), 200);
        assert_eq!(get(admin, "/healthz").await.status(), 200);
        assert_eq!(get(admin, "/readyz").await.status(), 200);

        let client = streaming(clients[0]).await;
        process.signal(signal);
        process.hear("shutting down").await;
        soon("it is not ready", async || get(admin, "/readyz").await.status() == 503).await;
        soon("it refuses connections", async || TcpStream::connect(clients[0]).await.is_err()).await;

        server.hold(false);
        let rest = rest(client).await;
        assert!(rest.contains(LAST) && rest.ends_with("0\r\n\r\n"), "{rest:?}");
        let (code, said) = process.ended().await;
        assert_eq!(code, Some(0), "{said}");
    }
}

#[tokio::test]
async fn streams_that_outlast_the_drain_are_cut() {
    let server = server();
    let mut process = Process::start(&sidecar(&["--vllm-port", &server.port(), "--drain=100ms"]));
    let client = streaming(process.addresses().await.0[0]).await;
    process.signal(Signal::TERM);
    let (code, said) = process.ended().await;
    assert_eq!(code, Some(0), "{said}");
    let rest = rest(client).await;
    assert!(!rest.contains("0\r\n\r\n"), "it must not look like a clean end: {rest:?}");
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    let server = server();
    let mut process = Process::start(&sidecar(&["--vllm-port", &server.port(), "--drain=1440m"]));
    let client = streaming(process.addresses().await.0[0]).await;
    process.signal(Signal::TERM);
    process.hear("shutting down").await;
    process.signal(Signal::TERM);
    let (code, said) = process.ended().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("stopped by a second signal"), "{said}");
    let rest = rest(client).await;
    assert!(!rest.contains("0\r\n\r\n"), "it must not look like a clean end: {rest:?}");
}

#[tokio::test]
async fn an_address_in_use_is_said_with_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let decode = "--decode=http://127.0.0.1:1";

    let listen = ["proxy", decode, "--admin=off", "--listen", &address];
    let (code, said) = Process::start(&listen).ended().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("cannot listen at {address}")), "{said}");
    assert!(said.contains("choose another port"), "{said}");

    let admin = ["proxy", decode, "--listen=127.0.0.1:0", "--admin", &address];
    let (code, said) = Process::start(&admin).ended().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("the admin address {address}")), "{said}");
    assert!(said.contains("--admin 127.0.0.1:9401"), "{said}");
}

#[tokio::test]
async fn a_certificate_that_is_not_there_is_said() {
    for (arguments, file) in [
        (["--secure-proxy=true", "--cert-path=/nonexistent"], "/nonexistent/tls.crt"),
        (["--port=0", "--upstream-ca=/nonexistent/ca.pem"], "/nonexistent/ca.pem"),
    ] {
        let (code, said) = Process::start(&sidecar(&arguments)).ended().await;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&format!("cannot read {file}")), "{said}");
    }
}

/// A folder for `--cert-path`, with a certificate for `localhost` that is its own authority.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn make() -> (Self, CertificateDer<'static>) {
        let certificates = Self(tempfile::tempdir().unwrap());
        let first = certificates.replace();
        (certificates, first)
    }

    /// Puts another certificate there.
    fn replace(&self) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        // The key first: a pair that does not match yet is not taken.
        let key = made.signing_key.serialize_pem();
        std::fs::write(self.0.path().join("tls.key"), key).unwrap();
        std::fs::write(self.0.path().join("tls.crt"), made.cert.pem()).unwrap();
        made.cert.into()
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

/// Returns the status that a client gets that trusts only this certificate; `None` if the server shows another one.
async fn get_over_tls(address: SocketAddr, trusted: &CertificateDer<'static>) -> Option<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let connecting = TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream);
    let mut stream = BufReader::new(connecting.await.ok()?);
    stream.write_all(&request("GET", "/v1/models", &[("Connection", "close")], "")).await.unwrap();
    Some(wire::read(&mut stream, Kind::Answer).await.unwrap()?.status())
}

#[tokio::test]
async fn a_hangup_has_certificates_read_again_and_ends_nothing() {
    let server = server();
    let (certificates, first) = Certificates::make();
    let port = server.port();
    let arguments = ["--secure-proxy=true", "--vllm-port", &port, "--cert-path", certificates.path()];
    let mut process = Process::start(&sidecar(&arguments));
    let address = process.addresses().await.0[0];
    assert_eq!(get_over_tls(address, &first).await, Some(200));

    let second = certificates.replace();
    process.signal(Signal::HUP);
    soon("it shows the new certificate", async || get_over_tls(address, &second).await.is_some()).await;
    assert_eq!(get_over_tls(address, &first).await, None);
    process.signal(Signal::TERM);
    let (code, said) = process.ended().await;
    assert_eq!(code, Some(0), "{said}");
}

#[tokio::test]
async fn bad_usage_and_bad_configurations_exit_2() {
    for arguments in [
        &["sidecar", "--port=many"][..],
        &["sidecar", "--configuration={prot: 1}"],
        &["sidecar", "--configuration-file=/nonexistent/a.yaml"],
        &["sidecar", "--enable-ssrf-protection"],
        &["proxy", "--prefill=http://a:1"],
        &["proxy"],
    ] {
        let (code, said) = Process::start(arguments).ended().await;
        assert_eq!(code, Some(2), "{said}");
    }
    let (code, said) = Process::start_in(&["sidecar"], &[("ENABLE_PREFILLER_SAMPLING", "maybe")]).ended().await;
    assert_eq!(code, Some(2), "{said}");
}

#[tokio::test]
async fn options_that_mean_nothing_are_said_once() {
    let server = server();
    let port = server.port();
    let ignored = ["--vllm-port", &port, "--zap-log-level=5", "--configuration={pool-group: a}"];
    let mut process = Process::start_in(&sidecar(&ignored), &[("INFERENCE_POOL", "a/b")]);
    process.addresses().await;
    process.signal(Signal::TERM);
    let (code, said) = process.ended().await;
    assert_eq!(code, Some(0), "{said}");
    let line = "have no effect: inference-pool, pool-group, zap-log-level";
    assert_eq!(said.matches(line).count(), 1, "{said}");
}

/// Returns the state of the server of this role, as `/status` has it; null where it knows none.
async fn state(admin: SocketAddr, role: &str) -> serde_json::Value {
    let status = get(admin, "/status").await.json();
    let servers = status["servers"].as_array().unwrap();
    let server = servers.iter().find(|server| server["role"] == role);
    server.map_or(serde_json::Value::Null, |server| server["state"].clone())
}

#[tokio::test]
async fn a_proxy_finds_the_servers_that_are_announced() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let decode = server();
    let mut proxy =
        Process::start(&["proxy", "--discover", &etcd.uri(), "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]);
    let (clients, admin) = proxy.addresses().await;
    let admin = admin.unwrap();
    assert_eq!(state(admin, "decode").await, serde_json::Value::Null);

    let url = decode.url();
    let mut announcer = Process::start(&["announce", "--etcd", &etcd.uri(), "--role=decode", "--url", &url]);
    announcer.hear("announcing the decode server").await;
    soon("it is found", async || state(admin, "decode").await == "up").await;
    assert_eq!(get(clients[0], "/v1/models").await.status(), 200);

    announcer.signal(Signal::TERM);
    let (code, said) = announcer.ended().await;
    assert_eq!(code, Some(0), "{said}");
    soon("it is gone", async || state(admin, "decode").await.is_null()).await;
    assert_eq!(get(clients[0], "/v1/models").await.status(), 503);
}

#[tokio::test]
async fn an_announcer_ends_where_its_etcd_is_away() {
    let arguments = ["announce", "--etcd=etcd://127.0.0.1:1/a", "--role=prefill", "--url=http://a:1"];
    let mut announcer = Process::start(&arguments);
    announcer.hear("announcing the prefill server http://a:1").await;
    announcer.signal(Signal::TERM);
    let (code, said) = announcer.ended().await;
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = Process::start(&[&arguments[..], &["--name=a/b"]].concat()).ended().await;
    assert_eq!(code, Some(2), "{said}");
}

#[tokio::test]
async fn each_data_parallel_rank_has_a_port() {
    let servers = [server(), server()];
    // Of the ranks of one server each has the port behind the last one's, which only luck would give us here.
    let port = servers[0].port();
    let mut process = Process::start(&sidecar(&["--vllm-port", &port, "--data-parallel-size=2"]));
    let (clients, _) = process.addresses().await;
    assert_eq!(clients.len(), 2);
    assert_eq!(get(clients[0], "/v1/models").await.status(), 200);
    assert_eq!(seen(&servers[0], "GET /v1/models").len(), 1);
}

#[tokio::test]
async fn a_proxy_asks_both_servers_and_presents_the_key() {
    let (prefill, decode) = (server(), server());
    let (prefill_url, decode_url) = (prefill.url(), decode.url());
    let arguments =
        ["proxy", "--prefill", &prefill_url, "--decode", &decode_url, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"];
    let mut process = Process::start_in(&arguments, &[("OPENAI_API_KEY", "a-secret")]);
    let (clients, admin) = process.addresses().await;
    // The prefill server's answer is no JSON: the decode server computes the prompt, too.
    prefill.hold(false);
    let client = streaming(clients[0]).await;
    decode.hold(false);
    drop(client);
    for server in [&prefill, &decode] {
        let requests = seen(server, "POST /v1/completions ");
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert_eq!(requests[0].one("authorization"), Some("Bearer a-secret"));
    }
    let status = get(admin.unwrap(), "/status").await.json();
    assert_eq!(status["mode"], "proxy");
    assert!(!status.to_string().contains("a-secret"));
    process.signal(Signal::TERM);
    let (code, said) = process.ended().await;
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("a-secret"), "{said}");
}
