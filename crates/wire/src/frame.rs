//! Frames: how control messages lie in a byte stream.
//!
//! A frame is a `u32` length (little endian, of what follows), a version byte, and the
//! [`Envelope`] in postcard. It is at most [`MAX_FRAME`] bytes long, its length included, and holds
//! nothing behind the envelope. Whatever is wrong with a frame ends the connection: a stream that
//! has lost its frames cannot find them again.

use bytes::{Buf, Bytes, BytesMut};

use crate::message::Envelope;

/// Longest frame in bytes, its length included.
pub const MAX_FRAME: usize = 64 * 1024;

/// The version byte.
const VERSION: u8 = 1;

const LENGTH: usize = size_of::<u32>();

/// Why bytes are not frames, or a message does not fit one.
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

/// The frame of a message.
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

/// Reads what follows a frame's length.
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

/// Finds frames in a byte stream. Holds at most one frame and what came with its end; nothing is
/// reserved for bytes that were only announced.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: BytesMut,
}

impl FrameReader {
    /// A reader at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes as they come. Ask for [`next`](Self::next) until there is none, before more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// What follows the length of the next frame, if all of it is there: see [`decode`]. After an
    /// error there are no more.
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

    /// How many bytes are missing before more can be told: of the length, and then of the frame.
    pub fn missing(&self) -> usize {
        let whole = match self.body() {
            Ok(Some(body)) => LENGTH + body,
            _ => LENGTH,
        };
        whole.saturating_sub(self.bytes.len())
    }

    /// Whether the stream could end here: no frame has begun.
    pub fn is_between_frames(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How long the next frame is, without its length, once that is there.
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
