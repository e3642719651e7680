//! Sending over a staging ring.
//!
//! A stream crosses a ring as it crosses a lane: header, bytes, trailer. Each slot says, besides the
//! stream's number on this ring, where in that its bytes are; the one at 0 begins with the header.

use std::{
    io,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    copy::Crc32c,
    data::{Inside, Outgoing, Part, SendError, SendEvent},
    path::{
        ring::carrier::{
            Doorbell, Driven, drive,
            staging::{Producer, RingError},
        },
        sending::Sender,
    },
    wire::stream::{HEADER, StreamTrailer, TRAILER},
};

/// A staging ring to send over. Clones are the same ring; it is hung up when the last one and the last
/// transfer on it are gone.
///
/// A thread of its own fills it. Transfers take turns there; one that waits for its turn
/// leaves as soon as it is fenced, so that its fence never waits for the transfers before it.
#[derive(Clone, Debug)]
pub struct RingOut {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    turns: mpsc::Sender<Turn>,
    ring: Doorbell,
    /// Hangs up with the last clone.
    _thread: Driven<()>,
}

/// How long to wait for a slot before looking at the transfer's fence again.
const LOOK: Duration = Duration::from_millis(5);

/// A transfer has the ring for so many bytes, or one stream. Going to another thread and back costs
/// some 20 us, which a stream of 1 MiB (120 us) should not pay alone.
const TURN: u64 = 16 << 20;

impl RingOut {
    /// A ring that nobody else sends over. A peer that empties no slot for `stall_timeout` fails the
    /// transfer that waits for it, and the ring.
    ///
    /// # Errors
    /// Where no thread is to be had.
    pub fn new(producer: Producer, stall_timeout: Duration) -> io::Result<Self> {
        let ring = producer.doorbell();
        let (turns, waiting) = mpsc::channel();
        let mut sending = Sending {
            producer,
            stall_timeout,
            tag: 0,
        };
        let thread = drive(ring.clone(), move || {
            for turn in waiting {
                sending.take(turn);
            }
        })?;
        let inner = Inner {
            turns,
            ring,
            _thread: thread,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Whether it was hung up here, or has failed. Nothing is sent over it any more.
    pub fn is_closed(&self) -> bool {
        self.inner.ring.is_hung_up()
    }

    /// Carries parts of a transfer until none is left. To be called inside a tokio runtime.
    pub fn carry(&self, outgoing: &Outgoing) {
        let Some(inside) = outgoing.enter() else {
            return;
        };
        let (this, outgoing, runtime) = (self.clone(), outgoing.clone(), Handle::current());
        tokio::spawn(async move {
            while let Some(Some(part)) = inside.unless_raised(outgoing.next_part()).await {
                let (over, is_over) = oneshot::channel();
                let turn = Turn {
                    runtime: runtime.clone(),
                    outgoing: outgoing.clone(),
                    part,
                    over,
                };
                // Neither fails while this clone is there, unless the thread has panicked.
                if this.inner.turns.send(turn).is_err() {
                    return outgoing.fail(None, SendError::Panicked);
                }
                match inside.unless_raised(is_over).await {
                    Some(Ok(())) => {}
                    Some(Err(_)) => return outgoing.fail(None, SendError::Panicked),
                    None => return,
                }
            }
        });
    }
}

impl Sender for RingOut {
    fn carry(&self, outgoing: &Outgoing) {
        self.carry(outgoing);
    }

    fn hang_up(&self) {
        self.inner.ring.hang_up();
    }
}

/// One transfer's turn on the ring, which begins with a part that may be read.
#[derive(Debug)]
struct Turn {
    /// Where memory that is not done at once is waited for.
    runtime: Handle,
    outgoing: Outgoing,
    part: Part,
    over: oneshot::Sender<()>,
}

/// The thread's end of the ring.
struct Sending {
    producer: Producer,
    stall_timeout: Duration,
    /// Number of the next stream.
    tag: u64,
}

impl Sending {
    /// Carries a part, and more that are ready.
    fn take(&mut self, turn: Turn) {
        // Only now: whoever waited in the queue must not be waited for.
        if let Some(inside) = turn.outgoing.enter() {
            self.carry(&turn, &inside);
        }
        // The transfer was given up where nobody waits.
        let _ = turn.over.send(());
    }

    fn carry(&mut self, turn: &Turn, inside: &Inside) {
        let outgoing = &turn.outgoing;
        let (mut next, mut carried) = (Some(turn.part.clone()), 0);
        while let Some(part) = next {
            let written = self.write(turn, inside, &part);
            self.tag += 1;
            let (stream, bytes) = (part.stream, part.bytes());
            match written {
                Ok(Some(())) => outgoing.tell(SendEvent::Written { stream, bytes }),
                // The fence came up.
                Ok(None) => return,
                Err(error) => {
                    if let SendError::Path(_) = error {
                        // It is of no more use to anybody. Before the news, so that who hears of it can
                        // tell this ring from the next.
                        self.producer.doorbell().hang_up();
                    }
                    return outgoing.fail(Some(stream), error);
                }
            }
            carried += bytes;
            next = match carried < TURN {
                true => outgoing.ready_part(),
                false => None,
            };
        }
    }

    /// Writes a whole stream; `None` if the fence came up.
    fn write(
        &mut self,
        turn: &Turn,
        inside: &Inside,
        part: &Part,
    ) -> Result<Option<()>, SendError> {
        let Turn {
            outgoing, runtime, ..
        } = turn;
        let header = outgoing.header(part).encode();
        let mut cursor = outgoing.route().cursor(part.range.clone())?;
        let mut sum = Crc32c::new();
        let total = HEADER as u64 + part.bytes() + TRAILER as u64;
        let mut at = 0;
        while at < total {
            if self.wait(inside)?.is_none() {
                return Ok(None);
            }
            let mut slot = self.producer.reserve(None)?;
            let mut filled = 0;
            if at == 0 {
                slot.put(0, &header);
                filled = HEADER;
            }
            let left = usize::try_from(cursor.remaining()).unwrap_or(usize::MAX);
            let body = left.min(slot.capacity() - filled);
            let host = cursor.each_host_section(body, inside, |cursor, bytes| {
                slot.gather(filled + bytes.start, bytes.len(), cursor, &mut sum)
            });
            let host = host?;
            if host < body {
                // The rest is in memory that this thread cannot read itself.
                let mut rest = vec![0; body - host];
                let gathered = cursor.gather(&mut rest, &mut sum, inside);
                match runtime.block_on(inside.unless_raised(gathered)) {
                    None => return Ok(None),
                    Some(gathered) => gathered?,
                };
                slot.put(filled + host, &rest);
            }
            outgoing.count_read(body as u64);
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
    fn wait(&mut self, inside: &Inside) -> Result<Option<()>, RingError> {
        let stalled = Instant::now() + self.stall_timeout;
        loop {
            if inside.is_raised() {
                return Ok(None);
            }
            let look = Instant::now() + LOOK;
            match self.producer.reserve(Some(look.min(stalled))) {
                // It stays free until it is filled.
                Ok(_slot) => return Ok(Some(())),
                Err(RingError::TimedOut) if look < stalled => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl From<RingError> for SendError {
    fn from(error: RingError) -> Self {
        match error {
            RingError::Memory(error) => error.into(),
            error => Self::Path(error.into()),
        }
    }
}
