//! Receiving over a staging ring.

use std::io;

use tokio::runtime::Handle;

use crate::{
    data::{InStream, Inside, Intake, ReceiveError, Receiver},
    ids::AgentId,
    path::ring::carrier::{
        Driven, drive,
        staging::{Consumer, ReadWindow, RingError},
    },
    wire::stream::HEADER,
};

/// A ring that is being received from. Dropping it hangs the ring up.
#[derive(Debug)]
#[must_use = "dropping it hangs the ring up"]
pub struct RingIn {
    driven: Driven<RingError>,
}

impl RingIn {
    /// Waits until the ring is gone, and says how. Dropping the future hangs the ring up.
    pub async fn closed(self) -> RingError {
        self.driven.result().await.unwrap_or(RingError::Panicked)
    }

    /// Receives all streams of a ring that `peer` fills, until the ring is gone, on a thread of its own.
    /// To be called inside a tokio runtime.
    ///
    /// # Errors
    /// Where no thread is to be had.
    pub fn serve(receiver: &Receiver, mut consumer: Consumer, peer: AgentId) -> io::Result<Self> {
        let mut intakes = Intakes {
            receiver: receiver.clone(),
            runtime: Handle::current(),
            peer,
            stream: None,
        };
        let driven = drive(consumer.doorbell(), move || intakes.receive(&mut consumer))?;
        Ok(Self { driven })
    }
}

/// Takes slots, and puts what is in them together.
struct Intakes {
    receiver: Receiver,
    runtime: Handle,
    peer: AgentId,
    stream: Option<Stream>,
}

/// The stream that the ring is in the middle of: never more than one.
struct Stream {
    tag: u64,
    /// Where in it the next slot has to be.
    position: u64,
    arriving: InStream,
}

impl Intakes {
    fn receive(&mut self, consumer: &mut Consumer) -> RingError {
        loop {
            match consumer.receive(None) {
                Ok(slot) => self.take(&slot),
                Err(ended) => {
                    self.break_off();
                    return ended;
                }
            }
        }
    }

    /// The stream that the ring is in the middle of does not go on.
    fn break_off(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.arriving.end();
        }
    }

    fn take(&mut self, slot: &ReadWindow<'_>) {
        let mut at = 0;
        if slot.offset() == 0 {
            // If the sender has given one up, it goes on to the next.
            self.break_off();
            self.stream = self.begin(slot);
            at = HEADER;
        }
        // What belongs to no stream was given up by one of the two sides.
        let expected = (slot.tag(), slot.offset());
        let Some(mut stream) = self.stream.take_if(|s| (s.tag, s.position) == expected) else {
            return;
        };
        // Looked at for each slot, so that the fence never waits for the ring.
        let Some(inside) = stream.arriving.intake.enter() else {
            return;
        };
        match self.place(&mut stream.arriving.intake, slot, at, &inside) {
            Some(Ok(())) => {}
            Some(Err(error)) => return stream.arriving.fail(error),
            None => return,
        }
        stream.position += slot.len() as u64;
        match stream.arriving.intake.is_whole() {
            true => stream.arriving.end(),
            false => self.stream = Some(stream),
        }
    }

    /// Places what a slot holds from `at` on; `None` if the fence came up.
    fn place(
        &self,
        intake: &mut Intake,
        slot: &ReadWindow<'_>,
        at: usize,
        inside: &Inside,
    ) -> Option<Result<(), ReceiveError>> {
        let taken = intake.take_raw(
            slot.len().saturating_sub(at),
            inside,
            |range, cursor, sum| Ok(slot.scatter(at + range.start, range.len(), cursor, sum)?),
            |from, into| {
                // They lie in the slot.
                let _ = slot.get(at + from, into);
            },
        );
        let submitted = intake.submit(inside);
        if taken.is_err() || submitted.are_done() {
            return Some(taken);
        }
        let done = inside.unless_raised(submitted.done());
        Some(self.runtime.block_on(done)?.map_err(Into::into))
    }

    /// Reads the header and asks where the bytes go.
    fn begin(&self, slot: &ReadWindow<'_>) -> Option<Stream> {
        let mut header = [0; HEADER];
        slot.get(0, &mut header)?;
        let begun = self.receiver.begin(&self.peer, &header);
        Some(Stream {
            tag: slot.tag(),
            position: slot.offset(),
            arriving: self.runtime.block_on(begun)?,
        })
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
