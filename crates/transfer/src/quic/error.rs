//! Errors: one enum per operation, and what they share.

use std::{io, net::SocketAddr, time::Duration};

use quinn::{ConnectionError, TransportErrorCode, VarInt};
use rustls::AlertDescription;
use thiserror::Error;

use super::options::OptionsError;
use crate::identity::PeerIdentityError;

/// Why a connection was closed, said by whoever closed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CloseCode(pub(super) u32);

impl CloseCode {
    /// Nothing is wrong; the connection has done its work.
    pub const DONE: Self = Self(0);
    /// The process is going down.
    pub const SHUTTING_DOWN: Self = Self(1);
    /// Too many connections.
    pub const BUSY: Self = Self(2);
    /// The peer broke the framing, or did not get to the point in time.
    pub const PROTOCOL: Self = Self(3);
    /// A lane came without the right token.
    pub const LANE_REFUSED: Self = Self(4);

    pub(super) fn wire(self) -> VarInt {
        VarInt::from_u32(self.0)
    }
}

impl std::fmt::Display for CloseCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::DONE => f.write_str("done"),
            Self::SHUTTING_DOWN => f.write_str("shutting down"),
            Self::BUSY => f.write_str("too many connections"),
            Self::PROTOCOL => f.write_str("protocol broken"),
            Self::LANE_REFUSED => f.write_str("lane refused"),
            Self(code) => write!(f, "code {code}"),
        }
    }
}

/// Why a single stream was given up. Numbers are the protocol's above, apart from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamCode(pub u32);

impl StreamCode {
    /// The stream was dropped half-way, without a reason given.
    pub const CANCELLED: Self = Self(0);

    pub(super) fn wire(self) -> VarInt {
        VarInt::from_u32(self.0)
    }

    pub(super) fn from_wire(code: VarInt) -> Self {
        Self(u32::try_from(code.into_inner()).unwrap_or(u32::MAX))
    }
}

/// A connection is gone, and how it went.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ConnectionLost {
    /// The peer has not been heard of for the idle timeout.
    #[error("the peer has gone silent")]
    Silent,
    /// The peer's process forgot the connection: it restarted.
    #[error("the peer has restarted")]
    Reset,
    /// The peer's process is gone: the system has closed its port.
    #[error("the peer's process is gone: its port, {0}, is closed")]
    Gone(SocketAddr),
    /// The peer closed it.
    #[error("closed by the peer: {code}{}", if reason.is_empty() { String::new() } else { format!(" ({reason})") })]
    ClosedByPeer {
        code: CloseCode,
        /// In words, cut to 256 bytes.
        reason: String,
    },
    /// We closed it.
    #[error("closed on this side")]
    ClosedHere,
    /// One of the two QUIC stacks gave it up.
    #[error("QUIC failed: {reason}")]
    Transport { reason: String },
}

impl From<ConnectionError> for ConnectionLost {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::TimedOut => Self::Silent,
            ConnectionError::Reset => Self::Reset,
            ConnectionError::LocallyClosed => Self::ClosedHere,
            ConnectionError::ApplicationClosed(close) => Self::ClosedByPeer {
                code: CloseCode(u32::try_from(close.error_code.into_inner()).unwrap_or(u32::MAX)),
                reason: cut(&close.reason),
            },
            ConnectionError::ConnectionClosed(close) => {
                Self::Transport { reason: format!("the peer's said {}: {}", close.error_code, cut(&close.reason)) }
            }
            ConnectionError::TransportError(_) | ConnectionError::VersionMismatch | ConnectionError::CidsExhausted => {
                Self::Transport { reason: error.to_string() }
            }
        }
    }
}

