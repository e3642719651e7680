//! The control connection: messages between two agents.
//!
//! A message is a `u32` length (big-endian, of what follows), a version byte, and its payload.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quinn::{Connection, ReadError, RecvStream, SendStream, WriteError};
use tokio::time::{Instant, timeout, timeout_at};

use super::error::{CloseCode, ConnectionLost, FrameError};
use crate::identity::PeerIdentity;

const LENGTH_BYTES: usize = 4;

/// One control message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The version of the protocol that the payload is written in.
    pub version: u8,
    /// The message.
    pub payload: Bytes,
}

/// An open connection to a peer that has proved who it is. Dropping it (both halves, if it was
/// split) closes it.
#[derive(Debug)]
pub struct ControlConnection {
    sender: ControlSender,
    receiver: ControlReceiver,
}

/// The sending half.
#[derive(Debug)]
pub struct ControlSender {
    shared: Arc<Shared>,
    stream: SendStream,
    /// Messages that were handed in and not yet taken by QUIC.
    pending: VecDeque<Bytes>,
}

/// The receiving half.
#[derive(Debug)]
pub struct ControlReceiver {
    shared: Arc<Shared>,
    stream: RecvStream,
    /// What has come of the next message.
    partial: BytesMut,
    /// By when the rest of it must have come.
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Shared {
    connection: Connection,
    peer: PeerIdentity,
    max_frame: usize,
    frame_timeout: Duration,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.connection.close(CloseCode::DONE.wire(), b"");
    }
}

macro_rules! about_the_connection {
    ($shared:ident) => {
        /// Who is at the other end.
        #[must_use]
        pub fn peer(&self) -> &PeerIdentity {
            &self.$shared().peer
        }

        /// Where the other end is at present.
        #[must_use]
        pub fn remote_address(&self) -> SocketAddr {
            self.$shared().connection.remote_address()
        }

        /// The present round-trip time.
        #[must_use]
        pub fn round_trip(&self) -> Duration {
            self.$shared().connection.rtt()
        }

        /// Closes the connection at once; the peer sees `code` and `reason`.
        pub fn close(&self, code: CloseCode, reason: &str) {
            self.$shared()
                .connection
                .close(code.wire(), reason.as_bytes());
        }
    };
}

impl ControlConnection {
    pub(super) fn new(
        connection: Connection,
        peer: PeerIdentity,
        (send, receive): (SendStream, RecvStream),
        max_frame: usize,
        frame_timeout: Duration,
    ) -> Self {
        let shared = Arc::new(Shared {
            connection,
            peer,
            max_frame,
            frame_timeout,
        });
        Self {
            sender: ControlSender {
                shared: shared.clone(),
                stream: send,
                pending: VecDeque::new(),
            },
            receiver: ControlReceiver {
                shared,
                stream: receive,
                partial: BytesMut::new(),
                deadline: None,
            },
        }
    }

    fn shared(&self) -> &Shared {
        &self.sender.shared
    }

    about_the_connection!(shared);

    /// Sends one message: see [`ControlSender::send`].
    ///
    /// # Errors
    /// [`FrameError`].
    pub async fn send(&mut self, version: u8, payload: &[u8]) -> Result<(), FrameError> {
        self.sender.send(version, payload).await
    }

    /// Receives the next message: see [`ControlReceiver::recv`].
    ///
    /// # Errors
    /// [`FrameError`].
    pub async fn recv(&mut self) -> Result<Frame, FrameError> {
        self.receiver.recv().await
    }

    /// Waits until the connection is gone, and says how. Cancel-safe.
    pub async fn closed(&self) -> ConnectionLost {
        self.shared().connection.closed().await.into()
    }

    /// The two halves, for two tasks.
    #[must_use]
    pub fn split(self) -> (ControlSender, ControlReceiver) {
        (self.sender, self.receiver)
    }
}

impl ControlSender {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    about_the_connection!(shared);

