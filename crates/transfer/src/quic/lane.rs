//! Connections for data.

use std::{future::Future, sync::Arc, time::Duration};

use quinn::Connection;
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit, task::JoinHandle};

use super::{
    acceptor::Met,
    error::{CloseCode, ConnectionLost, StreamError},
    options::QuicOptions,
    stream::{DataReceiver, DataSender},
};
use transload_plan::ids::AgentId;

/// A data connection to a peer, which belongs to a control connection with the same peer. Clones refer to the same
/// lane. It is closed when the last clone and the last of its streams are dropped.
#[derive(Debug, Clone)]
pub struct Lane {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    connection: Connection,
    peer: AgentId,
    thread: Handle,
    stall_timeout: Duration,
    /// A permit for a connection that a peer has opened, held until this is dropped.
    _known: Option<OwnedSemaphorePermit>,
}

/// Statistics of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneStats {
    /// The current UDP payload in bytes.
    pub udp_payload: u16,
    /// The number of packets sent.
    pub sent_packets: u64,
    /// The number of system calls that sent them.
    pub send_calls: u64,
}

impl Lane {
    /// Makes a lane, whose peer has presented a token and was [admitted](super::path::admit_lane).
    pub(super) fn new(met: Met, peer: AgentId, thread: Handle, options: &QuicOptions) -> Self {
        Self {
            inner: Arc::new(Inner {
                connection: met.connection,
                peer,
                thread,
                stall_timeout: options.stall_timeout,
                _known: met.known,
            }),
        }
    }

    /// Returns the agent at the other end, which is the one of the lane's session.
    #[must_use]
    pub fn peer(&self) -> &AgentId {
        &self.inner.peer
    }

    /// Opens a stream. Waits while the peer has as many open as it allows. The peer learns of the stream with its first
    /// bytes.
    ///
    /// # Errors
    /// [`StreamError::Stalled`] or [`StreamError::Lost`].
    pub async fn open_stream(&self) -> Result<DataSender, StreamError> {
        let after = self.inner.stall_timeout;
        let stream = tokio::time::timeout(after, self.inner.connection.open_uni())
            .await
            .map_err(|_| StreamError::Stalled { after })?
            .map_err(ConnectionLost::from)?;
        Ok(DataSender::new(stream, self.inner.thread.clone(), after))
    }

    /// Returns the next stream that the peer opens. Cancel-safe.
    pub async fn accept_stream(&self) -> Result<DataReceiver, ConnectionLost> {
        let stream = self.inner.connection.accept_uni().await?;
        Ok(DataReceiver::new(stream, self.inner.stall_timeout))
    }

    /// Runs `task` on the thread that drives this lane's socket. Loops that fill or empty its streams belong there,
    /// since their data is in that core's cache. The task must not block.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.inner.thread.spawn(task)
    }

    /// Closes the lane at once, with all its streams.
    pub fn close(&self, code: CloseCode) {
        self.inner.connection.close(code.wire(), b"");
    }

    /// Waits until the lane has ended, and returns how. Cancel-safe.
    pub async fn closed(&self) -> ConnectionLost {
        self.inner.connection.closed().await.into()
    }

    /// Returns statistics since the lane was opened.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        let stats = self.inner.connection.stats();
        LaneStats {
            udp_payload: stats.path.current_mtu,
            sent_packets: stats.path.sent_packets,
            send_calls: stats.udp_tx.ios,
        }
    }
}
