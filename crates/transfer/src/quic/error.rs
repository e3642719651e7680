//! Errors: one enum per operation, and their shared parts.

use std::{io, net::SocketAddr, time::Duration};

use quinn::{ConnectionError, TransportErrorCode, VarInt};
use rustls::AlertDescription;
use thiserror::Error;

use super::options::QuicOptionsError;
use crate::identity::PeerIdentityError;

/// The reason for closing a connection, as stated by the side that closes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CloseCode(pub(super) u32);

impl CloseCode {
    /// The connection is not needed any more. This is no error.
    pub const DONE: Self = Self(0);
    /// The process is shutting down.
    pub const SHUTTING_DOWN: Self = Self(1);
    /// There are too many connections.
    pub const BUSY: Self = Self(2);
    /// The peer violated the framing, or did not state its purpose in time.
    pub const PROTOCOL: Self = Self(3);
    /// A lane did not present a valid token.
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

/// The reason for giving up a single stream. 0 is defined here; the layer above defines the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamCode(pub u32);

impl StreamCode {
    /// The stream was dropped before its end, without a stated reason.
    pub const CANCELLED: Self = Self(0);

    pub(super) fn wire(self) -> VarInt {
        VarInt::from_u32(self.0)
    }

    pub(super) fn from_wire(code: VarInt) -> Self {
        Self(u32::try_from(code.into_inner()).unwrap_or(u32::MAX))
    }
}

/// A connection has ended, for this reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ConnectionLost {
    /// The peer was silent for the idle timeout.
    #[error("the peer has gone silent")]
    Silent,
    /// The peer's process does not know the connection, because it has restarted.
    #[error("the peer has restarted")]
    Reset,
    /// The peer's process is gone, since its port is closed.
    #[error("the peer's process is gone: its port, {0}, is closed")]
    Gone(SocketAddr),
    /// The peer closed the connection.
    #[error("closed by the peer: {code}{}", if reason.is_empty() { String::new() } else { format!(" ({reason})") })]
    ClosedByPeer {
        code: CloseCode,
        /// The reason in words, cut to 256 bytes.
        reason: String,
    },
    /// This side closed the connection.
    #[error("closed on this side")]
    ClosedHere,
    /// One of the two QUIC stacks abandoned the connection.
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

/// Cuts and cleans a peer's text, so that it can be displayed.
fn cut(reason: &[u8]) -> String {
    let reason = &reason[..reason.len().min(256)];
    String::from_utf8_lossy(reason).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The reason why [`Endpoints::bind`](super::Endpoints::bind) failed.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum EndpointsError {
    /// A setting is invalid.
    #[error(transparent)]
    Options(#[from] QuicOptionsError),
    /// No socket could be bound at an address.
    #[error("cannot bind {addr}")]
    Socket { addr: SocketAddr, source: io::Error },
    /// Fewer ports of the range were free than there are lanes.
    #[error("only {found} ports of {first}-{last} are free; {lanes} lanes need one each")]
    PortsTaken { found: usize, lanes: u16, first: u16, last: u16 },
    /// A thread could not be started.
    #[error("cannot start a thread for the network")]
    Thread(#[source] io::Error),
    /// The cryptography provider has no cipher suite for QUIC's first packets.
    #[error("the cryptography cannot do QUIC")]
    Crypto,
}

/// The reason why a connection could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ConnectError {
    /// There was no answer, or it took too long.
    #[error("{addr} has not answered within {after:?}")]
    TimedOut { addr: SocketAddr, after: Duration },
    /// The host answers, but no process has the port.
    #[error("no process is at {0}: its port is closed")]
    PortClosed(SocketAddr),
    /// The address cannot be reached from the bound one: it has port 0, or is of another address family.
    #[error("{0} cannot be reached from the address that is bound here")]
    Address(SocketAddr),
    /// The peer rejected the connection because it has too many.
    #[error("the peer has too many connections")]
    Busy,
    /// The peer's certificate is valid, but not that of the expected agent.
    #[error("the peer is not the expected agent: {0}")]
    Identity(#[from] PeerIdentityError),
    /// The peer's certificate is not trusted: its authority is unknown, or it is expired or not yet valid.
    #[error("the peer's certificate does not hold: {reason}")]
    Certificate { reason: String },
    /// The peer does not accept our certificate.
    #[error("the peer does not accept our certificate ({alert})")]
    Rejected { alert: String },
    /// The peer speaks another protocol.
    #[error("the peer does not speak transload/1")]
    Protocol,
    /// The peer refused the lane: its token is wrong or used up, or there are too many lanes.
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
    /// Classifies a failed handshake. `identity` is the finding of our own verifier, if any.
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
        // In a handshake, QUIC reports with this code that the peer closed the connection deliberately: its place went
        // to another.
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

/// Returns the TLS alert in a QUIC error code (RFC 9001, section 4.8).
fn alert(code: TransportErrorCode) -> Option<AlertDescription> {
    match u64::from(code) {
        code @ 0x100..0x200 => u8::try_from(code - 0x100).ok().map(AlertDescription::from),
        _ => None,
    }
}

/// The reason why a frame could not be sent or received over a control connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The peer's bytes are not valid frames. The connection is closed.
    #[error(transparent)]
    Frame(#[from] transload_wire::internal::frame::FrameError),
    /// A message was not transferred in time. The connection is closed.
    #[error("a message has been under way for over {after:?}")]
    TimedOut { after: Duration },
    /// The peer ended the control stream in the middle of a message.
    #[error("the control stream ended inside a message")]
    Truncated,
    /// The peer ended its half of the control stream between messages.
    #[error("the peer has ended the control stream")]
    Ended,
    /// The connection was lost.
    #[error(transparent)]
    Lost(#[from] ConnectionLost),
}

/// The reason why a data stream failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum StreamError {
    /// The receiver does not want the rest of it.
    #[error("stopped by the receiver (code {})", .0.0)]
    Stopped(StreamCode),
    /// The sender gave it up.
    #[error("reset by the sender (code {})", .0.0)]
    Reset(StreamCode),
    /// It ended before the requested number of bytes had arrived.
    #[error("the stream ended {missing} bytes early")]
    Ended { missing: usize },
    /// No byte was transferred for the stall timeout.
    #[error("no progress for {after:?}")]
    Stalled { after: Duration },
    /// This side has finished, stopped or reset the stream before.
    #[error("the stream was closed on this side")]
    ClosedHere,
    /// The connection was lost.
    #[error(transparent)]
    Lost(#[from] ConnectionLost),
}
