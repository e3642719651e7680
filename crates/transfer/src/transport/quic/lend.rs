//! Lending memory to the network, and knowing when it is back.
//!
//! A [`Bytes`] given to [`DataSender::send_chunk`](super::DataSender::send_chunk) is queued by
//! reference: QUIC copies from it into packets, and again when a packet is lost, until the peer has
//! acknowledged it or the stream is reset. Then, and only then, its owner is dropped. A
//! [`LendTracker`] counts owners, so that whoever lends blocks of a cache can wait for that moment.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use bytes::Bytes;
use tokio::sync::Notify;

/// Counts the memory that is lent and not yet back. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct LendTracker {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    pieces: AtomicUsize,
    bytes: AtomicU64,
    back: Notify,
}

/// What is lent at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lent {
    /// Pieces, as they were lent.
    pub pieces: usize,
    /// Bytes in them.
    pub bytes: u64,
}

/// The owner inside a lent [`Bytes`]: reports when the last reference to it is gone.
struct Loan<T> {
    // Dropped by hand before the tracker hears of it: when the count falls, the owner is gone.
    owner: Option<T>,
    bytes: u64,
    tracker: Arc<Inner>,
}

impl LendTracker {
    /// A tracker with nothing lent.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lends the bytes of `owner` without copying them. `owner` is dropped when the returned `Bytes`
    /// and everything split off or cloned from it are.
    ///
    /// Memory that others write to (blocks of a cache) is lent through an owner that keeps it
    /// unchanged for as long as it lives.
    #[must_use = "what is lent and not sent comes back at once"]
    pub fn lend<T: AsRef<[u8]> + Send + 'static>(&self, owner: T) -> Bytes {
        let bytes = owner.as_ref().len() as u64;
        self.inner.pieces.fetch_add(1, Ordering::Relaxed);
        self.inner.bytes.fetch_add(bytes, Ordering::Relaxed);
        Bytes::from_owner(Loan {
            owner: Some(owner),
            bytes,
            tracker: self.inner.clone(),
        })
    }

    /// What is lent now.
    #[must_use]
    pub fn lent(&self) -> Lent {
        Lent {
            pieces: self.inner.pieces.load(Ordering::Acquire),
            bytes: self.inner.bytes.load(Ordering::Acquire),
        }
    }

    /// Waits until nothing is lent: all of it was acknowledged, or its streams were reset.
    ///
    /// A stream that is dropped, reset, or whose connection is lost gives its memory back by itself.
    /// One that is neither and makes no progress does so after its stall timeout at the latest, when
    /// its sender fails and is dropped. Cancel-safe.
    pub async fn back(&self) {
        loop {
            let mut notified = std::pin::pin!(self.inner.back.notified());
            notified.as_mut().enable();
            if self.inner.pieces.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.await;
        }
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Loan<T> {
    fn as_ref(&self) -> &[u8] {
        match &self.owner {
            Some(owner) => owner.as_ref(),
            None => &[],
        }
    }
}

impl<T> Drop for Loan<T> {
    fn drop(&mut self) {
        self.owner = None;
        self.tracker.bytes.fetch_sub(self.bytes, Ordering::Release);
        if self.tracker.pieces.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tracker.back.notify_waiters();
        }
    }
}
