//! One transfer on its way in: where its bytes go, and how to keep late ones out.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    fence::{Fence, Inside},
    route_bytes::RouteBytes,
};

/// Where the bytes of one transfer go. Clones are the same place.
#[derive(Clone, Debug)]
pub struct Landing {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    route: RouteBytes,
    fence: Fence,
    placed: AtomicU64,
}

impl Landing {
    /// A place that is open to streams.
    #[must_use]
    pub fn new(route: RouteBytes) -> Self {
        Self { inner: Arc::new(Inner { route, fence: Fence::default(), placed: AtomicU64::new(0) }) }
    }

    /// The bytes that it receives.
    pub fn route(&self) -> &RouteBytes {
        &self.inner.route
    }

    /// How many bytes were placed so far.
    pub fn placed(&self) -> u64 {
        self.inner.placed.load(Relaxed)
    }

    /// Closes the place for good, and waits until no byte is written to its memory any more, nor ever
    /// will be. Streams under way are stopped.
    ///
    /// Takes as long as it takes the threads that receive to get to it. Cancel-safe: it is closed all
    /// the same.
    pub async fn fence(&self) {
        self.inner.fence.quiet().await;
    }

    pub(crate) fn own_fence(&self) -> &Fence {
        &self.inner.fence
    }

    pub(crate) fn enter(&self) -> Option<Inside> {
        self.inner.fence.enter()
    }

    pub(crate) fn count_placed(&self, bytes: u64) {
        self.inner.placed.fetch_add(bytes, Relaxed);
    }
}
