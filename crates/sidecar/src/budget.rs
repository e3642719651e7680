//! The memory for buffered bodies, shared by all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicU64,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(bytes) })
    }

    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }
}

/// The memory taken for one body, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Share {
    /// Grows the share to this many bytes in total. Returns false if not enough memory is left.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = (bytes as u64).saturating_sub(self.bytes);
        let left = &self.budget.left;
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(more));
        if taken.is_ok() {
            self.bytes += more;
        }
        taken.is_ok()
    }

    /// Ties the share to the bytes it was taken for. It is given back when the last reference to them is dropped.
    pub(crate) fn hold(self, bytes: Bytes) -> Bytes {
        struct Held(Bytes, #[expect(dead_code, reason = "its drop gives it back")] Share);
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        Bytes::from_owner(Held(bytes, self))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_with_the_last_reference() {
        let budget = Budget::new(10);
        let mut share = budget.share();
        assert!(share.grow_to(4) && share.grow_to(7) && share.grow_to(3));
        assert!(!budget.share().grow_to(4), "7 of 10 are taken");
        let part = share.hold(Bytes::from_static(b"1234567")).slice(2..3);
        assert_eq!((&part[..], budget.share().grow_to(4)), (&b"3"[..], false));
        drop(part);
        assert!(budget.share().grow_to(10));
    }
}
