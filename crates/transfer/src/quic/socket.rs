//! UDP sockets: kernel buffers that are checked, and batches that the kernel takes.

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

/// The kernel buffers of a socket.
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
    /// The buffers that came out short. Throughput suffers, and losses come in bursts.
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
    let times = if cfg!(target_os = "linux") { 2 } else { 1 };
    let counted = |bytes: usize, limit| GrantedBuffer { asked: buffer, granted: bytes / times, limit };
    let buffers = Buffers {
        receive: counted(socket.recv_buffer_size()?, "net.core.rmem_max"),
        send: counted(socket.send_buffer_size()?, "net.core.wmem_max"),
    };
    Ok((socket.into(), buffers))
}

/// A UDP socket that never hands the kernel a batch that it would refuse or take slowly, and that
/// receives into little enough memory for it to stay in cache.
///
/// quinn batches up to ten packets for segmentation by the kernel, whatever their size, and takes a
/// refusal (`EMSGSIZE`) for a lost probe: with packets above 6,550 bytes every transfer would hang.
/// Such batches go out in parts.
#[derive(Debug)]
pub(super) struct BatchingUdpSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    largest_payload: usize,
    /// About how many bytes came in one message of late.
    message_bytes: AtomicUsize,
}

/// The largest batch for segmentation, in bytes. With UDP, IPv6 and Ethernet headers it has to stay
/// below 65,536: at 65,500 the kernel cuts the batch up itself on loopback and nothing is gained
/// (CPU seconds per GB, both ends: 10 packets of 6,550 bytes 0.96 to 1.02, 9 of 6,551 bytes 0.76).
pub(super) const MAX_BATCH: usize = 65_535 - 8 - 40 - 14;

/// How much is received at once, in bytes. quinn copies each message out of this memory right after:
/// 4 messages of 64 KiB cost 0.72 CPU seconds per GB, 32 cost 0.79 to 0.85.
const RECEIVE_AT_ONCE: usize = 256 << 10;

/// Receive at least as many messages at once, however large they are.
const LEAST_MESSAGES: usize = 4;

impl BatchingUdpSocket {
    pub(super) fn new(inner: Arc<dyn AsyncUdpSocket>, largest_payload: u16) -> Self {
        Self { inner, largest_payload: usize::from(largest_payload).max(1), message_bytes: AtomicUsize::new(1) }
    }
}

/// Cuts a batch into parts of equally many packets that the kernel takes.
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
        // Where a later part does not fit into the socket's buffer, quinn sends the whole batch
        // again. QUIC drops the packets that come twice.
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
        // The kernel joins at most 64 packets, and at most 65,535 bytes, into one message. quinn
        // reserves this many times the largest payload for each; 64 would be ten times too much.
        match self.inner.max_receive_segments() {
            1 => 1,
            segments => 65_535_usize.div_ceil(self.largest_payload).clamp(1, segments),
        }
    }
}