/// A peer's words, as far as they are shown.
fn cut(reason: &[u8]) -> String {
    let reason = &reason[..reason.len().min(256)];
    String::from_utf8_lossy(reason).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Why [`Endpoints::bind`](super::Endpoints::bind) failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// A setting cannot be.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// No socket could be had at an address.
    #[error("cannot bind {addr}")]
    Socket { addr: SocketAddr, source: io::Error },
    /// Fewer ports of the range were free than there are lanes.
    #[error("only {found} ports of {first}-{last} are free; {lanes} lanes need one each")]
    PortsTaken { found: usize, lanes: u16, first: u16, last: u16 },
    /// A thread could not be started.
    #[error("cannot start a thread for the network")]
    Thread(#[source] io::Error),
    /// The cryptography offers no suite that QUIC can start with.
    #[error("the cryptography cannot do QUIC")]
    Crypto,
}

/// Why no connection came about.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ConnectError {
    /// Nobody answered, or the answer took too long.
    #[error("{addr} has not answered within {after:?}")]
    TimedOut { addr: SocketAddr, after: Duration },
    /// The host is there, and no process has the port.
    #[error("no process is at {0}: its port is closed")]
    PortClosed(SocketAddr),
    /// The address cannot be reached from the bound one: port 0, or another address family.
    #[error("{0} cannot be reached from the address that is bound here")]
    Address(SocketAddr),
    /// The peer turned the connection away because it has too many.
    #[error("the peer has too many connections")]
    Busy,
    /// The peer's certificate is sound, but not that of an agent we want.
    #[error("the peer is not who it should be")]
    Identity(#[from] PeerIdentityError),
    /// The peer's certificate is not to be trusted: unknown authority, expired, not yet valid.
    #[error("the peer's certificate does not hold: {reason}")]
    Certificate { reason: String },
    /// The peer does not accept our certificate.
    #[error("the peer does not accept our certificate ({alert})")]
    Rejected { alert: String },
    /// The peer speaks another protocol.
    #[error("the peer does not speak transload/1")]
    Protocol,
    /// The peer did not accept the lane: a wrong or used-up token, or a lane too many.
    #[error("the peer has refused the lane")]
    LaneRefused,
    /// The endpoints are closed.
    #[error("the endpoints are closed")]
    Closed,
    /// The connection was lost while it was being made.
    #[error(transparent)]
    Lost(ConnectionLost),
}

impl ConnectError {
    /// Sorts a failed handshake. `identity` is what our own verifier found, if it did.
    pub(super) fn from_handshake(error: ConnectionError, identity: Option<PeerIdentityError>) -> Self {
        if let Some(identity) = identity {
            return Self::Identity(identity);
        }
        let code = match &error {
            ConnectionError::TransportError(error) => error.code,
            ConnectionError::ConnectionClosed(close) => close.error_code,
            _ => return Self::from(ConnectionLost::from(error)),
        };
        let here = matches!(error, ConnectionError::TransportError(_));
        // How QUIC says in a handshake that the peer closes it by its own decision: its place went to another.
        let gave_way = !here && code == TransportErrorCode::APPLICATION_ERROR;
        if gave_way || code == TransportErrorCode::CONNECTION_REFUSED {
            return Self::Busy;
        }
        match alert(code) {
            Some(AlertDescription::NoApplicationProtocol) => Self::Protocol,
            Some(_) if here => Self::Certificate { reason: error.to_string() },
            Some(alert) => Self::Rejected { alert: format!("{alert:?}") },
            None => Self::Lost(error.into()),
        }
    }
}

impl From<ConnectionLost> for ConnectError {
    fn from(lost: ConnectionLost) -> Self {
        match lost {
            ConnectionLost::ClosedByPeer { code: CloseCode::BUSY, .. } => Self::Busy,
            ConnectionLost::ClosedByPeer { code: CloseCode::LANE_REFUSED, .. } => Self::LaneRefused,
            lost => Self::Lost(lost),
        }
    }
}

/// The TLS alert in a QUIC error code (RFC 9001, section 4.8).
fn alert(code: TransportErrorCode) -> Option<AlertDescription> {
    match u64::from(code) {
        code @ 0x100..0x200 => u8::try_from(code - 0x100).ok().map(AlertDescription::from),
        _ => None,
    }
}

/// Why a frame could not be sent or received over a control connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// What the peer sends are no frames. The connection is closed.
    #[error(transparent)]
    Frame(#[from] transload_wire::internal::frame::FrameError),
    /// The message did not get through in time. The connection is closed.
    #[error("a message has been under way for over {after:?}")]
    TimedOut { after: Duration },
    /// The peer ended the control stream in the middle of a message.
    #[error("the control stream ended inside a message")]
    Truncated,
    /// The peer ended or gave up its half of the control stream, between messages.
    #[error("the peer has ended the control stream")]
    Ended,
    /// The connection was lost.
    #[error(transparent)]
    Lost(#[from] ConnectionLost),
}

/// Why a data stream failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum StreamError {
    /// The receiver wants no more of it.
    #[error("stopped by the receiver (code {})", .0.0)]
    Stopped(StreamCode),
    /// The sender gave it up.
    #[error("reset by the sender (code {})", .0.0)]
    Reset(StreamCode),
    /// It ended before as many bytes had come as were asked for.
    #[error("the stream ended {missing} bytes early")]
    Ended { missing: usize },
    /// No byte has moved for the stall timeout.
    #[error("no progress for {after:?}")]
    Stalled { after: Duration },
    /// The stream was finished, stopped or reset on this side before.
    #[error("the stream was closed on this side")]
    ClosedHere,
    /// The connection was lost.
    #[error(transparent)]
    Lost(#[from] ConnectionLost),
}
