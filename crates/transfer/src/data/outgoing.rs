//! The source of a transfer: the bytes that may be read already, the parts that were sent, and the fence.

use std::{
    collections::VecDeque,
    ops::Range,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tokio::sync::{Notify, mpsc};

use super::error::SendError;
use super::{
    fence::{Fence, Inside},
    part::{Part, split},
    ranges::Ranges,
    route_bytes::RouteBytes,
};
use transload_plan::ids::{Nonce, TransferId};
use transload_wire::internal::stream::StreamHeader;

/// An outgoing transfer. Clones refer to the same one.
///
/// It is cut into parts, each a stream of its own. The carriers (lanes, a ring) take the next part that may be read.
/// Nothing is read before [`open`](Self::open) allows it, and nothing after [`fence`](Self::fence) has returned. If a
/// transfer is neither opened completely nor fenced, its carriers keep it for ever.
#[derive(Clone, Debug)]
pub struct Outgoing {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    transfer: TransferId,
    nonce: Nonce,
    bytes: RouteBytes,
    fence: Fence,
    queue: Mutex<Queue>,
    changed: Notify,
    read: AtomicU64,
    events: mpsc::UnboundedSender<SendEvent>,
}

/// Parts that no carrier has taken yet.
#[derive(Debug)]
struct Queue {
    open: Ranges,
    waiting: Vec<Part>,
    ready: VecDeque<Part>,
}

/// An event of a transfer's streams.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendEvent {
    /// A stream is completely written, and its memory was read.
    Written {
        /// The stream's number in its transfer.
        stream: u32,
        /// The number of bytes of the route in the stream.
        bytes: u64,
    },
    /// A stream broke off, and so the transfer has failed: no further streams begin, and current ones are reset.
    /// [`Outgoing::fence`] tells when the memory is free.
    Failed {
        /// The stream's number, if one stream is the cause.
        stream: Option<u32>,
        /// The reason.
        error: SendError,
    },
}

/// The events of a transfer, in order for each stream.
#[derive(Debug)]
pub struct SendEvents {
    events: mpsc::UnboundedReceiver<SendEvent>,
}

impl SendEvents {
    /// Returns the next event, or `None` once the transfer and all its carriers are gone. There is at most one event
    /// for each stream, and failures. Cancel-safe.
    pub async fn next(&mut self) -> Option<SendEvent> {
        self.events.recv().await
    }
}

impl Outgoing {
    /// Makes a transfer of these bytes over that many lanes. Nothing of it may be read yet.
    ///
    /// The division into streams follows from the plan and the number of lanes alone.
    #[must_use]
    pub fn new(transfer: TransferId, nonce: Nonce, bytes: RouteBytes, lanes: usize) -> (Self, SendEvents) {
        let (sender, events) = mpsc::unbounded_channel();
        let queue = Queue {
            open: Ranges::default(),
            waiting: split(bytes.stretches(), lanes, |at| bytes.cut(at)),
            ready: VecDeque::new(),
        };
        let inner = Arc::new(Inner {
            transfer,
            nonce,
            bytes,
            fence: Fence::default(),
            queue: Mutex::new(queue),
            changed: Notify::new(),
            read: AtomicU64::new(0),
            events: sender,
        });
        (Self { inner }, SendEvents { events })
    }

    /// Allows bytes of the route to be read from now on. A part is sent once all of it is open.
    pub fn open(&self, range: Range<u64>) {
        let mut queue = self.queue();
        let Queue { open, waiting, ready } = &mut *queue;
        open.insert(range);
        ready.extend(waiting.extract_if(.., |part| open.covers(&part.range)));
        drop(queue);
        self.inner.changed.notify_waiters();
    }

    /// Allows all bytes to be read.
    pub fn open_all(&self) {
        self.open(0..self.inner.bytes.bytes());
    }

    /// Returns whether both are the same transfer.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the route that it sends.
    pub fn route(&self) -> &RouteBytes {
        &self.inner.bytes
    }

    /// Returns the number of bytes read so far.
    pub fn read(&self) -> u64 {
        self.inner.read.load(Relaxed)
    }

    /// Stops the transfer, and waits until none of its memory is read any more. Streams that are being written are
    /// reset. Does nothing to a finished transfer.
    ///
    /// It takes as long as a lane's thread needs to notice, whatever the peer does. Cancel-safe: the transfer is
    /// stopped even if this future is dropped.
    pub async fn fence(&self) {
        self.inner.fence.quiet().await;
    }

    pub(crate) fn own_fence(&self) -> &Fence {
        &self.inner.fence
    }

    pub(crate) fn enter(&self) -> Option<Inside> {
        self.inner.fence.enter()
    }

    /// Waits for a part that may be read. Returns `None` when all were taken. Cancel-safe.
    pub(crate) async fn next_part(&self) -> Option<Part> {
        loop {
            let mut changed = pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            {
                let mut queue = self.queue();
                if let Some(part) = queue.ready.pop_front() {
                    return Some(part);
                }
                if queue.waiting.is_empty() {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Returns a part that may be read now, if there is one.
    pub(crate) fn ready_part(&self) -> Option<Part> {
        self.queue().ready.pop_front()
    }

    pub(crate) fn header(&self, part: &Part) -> StreamHeader {
        StreamHeader {
            transfer: self.inner.transfer,
            nonce: self.inner.nonce,
            stream: part.stream,
            offset: part.range.start,
            length: part.bytes(),
        }
    }

    pub(crate) fn count_read(&self, bytes: u64) {
        self.inner.read.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn tell(&self, event: SendEvent) {
        // An error means that the events are not wanted.
        let _ = self.inner.events.send(event);
    }

    /// Fails the whole transfer.
    pub(crate) fn fail(&self, stream: Option<u32>, error: SendError) {
        self.inner.fence.raise();
        self.tell(SendEvent::Failed { stream, error });
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while it is held.
        self.inner.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
