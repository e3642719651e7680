//! The destination of a transfer: the memory of its bytes, and the fence that keeps late bytes out.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    fence::{Fence, Inside},
    route_bytes::RouteBytes,
};

/// The destination of one transfer's bytes. Clones refer to the same one.
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
    /// Makes a destination that accepts streams.
    #[must_use]
    pub fn new(route: RouteBytes) -> Self {
        Self { inner: Arc::new(Inner { route, fence: Fence::default(), placed: AtomicU64::new(0) }) }
    }

    /// Returns the route that it receives.
    pub fn route(&self) -> &RouteBytes {
        &self.inner.route
    }

    /// Returns the number of bytes placed so far.
    pub fn placed(&self) -> u64 {
        self.inner.placed.load(Relaxed)
    }

    /// Closes the destination for good, and waits until no byte is written to its memory any more. Streams in progress
    /// are stopped.
    ///
    /// It takes as long as the receiving threads need to notice. Cancel-safe: the destination is closed even if this
    /// future is dropped.
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
