//! The staging rings of one connection, between two agents of one host.
//!
//! A source that is to send over a ring tells the peer where to fetch it: the name of its Unix socket
//! and a token, over the authenticated control connection. The peer fetches the ring there, once a
//! transfer waits for it, and receives from it. Each direction has a ring of its own, which knows nothing
//! of the other, kept for as long as the connection lives.
//!
//! An offer that is not fetched in time lapses. Where the transfer that it was made for is gone by then,
//! the path is none the worse: another offer is made for the next one, which is what a peer waits for
//! that comes too late.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::event::Event;
use crate::data::{Arrivals, Outgoing, Receiver};
use crate::ids::{AgentId, Nonce, TransferId};
use crate::path::ring::RingOut;
use crate::path::ring::handover::{self, Expected, HandoverError, Limits, Listener, Token};
use crate::path::ring::host::SocketName;
use crate::path::ring::staging::{RingError, RingLimits, RingShape};
use crate::wire::ConnId;

/// How long a peer may take to fetch a ring that it was told of.
const FETCHED_WITHIN: Duration = Duration::from_secs(5);

/// The rings of one connection.
#[derive(Debug, Default)]
pub(super) struct Rings {
    /// What we send over.
    pub(super) out: Sending,
    /// What we receive from.
    pub(super) incoming: Receiving,
}

/// The ring to send over, and the transfers that wait for it.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// The transfer that a ring was offered for. The ring may be there by now.
    pub(super) offered: Option<TransferId>,
    ring: Option<RingOut>,
    waiting: Vec<Outgoing>,
}

impl Sending {
    /// The ring is there: transfers that wait go over it.
    pub(super) fn add(&mut self, ring: RingOut) {
        for outgoing in self.waiting.drain(..) {
            ring.carry(&outgoing);
        }
        self.ring = Some(ring);
    }

    /// Carries a transfer over the ring, now or when it is there.
    pub(super) fn carry(&mut self, outgoing: &Outgoing) {
        match &self.ring {
            Some(ring) => ring.carry(outgoing),
            None => self.waiting.push(outgoing.clone()),
        }
    }

    /// Whether the ring is there, and of no use any more.
    pub(super) fn is_broken(&self) -> bool {
        self.ring.as_ref().is_some_and(RingOut::is_closed)
    }

    /// Nobody waits for the ring with a transfer that is over.
    pub(super) fn forget(&mut self, outgoing: &Outgoing) {
        self.waiting.retain(|waiting| !waiting.is(outgoing));
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(ring) = &self.ring {
            ring.close();
        }
    }
}

/// The ring to receive from: offered, and then received from by a task.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// The last offer that nobody has taken up. It may have lapsed.
    offered: Option<Offer>,
    task: Option<JoinHandle<()>>,
}

impl Receiving {
    /// The peer has offered a ring. That alone costs us nothing but remembering it.
    pub(super) fn offered(&mut self, offer: Offer) {
        self.offered = Some(offer);
    }

    /// What is to be fetched, for a transfer that waits: nothing where a ring is there, or on its way.
    pub(super) fn take_up(&mut self) -> Option<Offer> {
        match self.task {
            Some(_) => None,
            None => self.offered.take(),
        }
    }

    /// Receives, until this is dropped.
    pub(super) fn begun(&mut self, task: JoinHandle<()>) {
        self.task = Some(task);
    }

