//! `transload sidecar` and `transload proxy` as processes: what they say, which signals end them how, and exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Nothing here takes so long, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);
const ARGUMENTS: &str = "TRANSLOAD_TEST_ARGUMENTS";

/// The command, in a process of its own. Killed when dropped.
struct Process {
    child: Child,
    lines: Receiver<String>,
    /// What it has said on stderr.
    said: Vec<String>,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        Self::start_in(arguments, &[])
    }

    fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--ignored", "--nocapture"])
            .env(ARGUMENTS, serde_json::to_string(arguments).unwrap())
            .env_remove("TRANSLOAD_LOG")
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let said = Vec::new();
        Self { child, lines, said }
    }

    /// The line that begins so, which it says now or has said.
    fn hear(&mut self, begin: &str) -> String {
        loop {
            if let Some(line) = self.said.iter().find(|line| line.starts_with(begin)) {
                return line.clone();
            }
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.said.push(line),
                Err(_) => panic!("it says no {begin:?}: {:#?}", self.said),
            }
        }
    }

    /// Where it serves clients, and its admin address.
    fn addresses(&mut self) -> (Vec<SocketAddr>, Option<SocketAddr>) {
        let line = self.hear("listening on ");
        let (clients, admin) = match line.split_once(", admin on ") {
            Some((clients, admin)) => (clients, Some(admin.parse().unwrap())),
            None => (&line[..], None),
        };
        let clients = clients.strip_prefix("listening on ").unwrap();
        let clients = clients.split(' ').map(|address| {
            let address: SocketAddr = address.parse().unwrap();
            // All interfaces are the loopback interface, too.
            SocketAddr::from(([127, 0, 0, 1], address.port()))
        });
        (clients.collect(), admin)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit code, and what it has said.
    fn ended(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > deadline => panic!("it does not end: {:#?}", self.said),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.said.push(line);
        }
        // Errors are broken into lines for reading.
        let words: Vec<_> = self.said.iter().flat_map(|line| line.split_whitespace()).collect();
        let words = words.into_iter().filter(|word| *word != "│");
        (status.code(), words.collect::<Vec<_>>().join(" "))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the process runs: all of the program but the three lines of its `main`.
#[test]
#[ignore = "the other process of the tests here"]
fn other_process() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let arguments: Vec<String> = serde_json::from_str(&arguments).unwrap();
    let arguments = arguments.into_iter().map(Into::into);
    std::process::exit(transload::command::run(Vec::new(), arguments).into());
}

/// A server of a model: it answers each request with one event at once, and with another one and the end when it is
/// told to.
struct Server {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    go_on: Sender<()>,
}

const FIRST: &str = "data: {\"choices\":[{\"text\":\"one\"}]}\n\n";
const LAST: &str = "data: [DONE]\n\n";

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (go_on, told) = mpsc::channel();
        let told = Arc::new(Mutex::new(told));
        let known = heads.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (heads, told) = (known.clone(), told.clone());
                std::thread::spawn(move || serve(stream, &heads, &told));
            }
        });
        Self { address, heads, go_on }
    }

    fn port(&self) -> String {
        self.address.port().to_string()
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The heads of requests whose line begins so.
    fn heads(&self, begin: &str) -> Vec<String> {
        let mut heads = self.heads.lock().unwrap().clone();
        heads.retain(|head| head.starts_with(begin));
        heads
    }
}

fn serve(stream: TcpStream, heads: &Mutex<Vec<String>>, told: &Mutex<Receiver<()>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let (head, _) = message(&mut reader)?;
        let streams = head.starts_with("POST");
        heads.lock().unwrap().push(head);
        if !streams {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
            stream.write_all(answer).ok()?;
            continue;
        }
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(format!("{head}{}", chunk(FIRST)).as_bytes()).ok()?;
        told.lock().unwrap().recv().ok()?;
        stream.write_all(format!("{}0\r\n\r\n", chunk(LAST)).as_bytes()).ok()?;
    }
}

/// Reads a head, and as much body as it says.
fn message(reader: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// Waits for what comes soon after a signal.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

fn get(address: SocketAddr, path: &str) -> (String, Vec<u8>) {
    let mut client = connect(address);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    client.get_mut().write_all(request.as_bytes()).unwrap();
    message(&mut client).unwrap()
}

/// A client that has had the first event of a stream.
fn streaming(address: SocketAddr) -> BufReader<TcpStream> {
    let body = r#"{"model":"m","prompt":"a","stream":true}"#;
    let mut client = connect(address);
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    client.get_mut().write_all(request.as_bytes()).unwrap();
    let (head, _) = message(&mut client).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert_ne!(client.read_line(&mut line).unwrap(), 0, "the stream has ended");
    }
    assert_eq!(line.trim_end(), FIRST.trim_end());
    client
}

/// What is left of an answer, until the connection ends in whatever way.
fn rest(mut client: BufReader<TcpStream>) -> String {
    let mut rest = Vec::new();
    // A connection may be reset in place of ended; a hang is what must not be.
    if let Err(error) = client.read_to_end(&mut rest) {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "it hangs");
    }
    String::from_utf8(rest).unwrap()
}

