//! What is known about the path to a peer before the first packet, and the transport settings that
//! follow from it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
};

use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt, congestion::CubicConfig};

use super::options::{MAX_UDP_PAYLOAD, MIN_UDP_PAYLOAD, QuicOptions};

/// IP and UDP headers: what an interface's MTU exceeds a UDP payload by.
const HEADERS_V4: u32 = 20 + 8;
const HEADERS_V6: u32 = 40 + 8;

/// The payload that an interface must carry to count as loopback: nothing else has an MTU of 64 KiB.
const LOOPBACK_LIKE: u32 = 60_000;

/// Where packets start on networks. Ethernet carries it with IPv6 headers too.
const ETHERNET_UDP_PAYLOAD: u16 = 1452;

/// UDP payloads of one path, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Payload {
    /// Sent from the first packet on.
    pub(super) initial: u16,
    /// Where discovery stops.
    pub(super) largest: u16,
}

impl Payload {
    /// Towards `peer`, as the kernel would route it.
    pub(super) fn towards(peer: SocketAddr, options: &QuicOptions) -> Self {
        Self::choose(carried_by_route(peer), options)
    }

    /// `carried` is what the interface towards the peer carries, if the kernel says so.
    pub(super) fn choose(carried: Option<u32>, options: &QuicOptions) -> Self {
        let wanted = options
            .udp_payload
            .map(|bytes| bytes.clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD));
        match carried {
            // Nothing lies between: what the interface carries arrives.
            Some(carried) if carried >= LOOPBACK_LIKE => {
                let size = wanted.unwrap_or(QuicOptions::LOOPBACK_UDP_PAYLOAD);
                Self {
                    initial: size,
                    largest: size,
                }
            }
            // Some hop may carry less than our interface does, so big packets are probed for. Without
            // an answer of the kernel's, start where QUIC always works.
            carried => {
                let limit = wanted.unwrap_or(QuicOptions::NETWORK_UDP_PAYLOAD);
                let largest = carried
                    .map_or(limit, |carried| {
                        limit.min(u16::try_from(carried).unwrap_or(u16::MAX))
                    })
                    .max(MIN_UDP_PAYLOAD);
                let start = carried.map_or(MIN_UDP_PAYLOAD, |_| ETHERNET_UDP_PAYLOAD);
                Self {
                    initial: start.min(largest),
                    largest,
                }
            }
        }
    }
}

/// The UDP payload that the interface towards `peer` carries. No packet is sent to find out.
fn carried_by_route(peer: SocketAddr) -> Option<u32> {
    let peer = match peer {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => peer,
        },
        SocketAddr::V4(_) => peer,
    };
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
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
    let headers = if peer.is_ipv4() {
        HEADERS_V4
    } else {
        HEADERS_V6
    };
    peer.ip().is_loopback().then_some(65_535 - headers)
}

/// Transport settings of control connections: small and quick.
pub(super) fn control_transport(payload: Payload, options: &QuicOptions) -> Arc<TransportConfig> {
    let mut config = common(payload, options);
    let window = VarInt::from_u32(CONTROL_WINDOW);
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(window)
        .receive_window(window)
        .send_window(u64::from(CONTROL_WINDOW));
    Arc::new(config)
}

/// Four messages of the largest size in each direction.
const CONTROL_WINDOW: u32 = 256 << 10;

/// Transport settings of lanes: made for one stream at full speed.
pub(super) fn lane_transport(payload: Payload, options: &QuicOptions) -> Arc<TransportConfig> {
    let mut config = common(payload, options);
    let window = VarInt::from_u32(options.receive_window);
    let mut congestion = CubicConfig::default();
    congestion.initial_window(u64::from(LANE_INITIAL_WINDOW));
    config
        // The token goes over the one bidirectional stream.
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(options.max_streams))
        .stream_receive_window(window)
        .receive_window(window)
        .send_window(u64::from(options.send_window))
        .congestion_controller_factory(Arc::new(congestion));
    Arc::new(config)
}

/// Bytes sent before the first acknowledgement.
const LANE_INITIAL_WINDOW: u32 = 512 << 10;

fn common(payload: Payload, options: &QuicOptions) -> TransportConfig {
    let mut config = TransportConfig::default();
    let discovery = (payload.largest > payload.initial).then(|| {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(payload.largest);
        discovery
    });
    // Checked to be at most a day, so it fits.
    let idle = u32::try_from(options.idle_timeout.as_millis()).unwrap_or(u32::MAX);
    config
        .initial_mtu(payload.initial)
        .mtu_discovery_config(discovery)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .keep_alive_interval(Some(options.keep_alive))
        .datagram_receive_buffer_size(None)
        .send_fairness(false);
    config
}
