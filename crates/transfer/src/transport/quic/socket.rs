//! UDP sockets: kernel buffers that are checked, and batches that the kernel takes.

use std::{
    fmt, io,
    net::{SocketAddr, UdpSocket},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit, UdpSocketState},
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;

use super::options::MAX_UDP_BATCH;

/// What the kernel granted of the buffers that were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// For receiving.
    pub receive: GrantedBuffer,
    /// For sending.
    pub send: GrantedBuffer,
}

/// One kernel buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantedBuffer {
    /// Bytes asked for.
    pub asked: usize,
    /// Bytes granted.
    pub granted: usize,
    /// The system setting that limits it.
    pub limit: &'static str,
}

impl GrantedBuffer {
    /// Whether less was granted than asked for. Throughput suffers, and losses come in bursts.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.granted < self.asked
    }
}

impl Buffers {
    /// The lesser of each.
    pub(super) fn least(self, other: Self) -> Self {
        let least = |a: GrantedBuffer, b: GrantedBuffer| if b.granted < a.granted { b } else { a };
        Self {
            receive: least(self.receive, other.receive),
            send: least(self.send, other.send),
        }
    }

    /// The buffers that came out short.
    pub fn short(&self) -> impl Iterator<Item = GrantedBuffer> {
        [self.receive, self.send]
            .into_iter()
            .filter(GrantedBuffer::is_short)
    }
}

impl fmt::Display for GrantedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            asked,
            granted,
            limit,
        } = self;
        write!(
            f,
            "the kernel granted {granted} of {asked} bytes of socket buffer; \
             `sysctl -w {limit}={asked}` allows more"
        )
    }
}

/// Binds a UDP socket with kernel buffers of `buffer` bytes, or what is granted of them.
pub(super) fn bind(addr: SocketAddr, buffer: usize) -> io::Result<(UdpSocket, Buffers)> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        // Where IPv4 is off altogether this fails, and nothing is missing.
        let _ = socket.set_only_v6(false);
    }
    // Before binding, so that no packet meets the small default buffer.
    let _ = socket.set_recv_buffer_size(buffer);
    let _ = socket.set_send_buffer_size(buffer);
    socket.bind(&addr.into())?;
    // Linux doubles what is asked for, for its own bookkeeping, and reports the double.
    let counted = |bytes: usize| {
        if cfg!(target_os = "linux") {
            bytes / 2
        } else {
            bytes
        }
    };
    let buffers = Buffers {
        receive: GrantedBuffer {
            asked: buffer,
            granted: counted(socket.recv_buffer_size()?),
            limit: "net.core.rmem_max",
        },
        send: GrantedBuffer {
            asked: buffer,
            granted: counted(socket.send_buffer_size()?),
            limit: "net.core.wmem_max",
        },
    };
    Ok((socket.into(), buffers))
}

/// A UDP socket that tells QUIC how many packets of the endpoint's largest size fit into one call.
///
/// quinn batches up to ten packets for segmentation by the kernel, whatever their size. Above 65,507
/// bytes together the kernel refuses the batch, and the refusal reads like a lost probe: every
/// transfer with packets above 6,550 bytes would hang.
#[derive(Debug)]
pub(super) struct LimitedUdpSocket {
    io: tokio::net::UdpSocket,
    state: UdpSocketState,
    largest_payload: usize,
}

impl LimitedUdpSocket {
    pub(super) fn new(socket: UdpSocket, largest_payload: u16) -> io::Result<Self> {
        Ok(Self {
            state: UdpSocketState::new((&socket).into())?,
            io: tokio::net::UdpSocket::from_std(socket)?,
            largest_payload: usize::from(largest_payload).max(1),
        })
    }
}

impl AsyncUdpSocket for LimitedUdpSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable {
            socket: self,
            waiting: None,
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.io.try_io(Interest::WRITABLE, || {
            self.state.send((&self.io).into(), transmit)
        })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [io::IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let received = self.io.try_io(Interest::READABLE, || {
                self.state.recv((&self.io).into(), buffers, meta)
            });
            if let Ok(count) = received {
                return Poll::Ready(Ok(count));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        (MAX_UDP_BATCH / self.largest_payload).clamp(1, self.state.max_gso_segments())
    }

    fn max_receive_segments(&self) -> usize {
        // The kernel joins at most 64 packets, and at most 65,535 bytes, into one. quinn reserves
        // this many times the largest payload for each; saying 64 would make it ten times too much.
        match self.state.gro_segments() {
            1 => 1,
            segments => 65_535_usize
                .div_ceil(self.largest_payload)
                .clamp(1, segments),
        }
    }
}

type WaitFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Waits for the socket to take packets again.
struct Writable {
    socket: Arc<LimitedUdpSocket>,
    waiting: Option<WaitFuture>,
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let socket = &this.socket;
        let waiting = this.waiting.get_or_insert_with(|| {
            let socket = socket.clone();
            Box::pin(async move { socket.io.writable().await })
        });
        let result = ready!(waiting.as_mut().poll(cx));
        this.waiting = None;
        Poll::Ready(result)
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable").finish_non_exhaustive()
    }
}
