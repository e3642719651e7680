//! The half of lanes that does I/O.

mod send;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Lanes, Word};
use crate::data::Outgoing;
use crate::path::carrier::{Carrier, Host, Link, Provider, Reporter};
use crate::path::sending::Sending;
use crate::quic::{CloseCode, ConnectionLost, Lane, LaneSession};
use transload_plan::ids::{AgentId, Nonce};
use transload_wire::Path;
use transload_wire::internal::negotiation::{Ending, Negotiation, Order, Way, decode, encode};

pub use send::LaneOut;

/// The time limit for establishing a lane.
const LANES_WITHIN: Duration = Duration::from_secs(10);

/// How much earlier a leaving peer may close its lanes than its connection. A link that ends so early has not failed.
const FAREWELL: Duration = Duration::from_secs(1);

/// The path over the network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quic;

impl Provider for Quic {
    fn path(&self) -> Path {
        Path::QUIC
    }

    fn open(&self, host: Host) -> io::Result<Box<dyn Carrier>> {
        Ok(Box::new(Network { host }))
    }
}

struct Network {
    host: Host,
}

impl Carrier for Network {
    fn reaches(&self, _address: SocketAddr) -> bool {
        true
    }

    fn negotiation(&self, dialled: bool) -> Box<dyn Negotiation> {
        let most = u16::try_from(self.host.endpoints.lane_ports().len()).unwrap_or(u16::MAX);
        Box::new(Lanes::new(dialled, most))
    }

    fn link(&self, address: SocketAddr, reporter: Reporter) -> Box<dyn Link> {
        let shared = Shared { host: self.host.clone(), reporter, lanes: Sending::new(None) };
        Box::new(LaneLink { shared: Arc::new(shared), address, task: None })
    }
}

/// The lanes of one connection.
struct LaneLink {
    shared: Arc<Shared>,
    /// The address of the peer's control connection.
    address: SocketAddr,
    /// The task that accepts or connects the lanes.
    task: Option<JoinHandle<()>>,
}

struct Shared {
    host: Host,
    reporter: Reporter,
    lanes: Sending<LaneOut>,
}

impl Shared {
    /// Adds a lane: its streams are received, and waiting transfers use it.
    fn add(self: &Arc<Self>, lane: Lane) {
        if !self.lanes.add(LaneOut::new(lane.clone(), &self.host.data)) {
            return;
        }
        self.host.receiver.serve(&lane);
        // The loss of a lane ends the connection.
        let (this, watched) = (self.clone(), lane.clone());
        self.host.endpoints.spawn_control(async move {
            let lost = watched.closed().await;
            if let ConnectionLost::ClosedByPeer { code: CloseCode::DONE, .. } = lost {
                sleep(FAREWELL).await;
            }
            this.failed(lost.to_string());
        });
    }

    fn failed(&self, why: String) {
        self.reporter.ended(Way::Out, Ending::Failed(why));
    }
}

impl Link for LaneLink {
    fn obey(&mut self, order: Order, peer: &AgentId) {
        let (shared, endpoints) = (self.shared.clone(), &self.shared.host.endpoints);
        match order {
            Order::Offer { lanes } => {
                let session = match endpoints.expect_lanes(peer, lanes) {
                    Ok(session) => session,
                    Err(error) => return shared.failed(error.to_string()),
                };
                shared.lanes.expect(lanes.into());
                let nonce = *session.token();
                let ports = endpoints.lane_ports().into_iter().take(lanes.into());
                let ports = ports.collect();
                // The session lives as long as the task, so the task must not outlive the link.
                self.task = Some(endpoints.spawn_control(accept(session, lanes, shared.clone())));
                shared.reporter.offered(encode(&Word::Offer { ports, nonce }));
            }
            Order::Meet { word } => {
                let Some(Word::Offer { ports, nonce }) = decode(&word) else {
                    return;
                };
                shared.lanes.expect(ports.len());
                let connecting = connect(shared, peer.clone(), self.address, ports, nonce);
                self.task = Some(endpoints.spawn_control(connecting));
            }
        }
    }

    /// Carries a transfer over all lanes, including those that are still being established.
    fn carry(&mut self, outgoing: &Outgoing) {
        self.shared.lanes.carry(outgoing);
    }

    fn forget(&mut self, outgoing: &Outgoing) {
        self.shared.lanes.forget(outgoing);
    }
}

impl Drop for LaneLink {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        self.shared.lanes.close();
    }
}

async fn accept(mut session: LaneSession, lanes: u16, shared: Arc<Shared>) {
    for _ in 0..lanes {
        let Some(lane) = session.accept().await else {
            return;
        };
        shared.add(lane);
    }
}

/// Connects lanes to the ports that the peer has offered.
async fn connect(shared: Arc<Shared>, peer: AgentId, host: SocketAddr, ports: Vec<u16>, nonce: Nonce) {
    let mut failures = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let addr = SocketAddr::new(host.ip(), *port);
        let lane = shared.host.endpoints.connect_lane(index, addr, &peer, &nonce);
        match timeout(LANES_WITHIN, lane).await {
            Ok(Ok(lane)) => shared.add(lane),
            Ok(Err(error)) => failures.push(error.to_string()),
            Err(_) => failures.push(format!("no lane at {addr} within {LANES_WITHIN:?}")),
        }
    }
    if failures.len() == ports.len() {
        let why = failures.pop();
        shared.failed(why.unwrap_or_else(|| "no lane was offered".to_owned()));
    }
}
