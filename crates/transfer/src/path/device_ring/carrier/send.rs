//! Sending over a ring in device memory.
//!
//! The GPU fills slots, all that are free at a time. They are published in order, each when its bytes and their sum are
//! there.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use super::record::Record;
use crate::data::{Inside, Operation, Part, RegionError, RouteCursor, SendError, SendEvent};
use crate::path::ring::carrier::RingOut;
use crate::path::ring::carrier::send::{TURN, Turn, wait_for_slot};
use crate::path::ring::carrier::slots::{Producer, RingError};
use transload_cuda::internal::shuttle::{Shuttle, Slots};
use transload_memory::copy::Crc32c;
use transload_wire::internal::stream::StreamTrailer;

pub(super) fn start(producer: Producer, shuttle: Shuttle, stall: Duration) -> io::Result<RingOut> {
    let ring = producer.doorbell();
    let mut filler = Filler { producer, shuttle, stall, tag: 0, filling: VecDeque::new() };
    RingOut::start(ring, move |turn| {
        turn.take(|turn, inside| filler.carry(turn, inside));
    })
}

/// The state of the ring's thread.
struct Filler {
    producer: Producer,
    shuttle: Shuttle,
    stall: Duration,
    /// The number of the next stream.
    tag: u64,
    /// Slots that are being filled, in order, all of one transfer.
    filling: VecDeque<Filling>,
}

/// A slot that the GPU fills.
struct Filling {
    sum: Operation<Crc32c>,
    part: Part,
    tag: u64,
    /// The position of its bytes in the part.
    at: u64,
    len: u32,
}

struct Begun {
    part: Part,
    tag: u64,
    cursor: RouteCursor,
}

/// The reason why a transfer does not continue.
enum Stop {
    /// The fence was raised.
    Fenced,
    Failed(Option<u32>, SendError),
}

impl Filler {
    /// Carries a part, and further ones that are ready.
    fn carry(&mut self, turn: &Turn, inside: &Inside) {
        let stop = self.carry_parts(turn, inside);
        // The GPU may still fill slots of a transfer that has stopped. The next transfer must not get them before that
        // ends.
        for left in self.filling.drain(..) {
            let _ = turn.runtime.block_on(left.sum);
        }
        if let Err(Stop::Failed(stream, error)) = stop {
            if let SendError::Path(_) = error {
                // The ring cannot be used any more. It is closed before the failure is reported, so that this ring can
                // be distinguished from its successor.
                self.producer.doorbell().hang_up();
            }
            turn.outgoing.fail(stream, error);
        }
    }

    fn carry_parts(&mut self, turn: &Turn, inside: &Inside) -> Result<(), Stop> {
        let (mut next, mut carried) = (Some(turn.part.clone()), 0);
        let mut begun = None;
        let mut sum = Crc32c::new();
        loop {
            if inside.is_raised() {
                return Err(Stop::Fenced);
            }
            if begun.is_none()
                && let Some(part) = next.take()
            {
                carried += part.bytes();
                begun = Some(self.begin(turn, part)?);
            }
            if let Some(part) = &mut begun
                && self.fill(part, turn, inside)?
            {
                if part.cursor.remaining() == 0 {
                    begun = None;
                    next = match carried < TURN {
                        true => turn.outgoing.ready_part(),
                        false => None,
                    };
                }
            } else if let Some(filling) = self.filling.pop_front() {
                self.publish(filling, &mut sum, turn, inside)?;
            } else if begun.is_some() {
                let waited = wait_for_slot(&mut self.producer, self.stall, inside);
                waited.map_err(|error| Stop::Failed(None, error.into()))?.ok_or(Stop::Fenced)?;
            } else {
                return Ok(());
            }
        }
    }

    fn begin(&mut self, turn: &Turn, part: Part) -> Result<Begun, Stop> {
        let cursor = turn.outgoing.route().cursor(part.range.clone());
        let cursor = cursor.map_err(|error| Stop::Failed(Some(part.stream), error.into()))?;
        self.tag += 1;
        let tag = self.tag;
        Ok(Begun { part, tag, cursor })
    }

    /// Makes the GPU fill one more slot. Returns whether one was free.
    fn fill(&mut self, begun: &mut Begun, turn: &Turn, inside: &Inside) -> Result<bool, Stop> {
        let Begun { part, tag, cursor } = begun;
        let failed = |error: SendError| Stop::Failed(Some(part.stream), error);
        let ahead = self.filling.len();
        let slot = match self.producer.reserve_ahead(ahead, Some(Instant::now())) {
            Ok(slot) => slot.index(),
            Err(RingError::TimedOut) => return Ok(false),
            Err(error) => return Err(failed(error.into())),
        };
        let at = part.bytes() - cursor.remaining();
        let len = cursor.remaining().min(Slots::OF_A_RING.bytes.into()) as u32;
        let moved = cursor.pass_on_gpu(len as usize, inside);
        let moved = moved.map_err(|error| failed(error.into()))?;
        let (sum, completion) = Operation::new(inside);
        let on_sum = move |sum: Result<_, _>| completion.complete(sum.map_err(RegionError::from));
        self.shuttle.gather(slot, &moved, len, Box::new(on_sum));
        turn.outgoing.count_read(len.into());
        self.filling.push_back(Filling { sum, part: part.clone(), tag: *tag, at, len });
        Ok(true)
    }

    /// Waits for the GPU, and publishes a slot. `sum` is the sum of its stream so far.
    fn publish(&mut self, filling: Filling, sum: &mut Crc32c, turn: &Turn, inside: &Inside) -> Result<(), Stop> {
        let Filling { part, tag, at, len, .. } = filling;
        let failed = |error: SendError| Stop::Failed(Some(part.stream), error);
        let summed = turn.runtime.block_on(filling.sum);
        let summed = summed.map_err(|error| failed(error.into()))?;
        if inside.is_raised() {
            return Err(Stop::Fenced);
        }
        let begins = at == 0;
        if begins {
            *sum = Crc32c::new();
        }
        sum.append(&summed);
        let ends = sum.bytes() == part.bytes();
        let trailer = StreamTrailer { length: part.bytes(), crc: sum.value() };
        let record = Record {
            body: len,
            header: begins.then(|| turn.outgoing.header(&part).encode()),
            trailer: ends.then(|| trailer.encode()),
        };
        let published = self.producer.reserve(None).and_then(|mut slot| {
            let written = record.write(&mut slot);
            slot.publish(tag, at, written)
        });
        published.map_err(|error| failed(error.into()))?;
        if ends {
            let (stream, bytes) = (part.stream, part.bytes());
            turn.outgoing.tell(SendEvent::Written { stream, bytes });
        }
        Ok(())
    }
}
