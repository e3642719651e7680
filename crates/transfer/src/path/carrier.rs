//! The half of a path that does I/O: what carries out the orders of a [negotiation](super::negotiation), and streams.
//!
//! A [`Provider`] is what an agent is given of a path; it opens a [`Carrier`] for the life of the agent, which makes a
//! [`Link`] for each connection. Fences are the data plane's: whoever carries an [`Outgoing`] or lands a stream enters
//! it, and leaves it when told to stop.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::Path;
use super::negotiation::{Ending, Negotiation, Order, Report, Way};
use crate::data::{DataOptions, Outgoing, Receiver, Region};
use crate::quic::Endpoints;
use transload_plan::ids::AgentId;

/// What an agent has for its paths.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its sockets, and threads for what may not block.
    pub endpoints: Endpoints,
    /// Where streams land that come.
    pub receiver: Receiver,
    /// Buffers.
    pub data: DataOptions,
    /// One of the memories on each of the devices that its ranks' caches lie on. A device may reach memory of the host itself,
    /// where that is registered with its driver.
    pub on_devices: Arc<[Region]>,
}

/// A path that an agent can have.
pub trait Provider: fmt::Debug + Send + Sync {
    /// Which.
    fn path(&self) -> Path;

    /// Opens it for an agent. Called on the agent's control thread, inside of its runtime, as all that follows is; it must
    /// not be blocked for long.
    ///
    /// # Errors
    /// Where it cannot be had on this machine: the agent goes on without it.
    fn open(&self, host: Host) -> io::Result<Box<dyn Carrier>>;
}

/// A path of one agent.
pub trait Carrier: Send {
    /// Whether a peer at this address may be reached so. Where that turns out wrong, the negotiation fails.
    fn reaches(&self, address: SocketAddr) -> bool;

    /// What is negotiated on a connection.
    fn negotiation(&self, dialled: bool) -> Box<dyn Negotiation>;

    /// What belongs to a connection with a peer at this address.
    fn link(&self, address: SocketAddr, reporter: Reporter) -> Box<dyn Link>;
}

/// A path of one connection. Dropping it hangs it up.
pub trait Link: Send {
    /// Does what the negotiation with `peer` wants.
    fn obey(&mut self, order: Order, peer: &AgentId);

    /// Carries a transfer, now or as soon as the peer is met.
    fn carry(&mut self, outgoing: &Outgoing);

    /// Forgets a transfer that may still wait to be carried.
    fn forget(&mut self, outgoing: &Outgoing);

    /// A transfer has failed by this path. Says whether that is the end of what there was to send over.
    fn is_torn(&mut self) -> bool {
        false
    }
}

/// Tells the agent what a link has to report.
#[derive(Clone)]
pub struct Reporter(Arc<dyn Fn(Report) + Send + Sync>);

impl Reporter {
    /// One that calls `tell`, which must not block.
    pub fn new(tell: impl Fn(Report) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Tells what the peer has to know to meet us.
    pub fn offered(&self, word: Vec<u8>) {
        (self.0)(Report::Offered { word });
    }

    /// Tells that an offer, a meeting, or what came of it has ended.
    pub fn ended(&self, way: Way, ending: Ending) {
        (self.0)(Report::Ended { way, ending });
    }
}
