//! Sending over QUIC lanes.

use bytes::Bytes;

use super::{
    fence::Inside,
    options::DataOptions,
    outgoing::{Outgoing, SendError, SendEvent},
    part::Part,
    pool::BufferPool,
    route_bytes::RouteCursor,
    stop,
};
use crate::{
    copy::Crc32c,
    transport::quic::{Acknowledgement, Lane, LendTracker},
    wire::stream::StreamTrailer,
};

/// A lane to send over, and its buffers. Clones are the same lane.
#[derive(Clone, Debug)]
pub struct LaneOut {
    lane: Lane,
    pool: BufferPool,
    lend_least: u64,
    lend_most: u64,
    gathered_tail: u64,
}

/// The longest piece that is lent at once, unless shorter ones are not lent at all: summed, it is still
/// in the caches when QUIC copies it. Pieces of 128 KiB and 1 MiB are not faster.
const LEND_MOST: u64 = 256 << 10;

impl LaneOut {
    /// A lane with buffers of its own, as many as the options say.
    #[must_use]
    pub fn new(lane: Lane, options: &DataOptions) -> Self {
        Self {
            lane,
            pool: BufferPool::new(options.buffers, options.buffer_bytes),
            lend_least: options.lend_least,
            lend_most: LEND_MOST.max(options.lend_least),
            gathered_tail: options.gathered_tail,
        }
    }

    /// The lane.
    #[must_use]
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Carries parts of a transfer, on the lane's thread, until none is left. To be called on each
    /// lane that shall take part.
    pub fn carry(&self, outgoing: &Outgoing) {
        let Some(inside) = outgoing.enter() else {
            return;
        };
        let (this, outgoing) = (self.clone(), outgoing.clone());
        self.lane.spawn(async move {
            while let Some(Some(part)) = inside.unless_raised(outgoing.next_part()).await {
                this.carry_part(&outgoing, &part, &inside).await;
            }
        });
    }

    async fn carry_part(&self, outgoing: &Outgoing, part: &Part, inside: &Inside) {
        let loans = LendTracker::new();
        // When it is dropped, or fails, the stream is reset: nothing more is read of what was lent.
        let writing = inside.unless_raised(self.write(outgoing, part, &loans));
        let stream = part.stream;
        match writing.await {
            None => loans.back().await,
            Some(Err(error)) => {
                loans.back().await;
                outgoing.fail(Some(stream), error);
            }
            Some(Ok(delivery)) => {
                let (bytes, lent) = (part.bytes(), delivery.is_some());
                outgoing.tell(SendEvent::Written {
                    stream,
                    bytes,
                    lent,
                });
                if let Some(delivery) = delivery {
                    self.watch(outgoing, stream, delivery, loans, inside).await;
                }
            }
        }
    }

    /// Writes a whole stream. Tells when it was delivered, if memory is lent until then.
    async fn write(
        &self,
        outgoing: &Outgoing,
        part: &Part,
        loans: &LendTracker,
    ) -> Result<Option<Acknowledgement>, SendError> {
        let mut stream = self.lane.open_stream().await?;
        stream.send_all(&outgoing.header(part).encode()).await?;
        let mut cursor = outgoing.route().cursor(part.range.start)?;
        let mut sum = Crc32c::new();
        let mut lent = false;
        let end = part.range.end;
        while cursor.position() < end {
            let piece = match self.lend(&mut cursor, end, loans) {
                Some(piece) => {
                    lent = true;
                    sum.update(&piece);
                    piece
                }
                None => self.gather(&mut cursor, end, &mut sum).await?,
            };
            outgoing.count_read(piece.len() as u64);
            stream.send_chunk(piece).await?;
        }
        let trailer = StreamTrailer {
            length: part.bytes(),
            crc: sum.value(),
        };
        stream.send_all(&trailer.encode()).await?;
        let delivery = stream.finish()?;
        Ok(lent.then_some(delivery))
    }

    fn lend(&self, cursor: &mut RouteCursor, end: u64, loans: &LendTracker) -> Option<Bytes> {
        let tail = end.saturating_sub(self.gathered_tail);
        let left = tail.checked_sub(cursor.position())?;
        let loan = cursor.lend(self.lend_least.max(1), left.min(self.lend_most))?;
        Some(loans.lend(loan))
    }

    async fn gather(
        &self,
        cursor: &mut RouteCursor,
        end: u64,
        sum: &mut Crc32c,
    ) -> Result<Bytes, SendError> {
        let mut buffer = self.pool.take().await;
        let left = end - cursor.position();
        let len = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        cursor.gather(&mut buffer[..len], sum)?;
        Ok(buffer.into_bytes(len))
    }

    /// Waits, beside the next part, until the network has let go of a stream's memory.
    async fn watch(
        &self,
        outgoing: &Outgoing,
        stream: u32,
        mut delivery: Acknowledgement,
        loans: LendTracker,
        inside: &Inside,
    ) {
        let Some(inside) = inside.another() else {
            delivery.reset(stop::GIVEN_UP);
            return loans.back().await;
        };
        let outgoing = outgoing.clone();
        self.lane.spawn(async move {
            match inside.unless_raised(delivery.wait()).await {
                None => {
                    delivery.reset(stop::GIVEN_UP);
                    loans.back().await;
                }
                Some(Err(error)) => {
                    loans.back().await;
                    outgoing.fail(Some(stream), error.into());
                }
                Some(Ok(())) => {
                    loans.back().await;
                    outgoing.tell(SendEvent::Returned { stream });
                }
            }
            drop(inside);
        });
    }
}
