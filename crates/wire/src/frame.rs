//! Frames: the encoding of control messages in a byte stream.
//!
//! A frame is a `u32` length (little endian, of everything after it), a version byte, and the [`Envelope`] in postcard.
//! It has at most [`MAX_FRAME`] bytes, including its length, and ends with the envelope. Any fault of a frame ends the
//! connection, since the reader cannot find the next frame any more.

use bytes::{Buf, Bytes, BytesMut};

use crate::message::Envelope;

/// The longest frame in bytes, including its length field.
pub const MAX_FRAME: usize = 64 * 1024;

const VERSION: u8 = 1;

const LENGTH: usize = size_of::<u32>();

/// The reason why bytes are not a frame, or a message does not fit into one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what each is")]
pub enum FrameError {
    #[error("a frame of {bytes} bytes, at most {MAX_FRAME} are allowed")]
    TooLong { bytes: usize },
    #[error("an empty frame")]
    Empty,
    #[error("frames of version {found}, this is version {VERSION}")]
    Version { found: u8 },
    #[error("the message cannot be read")]
    Message,
    #[error("{bytes} bytes follow the message")]
    Trailing { bytes: usize },
}

/// Encodes a message as a frame.
pub fn encode(envelope: &Envelope) -> Result<Bytes, FrameError> {
    let frame = vec![0, 0, 0, 0, VERSION];
    let mut frame = postcard::to_extend(envelope, frame).map_err(|_| FrameError::Message)?;
    if frame.len() > MAX_FRAME {
        return Err(FrameError::TooLong { bytes: frame.len() });
    }
    let length = (frame.len() - LENGTH) as u32;
    frame[..LENGTH].copy_from_slice(&length.to_le_bytes());
    Ok(frame.into())
}

/// Decodes a frame without its length field.
pub fn decode(body: &[u8]) -> Result<Envelope, FrameError> {
    let (&version, message) = body.split_first().ok_or(FrameError::Empty)?;
    if version != VERSION {
        return Err(FrameError::Version { found: version });
    }
    let read = postcard::take_from_bytes(message);
    let (envelope, rest) = read.map_err(|_| FrameError::Message)?;
    match rest.len() {
        0 => Ok(envelope),
        bytes => Err(FrameError::Trailing { bytes }),
    }
}

/// Splits a byte stream into frames. It buffers at most one frame and the bytes that came with its end, and reserves
/// nothing for bytes that were only announced.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: BytesMut,
}

impl FrameReader {
    /// Makes a reader for the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes of the stream. Call [`next`](Self::next) until it returns `None` before appending more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next frame without its length field, for [`decode`], if all of it has arrived. After an error the
    /// reader must not be used further.
    #[allow(clippy::should_implement_trait, reason = "an iterator could not be fed in between")]
    pub fn next(&mut self) -> Option<Result<Bytes, FrameError>> {
        let body = match self.body() {
            Ok(body) => body?,
            Err(error) => return Some(Err(error)),
        };
        if self.bytes.len() < LENGTH + body {
            return None;
        }
        self.bytes.advance(LENGTH);
        Some(Ok(self.bytes.split_to(body).freeze()))
    }

    /// Returns the number of bytes that the next frame lacks, or that its length field lacks as long as that is
    /// incomplete.
    pub fn missing(&self) -> usize {
        let whole = match self.body() {
            Ok(Some(body)) => LENGTH + body,
            _ => LENGTH,
        };
        whole.saturating_sub(self.bytes.len())
    }

    /// Returns whether the stream may end here, because no frame has begun.
    pub fn is_between_frames(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the length of the next frame without its length field, once that field has arrived.
    fn body(&self) -> Result<Option<usize>, FrameError> {
        let Some(length) = self.bytes.first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        match u32::from_le_bytes(*length) as usize {
            0 => Err(FrameError::Empty),
            body if body > MAX_FRAME - LENGTH => Err(FrameError::TooLong { bytes: body.saturating_add(LENGTH) }),
            body => Ok(Some(body)),
        }
    }
}

#[cfg(test)]
mod tests;
