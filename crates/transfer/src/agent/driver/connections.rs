//! Control connections, and what each has of the paths.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::Driver;
use crate::agent::control::{self, Outbox};
use crate::agent::event::Event;
use crate::identity::{PeerIdentity, Role};
use crate::ids::{AgentId, ServiceName};
use crate::path::Path;
use crate::path::carrier::{Link, Reporter};
use crate::path::negotiation::Order;
use crate::quic::{ConnectError, ControlConnection, Endpoints};
use crate::wire::{BlocksOf, ConnId, Flow, Permits};

/// One control connection, and its paths.
pub(super) struct Connection {
    /// What its certificate says.
    pub(super) peer: PeerIdentity,
    /// Which agent it is, once that is known.
    pub(super) agent: Option<AgentId>,
    pub(super) address: SocketAddr,
    pub(super) outbox: Outbox,
    /// When a message was last sent or received.
    pub(super) talked: Instant,
    /// Once the outbox is gone, ends when everything is sent, or has taken too long.
    pub(super) writer: JoinHandle<()>,
    /// Has to stop when the connection is gone.
    reader: JoinHandle<()>,
    /// The paths that it may have.
    pub(super) links: BTreeMap<Path, Box<dyn Link>>,
}

impl Driver {
    /// A connection is there; `meant` is whom we have dialled, if it was us.
    pub(super) fn connected(&mut self, connection: ControlConnection, meant: Option<AgentId>) {
        let now = self.now();
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        let (peer, address) = (connection.peer().clone(), connection.remote_address());
        let permits = Permits {
            pull: peer.roles.contains(Role::Pull),
            push: peer.roles.contains(Role::Push),
            renew: peer.roles.contains(Role::Renew),
            serve: peer.roles.contains(Role::Serve),
        };
        let dialled = meant.is_some();
        tracing::info!(%peer, %address, dialled, "connected");
        let (sender, receiver) = (connection.sender, connection.receiver);
        let (outbox, outgoing) = control::outbox();
        let events = self.events.clone();
        let patience = self.endpoints.options().frame_timeout;
        let writing = control::write(sender, outgoing, patience, conn, events.clone());
        let writer = self.endpoints.spawn_control(writing);
        let reader = self
            .endpoints
            .spawn_control(control::read(receiver, conn, events));
        let service = peer.service.clone();
        let (mut links, mut paths) = (BTreeMap::new(), Vec::new());
        for (&path, carrier) in &self.carriers {
            if carrier.reaches(address) {
                let moved = self.moved.clone();
                let reporter = Reporter::new(move |report| {
                    // The driver is gone where this fails.
                    let _ = moved.send(Event::Path { conn, path, report });
                });
                links.insert(path, carrier.link(address, reporter));
                paths.push(carrier.negotiation(dialled));
            }
        }
        let connection = Connection {
            peer,
            agent: meant.clone(),
            address,
            outbox,
            talked: Instant::now(),
            writer,
            reader,
            links,
        };
        self.connections.insert(conn, connection);
        let machine = &mut self.machine;
        machine.connected(now, conn, service, meant, permits, paths);
    }

    pub(super) fn lost(&mut self, conn: ConnId, why: &str) {
        if self.hang_up(conn, &why) {
            let now = self.now();
            self.machine.disconnected(now, conn);
        }
    }

    /// A peer uses a lease. What a pull has opened for itself is no such lease, and nobody is told when it ends:
    /// the machine wants the pull's agents connected as long as it lasts.
    pub(super) fn note_use(&mut self, flow: &Flow) {
        if let BlocksOf::Lease(key) = flow.blocks
            && self.leases.contains_key(&key)
        {
            let users = self.users.entry(key).or_default();
            users.insert(flow.agent.clone());
        }
    }

    /// Closes connections that nothing has needed for a while.
    pub(super) fn close_idle(&mut self) {
        let silent = |connection: &Connection| connection.talked.elapsed() >= self.keep_idle;
        let needed = |agent: &AgentId| {
            self.machine.wants(agent) || self.users.values().any(|users| users.contains(agent))
        };
        let connections = self.connections.iter();
        let idle = connections
            .filter(|(_, connection)| {
                silent(connection) && !connection.agent.as_ref().is_some_and(needed)
            })
            .map(|(conn, _)| *conn);
        for conn in idle.collect::<Vec<_>>() {
            self.lost(conn, "nothing needs it");
        }
    }

    /// Closes a connection with all that belongs to it, if it is there.
    pub(super) fn hang_up(&mut self, conn: ConnId, why: &dyn std::fmt::Display) -> bool {
        let Some(connection) = self.connections.remove(&conn) else {
            return false;
        };
        tracing::info!(peer = connection.name(), %why, "a connection is over");
        drop(connection.close());
        true
    }

    /// A path of a connection has to do something.
    pub(super) fn obey(&mut self, conn: ConnId, path: Path, order: Order) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && let Some(link) = connection.links.get_mut(&path)
            && let Some(agent) = &connection.agent
        {
            link.obey(order, agent);
        }
    }
}

impl Connection {
    /// Who is at the other end, as far as that is known: the agent, or else the service.
    pub(super) fn name(&self) -> &str {
        let agent = self.agent.as_ref().map(AgentId::as_str);
        agent.unwrap_or(self.peer.service.as_str())
    }

    /// Hangs up. The writer goes on until everything is sent, for the frame timeout at most.
    pub(super) fn close(self) -> JoinHandle<()> {
        // Outbox and paths go with `self`. The writer sends what is left and lets go; with the
        // reader gone, that closes the connection.
        self.reader.abort();
        self.writer
    }
}

/// How many names of hosts are asked for at a time. A thread that asks waits for as long as the system's resolver does,
/// often 10 s, where a name server does not answer, whatever our own patience.
const LOOKUPS: usize = 16;

/// Who may ask for the addresses of a host.
#[derive(Clone, Debug)]
pub(super) struct Lookups(Arc<Semaphore>);

impl Default for Lookups {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LOOKUPS)))
    }
}

impl Lookups {
    async fn addresses(self, host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![(ip, port).into()]);
        }
        // The semaphore is never closed. The thread has the place, since it may outlive whoever waits.
        let place = self.0.acquire_owned().await.ok();
        let asked = spawn_blocking(move || {
            let _place = place;
            Ok((host.as_str(), port).to_socket_addrs()?.collect())
        });
        asked.await.unwrap_or_else(|error| Err(error.into()))
    }
}

/// Connects to an agent, at any of the addresses of its host.
pub(super) async fn dial(
    endpoints: Endpoints,
    lookups: Lookups,
    agent: AgentId,
    host: String,
    port: u16,
    events: mpsc::Sender<Event>,
) {
    let service = ServiceName::from(&agent);
    let within = endpoints.options().handshake_timeout;
    let mut result = Err(format!("{host}:{port} has no address"));
    match timeout(within, lookups.addresses(host.clone(), port)).await {
        Err(_) => {
            result = Err(format!(
                "no name server has told of {host} within {within:?}, or too many other names were asked for"
            ))
        }
        Ok(Err(error)) => result = Err(format!("{host} has no address: {error}")),
        Ok(Ok(addresses)) => {
            for address in addresses {
                let connected = endpoints.connect(address, Some(&service)).await;
                result = connected.map_err(|error| match error {
                    // It names the address.
                    ConnectError::TimedOut { .. } => error.to_string(),
                    error => format!("{address}: {error}"),
                });
                if result.is_ok() {
                    break;
                }
            }
        }
    }
    // The driver is gone where this fails.
    let _ = events.send(Event::Dialled { agent, result }).await;
}
