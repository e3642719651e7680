//! Idle connections, the latest used first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::connection::Connection;
use crate::Role;
use crate::target::ServerUrl;

/// How long a connection is kept without a request. uvicorn, and so vLLM and SGLang, closes idle ones after 5 s: a request that
/// meets the closing would be lost.
const KEPT: Duration = Duration::from_secs(4);

type Idle = Mutex<VecDeque<(Connection, Instant)>>;

type Table = HashMap<(Role, ServerUrl), Arc<Idle>>;

pub(super) struct Pools {
    most: usize,
    servers: Arc<Mutex<Table>>,
}

/// Where a connection is kept.
pub(super) struct Place {
    idle: Arc<Idle>,
    most: usize,
}

impl Pools {
    /// Begins without any. To be called within a tokio runtime.
    pub(super) fn new(most: usize) -> Self {
        let servers = Arc::default();
        sweep(&servers);
        Self { most, servers }
    }

    /// Begins without any, as one of so many.
    pub(super) fn apart(&self, of: usize) -> Self {
        Self::new(self.most.div_ceil(of))
    }

    pub(super) fn place(&self, role: Role, url: &ServerUrl) -> Place {
        let mut servers = lock(&self.servers);
        let key = (role, url.clone());
        let idle = servers.entry(key).or_default().clone();
        Place { idle, most: self.most }
    }
}

/// Closes connections that are idle for too long, and forgets servers without any, for as long as there is a table.
fn sweep(servers: &Arc<Mutex<Table>>) {
    let servers = Arc::downgrade(servers);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(KEPT).await;
            let Some(servers) = Weak::upgrade(&servers) else {
                return;
            };
            lock(&servers).retain(|_, idle| {
                let mut connections = lock(idle);
                connections.retain(|(_, since)| since.elapsed() < KEPT);
                !connections.is_empty() || Arc::strong_count(idle) > 1
            });
        }
    });
}

impl Place {
    /// Takes a connection that was open when it was last looked at.
    pub(super) fn take(&self) -> Option<Connection> {
        loop {
            let (mut connection, since) = lock(&self.idle).pop_back()?;
            if since.elapsed() < KEPT && connection.is_ready() {
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

/// A table whose holder has panicked is as good as before: entries are moved in and out whole.
fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
