//! Connections that several threads share, and the one retry of a broken one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::connection::{Connection, Connector};
use super::failure::Failure;
use super::reply::{self, Reply};

/// Idle connections that are kept. A thread more than this connects anew for each call.
const MOST_IDLE: usize = 16;

#[derive(Debug)]
pub(super) struct Pool {
    connector: Connector,
    idle: Mutex<Vec<Connection>>,
    round_trips: AtomicU64,
}

impl Pool {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector, idle: Mutex::default(), round_trips: AtomicU64::new(0) }
    }

    pub(super) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Makes the first connection, so that what is wrong with the server is known at once.
    pub(super) fn open(&self) -> Result<(), Failure> {
        let connection = self.connector.connect()?;
        self.idle().push(connection);
        Ok(())
    }

    /// How often a caller has waited for the server.
    pub(super) fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    /// Counts one wait for the server.
    pub(super) fn count(&self) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs `exchange` on a connection of its own, and once more on a new one if that one was broken: a
    /// server that restarted closed all that were idle. So `exchange` has to be one that may happen twice.
    pub(super) fn with<T>(
        &self,
        mut exchange: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // Not in the `if let`: the lock would be held for the exchange.
        let idle = self.idle().pop();
        if let Some(mut connection) = idle {
            match exchange(&mut connection) {
                Err(failure) if failure.is_broken() => self.idle().clear(),
                done => return self.give_back(connection, done),
            }
        } else {
            let mut connection = self.connector.connect()?;
            match exchange(&mut connection) {
                Err(failure) if failure.is_broken() => {}
                done => return self.give_back(connection, done),
            }
        }
        let mut connection = self.connector.connect()?;
        let done = exchange(&mut connection);
        self.give_back(connection, done)
    }

    fn give_back<T>(&self, connection: Connection, done: Result<T, Failure>) -> Result<T, Failure> {
        if matches!(done, Ok(_) | Err(Failure::Refused(_))) {
            let mut idle = self.idle();
            if idle.len() < MOST_IDLE {
                idle.push(connection);
            }
        }
        done
    }

    /// One command and its reply, counted as a round trip.
    pub(super) fn call(&self, args: &[&[u8]]) -> Result<Reply, Failure> {
        let command = reply::command(args);
        self.with(|connection| {
            self.count();
            connection.call(&command)
        })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // A vector of connections is whole whatever panicked beside it.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
