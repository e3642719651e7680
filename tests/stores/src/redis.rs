//! A `redis-server` of one test: own port, own folder, ended by its process.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use transload_store::backend::redis::{RedisOptions, RedisStore};

pub struct Server {
    child: Child,
    pub port: u16,
    dir: TempDir,
    args: Vec<String>,
}

/// Starts a server, or says why the test cannot run.
#[macro_export]
macro_rules! server {
    ($($arg:expr),*) => {
        match $crate::redis::Server::start(&[$($arg),*]) {
            Some(server) => server,
            None => return,
        }
    };
}

impl Server {
    pub fn start(args: &[&str]) -> Option<Self> {
        let version = Command::new("redis-server").arg("--version").output();
        if version.is_err() {
            println!("NOT RUN: there is no redis-server on this machine");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let args: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
        // Somebody else may take the port between our look and the server's start.
        for _ in 0..10 {
            let port = free_port();
            let mut child = spawn(port, &dir, &args);
            if up(&mut child, port) {
                return Some(Self { child, port, dir, args });
            }
        }
        panic!("redis-server does not start with {args:?}");
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port with its data.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.dir, &self.args);
        assert!(up(&mut self.child, self.port), "the server starts again");
    }

    pub fn uri(&self, rest: &str) -> String {
        format!("redis://127.0.0.1:{}{rest}", self.port)
    }

    pub fn open(&self, rest: &str) -> RedisStore {
        RedisStore::open(&self.uri(rest).parse().unwrap(), quick()).unwrap()
    }

    /// Somebody else's client.
    pub fn client(&self) -> ::redis::Connection {
        ::redis::Client::open(self.uri("/")).unwrap().get_connection().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Time limits that a slow machine keeps and a test that has to wait for one can afford.
pub fn quick() -> RedisOptions {
    let timeout = Duration::from_secs(20);
    RedisOptions { connect_timeout: timeout, timeout, ..RedisOptions::default() }
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn spawn(port: u16, dir: &TempDir, args: &[String]) -> Child {
    let port = port.to_string();
    // A Sentinel begins with a configuration file that it can write.
    let sentinel = args.iter().any(|arg| arg == "--sentinel");
    let config = dir.path().join("sentinel.conf");
    if sentinel {
        std::fs::write(&config, "").unwrap();
    }
    // A TLS server listens there and nowhere else.
    let port: &[&str] = if args.iter().any(|arg| arg == "--tls-cert-file") {
        &["--port", "0", "--tls-port", &port]
    } else {
        &["--port", &port]
    };
    Command::new("redis-server")
        .args(sentinel.then_some(&config))
        .args(port)
        .args(["--bind", "127.0.0.1", "--save", "", "--loglevel", "warning"])
        .arg("--dir")
        .arg(dir.path())
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn up(child: &mut Child, port: u16) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}