const QUIET: [&str; 3] = ["--secure-proxy=false", "--port=0", "--admin=127.0.0.1:0"];

fn sidecar<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["sidecar"], &QUIET[..], arguments].concat()
}

#[test]
fn a_signal_lets_streams_end_and_then_ends_the_process() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start();
        let mut process = Process::start(&sidecar(&["--vllm-port", &server.port()]));
        let (clients, admin) = process.addresses();
        let admin = admin.unwrap();
        assert!(get(clients[0], "/v1/models").0.starts_with("HTTP/1.1 200 "));
        assert!(get(admin, "/healthz").0.starts_with("HTTP/1.1 200 "));
        assert!(get(admin, "/readyz").0.starts_with("HTTP/1.1 200 "));

        let client = streaming(clients[0]);
        process.signal(signal);
        process.hear("ending");
        until("it is not ready", || get(admin, "/readyz").0.starts_with("HTTP/1.1 503 "));
        until("it refuses connections", || TcpStream::connect(clients[0]).is_err());

        server.go_on.send(()).unwrap();
        let rest = rest(client);
        assert!(rest.contains(LAST) && rest.ends_with("0\r\n\r\n"), "{rest:?}");
        let (code, said) = process.ended();
        assert_eq!(code, Some(0), "{said}");
    }
}

#[test]
fn streams_that_outlast_the_drain_are_cut() {
    let server = Server::start();
    let mut process = Process::start(&sidecar(&["--vllm-port", &server.port(), "--drain=100ms"]));
    let client = streaming(process.addresses().0[0]);
    process.signal(Signal::TERM);
    let (code, said) = process.ended();
    assert_eq!(code, Some(0), "{said}");
    let rest = rest(client);
    assert!(!rest.contains("0\r\n\r\n"), "it must not look like a clean end: {rest:?}");
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    let server = Server::start();
    let mut process = Process::start(&sidecar(&["--vllm-port", &server.port(), "--drain=1440m"]));
    let client = streaming(process.addresses().0[0]);
    process.signal(Signal::TERM);
    process.hear("ending");
    process.signal(Signal::TERM);
    let (code, said) = process.ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("told to end twice"), "{said}");
    let rest = rest(client);
    assert!(!rest.contains("0\r\n\r\n"), "it must not look like a clean end: {rest:?}");
}

#[test]
fn an_address_in_use_is_said_with_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let decode = "--decode=http://127.0.0.1:1";

    let listen = ["proxy", decode, "--admin=off", "--listen", &address];
    let (code, said) = Process::start(&listen).ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("cannot listen at {address}")), "{said}");
    assert!(said.contains("give another port"), "{said}");

    let admin = ["proxy", decode, "--listen=127.0.0.1:0", "--admin", &address];
    let (code, said) = Process::start(&admin).ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("the admin address {address}")), "{said}");
    assert!(said.contains("--admin 127.0.0.1:9401"), "{said}");
}

