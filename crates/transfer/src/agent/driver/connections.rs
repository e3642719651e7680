//! Control connections, and the links of carriers that each has.

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

/// Most events of control connections that wait for the driver. Whoever has one more waits with it, so a peer that sends
/// faster than it is served feels the back-pressure of its connection.
const WAITING: usize = 1024;

/// How long the last words may take to arrive when the agent stops.
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
    /// Which agent it is, once that is known.
    agent: Option<AgentId>,
    address: SocketAddr,
    outbox: Outbox,
    /// When a message was last sent or received.
    talked: Instant,
    /// Once the outbox is gone, ends when everything is sent, or has taken too long.
    writer: JoinHandle<()>,
    /// Has to stop when the connection is gone.
    reader: JoinHandle<()>,
    links: BTreeMap<Path, Box<dyn Link>>,
}

impl Connections {
    /// No connections yet, and where their events arrive.
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

    /// Hands every connection that arrives to the driver, until there is nothing left to arrive.
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

    /// Connects to an agent. A [`ControlEvent::Dialled`] tells what came of it.
    pub(super) fn dial(&self, address: RankAddress) {
        let RankAddress { agent, host, port } = address;
        let (endpoints, lookups) = (self.endpoints.clone(), self.lookups.clone());
        let events = self.events.clone();
        tokio::spawn(async move {
            let result = lookups.dial(&endpoints, &agent, host, port).await;
            // The driver is gone where this fails.
            let _ = events.send(ControlEvent::Dialled { agent, result }).await;
        });
    }

    /// Takes in a connection that is there; `meant` is whom we have dialled, if it was us. Tells what the peer may do, and
    /// what is to be negotiated with it.
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

    /// Both halves of each path that may reach a peer.
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
                    // The driver is gone where this fails.
                    let _ = data.send(DataEvent::Path { conn, path, report });
                });
                let link = (path, carrier.link(address, reporter));
                (link, carrier.negotiation(dialled))
            })
            .unzip()
    }

    /// Notes that a peer has said something, and which agent it is, once `agent` knows that.
    pub(super) fn heard(&mut self, conn: ConnId, agent: impl FnOnce() -> Option<AgentId>) {
        if let Some(connection) = self.open.get_mut(&conn) {
            connection.talked = Instant::now();
            connection.agent = connection.agent.take().or_else(agent);
        }
    }

    /// Has a message sent. An error says why the connection is of no use any more.
    pub(super) fn send(&mut self, conn: ConnId, envelope: &Envelope) -> Result<(), String> {
        let Some(connection) = self.open.get_mut(&conn) else {
            return Ok(());
        };
        log::refusal(connection.name(), &envelope.message);
        connection.talked = Instant::now();
        let sent = connection.outbox.put(envelope);
        sent.inspect_err(|_| connection.writer.abort())
    }

    /// Closes a connection that the machine does not want any more.
    pub(super) fn close(&mut self, conn: ConnId, reason: &CloseReason) {
        if let Some(connection) = self.open.get(&conn) {
            log::closed(connection.name(), connection.address, reason);
        }
        self.hang_up(conn, reason);
    }

    /// Closes a connection with all that belongs to it, if it is there.
    pub(super) fn hang_up(&mut self, conn: ConnId, why: &dyn Display) -> bool {
        let Some(connection) = self.open.remove(&conn) else {
            return false;
        };
        tracing::info!(peer = connection.name(), %why, "a connection is over");
        drop(connection.close());
        true
    }

    /// Connections over which nothing was said for a while, to peers that are not `needed`.
    pub(super) fn idle(&self, needed: impl Fn(&AgentId) -> bool) -> Vec<ConnId> {
        let idle = self.open.iter().filter(|(_, connection)| {
            connection.talked.elapsed() >= self.keep_idle && !connection.agent.as_ref().is_some_and(&needed)
        });
        idle.map(|(conn, _)| *conn).collect()
    }

    /// Closes all connections, and gives what was said last some time to arrive.
    pub(super) async fn farewell(&mut self) {
        let connections = self.open.drain();
        let writers: Vec<_> = connections.map(|(_, connection)| connection.close()).collect();
        let farewell = async {
            for writer in writers {
                // It cannot fail in a way that matters any more.
                let _ = writer.await;
            }
        };
        // Who does not listen finds out by itself.
        let _ = timeout(FAREWELL, farewell).await;
    }

    /// Finds the link of a path on a connection, where both are there.
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

    /// Forgets a transfer that may still wait to be carried.
    pub(super) fn forget(&mut self, conn: ConnId, outgoing: &Outgoing) {
        if let Some(connection) = self.open.get_mut(&conn) {
            let links = connection.links.values_mut();
            links.for_each(|link| link.forget(outgoing));
        }
    }
}

impl Connection {
    /// Who is at the other end, as far as that is known: the agent, or else the service.
    fn name(&self) -> &str {
        let agent = self.agent.as_ref().map(AgentId::as_str);
        agent.unwrap_or(self.peer.service.as_str())
    }

    /// Hangs up. The writer goes on until everything is sent, for the frame timeout at most.
    fn close(self) -> JoinHandle<()> {
        // Outbox and paths go with `self`. The writer sends what is left and lets go; with the
        // reader gone, that closes the connection.
        self.reader.abort();
        self.writer
    }
}
