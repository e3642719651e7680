//! Streams as plain bytes, for paths without buffers of their own to gather into or scatter from.
//!
//! The sender fills buffers until a stream ends; the receiver takes what arrives, cut anywhere. Lanes and rings do the
//! same with fewer copies.

use std::mem::{replace, take};

use super::error::{BoxError, ReceiveError, SendError};
use super::fence::Inside;
use super::intake::Intake;
use super::operation::{Operations, RegionError};
use super::outgoing::{Outgoing, SendEvent};
use super::part::Part;
use super::receive::Receiver;
use super::route_bytes::RouteCursor;
use transload_memory::copy::Crc32c;
use transload_plan::ids::AgentId;
use transload_wire::internal::stream::{HEADER, StreamHeader, StreamTrailer};

/// One outgoing stream of a transfer. If it is dropped before its end, the transfer never completes, so call
/// [`fail`](Self::fail) instead.
#[derive(Debug)]
pub struct OutStream {
    outgoing: Outgoing,
    inside: Inside,
    part: Part,
    header: Option<[u8; HEADER]>,
    cursor: RouteCursor,
    sum: Crc32c,
    ended: bool,
}

impl Outgoing {
    /// Waits for the next stream that may be read. Returns `None` when all were taken, or the transfer is stopped.
    pub async fn next_stream(&self) -> Option<OutStream> {
        let inside = self.enter()?;
        let part = inside.unless_raised(self.next_part()).await??;
        let cursor = self.route().cursor(part.range.clone());
        let cursor = cursor.map_err(|error| self.fail(Some(part.stream), error.into()));
        Some(OutStream {
            outgoing: self.clone(),
            inside,
            header: Some(self.header(&part).encode()),
            part,
            cursor: cursor.ok()?,
            sum: Crc32c::new(),
            ended: false,
        })
    }
}

impl OutStream {
    /// Fills a buffer of at least [`HEADER`] bytes with the next bytes of the stream: its header, its body, its
    /// trailer. Returns the buffer and the number of bytes, which is 0 at the end. Returns `None` if the transfer is
    /// stopped or has failed. Cancel-safe, except that the buffer is lost.
    pub async fn fill(&mut self, mut buffer: Box<[u8]>) -> Option<(Box<[u8]>, usize)> {
        if self.inside.is_raised() {
            return None;
        }
        if let Some(header) = self.header.take() {
            buffer[..HEADER].copy_from_slice(&header);
            return Some((buffer, HEADER));
        }
        if self.cursor.remaining() > 0 {
            let (inside, sum, cursor) = (&self.inside, &mut self.sum, &mut self.cursor);
            let gathered = async {
                let len = cursor.ready(buffer.len(), inside).await?;
                cursor.gather(&mut buffer[..len], sum, inside).await?;
                Ok::<_, RegionError>(len)
            };
            return match inside.unless_raised(gathered).await? {
                Ok(len) => {
                    self.outgoing.count_read(len as u64);
                    Some((buffer, len))
                }
                Err(error) => {
                    self.outgoing.fail(Some(self.part.stream), error.into());
                    None
                }
            };
        }
        if std::mem::replace(&mut self.ended, true) {
            return Some((buffer, 0));
        }
        let trailer = StreamTrailer { length: self.part.bytes(), crc: self.sum.value() };
        let trailer = trailer.encode();
        buffer[..trailer.len()].copy_from_slice(&trailer);
        Some((buffer, trailer.len()))
    }

    /// Reports that the stream is sent completely.
    pub fn written(self) {
        let (stream, bytes) = (self.part.stream, self.part.bytes());
        self.outgoing.tell(SendEvent::Written { stream, bytes });
    }

    /// Fails the transfer because its path has failed.
    pub fn fail(self, why: impl Into<BoxError>) {
        let error = SendError::Path(why.into());
        self.outgoing.fail(Some(self.part.stream), error);
    }
}

/// One incoming stream.
#[derive(Debug)]
pub struct InStream {
    receiver: Receiver,
    header: StreamHeader,
    pub(crate) intake: Intake,
    /// The operations that place the last bytes taken.
    under_way: Operations,
}

impl Receiver {
    /// Asks for the landing of a stream that `peer` has begun. Returns `None` if it is rejected.
    pub async fn begin(&self, peer: &AgentId, header: &[u8; HEADER]) -> Option<InStream> {
        let header = StreamHeader::decode(header)
            .inspect_err(|error| tracing::debug!(%peer, %error, "skipped a stream without a header"))
            .ok()?;
        let landing = self.arrivals().admit(peer, &header).await?;
        match Intake::new(&landing, &header) {
            Ok(intake) => Some(InStream { receiver: self.clone(), header, intake, under_way: Operations::default() }),
            Err(error) => {
                self.arrivals().failed(&header, error);
                None
            }
        }
    }
}

impl InStream {
    /// Takes bytes that follow the header, and waits until the earlier ones are in place. Returns `None` if no more are
    /// wanted, because the transfer is fenced or has failed.
    pub async fn take(mut self, bytes: &[u8]) -> Option<Self> {
        let inside = self.intake.enter()?;
        let placed = async {
            let taken = self.intake.take(bytes, &inside).await;
            // Done even after an error, since stores of the host may still be in flight.
            let submitted = self.intake.submit(&inside);
            taken?;
            Ok(replace(&mut self.under_way, submitted).await?)
        };
        match inside.unless_raised(placed).await? {
            Ok(()) => Some(self),
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// Ends the stream, complete or not, once all bytes taken are in place. If this future is dropped earlier, the end
    /// is not reported, and the transfer stalls.
    pub async fn end(mut self) {
        let Some(inside) = self.intake.enter() else {
            return;
        };
        match inside.unless_raised(take(&mut self.under_way)).await {
            None => {}
            Some(Ok(())) => self.tell(),
            Some(Err(error)) => self.fail(error.into()),
        }
    }

    /// Reports the end of the stream, of which nothing is in progress any more.
    pub(crate) fn tell(self) {
        // After the fence the transfer's id may be reused, and the report could be taken for the next transfer's.
        let Some(_inside) = self.intake.enter() else {
            return;
        };
        let arrivals = self.receiver.arrivals();
        match self.intake.end() {
            Ok((trailer, crc)) => arrivals.arrived(&self.header, &trailer, crc),
            Err(error) => arrivals.failed(&self.header, error),
        }
    }

    /// Reports that the stream has failed. Must be called while its fence grants access.
    pub(crate) fn fail(self, error: ReceiveError) {
        self.receiver.arrivals().failed(&self.header, error);
    }
}
