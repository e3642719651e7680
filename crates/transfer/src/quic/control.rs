//! The control connection: [frames](transload_wire::internal::frame) between two agents.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream, WriteError};
use tokio::{
    runtime::Handle,
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout, timeout_at},
};

use super::acceptor::Met;
use super::error::{CloseCode, ConnectionLost, ControlError};
use super::probe::peer_gone;
use crate::identity::PeerIdentity;
use transload_wire::internal::frame::FrameReader;

/// An open connection to an authenticated peer. Dropping both halves closes it.
#[derive(Debug)]
pub struct ControlConnection {
    /// Sends frames.
    pub sender: ControlSender,
    /// Receives frames.
    pub receiver: ControlReceiver,
}

/// The sending half.
#[derive(Debug)]
pub struct ControlSender {
    shared: Arc<Shared>,
    stream: SendStream,
    /// Frames that QUIC has not taken yet.
    pending: VecDeque<Bytes>,
}

/// The receiving half.
#[derive(Debug)]
pub struct ControlReceiver {
    shared: Arc<Shared>,
    stream: RecvStream,
    frames: FrameReader,
    /// The deadline for the rest of the current frame.
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Shared {
    connection: Connection,
    peer: PeerIdentity,
    frame_timeout: Duration,
    /// Whether it was closed because the peer's process is gone.
    gone: Arc<AtomicBool>,
    /// A permit for a connection that a peer has opened, held until this is dropped.
    _known: Option<OwnedSemaphorePermit>,
}

impl Shared {
    fn close(&self, code: CloseCode, reason: &str) {
        self.connection.close(code.wire(), reason.as_bytes());
    }

    fn lost(&self, error: ConnectionError) -> ConnectionLost {
        match error {
            ConnectionError::LocallyClosed if self.gone.load(Ordering::Relaxed) => {
                ConnectionLost::Gone(self.connection.remote_address())
            }
            error => error.into(),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close(CloseCode::DONE, "");
    }
}

impl ControlConnection {
    /// Takes over a connection. A task on `thread` closes it once the peer's process is gone. It probes from the
    /// endpoint's IP address, `local`.
    pub(super) fn new(met: Met, frame_timeout: Duration, local: IpAddr, thread: &Handle) -> Self {
        let (send, receive) = met.stream;
        let gone = Arc::new(AtomicBool::new(false));
        let (connection, found) = (met.connection.clone(), gone.clone());
        thread.spawn(async move {
            tokio::select! {
                _ = connection.closed() => {}
                () = peer_gone(local, &connection) => {
                    found.store(true, Ordering::Relaxed);
                    connection.close(CloseCode::DONE.wire(), b"your port is closed");
                }
            }
        });
        let shared =
            Arc::new(Shared { connection: met.connection, peer: met.peer, frame_timeout, gone, _known: met.known });
        Self {
            sender: ControlSender { shared: shared.clone(), stream: send, pending: VecDeque::new() },
            receiver: ControlReceiver { shared, stream: receive, frames: FrameReader::new(), deadline: None },
        }
    }

    /// Returns the identity of the peer.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        &self.sender.shared.peer
    }

    /// Returns the peer's current address.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.sender.shared.connection.remote_address()
    }

    /// Closes the connection at once; the peer sees `code` and `reason`.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.sender.shared.close(code, reason);
    }

    /// Waits until the connection has ended, and returns how. Cancel-safe.
    pub async fn closed(&self) -> ConnectionLost {
        let shared = &self.sender.shared;
        shared.lost(shared.connection.closed().await)
    }
}

impl ControlSender {
    /// Sends one frame, as made by [`encode`](crate::wire::frame::encode). Waits while the peer does not read, for the
    /// frame timeout at most.
    ///
    /// Cancel-safe: a frame is sent completely or not at all. If sending is cancelled, the frame is sent by the next
    /// [`send`](Self::send) or [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`ControlError`], after which the connection is closed.
    pub async fn send(&mut self, frame: Bytes) -> Result<(), ControlError> {
        self.pending.push_back(frame);
        self.flush().await
    }

    /// Ends the stream, and waits until the peer has everything, for the frame timeout at most. Closing the connection
    /// earlier would drop what is in flight.
    pub async fn finish(mut self) {
        if self.flush().await.is_ok() && self.stream.finish().is_ok() {
            // Neither outcome allows anything further.
            let _ = timeout(self.shared.frame_timeout, self.stream.stopped()).await;
        }
    }

    /// Sends the pending frames. Cancel-safe.
    async fn flush(&mut self) -> Result<(), ControlError> {
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
            Ok(Err(WriteError::ConnectionLost(lost))) => Err(ControlError::Lost(self.shared.lost(lost))),
            Ok(Err(_)) => Err(ControlError::Ended),
            Err(_) => {
                self.shared.close(CloseCode::PROTOCOL, "control messages are not being read");
                Err(ControlError::TimedOut { after })
            }
        }
    }
}

impl ControlReceiver {
    /// Receives the next frame without its length field, for [`decode`](crate::wire::frame::decode). Waits for its
    /// first byte as long as the connection lives, and then for the rest of it for the frame timeout. Cancel-safe.
    ///
    /// # Errors
    /// [`ControlError`], after which the connection is closed.
    pub async fn recv(&mut self) -> Result<Bytes, ControlError> {
        let result = self.next_frame().await;
        if let Err(error) = &result {
            let code = match error {
                ControlError::Ended => CloseCode::DONE,
                _ => CloseCode::PROTOCOL,
            };
            self.shared.close(code, &error.to_string());
        }
        result
    }

    async fn next_frame(&mut self) -> Result<Bytes, ControlError> {
        loop {
            if let Some(body) = self.frames.next() {
                self.deadline = None;
                return Ok(body?);
            }
            let after = self.shared.frame_timeout;
            let between = self.frames.is_between_frames();
            if between {
                self.deadline = None;
            } else if self.deadline.is_none() {
                self.deadline = Some(Instant::now() + after);
            }
            let read = self.stream.read_chunk(self.frames.missing(), true);
            let chunk = match self.deadline {
                None => read.await,
                Some(deadline) => timeout_at(deadline, read).await.map_err(|_| ControlError::TimedOut { after })?,
            };
            match chunk {
                Ok(Some(chunk)) => self.frames.push(&chunk.bytes),
                Ok(None) if between => return Err(ControlError::Ended),
                Ok(None) => return Err(ControlError::Truncated),
                Err(ReadError::ConnectionLost(lost)) => {
                    return Err(ControlError::Lost(self.shared.lost(lost)));
                }
                Err(_) => return Err(ControlError::Ended),
            }
        }
    }
}
