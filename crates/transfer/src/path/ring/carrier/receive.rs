//! Receiving over a staging ring.

use std::{
    future::Future,
    io,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use tokio::runtime::Handle;

use crate::data::{InStream, Inside, Intake, Operations, ReceiveError, Receiver, RegionCursor, RegionError};
use crate::path::ring::carrier::slots::{Consumer, ReadWindow, RingError};
use crate::path::ring::carrier::{Doorbell, Driven, drive};
use transload_memory::copy::Crc32c;
use transload_plan::ids::AgentId;
use transload_wire::internal::stream::HEADER;

/// A ring that is being received from. Dropping this hangs up the ring.
#[derive(Debug)]
#[must_use = "dropping it hangs the ring up"]
pub struct RingIn {
    driven: Driven<RingError>,
}

impl RingIn {
    /// Waits until the ring has ended, and returns the reason. Dropping the future hangs up the ring.
    pub async fn closed(self) -> RingError {
        self.driven.result().await.unwrap_or(RingError::Panicked)
    }

    /// Receives all streams of a ring that `peer` fills, on a separate thread, until the ring ends. Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn serve(receiver: &Receiver, mut consumer: Consumer, peer: AgentId) -> io::Result<Self> {
        let mut intakes = Intakes {
            receiver: receiver.clone(),
            runtime: Handle::current(),
            peer,
            stream: None,
            begun: 0,
            scattering: Vec::new(),
        };
        Self::start(consumer.doorbell(), move || intakes.receive(&mut consumer))
    }

    /// Runs `receive` on a separate thread.
    pub(in crate::path) fn start(
        ring: Doorbell,
        receive: impl FnOnce() -> RingError + Send + 'static,
    ) -> io::Result<Self> {
        let driven = drive(ring, receive)?;
        Ok(Self { driven })
    }
}

/// Takes slots, and assembles streams from them.
struct Intakes {
    receiver: Receiver,
    runtime: Handle,
    peer: AgentId,
    stream: Option<Stream>,
    /// The number of streams that have begun.
    begun: u64,
    /// Slots that are lent to devices, which have not emptied them yet.
    scattering: Vec<Scattering>,
}

/// The current stream of the ring; there is never more than one.
struct Stream {
    /// This end's own number, since tags are chosen by the peer.
    number: u64,
    tag: u64,
    /// The expected position of the next slot in the stream.
    position: u64,
    arriving: InStream,
}

/// A slot whose bytes a device scatters.
struct Scattering {
    stream: u64,
    operations: Operations,
    /// The stream, if all of it has arrived and this is the last slot that it waits for.
    whole: Option<InStream>,
}

/// How long a device is waited for before looking for the next slot.
const LOOK: Duration = Duration::from_millis(1);

