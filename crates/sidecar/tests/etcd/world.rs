//! A real etcd, servers that announce themselves there, and a table of servers that follows it.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use transload_sidecar::announce::{AnnounceError, Announcement, announce};
use transload_sidecar::discover::Source;
use transload_sidecar::etcd::Cluster;
use transload_sidecar::internal::discover::follow;
use transload_sidecar::internal::servers::Servers;
use transload_sidecar::settings::UpstreamTls;
use transload_sidecar::{Role, ServerUrl};

/// The time limit of every wait. It only affects how soon a failure is reported.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub(crate) async fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An etcd on ports of its own. It is killed when this is dropped.
pub(crate) struct Etcd {
    folder: TempDir,
    client: u16,
    peer: u16,
    tls: bool,
    process: Option<Child>,
}

impl Etcd {
    /// Starts an etcd. If none is installed, says so and returns `None`.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_as(false).await
    }

    /// Starts an etcd that speaks TLS with a self-signed certificate.
    pub(crate) async fn start_with_tls() -> Option<Self> {
        Self::start_as(true).await
    }

    async fn start_as(tls: bool) -> Option<Self> {
        for command in ["etcd", "etcdctl"] {
            if let Err(error) = Command::new(command).arg("--help").output() {
                eprintln!("NOT RUN: {command}: {error}; install etcd-server and etcd-client");
                return None;
            }
        }
        let mut etcd = Self { folder: tempfile::tempdir().expect("a folder"), client: 0, peer: 0, tls, process: None };
        if tls {
            let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
            let certified = certified.expect("a certificate");
            std::fs::write(etcd.ca(), certified.cert.pem()).expect("a file");
            std::fs::write(etcd.key(), certified.signing_key.serialize_pem()).expect("a file");
        }
        // Another process may take a port between the choice and its use.
        for _ in 0..5 {
            (etcd.client, etcd.peer) = free_ports();
            etcd.launch();
            if etcd.comes_up().await {
                return Some(etcd);
            }
            etcd.kill().await;
        }
        panic!("etcd does not start");
    }

    fn launch(&mut self) {
        let client = self.url();
        let peer = format!("http://127.0.0.1:{}", self.peer);
        let mut command = Command::new("etcd");
        command
            .args(["--name", &self.name(), "--log-level", "error"])
            .arg("--data-dir")
            .arg(self.data())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("{}={peer}", self.name())])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if self.tls {
            command.arg("--cert-file").arg(self.ca()).arg("--key-file").arg(self.key());
        }
        self.process = Some(command.spawn().expect("etcd is there"));
    }

    /// Waits until the etcd answers by its name. Returns false if it has ended. The name matters because the etcd of
    /// another test may have taken the port.
    async fn comes_up(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.asked(&["member", "list"], "").is_ok_and(|members| members.contains(&self.name())) {
                return true;
            }
            let process = self.process.as_mut().expect("it was launched");
            if process.try_wait().is_ok_and(|ended| ended.is_some()) {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }

    fn name(&self) -> String {
        format!("etcd-{}-{}", std::process::id(), self.client)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.client).into()
    }

    fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address())
    }

    pub(crate) fn uri(&self) -> String {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        format!("{scheme}://{}/t", self.address())
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.path().join("tls.crt")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("tls.key")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Kills the etcd, as if its host failed.
    pub(crate) async fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it is ours");
            process.wait().expect("it has ended");
        }
    }

    /// Starts the etcd again with its data.
    pub(crate) async fn start_again(&mut self) {
        self.launch();
        assert!(self.comes_up().await, "etcd does not start again");
    }

    /// Removes the etcd's data.
    pub(crate) fn forget(&self) {
        std::fs::remove_dir_all(self.data()).expect("it has data");
    }

    /// Runs `etcdctl` and returns its output. Panics if it fails.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        self.ctl_with(arguments, "")
    }

    pub(crate) fn put(&self, key: &str, value: &str) {
        match value {
            "" => self.ctl_with(&["put", key, ""], ""),
            // A value may be longer than an argument may be, so it is passed on stdin.
            value => self.ctl_with(&["put", key], value),
        };
    }

    fn ctl_with(&self, arguments: &[&str], input: &str) -> String {
        self.asked(arguments, input).unwrap_or_else(|errors| panic!("etcdctl {arguments:?}: {errors}"))
    }

    /// Runs `etcdctl` and returns its output or its errors.
    fn asked(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = Command::new("etcdctl");
        command.args(["--endpoints", &self.url()]).args(arguments).env("ETCDCTL_API", "3");
        if self.tls {
            command.arg("--cacert").arg(self.ca());
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("etcdctl is there");
        let mut stdin = process.stdin.take().expect("a pipe");
        stdin.write_all(input.as_bytes()).expect("it reads");
        drop(stdin);
        let output = process.wait_with_output().expect("it ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Returns the revision of the last change.
    pub(crate) fn revision(&self) -> i64 {
        let said = self.ctl(&["get", "nothing", "-w", "json"]);
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        said["header"]["revision"].as_i64().expect("a number")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn free_ports() -> (u16, u16) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [one, two] = listeners.map(|listener| listener.local_addr().expect("its address").port());
    (one, two)
}

pub(crate) fn announcement(etcd: &str, role: Role, url: &str) -> Announcement {
    Announcement {
        etcd: Cluster::parse(etcd).expect("a cluster"),
        role,
        url: ServerUrl::parse(url).expect("a URL"),
        name: None,
        tls: UpstreamTls::default(),
    }
}

/// A running announcer.
pub(crate) struct Announcer {
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<(), AnnounceError>>,
}

impl Announcer {
    pub(crate) fn start(announcement: Announcement) -> Self {
        let (end, ended) = oneshot::channel();
        let announcing = announce(announcement, async {
            let _ = ended.await;
        });
        Self { end, task: tokio::spawn(announcing) }
    }

    /// Ends the announcer as a signal would.
    pub(crate) async fn end(self) {
        self.end.send(()).expect("it runs");
        let ended = tokio::time::timeout(PATIENCE, self.task).await;
        ended.expect("in time").expect("no panic").expect("no error");
    }

    /// Aborts the announcer without withdrawing the announcement.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|ended| ended.is_cancelled()));
    }
}

/// A table of servers that follows an etcd.
pub(crate) struct Looking {
    servers: Arc<Servers>,
    task: AbortHandle,
}

impl Looking {
    pub(crate) fn at(uri: &str) -> Self {
        Self::with(uri, &UpstreamTls::default())
    }

    pub(crate) fn with(uri: &str, tls: &UpstreamTls) -> Self {
        let servers = Arc::new(Servers::new(false));
        let source = Source::parse(uri).expect("a source");
        let following = follow(source, servers.clone(), tls).expect("certificates");
        Self { servers, task: tokio::spawn(following).abort_handle() }
    }

    /// Returns the servers in the table, in the order of their text.
    pub(crate) fn found(&self) -> Vec<String> {
        let servers = self.servers.snapshot();
        let mut found: Vec<_> = servers.iter().map(|server| format!("{} {}", server.role.name(), server.url)).collect();
        found.sort();
        found
    }

    /// Waits until the table has exactly these servers.
    pub(crate) async fn finds(&self, expected: &[&str]) {
        let began = Instant::now();
        while self.found() != expected {
            let found = self.found();
            assert!(began.elapsed() < PATIENCE, "{found:?} and not {expected:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Checks for this long that the table never loses a server.
    pub(crate) async fn keeps(&self, server: &str, during: Duration) {
        let began = Instant::now();
        while began.elapsed() < during {
            let found = self.found();
            assert!(found.iter().any(|found| found == server), "only {found:?} after {:?}", began.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.task.abort();
    }
}
