//! Settings of the endpoints.

use std::{ops::RangeInclusive, time::Duration};

use thiserror::Error;

/// The smallest UDP payload that QUIC works with (RFC 9000, section 14).
pub const MIN_UDP_PAYLOAD: u16 = 1200;

/// The largest possible UDP payload: 65,535 bytes of an IPv4 packet without 20 of IP and 8 of UDP header.
pub const MAX_UDP_PAYLOAD: u16 = 65_507;

/// Settings of the endpoints of an agent. The default suits hosts in one data centre.
///
/// Each field states its unit, the memory that it bounds, and when to change it.
#[derive(Debug, Clone, PartialEq)]
pub struct QuicOptions {
    /// The number of lanes that peers may open to this agent, and it to them. A lane is a data connection with its own
    /// socket, port and thread, and uses about one core. Use more for networks above 10 Gbit/s, and one if cores are
    /// scarce.
    pub lanes: u16,

    /// The UDP ports for the lanes; `None` lets the system choose. Set it if a firewall needs to know them.
    pub lane_ports: Option<RangeInclusive<u16>>,

    /// The largest UDP payload in bytes. By default it depends on the path: on loopback it is the largest possible one
    /// from the beginning (less if the kernel grants small buffers); elsewhere it is found by discovery, up to
    /// [`NETWORK_UDP_PAYLOAD`](Self::NETWORK_UDP_PAYLOAD) and the interface's own MTU.
    ///
    /// Every value works: it is clamped to [`MIN_UDP_PAYLOAD`]..=[`MAX_UDP_PAYLOAD`] and to what the interface towards
    /// the peer carries. Only loopback starts with it; other paths start with 1,452 or less, and grow as probes get
    /// through. Set it lower if a network silently drops the probes, and to test small packets.
    pub udp_payload: Option<u16>,

    /// The kernel buffer of each lane socket, in bytes for each direction. Buffers below a few MiB lose packets in
    /// bursts. The kernel grants at most `net.core.rmem_max` and `net.core.wmem_max`; a warning is logged if that is
    /// less.
    pub socket_buffer: usize,

    /// The bytes that a peer may send on one stream before they are read, and half of those on all streams of a lane.
    /// So it bounds the receive memory of a lane to twice its value. It should be about bandwidth times round trip
    /// time: 4 MiB carry 32 Gbit/s at 1 ms. Use more for longer paths. A window above `socket_buffer` loses packets
    /// whenever our thread is late. On loopback a larger window has no use, so it is never above what the kernel
    /// granted.
    pub receive_window: u32,

    /// The bytes that one lane holds until the peer has acknowledged them. It bounds the send memory of a lane; choose
    /// it like `receive_window`.
    pub send_window: u32,

    /// The most streams that a peer may have open on one lane.
    pub max_streams: u32,

    /// The time limit of a control frame, from its first to its last byte, and for sending one to a peer that does not
    /// read.
    pub frame_timeout: Duration,

    /// How long a data stream may make no progress, in either direction, before its operation fails.
    pub stall_timeout: Duration,

    /// The time limit for a new connection, from its first packet until both sides have proved their identity and the
    /// peer has stated its purpose.
    pub handshake_timeout: Duration,

    /// The part of that time in which a connecting peer must show its certificate. A stranger holds a place no longer
    /// than this, so increase it only if a round trip takes half a second or more.
    pub certificate_timeout: Duration,

    /// The most connections per socket whose peer has not shown its certificate. When half are taken, an address must
    /// prove that it is real before it gets one of the others. When all are taken, a newcomer gets the oldest place of
    /// the address that has the most, so that a flood takes places from itself. As many connections again may have
    /// shown a certificate and not stated their purpose. Each costs tens of KiB and a signature.
    pub max_handshakes: usize,

    /// The most connections per socket that peers have opened and shown a certificate on; others are rejected. Our own
    /// connections and closing ones do not count; with them there are four times as many at most.
    pub max_connections: usize,

    /// How long a peer may be silent before its connections are given up, in whole milliseconds.
    pub idle_timeout: Duration,

    /// How often something is sent on a connection that would otherwise be silent. Must be less than half the idle
    /// timeout. Control connections send something every half second at least, so that a live peer can be distinguished
    /// from one whose process is gone.
    pub keep_alive: Duration,
}

impl QuicOptions {
    /// The largest UDP payload that discovery tries on networks: jumbo frames of 9,000 bytes without headers.
    pub const NETWORK_UDP_PAYLOAD: u16 = 8952;
}

impl Default for QuicOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            lanes: (cores / 2).clamp(1, 4) as u16,
            lane_ports: None,
            udp_payload: None,
            socket_buffer: 4 << 20,
            receive_window: 4 << 20,
            send_window: 4 << 20,
            max_streams: 256,
            frame_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(20),
            handshake_timeout: Duration::from_secs(5),
            certificate_timeout: Duration::from_secs(2),
            max_handshakes: 64,
            max_connections: 1024,
            idle_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(2),
        }
    }
}

/// A setting is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum QuicOptionsError {
    /// A number is out of its range.
    #[error("{field} is {actual}; it must be {expected}")]
    OutOfRange { field: &'static str, actual: String, expected: &'static str },
    /// The port range has fewer ports than there are lanes.
    #[error("lane_ports has {ports} ports for {lanes} lanes")]
    TooFewPorts { ports: usize, lanes: u16 },
}

impl QuicOptions {
    /// Checks every setting.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn check(&self) -> Result<(), QuicOptionsError> {
        let ms = Duration::from_millis;
        let day = Duration::from_secs(24 * 60 * 60);
        let windows = 1 << 16..=1 << 31;
        macro_rules! check {
            ($field:ident, $ok:expr, $expected:literal) => {
                if !$ok {
                    return Err(QuicOptionsError::OutOfRange {
                        field: stringify!($field),
                        actual: format!("{:?}", self.$field),
                        expected: $expected,
                    });
                }
            };
            ([$($field:ident),+], $range:expr, $expected:literal) => {
                $(check!($field, $range.contains(&self.$field), $expected);)+
            };
        }
        check!([lanes], 1..=256, "1 to 256");
        check!([receive_window, send_window], windows, "64 KiB to 2 GiB");
        check!([max_streams], 1..=65_536, "1 to 65,536");
        check!(
            [frame_timeout, stall_timeout, handshake_timeout, certificate_timeout, idle_timeout],
            ms(10)..=day,
            "10 ms to a day"
        );
        check!(
            keep_alive,
            (ms(1)..=self.idle_timeout / 2).contains(&self.keep_alive),
            "at least 1 ms and at most half of idle_timeout"
        );
        check!([max_handshakes], 1..=65_536, "1 to 65,536");
        check!([max_connections], 1.., "at least 1");
        match &self.lane_ports {
            Some(ports) if ports.len() < usize::from(self.lanes) => {
                Err(QuicOptionsError::TooFewPorts { ports: ports.len(), lanes: self.lanes })
            }
            Some(ports) if *ports.start() == 0 => Err(QuicOptionsError::OutOfRange {
                field: "lane_ports",
                actual: format!("{ports:?}"),
                expected: "ports from 1",
            }),
            _ => Ok(()),
        }
    }

    /// Returns the largest UDP payload that these options may lead to, which bounds receive buffers.
    pub(super) fn largest_udp_payload(&self) -> u16 {
        self.udp_payload.unwrap_or(MAX_UDP_PAYLOAD).clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD)
    }
}