    /// Sends one message. Waits where the peer does not read, for the frame timeout at most.
    ///
    /// Cancel-safe: a message is sent whole or not at all. One whose sending was cancelled goes out
    /// with the next [`send`](Self::send) or [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] changes nothing; after any other the connection is closed.
    pub async fn send(&mut self, version: u8, payload: &[u8]) -> Result<(), FrameError> {
        let length = payload.len().saturating_add(1);
        let limit = self.shared.max_frame;
        let announced = match u32::try_from(length) {
            Ok(announced) if length <= limit => announced,
            _ => {
                return Err(FrameError::TooLarge {
                    limit,
                    actual: length,
                });
            }
        };
        let mut message = BytesMut::with_capacity(LENGTH_BYTES + length);
        message.put_u32(announced);
        message.put_u8(version);
        message.put_slice(payload);
        self.pending.push_back(message.freeze());
        self.flush().await
    }

    /// Says that nothing more will come, and waits until the peer has everything, for the frame timeout at
    /// most: closing a connection throws away what is still on its way.
    pub async fn finish(mut self) {
        if self.flush().await.is_ok() && self.stream.finish().is_ok() {
            // Either way nothing more can be done.
            let _ = timeout(self.shared.frame_timeout, self.stream.stopped()).await;
        }
    }

    /// Sends what a cancelled [`send`](Self::send) has left. Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn flush(&mut self) -> Result<(), FrameError> {
        let after = self.shared.frame_timeout;
        let stream = &mut self.stream;
        let pending = &mut self.pending;
        let write = async {
            while !pending.is_empty() {
                let written = stream.write_chunks(pending.make_contiguous()).await?;
                pending.drain(..written.chunks);
            }
            Ok(())
        };
        match timeout(after, write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(WriteError::ConnectionLost(lost))) => Err(FrameError::Lost(lost.into())),
            Ok(Err(_)) => Err(FrameError::Ended),
            Err(_) => {
                self.close(CloseCode::PROTOCOL, "control messages are not being read");
                Err(FrameError::TimedOut { after })
            }
        }
    }
}

impl ControlReceiver {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    about_the_connection!(shared);

    /// Receives the next message. Waits for its first byte for as long as the connection lives, and
    /// then for the rest of it for the frame timeout. Cancel-safe.
    ///
    /// # Errors
    /// [`FrameError`]; after any of them the connection is closed.
    pub async fn recv(&mut self) -> Result<Frame, FrameError> {
        let result = self.next_frame().await;
        if let Err(error) = &result {
            let code = match error {
                FrameError::Ended => CloseCode::DONE,
                _ => CloseCode::PROTOCOL,
            };
            self.close(code, &error.to_string());
        }
        result
    }

    async fn next_frame(&mut self) -> Result<Frame, FrameError> {
        loop {
            let wanted = match self.whole_frame()? {
                Ok(frame) => {
                    self.deadline = None;
                    return Ok(frame);
                }
                Err(wanted) => wanted,
            };
            let after = self.shared.frame_timeout;
            if self.partial.is_empty() {
                self.deadline = None;
            } else if self.deadline.is_none() {
                self.deadline = Some(Instant::now() + after);
            }
            let read = self.stream.read_chunk(wanted, true);
            let chunk = match self.deadline {
                None => read.await,
                Some(deadline) => timeout_at(deadline, read)
                    .await
                    .map_err(|_| FrameError::TimedOut { after })?,
            };
            match chunk {
                Ok(Some(chunk)) => self.partial.put(chunk.bytes),
                Ok(None) if self.partial.is_empty() => return Err(FrameError::Ended),
                Ok(None) => return Err(FrameError::Truncated),
                Err(ReadError::ConnectionLost(lost)) => return Err(FrameError::Lost(lost.into())),
                Err(_) => return Err(FrameError::Ended),
            }
        }
    }

    /// Takes a frame that has come whole, or says how many bytes it still wants. Nothing is reserved
    /// for bytes that were only announced.
    fn whole_frame(&mut self) -> Result<Result<Frame, usize>, FrameError> {
        let Some(header) = self.partial.first_chunk::<LENGTH_BYTES>() else {
            return Ok(Err(LENGTH_BYTES - self.partial.len()));
        };
        let limit = self.shared.max_frame;
        let length = usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX);
        match length {
            0 => return Err(FrameError::Empty),
            actual if actual > limit => return Err(FrameError::TooLarge { limit, actual }),
            _ => {}
        }
        let have = self.partial.len() - LENGTH_BYTES;
        if have < length {
            return Ok(Err(length - have));
        }
        self.partial.advance(LENGTH_BYTES);
        let mut payload = self.partial.split_to(length).freeze();
        let version = payload.get_u8();
        Ok(Ok(Frame { version, payload }))
    }
}
