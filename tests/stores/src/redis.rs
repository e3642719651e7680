//! A `redis-server` of one test: own port, own folder, ended by its process.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
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
        // Another process may take the port between our look and the server's start, which then ends.
        for _ in 0..10 {
            let port = free_port();
            let mut child = spawn(port, &dir, &args);
            if up(&mut child, &dir) {
                return Some(Self { child, port, dir, args });
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("redis-server does not start with {args:?}");
    }

    /// Kills it at once, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port with its data.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.dir, &self.args);
        assert!(up(&mut self.child, &self.dir), "the server starts again");
    }

    pub fn uri(&self, rest: &str) -> String {
        format!("redis://127.0.0.1:{}{rest}", self.port)
    }

    pub fn open(&self, rest: &str) -> RedisStore {
        RedisStore::open(&self.uri(rest).parse().unwrap(), quick()).unwrap()
    }

    /// Returns a client of another user.
    pub fn client(&self) -> ::redis::Connection {
        ::redis::Client::open(self.uri("/")).unwrap().get_connection().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns time limits that a slow machine can meet, and that are short enough to wait for.
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
        .arg("--unixsocket")
        .arg(socket(dir))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn socket(dir: &TempDir) -> PathBuf {
    dir.path().join("socket")
}

/// Waits until the server answers from its own folder, with any answer. Its ports are then its own too, since a server of
/// another test could have answered at the port. Returns false if it has ended.
fn up(child: &mut Child, dir: &TempDir) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        let answers = || {
            let mut stream = UnixStream::connect(socket(dir))?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            stream.write_all(b"PING\r\n")?;
            stream.read_exact(&mut [0])
        };
        if answers().is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}
