//! A bounded number of send buffers for each lane.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use tokio::sync::Semaphore;

/// A bounded number of buffers, allocated when they are first needed. Clones refer to the same pool.
///
/// A buffer is in use from [`take`](Self::take) until the last [`Bytes`] made of it is dropped, which QUIC does as
/// acknowledgements arrive. So waiting for a buffer is waiting for the peer only. Waiting tasks are served in turn, one
/// buffer at a time.
#[derive(Clone, Debug)]
pub(crate) struct BufferPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    buffer_bytes: usize,
    available: Semaphore,
    /// A stack, since the buffer that was used last is still in the caches.
    free: Mutex<Vec<Box<[u8]>>>,
}

/// A buffer that is being filled.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    len: usize,
    pool: Arc<Inner>,
}

impl BufferPool {
    pub(crate) fn new(buffers: usize, buffer_bytes: usize) -> Self {
        Self { inner: Arc::new(Inner { buffer_bytes, available: Semaphore::new(buffers), free: Mutex::default() }) }
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.inner.buffer_bytes
    }

    /// Waits for a buffer. Cancel-safe. The caller must not hold another buffer that is not being sent.
    pub(crate) async fn take(&self) -> Buffer {
        if let Ok(permit) = self.inner.available.acquire().await {
            // The drop of the buffer returns the permit.
            permit.forget();
        }
        let free = self.inner.free().pop();
        let bytes = free.unwrap_or_else(|| vec![0; self.inner.buffer_bytes].into_boxed_slice());
        Buffer { len: bytes.len(), bytes, pool: self.inner.clone() }
    }
}

impl Inner {
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Box<[u8]>>> {
        // Nothing panics while it is held.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    /// Returns the first `len` bytes, to be sent.
    pub(crate) fn into_bytes(mut self, len: usize) -> Bytes {
        self.len = len.min(self.bytes.len());
        Bytes::from_owner(self)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.pool.free().push(bytes);
        self.pool.available.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn no_more_buffers_than_there_are() {
        let pool = BufferPool::new(2, 64);
        let (mut a, b) = (pool.take().await, pool.take().await);
        a[..3].copy_from_slice(b"abc");
        let sent = a.into_bytes(3);
        let rest = sent.slice(1..);
        assert_eq!((&sent[..], &rest[..]), (&b"abc"[..], &b"bc"[..]));
        let third = tokio::spawn({
            let pool = pool.clone();
            async move { pool.take().await }
        });
        drop(sent);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(!third.is_finished(), "a part of the first is still out");
        drop(rest);
        assert_eq!(third.await.unwrap().len(), 64);
        drop(b);
        assert_eq!(pool.inner.free().len(), 2);
    }
}
