//! A Redis server to measure on: one of the user's, or one that is started for it.

use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use transload::store::StoreUri;

use super::refused;
use super::resp::Plain;
use crate::failure::Failure;

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(10);

/// The password that the backend reads too.
const PASSWORD: &str = "TRANSLOAD_REDIS_PASSWORD";

/// A server with an empty database.
pub(super) struct Server {
    pub(super) uri: String,
    address: (String, u16),
    user: Option<String>,
    database: String,
    /// The process and its folder, where it is ours; the process ends first.
    started: Option<(Process, TempDir)>,
}

/// Ends with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It has nothing that is worth saving.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// One that the user named.
    pub(super) fn named(uri: &str) -> Result<Result<Self, String>, Failure> {
        let wrong = |why: &str| {
            Failure::input(
                format!("--redis {uri}: {why}"),
                "name a server and a database that is empty: redis://localhost:6379/15",
            )
        };
        let parsed: StoreUri = uri.parse().map_err(|error| wrong(&format!("{error}")))?;
        if parsed.scheme() != "redis" {
            return Err(wrong("the plain client beside it speaks no TLS"));
        }
        let rest = parsed.rest().trim_end_matches('/');
        let (authority, database) = rest.split_once('/').unwrap_or((rest, "0"));
        if database.is_empty() || !database.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(wrong("a whole database is measured, without a prefix"));
        }
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, authority),
        };
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| wrong("its port is none"))?)
            }
            _ => (host, 6379),
        };
        let server = Self {
            uri: uri.to_owned(),
            address: (host.trim_matches(['[', ']']).to_owned(), port),
            user,
            database: database.to_owned(),
            started: None,
        };
        let mut plain = server.connect()?;
        let keys = plain.ask(&[b"DBSIZE"]).map_err(refused(uri))?;
        match &keys[..] {
            b"0" => Ok(Ok(server)),
            _ => Err(wrong("its database is not empty, and would be emptied")),
        }
    }

    /// One of our own, or why there is none.
    pub(super) fn started() -> Result<Result<Self, String>, Failure> {
        let found = ["redis-server", "valkey-server"].iter().find_map(|name| {
            let path = env::var_os("PATH")?;
            env::split_paths(&path)
                .map(|folder| folder.join(name))
                .find(|file| file.is_file())
        });
        let Some(program) = found else {
            let why = "no redis-server on PATH; install one, or name one with --redis";
            return Ok(Err(why.to_owned()));
        };
        let folder = TempDir::new().map_err(refused("a folder"))?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|free| free.local_addr())
            .map_err(refused("a free port"))?
            .port();
        let process = Command::new(&program)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(refused(program.display()))?;
        let server = Self {
            uri: format!("redis://127.0.0.1:{port}/0"),
            address: ("127.0.0.1".to_owned(), port),
            user: None,
            database: "0".to_owned(),
            started: Some((Process(process), folder)),
        };
        let since = Instant::now();
        loop {
            let answer = Plain::connect(("127.0.0.1", port)).and_then(|mut c| c.ask(&[b"PING"]));
            match answer {
                Ok(_) => return Ok(Ok(server)),
                Err(error) if since.elapsed() > PATIENCE => {
                    return Ok(Err(format!(
                        "{} does not start: {error}",
                        program.display()
                    )));
                }
                Err(_) => sleep(Duration::from_millis(20)),
            }
        }
    }

    /// A plain client of it.
    pub(super) fn connect(&self) -> Result<Plain, Failure> {
        let mut plain =
            Plain::connect((&*self.address.0, self.address.1)).map_err(refused(&self.uri))?;
        let password = env::var(PASSWORD).unwrap_or_default();
        if self.started.is_none() && !password.is_empty() {
            let user = self.user.as_deref().unwrap_or("default");
            let auth: [&[u8]; 3] = [b"AUTH", user.as_bytes(), password.as_bytes()];
            plain.ask(&auth).map_err(refused(&self.uri))?;
        }
        let select: [&[u8]; 2] = [b"SELECT", self.database.as_bytes()];
        plain.ask(&select).map_err(refused(&self.uri))?;
        Ok(plain)
    }

    /// Empties its database.
    pub(super) fn clear(&self) -> Result<(), Failure> {
        let flushed = self.connect()?.ask(&[b"FLUSHDB"]);
        flushed.map(drop).map_err(refused(&self.uri))
    }

    /// What it is.
    pub(super) fn told(&self) -> String {
        match &self.started {
            Some((Process(child), _)) => format!(
                "redis: {}, started for this bench without persistence (process {})",
                self.uri,
                child.id()
            ),
            None => format!("redis: {}", self.uri),
        }
    }
}
