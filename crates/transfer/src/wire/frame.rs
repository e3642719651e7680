//! Frames: how control messages lie in a byte stream.
//!
//! A frame is a `u32` length (little endian, of what follows), a version byte, and the
//! [`Envelope`] in postcard. It is at most [`MAX_FRAME`] bytes long, its length included, and holds
//! nothing behind the envelope. Whatever is wrong with a frame ends the connection: a stream that
//! has lost its frames cannot find them again.

use super::message::Envelope;

/// Longest frame in bytes, its length included.
pub const MAX_FRAME: usize = 64 * 1024;

/// The version byte.
const VERSION: u8 = 1;

const LENGTH: usize = size_of::<u32>();

/// Why bytes are not frames, or a message does not fit one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is longer than [`MAX_FRAME`].
    #[error("a frame of {bytes} bytes, at most {MAX_FRAME} are allowed")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// The frame is too short to hold anything.
    #[error("an empty frame")]
    Empty,
    /// The version is not known.
    #[error("frames of version {found}, this is version {VERSION}")]
    Version {
        /// Which it is.
        found: u8,
    },
    /// The message cannot be read.
    #[error("the message cannot be read")]
    Message,
    /// Something follows the message.
    #[error("{bytes} bytes follow the message")]
    Trailing {
        /// How many bytes.
        bytes: usize,
    },
}

/// The frame of a message.
pub fn encode(envelope: &Envelope) -> Result<Vec<u8>, FrameError> {
    let frame = vec![0, 0, 0, 0, VERSION];
    let mut frame = postcard::to_extend(envelope, frame).map_err(|_| FrameError::Message)?;
    if frame.len() > MAX_FRAME {
        return Err(FrameError::TooLong { bytes: frame.len() });
    }
    let length = (frame.len() - LENGTH) as u32;
    frame[..LENGTH].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Reads what follows a frame's length.
pub fn decode(body: &[u8]) -> Result<Envelope, FrameError> {
    let (&version, message) = body.split_first().ok_or(FrameError::Empty)?;
    self::message(version, message)
}

/// Version byte and message, for a transport that frames by itself.
pub fn payload(envelope: &Envelope) -> Result<(u8, Vec<u8>), FrameError> {
    let payload = postcard::to_allocvec(envelope).map_err(|_| FrameError::Message)?;
    let bytes = payload.len() + LENGTH + 1;
    if bytes > MAX_FRAME {
        return Err(FrameError::TooLong { bytes });
    }
    Ok((VERSION, payload))
}

/// Reads what [`payload`] has made.
pub fn message(version: u8, message: &[u8]) -> Result<Envelope, FrameError> {
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

/// Finds frames in a byte stream. Holds at most one frame and what came with its end.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    at: usize,
}

impl FrameReader {
    /// A reader at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes as they come. Ask for [`next`](Self::next) until there is none, before more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if a whole frame is there. After an error there are no more.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator could not be fed in between"
    )]
    pub fn next(&mut self) -> Option<Result<Envelope, FrameError>> {
        let (length, rest) = self.bytes.get(self.at..)?.split_first_chunk::<LENGTH>()?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_FRAME - LENGTH {
            let bytes = length.saturating_add(LENGTH);
            return Some(Err(FrameError::TooLong { bytes }));
        }
        let body = rest.get(..length)?;
        let read = decode(body);
        if read.is_ok() {
            self.at += LENGTH + length;
        }
        Some(read)
    }

    /// Whether the stream could end here: no frame has begun.
    pub fn is_between_frames(&self) -> bool {
        self.at == self.bytes.len()
    }
}

#[cfg(test)]
mod tests;
