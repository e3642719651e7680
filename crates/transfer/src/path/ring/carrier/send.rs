//! Sending over a staging ring.
//!
//! A stream crosses a ring like a lane: header, bytes, trailer. Each slot states the stream's number on this ring, and
//! the position of its bytes in the stream; the one at position 0 begins with the header.
//!
//! Host memory is gathered into a slot at once. A device gathers its memory later and by itself, so several slots are
//! being filled at a time. They are summed and published in order, each when it is filled.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, sync::oneshot};

use crate::data::{Inside, Operation, Outgoing, Part, RegionCursor, RegionError, SendError, SendEvent};
use crate::path::ring::carrier::slots::{Producer, RingError};
use crate::path::ring::carrier::{Doorbell, Driven, drive};
use crate::path::sending::Sender;
use transload_memory::copy::Crc32c;
use transload_wire::internal::stream::{HEADER, StreamTrailer, TRAILER};

/// A staging ring for sending. Clones refer to the same ring, which is hung up when the last clone and the last
/// transfer on it are gone.
///
/// A separate thread fills it. Transfers take turns on it; one that waits for its turn leaves as soon as it is fenced,
/// so that its fence never waits for other transfers.
#[derive(Clone, Debug)]
pub struct RingOut {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    turns: mpsc::Sender<Turn>,
    ring: Doorbell,
    /// Hangs up when it is dropped with the last clone.
    _thread: Driven<()>,
}

/// How long a slot is waited for before the transfer's fence is checked again.
const LOOK: Duration = Duration::from_millis(5);

/// A turn ends after this many bytes, at the end of a stream. Switching to another thread and back takes about 20 us,
/// which a stream of 1 MiB (120 us) should not pay alone.
pub(in crate::path) const TURN: u64 = 16 << 20;

impl RingOut {
    /// Makes a ring for sending, for this process alone. If a peer empties no slot for `stall_timeout`, the waiting
    /// transfer and the ring fail.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn new(producer: Producer, stall_timeout: Duration) -> io::Result<Self> {
        let ring = producer.doorbell();
        let mut sending = Sending { producer, stall_timeout, tag: 0, filling: VecDeque::new(), sum: Crc32c::new() };
        Self::start(ring, move |turn| turn.take(|turn, inside| sending.carry(turn, inside)))
    }

    /// Makes a ring whose turns `take` handles, on the ring's thread.
    pub(in crate::path) fn start(ring: Doorbell, take: impl FnMut(Turn) + Send + 'static) -> io::Result<Self> {
        let (turns, waiting) = mpsc::channel::<Turn>();
        let thread = drive(ring.clone(), move || waiting.into_iter().for_each(take))?;
        let inner = Inner { turns, ring, _thread: thread };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns whether the ring was hung up here, or has failed. Nothing is sent over it any more.
    pub fn is_closed(&self) -> bool {
        self.inner.ring.is_hung_up()
    }

    /// Carries parts of a transfer until none is left. Must be called inside a tokio runtime.
    pub fn carry(&self, outgoing: &Outgoing) {
        let Some(inside) = outgoing.enter() else {
            return;
        };
        let (this, outgoing, runtime) = (self.clone(), outgoing.clone(), Handle::current());
        tokio::spawn(async move {
            while let Some(Some(part)) = inside.unless_raised(outgoing.next_part()).await {
                let (over, is_over) = oneshot::channel();
                let turn = Turn { runtime: runtime.clone(), outgoing: outgoing.clone(), part, over };
                // While this clone exists, sending and receiving fail only if the thread has panicked.
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

/// A transfer's turn on the ring, which begins with a part that may be read.
#[derive(Debug)]
pub(in crate::path) struct Turn {
    /// The runtime in which asynchronous memory is awaited.
    pub(in crate::path) runtime: Handle,
    pub(in crate::path) outgoing: Outgoing,
    pub(in crate::path) part: Part,
    over: oneshot::Sender<()>,
}

/// The state of the ring's thread.
struct Sending {
    producer: Producer,
    stall_timeout: Duration,
    /// The number of the next stream.
    tag: u64,
    /// Slots that memory has not filled yet, of one transfer, in order. At least two of the ring's slots are not used
    /// like this, so that slots that one transfer never gets back leave some for others.
    filling: VecDeque<Filling>,
    /// The sum of the current stream's published bytes.
    sum: Crc32c,
}

/// A slot that is being filled.
struct Filling {
    stream: u32,
    tag: u64,
    /// The position of the slot's bytes in the stream, header included, and their number.
    at: u64,
    len: usize,
    /// The number of its bytes that belong to the route.
    body: usize,
    sections: Vec<Section>,
    /// The position of the trailer in the slot, and the stream's length, if the stream ends here.
    trailer: Option<(usize, u64)>,
}

/// Bytes of a slot that are not in the sum yet.
enum Section {
    /// The bytes have arrived, and have this checksum.
    Summed(Crc32c),
    /// The bytes are being gathered.
    Asked { operation: Operation<()>, at: usize, len: usize },
}

impl Turn {
    /// Runs `carry` for the part, and further ones that are ready, unless the fence is raised by now.
    pub(in crate::path) fn take(self, carry: impl FnOnce(&Self, &Inside)) {
        // Entered only now: the fence must not wait for a transfer in the queue.
        if let Some(inside) = self.outgoing.enter() {
            carry(&self, &inside);
        }
        // An error means that the transfer was given up.
        let _ = self.over.send(());
    }
}

impl Sending {
    fn carry(&mut self, turn: &Turn, inside: &Inside) {
        let mut part = turn.part.clone();
        let carried = self.carry_parts(turn, inside, &mut part);
        let first = self.filling.front().map(|filling| filling.stream);
        // Slots of a transfer that was given up may still be filled. The producer knows which they are.
        self.filling.clear();
        self.sum = Crc32c::new();
        if let Err(error) = carried {
            if let SendError::Path(_) = error {
                // The ring cannot be used any more. It is closed before the failure is reported, so that this ring can
                // be distinguished from its successor.
                self.producer.doorbell().hang_up();
            }
            let stream = first.unwrap_or(part.stream);
            turn.outgoing.fail(Some(stream), error);
        }
    }

    /// Carries parts for the length of a turn. Returns `None` if the fence was raised.
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

    /// Writes a whole stream. Returns `None` if the fence was raised.
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
                    RegionCursor::Async(cursor) => {
                        // SAFETY: the header and the other sections are elsewhere in the slot.
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

    /// Publishes the first unfilled slot when it is filled. Returns `None` if the fence was raised.
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
        // Removed only now, since an error above must name its stream.
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

    /// Waits until there is a slot to fill, and publishes filled slots meanwhile. Returns `None` if the fence was
    /// raised.
    fn wait(&mut self, turn: &Turn, inside: &Inside) -> Result<Option<()>, SendError> {
        let most = (self.producer.shape().slots() as usize - 2).max(1);
        while !self.filling.is_empty() {
            if inside.is_raised() {
                return Ok(None);
            }
            let ahead = self.filling.len();
            if ahead < most {
                match self.producer.reserve_ahead(ahead, Some(Instant::now())) {
                    // The slot stays free until it is filled.
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

/// Waits for a free slot, which stays free until it is filled. Returns `None` if the fence was raised.
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
