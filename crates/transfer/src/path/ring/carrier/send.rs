//! Sending over a staging ring.
//!
//! A stream crosses a ring as it crosses a lane: header, bytes, trailer. Each slot says, besides the
//! stream's number on this ring, where in that its bytes are; the one at 0 begins with the header.
//!
//! Host memory is gathered into a slot at once. Memory of a device is gathered there later, by the device itself, so several
//! slots are being filled at a time. They are summed and published in their order, each when it is done.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, sync::oneshot};

use crate::data::{Inside, Operation, Outgoing, Part, RegionCursor, RegionError, SendError, SendEvent};
use crate::path::ring::carrier::staging::{Producer, RingError};
use crate::path::ring::carrier::{Doorbell, Driven, drive};
use crate::path::sending::Sender;
use transload_memory::copy::Crc32c;
use transload_wire::internal::stream::{HEADER, StreamTrailer, TRAILER};

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
pub(in crate::path) const TURN: u64 = 16 << 20;

impl RingOut {
    /// A ring that nobody else sends over. A peer that empties no slot for `stall_timeout` fails the
    /// transfer that waits for it, and the ring.
    ///
    /// # Errors
    /// Where no thread is to be had.
    pub fn new(producer: Producer, stall_timeout: Duration) -> io::Result<Self> {
        let ring = producer.doorbell();
        let mut sending = Sending { producer, stall_timeout, tag: 0, filling: VecDeque::new(), sum: Crc32c::new() };
        Self::start(ring, move |turn| turn.take(|turn, inside| sending.carry(turn, inside)))
    }