    /// The task has come to its end. An offer that came meanwhile stands.
    pub(super) fn ended(&mut self) {
        self.task = None;
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Whether an address is one of this host's own, so that its agent can be reached over a ring. Where
/// that is wrong (a proxy, another namespace), the ring cannot be fetched and the network is used.
pub(super) fn is_this_host(address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    // Only addresses of our own can be bound.
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// Why nothing came of an offer.
#[derive(Debug, Error)]
pub(super) enum OfferError {
    /// Nobody came in time.
    #[error("the offer has lapsed")]
    Lapsed,
    /// A thread of ours has panicked over it.
    #[error("the thread of the ring has panicked")]
    Panicked,
    #[error("{0}")]
    Failed(String),
}

impl OfferError {
    fn failed(why: impl ToString) -> Self {
        Self::Failed(why.to_string())
    }

    /// Of whoever fetches: a guest who comes too late is hung up on.
    fn of_guest(error: HandoverError) -> Self {
        match error {
            HandoverError::PeerGone => Self::Lapsed,
            error => Self::failed(error),
        }
    }

    /// Whether nothing came of it only since the transfer that it was made for does not wait any more.
    pub(super) fn is_withdrawal(&self, offered: Option<TransferId>, wait: &[TransferId]) -> bool {
        let waits = offered.is_some_and(|transfer| wait.contains(&transfer));
        matches!(self, Self::Lapsed) && !waits
    }
}

/// What a peer has to know to fetch a ring.
#[derive(Debug)]
pub(super) struct Offer {
    socket: SocketName,
    token: Token,
}

impl Offer {
    /// What a peer has said, if it makes sense.
    pub(super) fn of(socket: String, token: (Nonce, Nonce)) -> Option<Self> {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&token.0.0);
        bytes[16..].copy_from_slice(&token.1.0);
        Some(Self {
            socket: SocketName::try_from(socket).ok()?,
            token: Token::from_bytes(bytes),
        })
    }

    /// As it is said to the peer.
    pub(super) fn words(&self) -> (String, (Nonce, Nonce)) {
        let (first, second) = self.token.as_bytes().split_at(16);
        let half = |bytes: &[u8]| Nonce(std::array::from_fn(|i| bytes[i]));
        let socket = self.socket.as_str().to_owned();
        (socket, (half(first), half(second)))
    }

    /// Connects to where the peer hands the ring over.
    async fn connect(&self) -> Result<handover::Connection, OfferError> {
        let connection = handover::connect(&self.socket, &self.token, &Limits::default()).await;
        connection.map_err(OfferError::of_guest)
    }
}

/// Makes ready to hand a ring over.
pub(super) fn offer(listener: &Listener) -> Result<(Expected, Offer), String> {
    let token = Token::random().map_err(|error| error.to_string())?;
    let expected = listener.expect(&token).map_err(|error| error.to_string())?;
    let socket = listener.name().clone();
    Ok((expected, Offer { socket, token }))
}

/// Waits for the peer that was told of an offer.
async fn visit(expected: Expected) -> Result<handover::Connection, OfferError> {
    let visit = expected.connection(FETCHED_WITHIN).await;
    visit.map_err(|error| match error {
        HandoverError::TimedOut => OfferError::Lapsed,
        error => OfferError::failed(error),
    })
}

/// Waits until the peer fetches the ring, and hands our end to the driver.
pub(super) async fn hand_over(
    expected: Expected,
    stall_timeout: Duration,
    conn: ConnId,
    events: mpsc::Sender<Event>,
) {
    let handing = async {
        let connection = visit(expected).await?;
        let producer = connection.offer_producer(RingShape::DEFAULT).await;
        let producer = producer.map_err(OfferError::failed)?;
        RingOut::new(producer, stall_timeout).map_err(OfferError::failed)
    };
    let event = match handing.await {
        Ok(ring) => Event::RingOut { conn, ring },
        Err(why) => Event::RingOutFailed { conn, why },
    };
    // The driver is gone where this fails.
    let _ = events.send(event).await;
}

/// Fetches a ring that the peer has offered and receives from it, as long as it lasts or this task does.
pub(super) async fn receive<A: Arrivals>(
    offer: Offer,
    receiver: Receiver<A>,
    peer: AgentId,
    conn: ConnId,
    events: mpsc::Sender<Event>,
) {
    let receiving = async {
        let connection = offer.connect().await?;
        let consumer = connection.accept_consumer(RingLimits::default()).await;
        let consumer = consumer.map_err(OfferError::of_guest)?;
        let ring = receiver.serve_ring(consumer, peer);
        let ring = ring.map_err(OfferError::failed)?;
        Ok(match ring.closed().await {
            RingError::Panicked => OfferError::Panicked,
            why => OfferError::failed(why),
        })
    };
    let (Ok(why) | Err(why)) = receiving.await;
    // The driver is gone where this fails.
    let _ = events.send(Event::RingInFailed { conn, why }).await;
}
