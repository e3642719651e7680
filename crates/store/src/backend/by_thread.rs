//! What each thread of a handle put since its own last manifest.
//!
//! Threads that share a handle save at the same time, and the manifest of one may go before another has come to its
//! own: so what a thread put is kept for its manifest, too, whoever publishes first.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// What a thread put and never published itself is forgotten after this time, or when it has become so much: the
/// manifest of the thread that did publish has it. 65,536 take 5 to 8 MiB.
const TIME: Duration = Duration::from_secs(3600);
const CHUNKS: usize = 65_536;

thread_local! {
    /// Goes with its thread.
    static ALIVE: Arc<()> = Arc::default();
}

/// A collection of chunks for each thread.
#[derive(Debug)]
pub(super) struct ByThread<C>(HashMap<ThreadId, Own<C>>);

#[derive(Debug)]
struct Own<C> {
    chunks: C,
    last: Instant,
    /// Whether the thread lives.
    thread: Weak<()>,
}

impl<C> Default for ByThread<C> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<C: Default> ByThread<C> {
    /// This thread's, to be changed.
    pub(super) fn mine_mut(&mut self) -> &mut C {
        let own = self.0.entry(thread::current().id());
        let own = own.or_insert_with(|| Own {
            chunks: C::default(),
            last: Instant::now(),
            // A thread that is ending already publishes nothing.
            thread: ALIVE.try_with(Arc::downgrade).unwrap_or_default(),
        });
        own.last = Instant::now();
        &mut own.chunks
    }

    /// This thread's, if it put any.
    pub(super) fn mine(&self) -> Option<&C> {
        self.0.get(&thread::current().id()).map(|own| &own.chunks)
    }

    /// This thread's are in its manifest.
    pub(super) fn forget_mine(&mut self) {
        self.0.remove(&thread::current().id());
    }

    /// Those of all threads.
    #[cfg(feature = "file")]
    pub(super) fn all(&self) -> impl Iterator<Item = &C> {
        self.0.values().map(|own| &own.chunks)
    }

    /// Forgets what has become too old or too much, and what threads put that have ended (a save may put its chunks
    /// from threads of its own): nobody will publish it any more.
    pub(super) fn tidy(&mut self, len: impl Fn(&C) -> usize) {
        let now = Instant::now();
        self.0.retain(|_, own| {
            len(&own.chunks) <= CHUNKS && now.duration_since(own.last) < TIME && own.thread.strong_count() > 0
        });
    }
}