/// Wakes the thread of a ring.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Intakes {
    fn receive(&mut self, consumer: &mut Consumer) -> RingError {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = Context::from_waker(&waker);
        let ended = loop {
            self.settle(&mut cx);
            let waits = consumer.has_lent().then(Instant::now);
            match consumer.receive(waits) {
                Ok(slot) => self.take(&slot),
                // A device wakes this thread earlier.
                Err(RingError::TimedOut) => thread::park_timeout(LOOK),
                Err(ended) => break ended,
            }
        };
        self.break_off();
        while self.scattering.iter().any(Scattering::is_awaited) {
            thread::park_timeout(LOOK);
            self.settle(&mut cx);
        }
        ended
    }

    /// Ends the current stream, which does not continue.
    fn break_off(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.arriving.tell();
        }
    }

    fn take(&mut self, slot: &ReadWindow<'_>) {
        let mut at = 0;
        if slot.offset() == 0 {
            // A sender that gives up a stream goes on to the next.
            self.break_off();
            self.stream = self.begin(slot);
            at = HEADER;
        }
        // A slot without a current stream belongs to one that either side has given up.
        let expected = (slot.tag(), slot.offset());
        let Some(mut stream) = self.stream.take_if(|s| (s.tag, s.position) == expected) else {
            return;
        };
        // Checked for each slot, so that the fence never waits for the ring.
        let Some(inside) = stream.arriving.intake.enter() else {
            return;
        };
        let placed = place(&mut stream.arriving.intake, slot, at, &inside);
        let operations = match self.runtime.block_on(inside.unless_raised(placed)) {
            None => return,
            Some(Ok(operations)) => operations,
            Some(Err(error)) => return stream.arriving.fail(error),
        };
        if !operations.are_done() {
            self.scattering.push(Scattering { stream: stream.number, operations, whole: None });
        }
        stream.position += slot.len() as u64;
        match stream.arriving.intake.is_whole() {
            true => self.end(stream.number, stream.arriving),
            false => self.stream = Some(stream),
        }
    }

    /// Ends a stream that has arrived completely, when the last of its slots is empty.
    fn end(&mut self, number: u64, arriving: InStream) {
        let mut slots = self.scattering.iter_mut();
        match slots.rfind(|slot| slot.stream == number) {
            Some(last) => last.whole = Some(arriving),
            None => arriving.tell(),
        }
    }

    /// Handles slots that devices have emptied, and registers `cx` for the next one.
    fn settle(&mut self, cx: &mut Context<'_>) {
        let mut at = 0;
        while let Some(slot) = self.scattering.get_mut(at) {
            let Poll::Ready(done) = Pin::new(&mut slot.operations).poll(cx) else {
                at += 1;
                continue;
            };
            let Scattering { stream, whole, .. } = self.scattering.remove(at);
            match (done, whole) {
                (Ok(()), None) => {}
                (Ok(()), Some(arriving)) => self.end(stream, arriving),
                (Err(error), Some(arriving)) => fail(arriving, error),
                (Err(error), None) => {
                    let mut slots = self.scattering.iter_mut();
                    let own = self.stream.take_if(|own| own.number == stream);
                    let own = own.map(|own| own.arriving);
                    let mut of_slots = || slots.find_map(|slot| slot.whole.take_if(|_| slot.stream == stream));
                    if let Some(arriving) = own.or_else(&mut of_slots) {
                        fail(arriving, error);
                    }
                }
            }
        }
    }

    /// Reads the header, and asks for the stream's landing.
    fn begin(&mut self, slot: &ReadWindow<'_>) -> Option<Stream> {
        let mut header = [0; HEADER];
        slot.get(0, &mut header)?;
        let begun = self.receiver.begin(&self.peer, &header);
        self.begun += 1;
        Some(Stream {
            number: self.begun,
            tag: slot.tag(),
            position: slot.offset(),
            arriving: self.runtime.block_on(begun)?,
        })
    }
}

impl Scattering {
    /// Returns whether its end must still be reported.
    fn is_awaited(&self) -> bool {
        let whole = self.whole.as_ref();
        whole.is_some_and(|arriving| arriving.intake.enter().is_some())
    }
}

/// Places the bytes of a slot from `at` on. In host memory that is done at once.
///
/// The peer can write to the slot at any time. If it does, the sum and the placed bytes may differ, on a device as in
/// host memory. With that it only spoils its own transfers, which it could do by sending other bytes as well.
async fn place(
    intake: &mut Intake,
    slot: &ReadWindow<'_>,
    at: usize,
    inside: &Inside,
) -> Result<Operations, ReceiveError> {
    let scatter = |range: Range<usize>, cursor: &mut RegionCursor, sum: &mut Crc32c| {
        let (at, len) = (at + range.start, range.len());
        let operation = match cursor {
            RegionCursor::Host(cursor) => {
                slot.scatter(at, len, cursor, sum)?;
                None
            }
            RegionCursor::Async(cursor) => {
                // SAFETY: a scatter only reads the bytes.
                let bytes = unsafe { slot.lend(at, len) }?;
                let operation = cursor.scatter_from(bytes, inside);
                // Summed while the device scatters.
                slot.add_to(sum, at, len)?;
                Some(operation)
            }
        };
        Ok(operation)
    };
    let len = slot.len().saturating_sub(at);
    let taken = intake.take_raw(len, inside, scatter, |from, into| {
        // The bytes are in the slot.
        let _ = slot.get(at + from, into);
    });
    let taken = taken.await;
    let submitted = intake.submit(inside);
    taken.map(|()| submitted)
}

/// Fails a stream because of its memory.
fn fail(arriving: InStream, error: RegionError) {
    // After the fence the transfer's id may be reused, and the report could be taken for the next transfer's.
    if let Some(_inside) = arriving.intake.enter() {
        arriving.fail(error.into());
    }
}

impl From<RingError> for ReceiveError {
    fn from(error: RingError) -> Self {
        match error {
            RingError::Memory(error) => error.into(),
            error => Self::Path(error.into()),
        }
    }
}
