//! The properties of the network path to a peer that are known before the first packet, and the transport settings that
//! follow from them.

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

/// Bytes of IP and UDP headers: the difference between an interface's MTU and its UDP payload.
const HEADERS_V4: u32 = 20 + 8;
const HEADERS_V6: u32 = 40 + 8;

/// An interface that carries this payload counts as loopback, since nothing else has an MTU of 64 KiB.
const LOOPBACK_LIKE: u16 = 60_000;

/// The initial payload on networks. Ethernet carries it with IPv6 headers, too.
pub(super) const ETHERNET_UDP_PAYLOAD: u16 = 1452;

/// On loopback, packets are no larger than this fraction of the kernel's receive buffer. If only a handful of packets
/// fit, QUIC waits for acknowledgements that wait for more packets (with buffers of 208 KiB, in GB/s: packets of 6.4 K
/// 0.67, of 16 K 0.85, of 32 K 0.23, of 64 K 0.15).
const LOOPBACK_PACKETS_IN_BUFFER: usize = 12;

/// The settings for one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Path {
    /// The initial UDP payload in bytes.
    pub(super) initial: u16,
    /// The largest UDP payload that discovery tries.
    pub(super) largest: u16,
    /// The bytes that may be in flight on one stream towards us.
    pub(super) receive_window: u32,
}

impl Path {
    /// Chooses the settings for the route to `peer`, for a socket with a receive buffer of `buffer` bytes.
    pub(super) fn towards(peer: SocketAddr, options: &QuicOptions, buffer: usize) -> Self {
        Self::choose(carried_by_route(peer), options, buffer)
    }

    /// Chooses the settings. `carried` is the UDP payload that the interface towards the peer carries, if the kernel
    /// says.
    pub(super) fn choose(carried: Option<u32>, options: &QuicOptions, buffer: usize) -> Self {
        let wanted = options.udp_payload.map(|bytes| bytes.clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD));
        let carried = carried.map(|bytes| u16::try_from(bytes).unwrap_or(u16::MAX));
        match carried {
            // On loopback there are no hops, so every packet that the interface carries arrives, if the buffer has
            // room.
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
            // A hop may carry less than our interface does, so large packets are probed for. If the kernel gives no
            // answer, start with a payload that always works for QUIC.
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

/// The least window that allows useful progress.
const LEAST_WINDOW: u32 = 64 << 10;

/// Returns the UDP payload that the interface towards `peer` carries. Sends no packet.
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

/// Makes the transport settings of control connections, for few and quick messages.
pub(super) fn control_transport(path: Path, options: &QuicOptions) -> Arc<TransportConfig> {
    let path = Path {
        initial: path.initial.min(ETHERNET_UDP_PAYLOAD),
        largest: path.largest.min(ETHERNET_UDP_PAYLOAD),
        ..path
    };
    let mut config = common_config(path, options);
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

/// The longest keep-alive interval of control connections, which bounds the silence of a live peer. A keep-alive is one
/// small packet and its answer.
pub(super) const CONTROL_KEEP_ALIVE: Duration = Duration::from_millis(500);

/// The window for four messages of the largest size in each direction.
const CONTROL_WINDOW: u32 = 256 << 10;

/// Makes the transport settings of lanes: for one stream at full speed, once [`admit_lane`] allows streams.
///
/// Until then a peer may only present its token, so that a connection which will be closed cannot make us store a
/// window of bytes.
pub(super) fn lane_transport(path: Path, options: &QuicOptions) -> Arc<TransportConfig> {
    let mut config = common_config(path, options);
    let mut congestion = CubicConfig::default();
    congestion.initial_window(LANE_INITIAL_WINDOW);
    config
        // The token comes on the only bidirectional stream.
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(path.receive_window))
        .receive_window(VarInt::from_u32(STRANGER_WINDOW))
        .send_window(u64::from(options.send_window))
        // If two packets do not fit into one batch, it is better to make them one by one: the first is still in the
        // cache when it is sent.
        .enable_segmentation_offload(usize::from(path.initial) <= MAX_BATCH / 2)
        .congestion_controller_factory(Arc::new(congestion));
    Arc::new(config)
}

/// The bytes that a lane may send before it is admitted.
const STRANGER_WINDOW: u32 = 4 << 10;

/// Allows streams on a lane whose peer has presented a valid token.
pub(super) fn admit_lane(connection: &Connection, path: Path, options: &QuicOptions) {
    // One stream that is not read must not immediately block the others.
    let all_streams = path.receive_window.saturating_mul(2);
    connection.set_receive_window(VarInt::from_u32(all_streams));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(options.max_streams));
}

/// The bytes sent before the first acknowledgement: as many as a switch port buffers without loss.
const LANE_INITIAL_WINDOW: u64 = 256 << 10;

/// The round trip time that is assumed before one was measured: that of distant hosts in one region. A first packet
/// that is lost, or dropped by a peer without free places, is sent again after three times as long.
pub(super) const INITIAL_RTT: Duration = Duration::from_millis(100);

fn common_config(path: Path, options: &QuicOptions) -> TransportConfig {
    let mut config = TransportConfig::default();
    let discovery = (path.largest > path.initial).then(|| {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(path.largest);
        discovery
    });
    // The check of the options limits it to a day, so it fits.
    let idle = u32::try_from(options.idle_timeout.as_millis()).unwrap_or(u32::MAX);
    config
        .initial_rtt(INITIAL_RTT)
        .initial_mtu(path.initial)
        .mtu_discovery_config(discovery)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .keep_alive_interval(Some(options.keep_alive))
        .datagram_receive_buffer_size(None)
        // Streams are sent in the order in which they were written. That makes full packets, and completes the first
        // transfer first.
        .send_fairness(false);
    config
}
