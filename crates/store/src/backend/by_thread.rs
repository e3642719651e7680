//! Chunks that each thread of a handle has put since its own last manifest.
//!
//! Threads that share a handle save at the same time. One may publish its manifest before another is ready to. So a
//! thread's chunks are also remembered for its own manifest, whichever thread publishes first.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// A thread's chunks are forgotten after this time without a put, or when there are more than `CHUNKS`. Usually another
/// thread has published a manifest that refers to them. 65,536 chunks take 5 to 8 MiB.
const TIME: Duration = Duration::from_secs(3600);
const CHUNKS: usize = 65_536;

thread_local! {
    /// Dropped when its thread ends.
    static ALIVE: Arc<()> = Arc::default();
}

#[derive(Debug)]
pub(super) struct ByThread<C>(HashMap<ThreadId, Own<C>>);

#[derive(Debug)]
struct Own<C> {
    chunks: C,
    last: Instant,
    /// Dangles once the thread has ended.
    thread: Weak<()>,
}

impl<C> Default for ByThread<C> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<C: Default> ByThread<C> {
    pub(super) fn mine_mut(&mut self) -> &mut C {
        let own = self.0.entry(thread::current().id());
        let own = own.or_insert_with(|| Own {
            chunks: C::default(),
            last: Instant::now(),
            // A thread whose local values are already gone will not publish.
            thread: ALIVE.try_with(Arc::downgrade).unwrap_or_default(),
        });
        own.last = Instant::now();
        &mut own.chunks
    }

    pub(super) fn mine(&self) -> Option<&C> {
        self.0.get(&thread::current().id()).map(|own| &own.chunks)
    }

    /// Forgets the chunks of the current thread, once its manifest refers to them.
    pub(super) fn forget_mine(&mut self) {
        self.0.remove(&thread::current().id());
    }

    #[cfg(feature = "file")]
    pub(super) fn all(&self) -> impl Iterator<Item = &C> {
        self.0.values().map(|own| &own.chunks)
    }

    /// Forgets chunks that are too old or too many, and those of threads that have ended: such threads (a save may
    /// start its own to put chunks) will not publish.
    pub(super) fn tidy(&mut self, len: impl Fn(&C) -> usize) {
        let now = Instant::now();
        self.0.retain(|_, own| {
            len(&own.chunks) <= CHUNKS && now.duration_since(own.last) < TIME && own.thread.strong_count() > 0
        });
    }
}
