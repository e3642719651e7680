//! UDP sockets with checked kernel buffers, and batches that the kernel accepts.

use std::{
    fmt, io,
    net::{SocketAddr, UdpSocket},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use socket2::{Domain, Protocol, Socket, Type};

#[derive(Debug, Clone, Copy)]
pub(super) struct Buffers {
    pub(super) receive: GrantedBuffer,
    pub(super) send: GrantedBuffer,
}

/// One kernel buffer: the bytes asked for, those granted, and the system setting that limits them.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrantedBuffer {
    asked: usize,
    pub(super) granted: usize,
    limit: &'static str,
}

impl Buffers {
    /// Returns the buffers that are smaller than requested. They reduce throughput, and lose packets in bursts.
    pub(super) fn short(&self) -> impl Iterator<Item = GrantedBuffer> {
        let both = [self.receive, self.send].into_iter();
        both.filter(|buffer| buffer.granted < buffer.asked)
    }
}

impl fmt::Display for GrantedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, granted, limit } = self;
        write!(
            f,
            "the kernel granted {granted} of {asked} bytes of socket buffer; \
             `sysctl -w {limit}={asked}` allows more"
        )
    }
}

/// Binds a UDP socket with kernel buffers of `buffer` bytes, or as many as are granted.
pub(super) fn bind(addr: SocketAddr, buffer: usize) -> io::Result<(UdpSocket, Buffers)> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        // Fails only if IPv4 is off altogether, when it is not needed.
        let _ = socket.set_only_v6(false);
    }
    // Set before binding, so that no packet meets the small default buffer.
    let _ = socket.set_recv_buffer_size(buffer);
    let _ = socket.set_send_buffer_size(buffer);
    socket.bind(&addr.into())?;
    // Linux doubles the requested size for its bookkeeping, and reports the doubled value.
    let times = if cfg!(target_os = "linux") { 2 } else { 1 };
    let counted = |bytes: usize, limit| GrantedBuffer { asked: buffer, granted: bytes / times, limit };
    let buffers = Buffers {
        receive: counted(socket.recv_buffer_size()?, "net.core.rmem_max"),
        send: counted(socket.send_buffer_size()?, "net.core.wmem_max"),
    };
    Ok((socket.into(), buffers))
}

/// A UDP socket that never passes the kernel a batch that it would refuse or handle slowly, and that receives into a
/// memory small enough to stay in the cache.
///
/// quinn makes batches of up to ten packets of any size for segmentation by the kernel, and takes a refusal
/// (`EMSGSIZE`) for a lost probe: with packets above 6,550 bytes every transfer would hang. Such batches are sent in
/// parts.
#[derive(Debug)]
pub(super) struct BatchingUdpSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    largest_payload: usize,
    /// A moving average of the bytes in a received message.
    message_bytes: AtomicUsize,
}

/// The largest batch for segmentation in bytes. With UDP, IPv6 and Ethernet headers it must stay below 65,536. At
/// 65,500 the kernel splits the batch itself on loopback, which gains nothing (CPU seconds per GB, both ends: 10
/// packets of 6,550 bytes 0.96 to 1.02, 9 of 6,551 bytes 0.76).
pub(super) const MAX_BATCH: usize = 65_535 - 8 - 40 - 14;

/// The bytes that are received at once. quinn copies each message out of this memory right away: 4 messages of 64 KiB
/// cost 0.72 CPU seconds per GB, 32 cost 0.79 to 0.85.
const RECEIVE_AT_ONCE: usize = 256 << 10;

/// The least number of messages that are received at once, however large they are.
const LEAST_MESSAGES: usize = 4;

impl BatchingUdpSocket {
    pub(super) fn new(inner: Arc<dyn AsyncUdpSocket>, largest_payload: u16) -> Self {
        Self { inner, largest_payload: usize::from(largest_payload).max(1), message_bytes: AtomicUsize::new(1) }
    }
}

/// Splits a batch into parts that the kernel accepts, with equally many packets.
pub(super) fn parts<'a>(transmit: &'a Transmit<'a>) -> impl Iterator<Item = Transmit<'a>> {
    let len = transmit.contents.len();
    let part = match transmit.segment_size {
        Some(segment) if len > MAX_BATCH => {
            let fitting = (MAX_BATCH / segment.max(1)).max(1);
            let packets = len.div_ceil(segment.max(1));
            packets.div_ceil(packets.div_ceil(fitting)) * segment
        }
        _ => len,
    };
    transmit.contents.chunks(part.max(1)).map(move |contents| Transmit { contents, ..transmit.clone() })
}

impl AsyncUdpSocket for BatchingUdpSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // If a later part does not fit into the socket's buffer, quinn sends the whole batch again. QUIC drops the
        // duplicate packets.
        parts(transmit).try_for_each(|part| self.inner.try_send(&part))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [io::IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let typical = self.message_bytes.load(Ordering::Relaxed).max(1);
        let slots = (RECEIVE_AT_ONCE / typical).max(LEAST_MESSAGES).min(buffers.len());
        let count = ready!(self.inner.poll_recv(cx, &mut buffers[..slots], meta))?;
        let bytes: usize = meta.iter().take(count).map(|message| message.len).sum();
        if let Some(mean) = bytes.checked_div(count) {
            self.message_bytes.store((3 * typical + mean) / 4, Ordering::Relaxed);
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        // The kernel merges at most 64 packets, and at most 65,535 bytes, into one message. quinn reserves this many
        // times the largest payload for each message; 64 would be ten times too much.
        match self.inner.max_receive_segments() {
            1 => 1,
            segments => 65_535_usize.div_ceil(self.largest_payload).clamp(1, segments),
        }
    }
}
