//! A pool of connections for several threads, with one retry if a connection is broken.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::connection::{Connection, Connector};
use super::failure::Failure;
use super::reply::{self, Reply};

/// The maximum number of idle connections. With more threads, some connect anew for each call.
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

    /// Opens the first connection, so that errors show up at once.
    pub(super) fn open(&self) -> Result<(), Failure> {
        let connection = self.connector.connect()?;
        self.idle().push(connection);
        Ok(())
    }

    pub(super) fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs `exchange` on a connection, and once more on a new one if the first was broken: a restarted server has
    /// closed all idle connections. So `exchange` must be safe to repeat.
    pub(super) fn with<T>(
        &self,
        mut exchange: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // A separate statement, because an `if let` would hold the lock during the exchange.
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

    /// Sends one command and receives its reply, counted as a round trip.
    pub(super) fn call(&self, args: &[&[u8]]) -> Result<Reply, Failure> {
        let command = reply::command(args);
        self.with(|connection| {
            self.count();
            connection.call(&command)
        })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // A panic elsewhere cannot leave the vector half changed.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
