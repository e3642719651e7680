//! Receiving over a ring in device memory.
//!
//! The GPU empties slots, all that have arrived at a time, and they are released in order. A stream ends when the last
//! of its slots is empty and its sum matches the sender's.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use tokio::runtime::Handle;

use super::record::Record;
use crate::data::{InStream, Operation, ReceiveError, Receiver, RegionError, Stretch};
use crate::path::ring::carrier::RingIn;
use crate::path::ring::carrier::slots::{Consumer, ReadWindow, RingError};
use transload_cuda::internal::shuttle::Shuttle;
use transload_memory::copy::Crc32c;
use transload_plan::ids::AgentId;
use transload_wire::internal::stream::{HEADER, TRAILER};

/// Receives all streams of a ring that `peer` fills, until the ring is gone. Must be called inside a tokio runtime.
pub(super) fn serve(
    receiver: Receiver,
    mut consumer: Consumer,
    shuttle: Shuttle,
    slot_bytes: u32,
    peer: AgentId,
) -> io::Result<RingIn> {
    let mut emptier = Emptier {
        receiver,
        runtime: Handle::current(),
        shuttle,
        slot_bytes,
        peer,
        begun: 0,
        streams: VecDeque::new(),
        emptying: VecDeque::new(),
    };
    RingIn::start(consumer.doorbell(), move || emptier.receive(&mut consumer))
}

/// The state of the ring's thread.
struct Emptier {
    receiver: Receiver,
    runtime: Handle,
    shuttle: Shuttle,
    slot_bytes: u32,
    peer: AgentId,
    /// The number of streams that have begun.
    begun: u64,
    /// Streams that have not ended, in order. All but the last wait for slots that are being emptied.
    streams: VecDeque<Stream>,
    /// Slots that are being emptied, in order.
    emptying: VecDeque<Emptying>,
}

struct Stream {
    /// This end's own number, since tags are chosen by the peer.
    number: u64,
    tag: u64,
    /// The expected position of the next slot in the stream.
    position: u64,
    /// Whether no more of it will arrive.
    over: bool,
    arriving: InStream,
}

/// A slot that the GPU empties.
struct Emptying {
    stream: u64,
    summed: Operation<Crc32c>,
    trailer: Option<[u8; TRAILER]>,
    /// The slot's record, which keeps the slot from being released.
    _kept: Stretch,
}

impl Emptier {
    fn receive(&mut self, consumer: &mut Consumer) -> RingError {
        let ended = loop {
            let at_once = (!self.emptying.is_empty()).then(Instant::now);
            let taken = match consumer.receive(at_once) {
                Ok(slot) => Some(self.take(&slot)),
                Err(RingError::TimedOut) => None,
                Err(error) => Some(Err(error)),
            };
            match taken {
                Some(Ok(emptying)) => self.emptying.extend(emptying),
                Some(Err(error)) => break error,
                None => self.finish(),
            }
        };
        while !self.emptying.is_empty() {
            self.finish();
        }
        for stream in self.streams.drain(..) {
            stream.arriving.tell();
        }
        ended
    }

    /// Makes the GPU empty a slot, unless its stream is not wanted.
    fn take(&mut self, slot: &ReadWindow<'_>) -> Result<Option<Emptying>, RingError> {
        let record = Record::read(slot, self.slot_bytes)?;
        if let Some(header) = &record.header {
            self.begin(slot.tag(), header);
        }
        let expected = (slot.tag(), slot.offset());
        // A slot without a current stream belongs to one that either side has given up.
        let mut stream = match self.streams.pop_back() {
            Some(stream) if !stream.over && (stream.tag, stream.position) == expected => stream,
            other => {
                self.streams.extend(other);
                return Ok(None);
            }
        };
        // Checked for each slot, so that the fence never waits for the ring.
        let intake = &mut stream.arriving.intake;
        let Some(inside) = intake.enter() else {
            return Ok(None);
        };
        let moved = match intake.take_on_gpu(record.body as usize, &inside) {
            Ok(moved) => moved,
            Err(error) => {
                stream.arriving.fail(error);
                return Ok(None);
            }
        };
        // SAFETY: the lent bytes are neither written nor read.
        let lent = unsafe { slot.lend(0, slot.len()) }?;
        let (sum, completion) = Operation::new(&inside);
        let on_sum = move |sum: Result<_, _>| completion.complete(sum.map_err(RegionError::from));
        self.shuttle.scatter(slot.index(), &moved, record.body, Box::new(on_sum));
        let number = stream.number;
        stream.position += u64::from(record.body);
        stream.over = record.trailer.is_some();
        self.streams.push_back(stream);
        Ok(Some(Emptying { stream: number, summed: sum, trailer: record.trailer, _kept: lent }))
    }

    /// Reads a header and asks for the stream's landing. A sender that cancels a stream continues with the next.
    fn begin(&mut self, tag: u64, header: &[u8; HEADER]) {
        if let Some(last) = self.streams.back_mut() {
            last.over = true;
            let number = last.number;
            self.end_if_over(number);
        }
        let begun = self.receiver.begin(&self.peer, header);
        if let Some(arriving) = self.runtime.block_on(begun) {
            self.begun += 1;
            self.streams.push_back(Stream { number: self.begun, tag, position: 0, over: false, arriving });
        }
    }

    /// Waits until the GPU has emptied the first slot.
    fn finish(&mut self) {
        let Some(Emptying { stream: number, summed: sum, trailer, _kept }) = self.emptying.pop_front() else {
            return;
        };
        // Awaited even if the fence is raised by now, since the slot is in use until then.
        let sum = self.runtime.block_on(sum);
        let Some(at) = self.streams.iter().position(|s| s.number == number) else {
            return;
        };
        let intake = &mut self.streams[at].arriving.intake;
        let Some(_inside) = intake.enter() else {
            self.streams.remove(at);
            return;
        };
        let added = sum.map_err(ReceiveError::from).and_then(|sum| intake.add(&sum, trailer.as_ref()));
        match added {
            Ok(()) => self.end_if_over(number),
            Err(error) => {
                if let Some(stream) = self.streams.remove(at) {
                    stream.arriving.fail(error);
                }
            }
        }
    }

    /// Ends a stream of which no more will arrive and all slots are empty.
    fn end_if_over(&mut self, number: u64) {
        let is_emptied = |emptying: &VecDeque<Emptying>| emptying.iter().all(|slot| slot.stream != number);
        let at = self.streams.iter().position(|s| s.number == number && s.over);
        if let Some(at) = at
            && is_emptied(&self.emptying)
            && let Some(stream) = self.streams.remove(at)
        {
            stream.arriving.tell();
        }
    }
}