    /// A ring over which `take` sends, on the ring's thread.
    pub(in crate::path) fn start(ring: Doorbell, take: impl FnMut(Turn) + Send + 'static) -> io::Result<Self> {
        let (turns, waiting) = mpsc::channel::<Turn>();
        let thread = drive(ring.clone(), move || waiting.into_iter().for_each(take))?;
        let inner = Inner { turns, ring, _thread: thread };
        Ok(Self { inner: Arc::new(inner) })
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
                let turn = Turn { runtime: runtime.clone(), outgoing: outgoing.clone(), part, over };
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
pub(in crate::path) struct Turn {
    /// Where memory that is not done at once is waited for.
    pub(in crate::path) runtime: Handle,
    pub(in crate::path) outgoing: Outgoing,
    pub(in crate::path) part: Part,
    over: oneshot::Sender<()>,
}

/// The thread's end of the ring.
struct Sending {
    producer: Producer,
    stall_timeout: Duration,
    /// Number of the next stream.
    tag: u64,
    /// Slots that memory has not filled yet, of one transfer, in order: all of the ring's but two at most, so that what one transfer
    /// does not get back leaves some to the others.
    filling: VecDeque<Filling>,
    /// Of the bytes of a stream that were published.
    sum: Crc32c,
}

/// A slot that is being filled.
struct Filling {
    stream: u32,
    tag: u64,
    /// Where it begins in the stream, header included, and how many bytes it has.
    at: u64,
    len: usize,
    /// How many of them are the route's.
    body: usize,
    sections: Vec<Section>,
    /// Where the trailer of a stream of so many bytes has its place.
    trailer: Option<(usize, u64)>,
}

/// Bytes of a slot that are not in the sum yet.
enum Section {
    /// They are there.
    Summed(Crc32c),
    /// They will be.
    Asked { operation: Operation<()>, at: usize, len: usize },
}

impl Turn {
    /// Has `carry` send the part, and more that are ready, unless the fence is up by now.
    pub(in crate::path) fn take(self, carry: impl FnOnce(&Self, &Inside)) {
        // Only now: whoever waited in the queue must not be waited for.
        if let Some(inside) = self.outgoing.enter() {
            carry(&self, &inside);
        }
        // The transfer was given up where nobody waits.
        let _ = self.over.send(());
    }
}

impl Sending {
    fn carry(&mut self, turn: &Turn, inside: &Inside) {
        let mut part = turn.part.clone();
        let carried = self.carry_parts(turn, inside, &mut part);
        let first = self.filling.front().map(|filling| filling.stream);
        // What is left of a transfer that was given up may still be filled; the producer knows of those slots.
        self.filling.clear();
        self.sum = Crc32c::new();
        if let Err(error) = carried {
            if let SendError::Path(_) = error {
                // It is of no more use to anybody. Before the news, so that who hears of it can
                // tell this ring from the next.
                self.producer.doorbell().hang_up();
            }
            let stream = first.unwrap_or(part.stream);
            turn.outgoing.fail(Some(stream), error);
        }
    }

    /// Carries parts, for as long as a turn lasts; `None` if the fence came up.
    fn carry_parts(&mut self, turn: &Turn, inside: &Inside, part: &mut Part) -> Result<Option<()>, SendError> {
        let mut carried = 0;
        loop {
            let written = self.write(turn, inside, part);
            self.tag += 1;
            if written?.is_none() {
                return Ok(None);
            }
            carried += part.bytes();
            let next = match carried < TURN {
                true => turn.outgoing.ready_part(),
                false => None,
            };
            match next {
                Some(next) => *part = next,
                None => break,
            }
        }
        while !self.filling.is_empty() {
            if self.publish_first(turn, inside)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }

    /// Has a whole stream written; `None` if the fence came up.
    fn write(&mut self, turn: &Turn, inside: &Inside, part: &Part) -> Result<Option<()>, SendError> {
        let outgoing = &turn.outgoing;
        let mut cursor = outgoing.route().cursor(part.range.clone())?;
        let total = HEADER as u64 + part.bytes() + TRAILER as u64;
        let mut at = 0;
        while at < total {
            if self.wait(turn, inside)?.is_none() {
                return Ok(None);
            }
            let mut slot = self.producer.reserve_ahead(self.filling.len(), None)?;
            let mut len = 0;
            if at == 0 {
                slot.put(0, &outgoing.header(part).encode());
                len = HEADER;
            }
            let left = usize::try_from(cursor.remaining()).unwrap_or(usize::MAX);
            let body = left.min(slot.capacity() - len);
            let (sum, all_summed) = (&mut self.sum, self.filling.is_empty());
            let mut sections = Vec::new();
            cursor.each_section(body, inside, |cursor, bytes| {
                let (at, len) = (len + bytes.start, bytes.len());
                match cursor {
                    RegionCursor::Host(cursor) if all_summed && sections.is_empty() => {
                        slot.gather(at, len, cursor, sum)?;
                    }
                    RegionCursor::Host(cursor) => {
                        let mut sum = Crc32c::new();
                        slot.gather(at, len, cursor, &mut sum)?;
                        sections.push(Section::Summed(sum));
                    }
                    RegionCursor::Later(cursor) => {
                        // SAFETY: the header and the other sections lie elsewhere in the slot.
                        let bytes = unsafe { slot.lend(at, len) }?;
                        let operation = cursor.gather_into(bytes, inside);
                        sections.push(Section::Asked { operation, at, len });
                    }
                }
                Ok::<_, RingError>(None)
            })?;
            len += body;
            let is_last = body == left && slot.capacity() - len >= TRAILER;
            let trailer = is_last.then_some((len, part.bytes()));
            if is_last {
                len += TRAILER;
            }
            let filling = Filling { stream: part.stream, tag: self.tag, at, len, body, sections, trailer };
            at += len as u64;
            match all_summed && filling.sections.is_empty() {
                true => self.publish(outgoing, filling)?,
                false => self.filling.push_back(filling),
            }
        }
        Ok(Some(()))
    }

    /// Publishes the first slot that is being filled when it is; `None` if the fence came up.
    fn publish_first(&mut self, turn: &Turn, inside: &Inside) -> Result<Option<()>, SendError> {
        let Some(first) = self.filling.front_mut() else {
            return Ok(Some(()));
        };
        let filled = async {
            for section in &mut first.sections {
                if let Section::Asked { operation, .. } = section {
                    operation.await?;
                }
            }
            Ok::<_, RegionError>(())
        };
        match turn.runtime.block_on(inside.unless_raised(filled)) {
            Some(filled) => filled?,
            None => return Ok(None),
        }
        // Only now: where it fails, its stream is named.
        if let Some(first) = self.filling.pop_front() {
            self.publish(&turn.outgoing, first)?;
        }
        Ok(Some(()))
    }

    /// Publishes the next slot, which is filled.
    fn publish(&mut self, outgoing: &Outgoing, filled: Filling) -> Result<(), RingError> {
        let mut slot = self.producer.reserve(None)?;
        for section in &filled.sections {
            match section {
                Section::Summed(sum) => self.sum.append(sum),
                Section::Asked { at, len, .. } => slot.add_to(&mut self.sum, *at, *len)?,
            }
        }
        outgoing.count_read(filled.body as u64);
        if let Some((at, length)) = filled.trailer {
            let crc = std::mem::take(&mut self.sum).value();
            slot.put(at, &StreamTrailer { length, crc }.encode());
        }
        slot.publish(filled.tag, filled.at, filled.len)?;
        if let Some((_, bytes)) = filled.trailer {
            let stream = filled.stream;
            outgoing.tell(SendEvent::Written { stream, bytes });
        }
        Ok(())
    }

    /// Waits until there is a slot to fill, and publishes what is filled meanwhile; `None` if the fence came up.
    fn wait(&mut self, turn: &Turn, inside: &Inside) -> Result<Option<()>, SendError> {
        let most = (self.producer.shape().slots() as usize - 2).max(1);
        while !self.filling.is_empty() {
            if inside.is_raised() {
                return Ok(None);
            }
            let ahead = self.filling.len();
            if ahead < most {
                match self.producer.reserve_ahead(ahead, Some(Instant::now())) {
                    // It stays free until it is filled.
                    Ok(_slot) => return Ok(Some(())),
                    Err(RingError::TimedOut) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if self.publish_first(turn, inside)?.is_none() {
                return Ok(None);
            }
        }
        Ok(wait_for_slot(&mut self.producer, self.stall_timeout, inside)?)
    }
}

/// Waits for a free slot, which stays free until it is filled; `None` if the fence came up.
pub(in crate::path) fn wait_for_slot(
    producer: &mut Producer,
    stall: Duration,
    inside: &Inside,
) -> Result<Option<()>, RingError> {
    let stalled = Instant::now() + stall;
    loop {
        if inside.is_raised() {
            return Ok(None);
        }
        let look = Instant::now() + LOOK;
        match producer.reserve(Some(look.min(stalled))) {
            Ok(_slot) => return Ok(Some(())),
            Err(RingError::TimedOut) if look < stalled => {}
            Err(RingError::TimedOut) => return Err(producer.starved()),
            Err(error) => return Err(error),
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
