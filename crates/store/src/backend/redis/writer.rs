//! The background writer: sends chunks to the server.
//!
//! `put_chunk` has to return whether the chunk existed, which takes a round trip, and should not also wait for the
//! transfer of the bytes. So it asks (`TOUCH`) on one connection while the writer sends earlier chunks, many in one
//! round trip, on another. Unacknowledged chunks stay here. So the handle can read its own chunks, a broken connection
//! only costs time, and after a failure the next attempt sends them again.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use redis::{Cmd, RedisWrite, ToRedisArgs, ToSingleRedisArg};

use super::connection::Connection;
use super::failure::Failure;
use super::keys;
use super::pool::Pool;
use super::reply::{Reply, unexpected};
use crate::backend::header::HEADER;
use crate::backend::sealed::Seal;
use crate::error::StoreError;
use crate::hash::ChunkHash;

/// The maximum bytes and chunks of one exchange. The server is idle for a round trip between two exchanges.
const EXCHANGE_BYTES: usize = 8 << 20;
const EXCHANGE_CHUNKS: usize = 1024;

#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    pool: Arc<Pool>,
    limit: usize,
    state: Mutex<State>,
    /// Notified when there is something to send, or the thread has to stop.
    work: Condvar,
    /// Notified when chunks were acknowledged or failed.
    progress: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Unacknowledged chunks, oldest first, with their numbers.
    queue: VecDeque<(u64, ChunkHash)>,
    pending: HashMap<ChunkHash, (u64, Bytes)>,
    bytes: usize,
    last: u64,
    /// The error of the last attempt. The thread waits until a caller requests another attempt.
    failure: Option<String>,
    failures: u64,
    stop: bool,
}

impl Writer {
    pub(super) fn start(pool: Arc<Pool>, limit: usize) -> Result<Self, StoreError> {
        let shared =
            Arc::new(Shared { pool, limit, state: Mutex::default(), work: Condvar::new(), progress: Condvar::new() });
        let thread = std::thread::Builder::new()
            .name("transload-redis".into())
            .spawn({
                let shared = shared.clone();
                move || shared.run()
            })
            .map_err(StoreError::io("start a thread"))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(super) fn pending(&self, hash: &ChunkHash) -> Option<Bytes> {
        let state = self.shared.state();
        state.pending.get(hash).map(|(_, data)| data.clone())
    }

    /// Queues a chunk. Waits while too many bytes are unacknowledged.
    /// Returns an error if an attempt to make room failed. The chunk was not queued; the earlier ones stay.
    pub(super) fn put(&self, hash: ChunkHash, data: Bytes) -> Result<(), StoreError> {
        let mut state = self.shared.attempt();
        let failures = state.failures;
        while state.bytes > 0 && state.bytes.saturating_add(data.len()) > self.shared.limit {
            state = self.shared.wait(state);
            state.check(failures)?;
        }
        // Another thread has queued it meanwhile.
        if state.pending.contains_key(&hash) {
            return Ok(());
        }
        state.last += 1;
        let number = state.last;
        state.queue.push_back((number, hash));
        state.bytes += data.len();
        state.pending.insert(hash, (number, data));
        self.shared.work.notify_one();
        Ok(())
    }

    /// Waits until the server has acknowledged every chunk queued before this call, but not those that other threads
    /// queue meanwhile.
    /// Returns an error if that fails. The chunks stay and are sent again by the next call.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.shared.attempt();
        let (failures, last) = (state.failures, state.last);
        while state.queue.front().is_some_and(|&(number, _)| number <= last) {
            state = self.shared.wait(state);
            state.check(failures)?;
        }
        Ok(())
    }
}

impl Drop for Writer {
    /// Waits for the thread (at most one exchange), since the library that contains its code may be unloaded next.
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl State {
    fn check(&self, failures: u64) -> Result<(), StoreError> {
        match &self.failure {
            Some(why) if self.failures != failures => Err(StoreError::remote("put chunks on redis", why.clone())),
            _ => Ok(()),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can occur between changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.progress.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn attempt(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if state.failure.take().is_some() {
            self.work.notify_one();
        }
        state
    }

    fn run(&self) {
        while let Some(batch) = self.next() {
            let outcome = self.pool.with(|connection| exchange(connection, &self.pool, &batch));
            self.settle(batch.len(), outcome);
        }
    }

    /// Waits for chunks and copies some. Returns `None` when the handle is dropped.
    fn next(&self) -> Option<Vec<(ChunkHash, Bytes)>> {
        let mut state = self.state();
        loop {
            if state.stop {
                return None;
            }
            if state.failure.is_none() && !state.queue.is_empty() {
                break;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut bytes = 0;
        let batch = state
            .queue
            .iter()
            .take(EXCHANGE_CHUNKS)
            .map_while(|(_, hash)| state.pending.get(hash).map(|(_, data)| (*hash, data.clone())))
            .take_while(|(_, data)| {
                let first = bytes == 0;
                bytes += HEADER + data.len();
                first || bytes <= EXCHANGE_BYTES
            })
            .collect();
        Some(batch)
    }

    /// Removes the acknowledged ones of the `sent` oldest chunks.
    fn settle(&self, sent: usize, outcome: Result<Vec<Option<String>>, Failure>) {
        let mut state = self.state();
        let refusals = match outcome {
            Ok(refusals) => refusals,
            Err(failure) => vec![Some(failure.to_string()); sent],
        };
        let mut kept = Vec::new();
        for refusal in refusals {
            let Some((number, hash)) = state.queue.pop_front() else {
                break;
            };
            match refusal {
                None => {
                    let data = state.pending.remove(&hash);
                    state.bytes -= data.map_or(0, |(_, data)| data.len());
                }
                Some(why) => {
                    kept.push((number, hash));
                    state.failure = Some(why);
                }
            }
        }
        for chunk in kept.into_iter().rev() {
            state.queue.push_front(chunk);
        }
        if state.failure.is_some() {
            state.failures += 1;
        }
        self.progress.notify_all();
    }
}

/// Writes chunks that do not exist. Returns for each whether, and why, it was refused.
fn exchange(
    connection: &mut Connection,
    pool: &Pool,
    batch: &[(ChunkHash, Bytes)],
) -> Result<Vec<Option<String>>, Failure> {
    let bytes: usize = batch.iter().map(|(_, data)| data.len() + 256).sum();
    let mut commands = Vec::with_capacity(bytes);
    for (hash, data) in batch {
        let key = keys::chunk(hash);
        let mut command = Cmd::with_capacity(4, key.len() + HEADER + data.len() + 8);
        command.arg("SET").arg(key).arg(Sealed(hash, data)).arg("NX");
        command.write_packed_command(&mut commands);
    }
    pool.count();
    connection.send(&commands)?;
    let replies = batch.iter().map(|_| match connection.receive()? {
        // A null reply: another client stored it after our `TOUCH`.
        Reply::Status(_) | Reply::Nothing => Ok(None),
        Reply::Error(why) => Ok(Some(format!("the server refused: {why}"))),
        other => Err(unexpected(&other)),
    });
    replies.collect()
}

struct Sealed<'a>(&'a ChunkHash, &'a [u8]);

impl ToRedisArgs for Sealed<'_> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        let Self(hash, data) = self;
        let mut word = out.writer_for_next_arg();
        // Writing to memory cannot fail.
        let _ = word.write_all(&Seal::Chunk(hash.as_bytes()).header(data));
        let _ = word.write_all(data);
    }
}

impl ToSingleRedisArg for Sealed<'_> {}
