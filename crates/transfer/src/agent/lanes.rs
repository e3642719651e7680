//! The lanes of one connection: who opens them, and who waits for them.
//!
//! The side that dialled the control connection opens the lanes, since it is the one that can reach the
//! other: it asks where to (`Wanted`), is told ports and a token (`Offer`), and connects. Streams go
//! both ways over the same lanes, so a source that was dialled just waits until they are there.

use std::net::SocketAddr;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::LANES_WITHIN;
use super::event::Event;
use crate::data::Outgoing;
use crate::ids::{AgentId, Nonce};
use crate::path::quic::LaneOut;
use crate::quic::{Endpoints, Lane, LaneSession, SessionToken};
use crate::wire::ConnId;

/// Lanes of one connection, and the transfers that wait for the first of them.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Whether lanes were asked for, or offered.
    pub(super) begun: bool,
    /// How many will come, once that is known.
    pub(super) expected: usize,
    up: Vec<LaneOut>,
    waiting: Vec<Outgoing>,
}

impl Lanes {
    /// A lane is there: transfers that wait go over it.
    pub(super) fn add(&mut self, lane: LaneOut) {
        for outgoing in &self.waiting {
            lane.carry(outgoing);
        }
        self.up.push(lane);
        if self.are_complete() {
            self.waiting.clear();
        }
    }

    fn are_complete(&self) -> bool {
        self.expected > 0 && self.up.len() >= self.expected
    }

    /// Carries a transfer over all lanes that are there, and those that are still coming.
    pub(super) fn carry(&mut self, outgoing: &Outgoing) {
        for lane in &self.up {
            lane.carry(outgoing);
        }
        if !self.are_complete() {
            self.waiting.push(outgoing.clone());
        }
    }

    /// Nobody waits for lanes of a transfer that is over.
    pub(super) fn forget(&mut self, outgoing: &Outgoing) {
        self.waiting.retain(|waiting| !waiting.is(outgoing));
    }
}

/// Accepts the lanes of a session and hands them to the driver.
pub(super) async fn accept(
    mut session: LaneSession,
    lanes: usize,
    conn: ConnId,
    events: mpsc::Sender<Event>,
) {
    for _ in 0..lanes {
        let Some(lane) = session.accept().await else {
            return;
        };
        if events.send(Event::LaneUp { conn, lane }).await.is_err() {
            return;
        }
    }
}

/// Connects lanes to the ports that the peer has offered, and hands them to the driver.
pub(super) async fn connect(
    endpoints: Endpoints,
    peer: AgentId,
    host: SocketAddr,
    offer: (Vec<u16>, Nonce),
    conn: ConnId,
    events: mpsc::Sender<Event>,
) {
    let (ports, nonce) = offer;
    let token = SessionToken::from(nonce.0);
    let mut failures = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let addr = SocketAddr::new(host.ip(), *port);
        let lane = endpoints.connect_lane(index, addr, &peer, &token);
        let event = match timeout(LANES_WITHIN, lane).await {
            Ok(Ok(lane)) => Event::LaneUp { conn, lane },
            Ok(Err(error)) => {
                failures.push(error.to_string());
                continue;
            }
            Err(_) => {
                failures.push(format!("no lane at {addr} within {LANES_WITHIN:?}"));
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
    if failures.len() == ports.len() {
        let why = failures
            .pop()
            .unwrap_or_else(|| "no lane was offered".to_owned());
        // The driver is gone where this fails.
        let _ = events.send(Event::LanesFailed { conn, why }).await;
    }
}

/// Watches a lane: when it is lost, the connection's transfers fail.
pub(super) async fn watch(lane: Lane, conn: ConnId, events: mpsc::Sender<Event>) {
    let lost = lane.closed().await;
    let why = lost.to_string();
    // The driver is gone where this fails.
    let _ = events.send(Event::LanesFailed { conn, why }).await;
}
