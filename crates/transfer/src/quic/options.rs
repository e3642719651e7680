//! Settings of the endpoints.

use std::{ops::RangeInclusive, time::Duration};

use thiserror::Error;

/// The smallest UDP payload that QUIC works with (RFC 9000, section 14).
pub const MIN_UDP_PAYLOAD: u16 = 1200;

/// The largest UDP payload there is: 65,535 bytes of IPv4 packet less 20 of IP and 8 of UDP header.
pub const MAX_UDP_PAYLOAD: u16 = 65_507;

/// Settings of the endpoints of one agent. `Default` is right for hosts in one data centre.
///
/// Each field says its unit, what memory it bounds, and when to change it.
#[derive(Debug, Clone, PartialEq)]
pub struct QuicOptions {
    /// How many lanes peers may open to this agent, and it to them: data connections, each with its
    /// own socket, port and thread. One fills about one core. More for networks above 10 Gbit/s,
    /// one where cores are scarce.
    pub lanes: u16,

    /// UDP ports for the lanes; `None` lets the system choose. Set it where a firewall needs to know.
    pub lane_ports: Option<RangeInclusive<u16>>,

    /// The largest UDP payload in bytes, or `None` for what suits the path: on loopback the largest
    /// there is, at once (less where the kernel grants small buffers); elsewhere what discovery
    /// finds, up to [`NETWORK_UDP_PAYLOAD`](Self::NETWORK_UDP_PAYLOAD) and the interface's own MTU.
    ///
    /// Every value works: it is clamped to [`MIN_UDP_PAYLOAD`]..=[`MAX_UDP_PAYLOAD`] and to what the
    /// interface towards the peer carries, and only loopback starts at it; other paths start at
    /// 1,452 or less and grow as probes come through. Set it lower where a network loses the probes
    /// silently and slowly, and on tests of small packets.
    pub udp_payload: Option<u16>,

    /// Kernel buffer of each lane socket, in bytes and for each direction. Buffers below a few MiB
    /// lose packets in bursts. The kernel grants at most `net.core.rmem_max` and
    /// `net.core.wmem_max`; a warning says where that is less.
    pub socket_buffer: usize,

    /// Bytes that a peer may send on one stream before we have read them, and half of what it may
    /// send on all streams of a lane: this bounds the receive memory of a lane to twice as much.
    /// About bandwidth times round trip: 4 MiB carries 32 Gbit/s at 1 ms. More for longer paths. A
    /// window above `socket_buffer` loses packets whenever our thread is late; on loopback, where
    /// nothing is gained by it, the window is never above what the kernel granted.
    pub receive_window: u32,

    /// Bytes of ours that one lane holds until the peer has acknowledged them. Bounds the send
    /// memory of a lane. As `receive_window`.
    pub send_window: u32,

    /// Streams that a peer may have open at once on one lane.
    pub max_streams: u32,

    /// How long one control frame may take from its first to its last byte, and how long sending
    /// one may be held up by a peer that does not read.
    pub frame_timeout: Duration,

    /// How long a data stream may make no progress at all, in either direction, before its
    /// operation fails.
    pub stall_timeout: Duration,

    /// How long a connection may take from its first packet until both sides have proved who they
    /// are and the peer has said what the connection is for.
    pub handshake_timeout: Duration,

    /// How long of that a peer that connects to us has to show its certificate. A stranger holds a place for no
    /// longer, so more only where a round trip takes half a second or more.
    pub certificate_timeout: Duration,

    /// Connections per socket whose peer has not shown its certificate. When half are taken, an address has to
    /// prove that it is real before it gets one of the others. When all are, a newcomer gets the oldest place of
    /// the address that has the most, so that a flood takes places from itself. As many agents that have shown theirs
    /// may be about to say what their connection is for. Each costs tens of KiB and a signature.
    pub max_handshakes: usize,

    /// Connections per socket that peers have opened and shown a certificate on; others are turned away. Those that we have
    /// opened, and those that are closing, do not count; with them there are four times as many at most.
    pub max_connections: usize,

    /// How long a peer may be silent before its connections are given up. Whole milliseconds.
    pub idle_timeout: Duration,

    /// How often to say something on a connection that would otherwise be silent. Less than half the
    /// idle timeout. Control connections do every half a second at least, which tells a peer that is there from one whose
    /// process is gone.
    pub keep_alive: Duration,
}

impl QuicOptions {
    /// The largest UDP payload looked for on networks: jumbo frames of 9,000 bytes less headers.
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

/// A setting that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// A number is outside of what it may be.
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
    /// The first that cannot be.
    pub fn check(&self) -> Result<(), OptionsError> {
        let ms = Duration::from_millis;
        let day = Duration::from_secs(24 * 60 * 60);
        let windows = 1 << 16..=1 << 31;
        macro_rules! check {
            ($field:ident, $ok:expr, $expected:literal) => {
                if !$ok {
                    return Err(OptionsError::OutOfRange {
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
                Err(OptionsError::TooFewPorts { ports: ports.len(), lanes: self.lanes })
            }
            Some(ports) if *ports.start() == 0 => Err(OptionsError::OutOfRange {
                field: "lane_ports",
                actual: format!("{ports:?}"),
                expected: "ports from 1",
            }),
            _ => Ok(()),
        }
    }

    /// The largest UDP payload that these options may lead to, which bounds receive buffers.
    pub(super) fn largest_udp_payload(&self) -> u16 {
        self.udp_payload.unwrap_or(MAX_UDP_PAYLOAD).clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD)
    }
}
