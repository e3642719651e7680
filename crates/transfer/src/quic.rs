//! Connections between agents: QUIC with mutual TLS, control apart from data.
//!
//! ```text
//!        agent A                                              agent B
//!  ┌──────────────────────┐                            ┌──────────────────────┐
//!  │ control endpoint     │  one ControlConnection     │ control endpoint     │
//!  │  socket, port, thread├────────────────────────────┤  the advertised one  │
//!  │                      │  one stream of messages    │                      │
//!  ├──────────────────────┤                            ├──────────────────────┤
//!  │ lane 0               │  Lane: streams of bytes    │ lane 0               │
//!  │  socket, port, thread├────────────────────────────┤  port told by B      │
//!  ├──────────────────────┤                            ├──────────────────────┤
//!  │ lane 1               │  Lane                      │ lane 1               │
//!  │  socket, port, thread├────────────────────────────┤                      │
//!  └──────────────────────┘                            └──────────────────────┘
//! ```
//!
//! - [`Endpoints`] owns all sockets of an agent, and the threads that drive them. Control has a thread of its own, so
//!   that it stays responsive whatever the data does. Each lane has one, since one QUIC connection uses about one core.
//! - A [`ControlConnection`] tells its holder who the peer is, from a verified certificate.
//! - [`Lane`]s belong to a control connection. The side that will accept them makes a [`LaneSession`] for that peer,
//!   sends the session's [token](LaneSession::token) and its lane ports over control, and accepts only lanes that prove
//!   to be of the same service and begin with the token.
//!
//! Every wait ends and everything is bounded: see [`QuicOptions`] for each limit. The functions may be awaited in any
//! tokio runtime that has time enabled. Loops that move much data should run on the threads of the sockets:
//! [`Lane::spawn`].

mod acceptor;
mod bound;
mod control;
mod credentials;
mod endpoints;
mod error;
mod lane;
mod options;
mod path;
mod places;
mod probe;
mod reset;
mod session;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod threads;

pub use control::ControlConnection;
pub(crate) use control::{ControlReceiver, ControlSender};
pub use endpoints::Endpoints;
pub(crate) use error::StreamCode;
pub use error::{CloseCode, ConnectError, ConnectionLost, EndpointsError, StreamError};
pub use lane::Lane;
pub use options::{MAX_UDP_PAYLOAD, MIN_UDP_PAYLOAD, QuicOptions, QuicOptionsError};
pub(crate) use session::LaneSession;
pub use stream::{DataReceiver, DataSender};