#[test]
fn a_certificate_that_is_not_there_is_said() {
    for (arguments, file) in [
        (["--secure-proxy=true", "--cert-path=/nonexistent"], "/nonexistent/tls.crt"),
        (["--port=0", "--upstream-ca=/nonexistent/ca.pem"], "/nonexistent/ca.pem"),
    ] {
        let (code, said) = Process::start(&sidecar(&arguments)).ended();
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

/// What a client hears that trusts this certificate alone; `None` where it is shown another one.
fn get_over_tls(address: SocketAddr, trusted: &CertificateDer<'static>) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(tls, connect(address).into_inner());
    let request = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).ok()?;
    message(&mut BufReader::new(stream)).map(|(head, _)| head)
}

#[test]
fn a_hangup_has_certificates_read_again_and_ends_nothing() {
    let server = Server::start();
    let (certificates, first) = Certificates::make();
    let port = server.port();
    let arguments = ["--secure-proxy=true", "--vllm-port", &port, "--cert-path", certificates.path()];
    let mut process = Process::start(&sidecar(&arguments));
    let address = process.addresses().0[0];
    let heard = get_over_tls(address, &first).unwrap();
    assert!(heard.starts_with("HTTP/1.1 200 "), "{heard}");

    let second = certificates.replace();
    process.signal(Signal::HUP);
    until("it shows the new certificate", || get_over_tls(address, &second).is_some());
    assert_eq!(get_over_tls(address, &first), None);
    process.signal(Signal::TERM);
    let (code, said) = process.ended();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn bad_usage_and_bad_configurations_exit_2() {
    for arguments in [
        &["sidecar", "--port=many"][..],
        &["sidecar", "--configuration={prot: 1}"],
        &["sidecar", "--configuration-file=/nonexistent/a.yaml"],
        &["sidecar", "--enable-ssrf-protection"],
        &["proxy", "--prefill=http://a:1"],
        &["proxy"],
    ] {
        let (code, said) = Process::start(arguments).ended();
        assert_eq!(code, Some(2), "{said}");
    }
    let (code, said) = Process::start_in(&["sidecar"], &[("ENABLE_PREFILLER_SAMPLING", "maybe")]).ended();
    assert_eq!(code, Some(2), "{said}");
}

#[test]
fn options_that_mean_nothing_are_said_once() {
    let server = Server::start();
    let port = server.port();
    let ignored = ["--vllm-port", &port, "--zap-log-level=5", "--configuration={pool-group: a}"];
    let mut process = Process::start_in(&sidecar(&ignored), &[("INFERENCE_POOL", "a/b")]);
    process.addresses();
    process.signal(Signal::TERM);
    let (code, said) = process.ended();
    assert_eq!(code, Some(0), "{said}");
    let line = "mean nothing here: inference-pool, pool-group, zap-log-level";
    assert_eq!(said.matches(line).count(), 1, "{said}");
}

/// An etcd of its own, in a folder that goes with it.
struct Etcd {
    child: Child,
    uri: String,
    _dir: tempfile::TempDir,
}

impl Etcd {
    /// Starts it; `None` where it is not installed.
    fn start() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (clients, peers) = (format!("http://{}", free()), format!("http://{}", free()));
        let child = Command::new("etcd")
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}"), "--unsafe-no-fsync"])
            .arg("--data-dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let uri = format!("{}/test", clients.replace("http://", "etcd://"));
        Some(Self { child: child.ok()?, uri, _dir: dir })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state of the server of this role, as `/status` has it; null where it knows none.
fn state(admin: SocketAddr, role: &str) -> serde_json::Value {
    let (_, status) = get(admin, "/status");
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    let servers = status["servers"].as_array().unwrap();
    let server = servers.iter().find(|server| server["role"] == role);
    server.map_or(serde_json::Value::Null, |server| server["state"].clone())
}

#[test]
fn a_proxy_finds_the_servers_that_are_announced() {
    let Some(etcd) = Etcd::start() else {
        eprintln!("NOT RUN: there is no etcd");
        return;
    };
    let decode = Server::start();
    let mut proxy = Process::start(&["proxy", "--discover", &etcd.uri, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]);
    let (clients, admin) = proxy.addresses();
    let admin = admin.unwrap();
    assert_eq!(state(admin, "decode"), serde_json::Value::Null);

    let url = decode.url();
    let mut announcer = Process::start(&["announce", "--etcd", &etcd.uri, "--role=decode", "--url", &url]);
    announcer.hear("announcing the decode server");
    until("it is found", || state(admin, "decode") == "up");
    assert!(get(clients[0], "/v1/models").0.starts_with("HTTP/1.1 200 "));

    announcer.signal(Signal::TERM);
    let (code, said) = announcer.ended();
    assert_eq!(code, Some(0), "{said}");
    until("it is gone", || state(admin, "decode").is_null());
    assert!(get(clients[0], "/v1/models").0.starts_with("HTTP/1.1 503 "));
}

#[test]
fn an_announcer_ends_where_its_etcd_is_away() {
    let arguments = ["announce", "--etcd=etcd://127.0.0.1:1/a", "--role=prefill", "--url=http://a:1"];
    let mut announcer = Process::start(&arguments);
    announcer.hear("announcing the prefill server http://a:1");
    announcer.signal(Signal::TERM);
    let (code, said) = announcer.ended();
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = Process::start(&[&arguments[..], &["--name=a/b"]].concat()).ended();
    assert_eq!(code, Some(2), "{said}");
}

#[test]
fn each_data_parallel_rank_has_a_port() {
    let servers = [Server::start(), Server::start()];
    // Of the ranks of one server each has the port behind the last one's, which only luck would give us here.
    let port = servers[0].port();
    let mut process = Process::start(&sidecar(&["--vllm-port", &port, "--data-parallel-size=2"]));
    let (clients, _) = process.addresses();
    assert_eq!(clients.len(), 2);
    assert!(get(clients[0], "/v1/models").0.starts_with("HTTP/1.1 200 "));
    assert_eq!(servers[0].heads("GET /v1/models").len(), 1);
}

#[test]
fn a_proxy_asks_both_servers_and_presents_the_key() {
    let (prefill, decode) = (Server::start(), Server::start());
    let (prefill_url, decode_url) = (prefill.url(), decode.url());
    let arguments =
        ["proxy", "--prefill", &prefill_url, "--decode", &decode_url, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"];
    let mut process = Process::start_in(&arguments, &[("OPENAI_API_KEY", "a-secret")]);
    let (clients, admin) = process.addresses();
    // The prefill server's answer is no JSON: the decode server computes the prompt, too.
    prefill.go_on.send(()).unwrap();
    let client = streaming(clients[0]);
    decode.go_on.send(()).unwrap();
    drop(client);
    for server in [&prefill, &decode] {
        let heads = server.heads("POST /v1/completions ");
        assert_eq!(heads.len(), 1, "{heads:?}");
        assert!(heads[0].to_ascii_lowercase().contains("authorization: bearer a-secret\r\n"), "{heads:?}");
    }
    let (_, status) = get(admin.unwrap(), "/status");
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["mode"], "proxy");
    assert!(!status.to_string().contains("a-secret"));
    process.signal(Signal::TERM);
    let (code, said) = process.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("a-secret"), "{said}");
}
