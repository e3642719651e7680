//! The Redis server for a bench: one of the user's, or one that is started for the bench.

use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{Client, Connection, IntoConnectionInfo, RedisResult, cmd};
use tempfile::TempDir;
use transload::store::backend::redis::{RedisOptions, RedisStore};

use super::{failed, refused};
use crate::failure::Failure;

/// The time limit for a server's start and for its answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server with an empty database.
pub(super) struct Server {
    pub(super) uri: String,
    client: Client,
    /// Options for the backend. The password in the environment is for a server that the user named.
    options: RedisOptions,
    /// The process and folder of a server that we started. The process is dropped first.
    started: Option<(Process, TempDir)>,
}

/// A process that is killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Its data is not needed any more.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Uses a server that the user named. Its database has to be empty.
    pub(super) fn named(uri: &str) -> Result<Self, Failure> {
        let wrong = |why: String| {
            Failure::input(
                format!("--redis {uri}: {why}"),
                "name a server with an empty database: redis://localhost:6379/15",
            )
        };
        let info = uri.into_connection_info();
        let mut info = info.map_err(|error| wrong(error.to_string()))?;
        if let Some(password) = RedisOptions::from_env().password {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        let server = Self {
            uri: uri.to_owned(),
            client: Client::open(info).map_err(|error| wrong(error.to_string()))?,
            options: RedisOptions::from_env(),
            started: None,
        };
        let keys: u64 = cmd("DBSIZE").query(&mut server.connect()?).map_err(refused(uri))?;
        match keys {
            0 => Ok(server),
            _ => Err(wrong("the database is not empty, and the bench would delete its contents".into())),
        }
    }

    /// Starts a server. Returns a reason if there is no program for it or it does not start.
    pub(super) fn started() -> Result<Result<Self, String>, Failure> {
        let found = ["redis-server", "valkey-server"].iter().find_map(|name| {
            let path = env::var_os("PATH")?;
            env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
        });
        let Some(program) = found else {
            let why = "there is no redis-server on PATH; install one, or name a server with --redis";
            return Ok(Err(why.to_owned()));
        };
        let folder = TempDir::new().map_err(refused("a folder"))?;
        // Redis cannot choose a free port itself: port 0 turns TCP off.
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
        let uri = format!("redis://127.0.0.1:{port}/0");
        let server = Self {
            client: Client::open(&*uri).map_err(refused(&uri))?,
            uri,
            options: RedisOptions::default(),
            started: Some((Process(process), folder)),
        };
        let since = Instant::now();
        loop {
            match server.try_connect() {
                Ok(_) => return Ok(Ok(server)),
                Err(error) if since.elapsed() > PATIENCE => {
                    let why = format!("cannot start {}: {error}", program.display());
                    return Ok(Err(why));
                }
                Err(_) => sleep(Duration::from_millis(20)),
            }
        }
    }

    pub(super) fn open(&self) -> Result<RedisStore, Failure> {
        let uri = self.uri.parse().map_err(refused(&self.uri))?;
        RedisStore::open(&uri, self.options.clone()).map_err(failed)
    }

    pub(super) fn connect(&self) -> Result<Connection, Failure> {
        self.try_connect().map_err(refused(&self.uri))
    }

    fn try_connect(&self) -> RedisResult<Connection> {
        let connection = self.client.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    pub(super) fn clear(&self) -> Result<(), Failure> {
        let flushed = cmd("FLUSHDB").exec(&mut self.connect()?);
        flushed.map_err(refused(&self.uri))
    }

    pub(super) fn description(&self) -> String {
        match &self.started {
            Some((Process(child), _)) => {
                format!("redis: {}, started for this bench without persistence (process {})", self.uri, child.id())
            }
            None => format!("redis: {}", self.uri),
        }
    }
}
