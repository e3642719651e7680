//! The half of a path that does I/O: it carries out the orders of a [negotiation](super::negotiation), and moves
//! streams.
//!
//! An agent is given a [`Provider`] for each path. It opens a [`Carrier`] for the life of the agent, which makes a
//! [`Link`] for each connection. Fences belong to the data plane: a task that carries an [`Outgoing`] or lands a stream
//! enters its fence, and leaves when it is told to stop.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::Path;
use super::negotiation::{Ending, Negotiation, Order, Report, Way};
use crate::data::{DataOptions, Outgoing, Receiver, Region};
use crate::quic::Endpoints;
use transload_plan::ids::AgentId;

/// The resources of an agent for its paths.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its sockets, and threads for work that must not block.
    pub endpoints: Endpoints,
    /// The receiver of incoming streams.
    pub receiver: Receiver,
    /// Options of buffers.
    pub data: DataOptions,
    /// One memory on each device that holds caches of its ranks. Host memory can be registered with the drivers of
    /// these devices, which then access it directly.
    pub on_devices: Arc<[Region]>,
}

/// A path that an agent can have.
pub trait Provider: fmt::Debug + Send + Sync {
    /// Returns the path's number.
    fn path(&self) -> Path;

    /// Opens the path for an agent. It is called on the agent's control thread, inside of its runtime, like everything
    /// else here, and must not block for long.
    ///
    /// # Errors
    /// The path is not available on this machine. The agent continues without it.
    fn open(&self, host: Host) -> io::Result<Box<dyn Carrier>>;
}

/// A path of one agent.
pub trait Carrier: Send {
    /// Returns whether a peer at this address may be reachable by this path. A wrong guess makes the negotiation fail.
    fn reaches(&self, address: SocketAddr) -> bool;

    /// Makes the negotiation for a connection.
    fn negotiation(&self, dialled: bool) -> Box<dyn Negotiation>;

    /// Makes the link for a connection with a peer at this address.
    fn link(&self, address: SocketAddr, reporter: Reporter) -> Box<dyn Link>;
}

/// A path of one connection. Dropping it closes it.
pub trait Link: Send {
    /// Carries out an order of the negotiation with `peer`.
    fn obey(&mut self, order: Order, peer: &AgentId);

    /// Carries a transfer, now or as soon as the path is established.
    fn carry(&mut self, outgoing: &Outgoing);

    /// Forgets a transfer that may still wait to be carried.
    fn forget(&mut self, outgoing: &Outgoing);

    /// Returns, after a transfer has failed on this path, whether nothing can be sent on it any more.
    fn is_torn(&mut self) -> bool {
        false
    }
}

/// Passes a link's reports to the agent.
#[derive(Clone)]
pub struct Reporter(Arc<dyn Fn(Report) + Send + Sync>);

impl Reporter {
    /// Makes a reporter that calls `tell`, which must not block.
    pub fn new(tell: impl Fn(Report) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Reports the word that the peer needs in order to connect.
    pub fn offered(&self, word: Vec<u8>) {
        (self.0)(Report::Offered { word });
    }

    /// Reports that an offer, an attempt to connect, or its result has ended.
    pub fn ended(&self, way: Way, ending: Ending) {
        (self.0)(Report::Ended { way, ending });
    }
}
