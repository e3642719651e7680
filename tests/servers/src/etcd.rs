//! A real etcd.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::PATIENCE;

/// An etcd on ports of its own. It is killed when this is dropped.
pub struct Etcd {
    folder: TempDir,
    client: u16,
    peer: u16,
    tls: bool,
    process: Option<Child>,
}

impl Etcd {
    /// Starts a cluster of one member. Returns `None`, and prints that, if etcd is not installed.
    pub async fn start() -> Option<Self> {
        Self::start_as(false).await
    }

    /// Starts one that speaks TLS, with a certificate that is its own authority.
    pub async fn start_with_tls() -> Option<Self> {
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

    /// Waits until it answers by its name; returns false if it has ended. On a port that another process took in between,
    /// the etcd of another test may listen.
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

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.client).into()
    }

    fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address())
    }

    pub fn uri(&self) -> String {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        format!("{scheme}://{}/t", self.address())
    }

    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("tls.crt")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("tls.key")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Kills it, as a host kills it that fails.
    pub async fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it is ours");
            process.wait().expect("it has ended");
        }
    }

    /// Starts it again, with the data that it has.
    pub async fn start_again(&mut self) {
        self.launch();
        assert!(self.comes_up().await, "etcd does not start again");
    }

    /// Takes its data away.
    pub fn forget(&self) {
        std::fs::remove_dir_all(self.data()).expect("it has data");
    }

    /// Returns what `etcdctl` says.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        self.ctl_with(arguments, "")
    }

    pub fn put(&self, key: &str, value: &str) {
        match value {
            "" => self.ctl_with(&["put", key, ""], ""),
            // It may be longer than an argument can be.
            value => self.ctl_with(&["put", key], value),
        };
    }

    fn ctl_with(&self, arguments: &[&str], input: &str) -> String {
        self.asked(arguments, input).unwrap_or_else(|errors| panic!("etcdctl {arguments:?}: {errors}"))
    }

    /// Returns what `etcdctl` says, or its errors.
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
    pub fn revision(&self) -> i64 {
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
