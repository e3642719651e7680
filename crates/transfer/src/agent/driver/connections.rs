//! Control connections, and the links of carriers on each of them.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::carriers::Carriers;
use super::control::{self, Outbox};
use super::dial::Lookups;
use super::event::{ControlEvent, DataEvent};
use super::log;
use crate::data::Outgoing;
use crate::identity::PeerIdentity;
use crate::path::carrier::{Link, Reporter};
use crate::quic::{ControlConnection, Endpoints};
use transload_plan::ids::AgentId;
use transload_wire::internal::negotiation::{Negotiation, Order};
use transload_wire::message::Envelope;
use transload_wire::{CloseReason, ConnId, Path, RankAddress, Roles};

/// The most control events that wait for the driver. Connections stop reading while there are so many, so that a peer
/// that sends faster than it is served feels back-pressure.
const WAITING: usize = 1024;

/// How long the last messages may take to arrive when the agent stops.
const FAREWELL: Duration = Duration::from_millis(500);

pub(super) struct Connections {
    endpoints: Endpoints,
    carriers: Carriers,
    lookups: Lookups,
    open: HashMap<ConnId, Connection>,
    next: u64,
    keep_idle: Duration,
    events: mpsc::Sender<ControlEvent>,
    data: mpsc::UnboundedSender<DataEvent>,
}

struct Connection {
    peer: PeerIdentity,
    /// The agent at the other end, once it is known.
    agent: Option<AgentId>,
    address: SocketAddr,
    outbox: Outbox,
    /// The time when a message was last sent or received.
    talked: Instant,
    /// Once the outbox is dropped, this task ends when everything is sent, or takes too long.
    writer: JoinHandle<()>,
    /// Must be stopped when the connection is closed.
    reader: JoinHandle<()>,
    links: BTreeMap<Path, Box<dyn Link>>,
}

impl Connections {
    /// Makes an empty set of connections, and the receiver of their events.
    pub(super) fn new(
        endpoints: Endpoints,
        carriers: Carriers,
        keep_idle: Duration,
        data: mpsc::UnboundedSender<DataEvent>,
    ) -> (Self, mpsc::Receiver<ControlEvent>) {
        let (events, receiver) = mpsc::channel(WAITING);
        let connections = Self {
            endpoints,
            carriers,
            lookups: Lookups::default(),
            open: HashMap::new(),
            next: 0,
            keep_idle,
            events,
            data,
        };
        (connections, receiver)
    }

