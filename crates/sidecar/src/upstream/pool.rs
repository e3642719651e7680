//! Idle connections; the most recently used one is taken first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::connection::Connection;
use crate::Role;
use crate::target::ServerUrl;

/// The time that an idle connection is kept. uvicorn, and so vLLM and SGLang, closes idle connections after 5 s: a
/// request sent at that moment would be lost.
const IDLE_TIME: Duration = Duration::from_secs(4);

type Idle = Mutex<VecDeque<(Connection, Instant)>>;

type Table = HashMap<(Role, ServerUrl), Arc<Idle>>;

pub(super) struct Pools {
    most: usize,
    servers: Arc<Mutex<Table>>,
}

pub(super) struct Place {
    idle: Arc<Idle>,
    most: usize,
}

impl Pools {
    /// Creates empty pools and starts the task that closes idle connections. Must be called within a tokio runtime.
    pub(super) fn new(most: usize) -> Self {
        let servers = Arc::default();
        sweep(&servers);
        Self { most, servers }
    }

    /// Creates empty pools for one of `of` runtimes.
    pub(super) fn apart(&self, of: usize) -> Self {
        Self::new(self.most.div_ceil(of))
    }

    pub(super) fn of_server(&self, role: Role, url: &ServerUrl) -> Place {
        let mut servers = lock(&self.servers);
        let key = (role, url.clone());
        let idle = servers.entry(key).or_default().clone();
        Place { idle, most: self.most }
    }
}

/// Starts a task that closes connections idle for too long and forgets servers without connections. It ends when the
/// table is dropped.
fn sweep(servers: &Arc<Mutex<Table>>) {
    let servers = Arc::downgrade(servers);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(IDLE_TIME).await;
            let Some(servers) = Weak::upgrade(&servers) else {
                return;
            };
            lock(&servers).retain(|_, idle| {
                let mut connections = lock(idle);
                connections.retain(|(_, since)| since.elapsed() < IDLE_TIME);
                !connections.is_empty() || Arc::strong_count(idle) > 1
            });
        }
    });
}

impl Place {
    pub(super) fn take(&self) -> Option<Connection> {
        loop {
            let (mut connection, since) = lock(&self.idle).pop_back()?;
            if since.elapsed() < IDLE_TIME && connection.is_ready() {
                return Some(connection);
            }
        }
    }

    pub(super) fn put(self, mut connection: Connection) {
        if !connection.is_ready() {
            return;
        }
        let mut idle = lock(&self.idle);
        if idle.len() < self.most {
            idle.push_back((connection, Instant::now()));
        }
    }
}

/// Locks a table. A panic of an earlier holder is ignored: entries are moved in and out whole, so the table is
/// consistent.
fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
