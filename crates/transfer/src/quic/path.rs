//! What is known about the path to a peer before the first packet, and the transport settings that
//! follow from it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use quinn::{Connection, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt, congestion::CubicConfig};

use super::{
    options::{MAX_UDP_PAYLOAD, MIN_UDP_PAYLOAD, QuicOptions},
    socket::MAX_BATCH,
};

/// IP and UDP headers: what an interface's MTU exceeds a UDP payload by.
const HEADERS_V4: u32 = 20 + 8;
const HEADERS_V6: u32 = 40 + 8;

/// The payload that an interface must carry to count as loopback: nothing else has an MTU of 64 KiB.
const LOOPBACK_LIKE: u16 = 60_000;

/// Where packets start on networks. Ethernet carries it with IPv6 headers too.
pub(super) const ETHERNET_UDP_PAYLOAD: u16 = 1452;

/// On loopback, packets are no larger than this part of the kernel's receive buffer: with a handful
/// under way at most, QUIC waits for acknowledgements that wait for more packets (buffers of 208 KiB,
/// GB/s: packets of 6.4 K 0.67, of 16 K 0.85, of 32 K 0.23, of 64 K 0.15).
const LOOPBACK_PACKETS_IN_BUFFER: usize = 12;

/// How to use one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Path {
    /// The UDP payload from the first packet on, in bytes.
    pub(super) initial: u16,
    /// The UDP payload where discovery stops.
    pub(super) largest: u16,
    /// Bytes that may be under way on one stream towards us.
    pub(super) receive_window: u32,
}

impl Path {
    /// Towards `peer`, as the kernel would route it, for a socket with a receive buffer of
    /// `buffer` bytes.
    pub(super) fn towards(peer: SocketAddr, options: &QuicOptions, buffer: usize) -> Self {
        Self::choose(carried_by_route(peer), options, buffer)
    }

    /// `carried` is the UDP payload that the interface towards the peer carries, if the kernel says.
    pub(super) fn choose(carried: Option<u32>, options: &QuicOptions, buffer: usize) -> Self {
        let wanted = options.udp_payload.map(|bytes| bytes.clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD));
        let carried = carried.map(|bytes| u16::try_from(bytes).unwrap_or(u16::MAX));
        match carried {
            // Nothing lies between: what the interface carries arrives, if the buffer takes it.
            Some(carried) if carried >= LOOPBACK_LIKE => {
                let suiting = u16::try_from(buffer / LOOPBACK_PACKETS_IN_BUFFER)
                    .unwrap_or(u16::MAX)
                    .clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD);
                let size = wanted.unwrap_or(suiting).min(carried);
                let buffer = u32::try_from(buffer).unwrap_or(u32::MAX);
                Self {
                    initial: size,
                    largest: size,
                    receive_window: options.receive_window.min(buffer).max(LEAST_WINDOW),
                }
            }
            // Some hop may carry less than our interface does, so big packets are probed for. Without
            // an answer of the kernel's, start where QUIC always works.
            carried => {
                let limit = wanted.unwrap_or(QuicOptions::NETWORK_UDP_PAYLOAD);
                let largest = limit.min(carried.unwrap_or(limit)).max(MIN_UDP_PAYLOAD);
                let start = carried.map_or(MIN_UDP_PAYLOAD, |_| ETHERNET_UDP_PAYLOAD);
                Self { initial: start.min(largest), largest, receive_window: options.receive_window }
            }
        }
    }
}

/// Makes the transport settings for a path.
pub(super) type TransportTowards = fn(Path, &QuicOptions) -> Arc<TransportConfig>;

/// Windows below this make no progress worth having.
const LEAST_WINDOW: u32 = 64 << 10;

