//! Sending over a staging ring.
//!
//! A stream crosses a ring as it crosses a lane: header, bytes, trailer. Each slot says, besides the
//! stream's number on this ring, where in that its bytes are; the one at 0 begins with the header.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

use super::{
    fence::Inside,
    outgoing::{Outgoing, SendError, SendEvent},
    part::Part,
};
use crate::{
    copy::Crc32c,
    transport::local::{
        Fence, drive,
        ring::{End, Producer, RingError},
    },
    wire::stream::{HEADER, StreamTrailer, TRAILER},
};

/// A staging ring to send over. Clones are the same ring; it is hung up when the last one and the last
/// transfer on it are gone.
///
/// Transfers take turns, and gather on a thread for blocking work.
#[derive(Clone, Debug)]
pub struct RingOut {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` while a thread has it.
    end: Mutex<Option<SendingEnd>>,
    stall_timeout: Duration,
    ring: Fence,
}

struct SendingEnd {
    producer: Producer,
    /// Number of the next stream.
    tag: u64,
}

/// How long to wait for a slot before looking at the transfer's fence again.
const LOOK: Duration = Duration::from_millis(5);

/// A transfer has the ring for so many bytes, or one stream. Going to another thread and back costs
/// some 20 us, which a stream of 1 MiB (120 us) should not pay alone.
const TURN: u64 = 16 << 20;

impl RingOut {
    /// A ring that nobody else sends over. A peer that empties no slot for `stall_timeout` fails the
    /// transfer that waits for it.
    #[must_use]
    pub fn new(producer: Producer, stall_timeout: Duration) -> Self {
        Self {
            inner: Arc::new(Inner {
                ring: producer.fence(),
                end: Mutex::new(Some(SendingEnd { producer, tag: 0 })),
                stall_timeout,
            }),
        }
    }

    /// Hangs the ring up: transfers under way fail.
    pub fn close(&self) {
        self.inner.ring.raise();
    }

    /// Carries parts of a transfer until none is left. To be called inside a tokio runtime.
    pub fn carry(&self, outgoing: &Outgoing) {
        let Some(inside) = outgoing.enter().map(Arc::new) else {
            return;
        };
        let (this, outgoing) = (self.clone(), outgoing.clone());
        tokio::spawn(async move {
            while let Some(Some(part)) = inside.unless_raised(outgoing.next_part()).await {
                let Some(mut end) = inside.unless_raised(this.inner.end.lock()).await else {
                    return;
                };
                let stream = part.stream;
                let Some(SendingEnd { producer, tag }) = end.take() else {
                    return outgoing.fail(Some(stream), RingError::Fenced.into());
                };
                let turn = Turn {
                    outgoing: outgoing.clone(),
                    inside: inside.clone(),
                    stall_timeout: this.inner.stall_timeout,
                    tag,
                };
                // Not to be dropped before its end: that would be the end of the ring.
                let (producer, tag) = drive(producer, move |end| turn.carry(end, part)).await;
                *end = Some(SendingEnd { producer, tag });
            }
        });
    }
}

/// One transfer's turn on the ring.
struct Turn {
    outgoing: Outgoing,
    inside: Arc<Inside>,
    stall_timeout: Duration,
    tag: u64,
}

impl Turn {
    /// Carries a part, and more that are ready. Gives the number of the next stream.
    fn carry(mut self, producer: &mut Producer, part: Part) -> u64 {
        let (mut next, mut carried) = (Some(part), 0);
        while let Some(part) = next {
            let written = self.write(producer, &part);
            self.tag += 1;
            let (stream, bytes) = (part.stream, part.bytes());
            match written {
                Ok(Some(())) => self.outgoing.tell(SendEvent::Written {
                    stream,
                    bytes,
                    lent: false,
                }),
                Ok(None) => break,
                Err(error) => {
                    self.outgoing.fail(Some(stream), error);
                    break;
                }
            }
            carried += bytes;
            next = match carried < TURN {
                true => self.outgoing.ready_part(),
                false => None,
            };
        }
        self.tag
    }

    /// Writes a whole stream; `None` if the fence came up.
    fn write(&self, producer: &mut Producer, part: &Part) -> Result<Option<()>, SendError> {
        let header = self.outgoing.header(part).encode();
        let mut cursor = self.outgoing.route().cursor(part.range.start)?;
        let mut sum = Crc32c::new();
        let total = HEADER as u64 + part.bytes() + TRAILER as u64;
        let mut at = 0;
        while at < total {
            if self.wait(producer)?.is_none() {
                return Ok(None);
            }
            let mut slot = producer.reserve(None)?;
            let mut filled = 0;
            if at == 0 {
                slot.put(0, &header);
                filled = HEADER;
            }
            let left = usize::try_from(part.range.end - cursor.position()).unwrap_or(usize::MAX);
            let body = left.min(slot.capacity() - filled);
            cursor.gather_slot(&mut slot, filled, body, &mut sum)?;
            self.outgoing.count_read(body as u64);
            filled += body;
            if body == left && slot.capacity() - filled >= TRAILER {
                let trailer = StreamTrailer {
                    length: part.bytes(),
                    crc: sum.value(),
                };
                slot.put(filled, &trailer.encode());
                filled += TRAILER;
            }
            slot.publish(self.tag, at, filled)?;
            at += filled as u64;
        }
        Ok(Some(()))
    }

    /// Waits for a free slot; `None` if the fence came up.
    fn wait(&self, producer: &mut Producer) -> Result<Option<()>, RingError> {
        let stalled = Instant::now() + self.stall_timeout;
        loop {
            if self.inside.is_raised() {
                return Ok(None);
            }
            let look = Instant::now() + LOOK;
            match producer.reserve(Some(look.min(stalled))) {
                // It stays free until it is filled.
                Ok(_slot) => return Ok(Some(())),
                Err(RingError::TimedOut) if look < stalled => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl std::fmt::Debug for SendingEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendingEnd")
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}