    /// Passes every arriving connection to the driver, until the endpoint is closed.
    pub(super) fn accept(&self) -> impl Future<Output = ()> + Send + use<> {
        let (endpoints, events) = (self.endpoints.clone(), self.events.clone());
        async move {
            while let Some(connection) = endpoints.accept().await {
                let arrived = ControlEvent::Arrived(connection);
                if events.send(arrived).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Dials an agent. A [`ControlEvent::Dialled`] reports the result.
    pub(super) fn dial(&self, address: RankAddress) {
        let RankAddress { agent, host, port } = address;
        let (endpoints, lookups) = (self.endpoints.clone(), self.lookups.clone());
        let events = self.events.clone();
        tokio::spawn(async move {
            let result = lookups.dial(&endpoints, &agent, host, port).await;
            // An error means that the driver has stopped.
            let _ = events.send(ControlEvent::Dialled { agent, result }).await;
        });
    }

    /// Adds a connection. `meant` is the agent that was dialled, if this agent dialled. Returns the peer's roles, and
    /// the negotiations of its paths.
    pub(super) fn add(
        &mut self,
        connection: ControlConnection,
        meant: Option<AgentId>,
    ) -> (ConnId, Roles, Vec<Box<dyn Negotiation>>) {
        self.next += 1;
        let conn = ConnId(self.next);
        let (peer, address) = (connection.peer().clone(), connection.remote_address());
        let roles = peer.roles;
        let dialled = meant.is_some();
        tracing::info!(%peer, %address, dialled, "connected");
        let (sender, receiver) = (connection.sender, connection.receiver);
        let (outbox, unsent) = control::outbox();
        let events = self.events.clone();
        let patience = self.endpoints.options().frame_timeout;
        let writing = control::write(sender, unsent, patience, conn, events.clone());
        let (links, paths) = self.links(conn, address, dialled);
        let connection = Connection {
            peer,
            agent: meant,
            address,
            outbox,
            talked: Instant::now(),
            writer: tokio::spawn(writing),
            reader: tokio::spawn(control::read(receiver, conn, events)),
            links,
        };
        self.open.insert(conn, connection);
        (conn, roles, paths)
    }

    /// Makes both halves, link and negotiation, of each path that may reach a peer.
    #[allow(clippy::type_complexity)]
    fn links(
        &self,
        conn: ConnId,
        address: SocketAddr,
        dialled: bool,
    ) -> (BTreeMap<Path, Box<dyn Link>>, Vec<Box<dyn Negotiation>>) {
        let reachable = self.carriers.iter();
        let reachable = reachable.filter(|(_, carrier)| carrier.reaches(address));
        reachable
            .map(|(&path, carrier)| {
                let data = self.data.clone();
                let reporter = Reporter::new(move |report| {
                    // An error means that the driver has stopped.
                    let _ = data.send(DataEvent::Path { conn, path, report });
                });
                let link = (path, carrier.link(address, reporter));
                (link, carrier.negotiation(dialled))
            })
            .unzip()
    }

    /// Records that a peer has sent something, and which agent it is, once `agent` knows that.
    pub(super) fn heard(&mut self, conn: ConnId, agent: impl FnOnce() -> Option<AgentId>) {
        if let Some(connection) = self.open.get_mut(&conn) {
            connection.talked = Instant::now();
            connection.agent = connection.agent.take().or_else(agent);
        }
    }

    /// Sends a message. An error says why the connection cannot be used further.
    pub(super) fn send(&mut self, conn: ConnId, envelope: &Envelope) -> Result<(), String> {
        let Some(connection) = self.open.get_mut(&conn) else {
            return Ok(());
        };
        log::refusal(connection.name(), &envelope.message);
        connection.talked = Instant::now();
        let sent = connection.outbox.put(envelope);
        sent.inspect_err(|_| connection.writer.abort())
    }

    /// Closes a connection at the machine's request.
    pub(super) fn close(&mut self, conn: ConnId, reason: &CloseReason) {
        if let Some(connection) = self.open.get(&conn) {
            log::closed(connection.name(), connection.address, reason);
        }
        self.hang_up(conn, reason);
    }

    /// Closes a connection with everything that belongs to it. Returns whether it existed.
    pub(super) fn hang_up(&mut self, conn: ConnId, why: &dyn Display) -> bool {
        let Some(connection) = self.open.remove(&conn) else {
            return false;
        };
        tracing::info!(peer = connection.name(), %why, "a connection is over");
        drop(connection.close());
        true
    }

    /// Returns connections without recent messages to peers that are not `needed`.
    pub(super) fn idle(&self, needed: impl Fn(&AgentId) -> bool) -> Vec<ConnId> {
        let idle = self.open.iter().filter(|(_, connection)| {
            connection.talked.elapsed() >= self.keep_idle && !connection.agent.as_ref().is_some_and(&needed)
        });
        idle.map(|(conn, _)| *conn).collect()
    }

    /// Closes all connections, and gives the last messages some time to arrive.
    pub(super) async fn farewell(&mut self) {
        let connections = self.open.drain();
        let writers: Vec<_> = connections.map(|(_, connection)| connection.close()).collect();
        let farewell = async {
            for writer in writers {
                // A failure no longer matters.
                let _ = writer.await;
            }
        };
        // A peer that does not read finds out by itself.
        let _ = timeout(FAREWELL, farewell).await;
    }

    /// Returns the link of a path on a connection, if both exist.
    pub(super) fn link(&mut self, conn: ConnId, path: Path) -> Option<&mut Box<dyn Link>> {
        self.open.get_mut(&conn)?.links.get_mut(&path)
    }

    pub(super) fn obey(&mut self, conn: ConnId, path: Path, order: Order) {
        if let Some(connection) = self.open.get_mut(&conn)
            && let Some(link) = connection.links.get_mut(&path)
            && let Some(agent) = &connection.agent
        {
            link.obey(order, agent);
        }
    }

    /// Removes a transfer from the links that it may still wait for.
    pub(super) fn forget(&mut self, conn: ConnId, outgoing: &Outgoing) {
        if let Some(connection) = self.open.get_mut(&conn) {
            let links = connection.links.values_mut();
            links.for_each(|link| link.forget(outgoing));
        }
    }
}

impl Connection {
    /// Returns the name of the peer: its agent, or its service as long as the agent is unknown.
    fn name(&self) -> &str {
        let agent = self.agent.as_ref().map(AgentId::as_str);
        agent.unwrap_or(self.peer.service.as_str())
    }

    /// Closes the connection. The writer continues until everything is sent, for the frame timeout at most.
    fn close(self) -> JoinHandle<()> {
        // The outbox and the links are dropped with `self`. The writer sends what is left and ends; since the reader
        // has ended too, that closes the connection.
        self.reader.abort();
        self.writer
    }
}