/// The UDP payload that the interface towards `peer` carries. No packet is sent to find out.
fn carried_by_route(peer: SocketAddr) -> Option<u32> {
    let (peer, any) = match peer.ip().to_canonical() {
        IpAddr::V4(v4) => ((v4, peer.port()).into(), IpAddr::from(Ipv4Addr::UNSPECIFIED)),
        IpAddr::V6(_) => (peer, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    route_mtu(&socket, peer)
}

#[cfg(target_os = "linux")]
fn route_mtu(socket: &UdpSocket, peer: SocketAddr) -> Option<u32> {
    use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
    match peer {
        SocketAddr::V4(_) => ip_mtu(socket).ok()?.checked_sub(HEADERS_V4),
        SocketAddr::V6(_) => ipv6_mtu(socket).ok()?.checked_sub(HEADERS_V6),
    }
}

#[cfg(not(target_os = "linux"))]
fn route_mtu(_: &UdpSocket, peer: SocketAddr) -> Option<u32> {
    let headers = if peer.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
    peer.ip().is_loopback().then_some(65_535 - headers)
}

/// Transport settings of control connections: small and quick.
pub(super) fn control_transport(path: Path, options: &QuicOptions) -> Arc<TransportConfig> {
    let path = Path {
        initial: path.initial.min(ETHERNET_UDP_PAYLOAD),
        largest: path.largest.min(ETHERNET_UDP_PAYLOAD),
        ..path
    };
    let mut config = common(path, options);
    let window = VarInt::from_u32(CONTROL_WINDOW);
    config
        .keep_alive_interval(Some(options.keep_alive.min(CONTROL_KEEP_ALIVE)))
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(window)
        .receive_window(window)
        .send_window(u64::from(CONTROL_WINDOW));
    Arc::new(config)
}

/// How often at least something is said on a control connection, so that a peer that is there is heard of as often: one small
/// packet and its answer.
pub(super) const CONTROL_KEEP_ALIVE: Duration = Duration::from_millis(500);

/// Four messages of the largest size in each direction.
const CONTROL_WINDOW: u32 = 256 << 10;

/// Transport settings of lanes: made for one stream at full speed, once [`admit_lane`] lets them.
///
/// Until then a peer may not do more than present its token, so that a connection that will be closed
/// does not make us keep a window's worth of bytes.
pub(super) fn lane_transport(path: Path, options: &QuicOptions) -> Arc<TransportConfig> {
    let mut config = common(path, options);
    let mut congestion = CubicConfig::default();
    congestion.initial_window(LANE_INITIAL_WINDOW);
    config
        // The token goes over the one bidirectional stream.
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(path.receive_window))
        .receive_window(VarInt::from_u32(STRANGER_WINDOW))
        .send_window(u64::from(options.send_window))
        // Two packets that do not fit into one batch are better made one after the other: the first
        // is still in cache when it is sent.
        .enable_segmentation_offload(usize::from(path.initial) <= MAX_BATCH / 2)
        .congestion_controller_factory(Arc::new(congestion));
    Arc::new(config)
}

/// Bytes that a lane may send before it is admitted.
const STRANGER_WINDOW: u32 = 4 << 10;

/// Opens up a lane whose peer has shown that it belongs here.
pub(super) fn admit_lane(connection: &Connection, path: Path, options: &QuicOptions) {
    // A stream that is not read must not hold up the others at once.
    let all_streams = path.receive_window.saturating_mul(2);
    connection.set_receive_window(VarInt::from_u32(all_streams));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(options.max_streams));
}

/// Bytes sent before the first acknowledgement: what a switch port buffers without loss.
const LANE_INITIAL_WINDOW: u64 = 256 << 10;

/// The round trip that is assumed before one was measured: that of hosts far apart in one region. A first packet that
/// is lost, or dropped by a peer whose places are taken, is sent again after three times as long.
pub(super) const INITIAL_RTT: Duration = Duration::from_millis(100);

fn common(path: Path, options: &QuicOptions) -> TransportConfig {
    let mut config = TransportConfig::default();
    let discovery = (path.largest > path.initial).then(|| {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(path.largest);
        discovery
    });
    // Checked to be at most a day, so it fits.
    let idle = u32::try_from(options.idle_timeout.as_millis()).unwrap_or(u32::MAX);
    config
        .initial_rtt(INITIAL_RTT)
        .initial_mtu(path.initial)
        .mtu_discovery_config(discovery)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .keep_alive_interval(Some(options.keep_alive))
        .datagram_receive_buffer_size(None)
        // Streams go out in the order in which they were written: whole packets, and the first
        // transfer done first.
        .send_fairness(false);
    config
}
