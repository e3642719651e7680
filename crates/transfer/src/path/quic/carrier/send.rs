//! Sending over QUIC lanes.

use bytes::Bytes;

use crate::data::{BufferPool, DataOptions, Encoder, Inside, Outgoing, Part, RouteCursor, SendError, SendEvent};
use crate::path::sending::Sender;
use crate::quic::{CloseCode, Lane};
use transload_memory::copy::Crc32c;
use transload_wire::internal::stream::StreamTrailer;

/// A lane for sending, with its buffers. Clones refer to the same lane.
#[derive(Clone, Debug)]
pub struct LaneOut {
    lane: Lane,
    pool: BufferPool,
}

impl LaneOut {
    /// Makes a sender for a lane, with as many buffers as the options say.
    #[must_use]
    pub fn new(lane: Lane, options: &DataOptions) -> Self {
        Self { lane, pool: BufferPool::new(options.buffers, options.buffer_bytes) }
    }

    /// Returns the lane.
    #[must_use]
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Carries parts of a transfer, on the lane's thread, until none is left. Must be called on each lane that is to
    /// take part.
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
        let stream = part.stream;
        // A stream that is dropped or fails is reset.
        match inside.unless_raised(self.write(outgoing, part, inside)).await {
            None => {}
            Some(Err(error)) => outgoing.fail(Some(stream), error),
            Some(Ok(())) => {
                let bytes = part.bytes();
                outgoing.tell(SendEvent::Written { stream, bytes });
            }
        }
    }

    /// Writes a whole stream.
    async fn write(&self, outgoing: &Outgoing, part: &Part, inside: &Inside) -> Result<(), SendError> {
        let mut stream = self.lane.open_stream().await?;
        stream.send_all(&outgoing.header(part).encode()).await?;
        let (route, range) = (outgoing.route(), part.range.clone());
        let mut sum = Crc32c::new();
        if route.codec().is_exact() {
            let mut cursor = route.cursor(range)?;
            while cursor.remaining() > 0 {
                let piece = self.gather(&mut cursor, &mut sum, inside).await?;
                outgoing.count_read(piece.len() as u64);
                stream.send_chunk(piece).await?;
            }
        } else {
            let mut encoder = Encoder::new(route, range)?;
            while let Some((coded, read)) = encoder.next(inside).await? {
                sum.update(&coded);
                outgoing.count_read(read);
                stream.send_chunk(coded.into()).await?;
            }
        }
        let trailer = StreamTrailer { length: part.bytes(), crc: sum.value() };
        stream.send_all(&trailer.encode()).await?;
        // Our own buffers hold what was read, so nothing needs to wait for the acknowledgement.
        drop(stream.finish()?);
        Ok(())
    }

    async fn gather(&self, cursor: &mut RouteCursor, sum: &mut Crc32c, inside: &Inside) -> Result<Bytes, SendError> {
        // Awaited before taking a buffer: a stalled device must not hold up others that wait for buffers.
        let len = cursor.ready(self.pool.buffer_bytes(), inside).await?;
        let mut buffer = self.pool.take().await;
        cursor.gather(&mut buffer[..len], sum, inside).await?;
        Ok(buffer.into_bytes(len))
    }
}

impl Sender for LaneOut {
    fn carry(&self, outgoing: &Outgoing) {
        self.carry(outgoing);
    }

    fn hang_up(&self) {
        self.lane.close(CloseCode::DONE);
    }
}
