//! The staging rings of one connection, between two agents of one host.
//!
//! A source that is to send over a ring tells the peer where to fetch it: the name of its Unix socket
//! and a token, over the authenticated control connection. The peer fetches the ring there and receives
//! from it. Each direction has a ring of its own, kept for as long as the connection lives.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::sync::mpsc;

use super::data::{Outgoing, RingIn, RingOut};
use super::event::Event;
use crate::ids::Nonce;
use crate::transport::local::handover::{self, Expected, Limits, Listener, Token};
use crate::transport::local::host::SocketName;
use crate::transport::local::ring::{RingLimits, RingShape};
use crate::wire::ConnId;

/// How long a peer may take to fetch a ring, or memory, that it was told of.
pub(super) const FETCHED_WITHIN: Duration = Duration::from_secs(5);

/// The rings of one connection, and the transfers that wait for the one to send over.
#[derive(Debug, Default)]
pub(super) struct Rings {
    /// Whether a ring was offered.
    pub(super) begun: bool,
    /// Whether one that was offered is being fetched, or is here.
    pub(super) fetching: bool,
    out: Option<RingOut>,
    waiting: Vec<Outgoing>,
    /// Held so that it is received from.
    pub(super) incoming: Option<RingIn>,
}

impl Rings {
    /// The ring is there: transfers that wait go over it.
    pub(super) fn add(&mut self, ring: RingOut) {
        for outgoing in self.waiting.drain(..) {
            ring.carry(&outgoing);
        }
        self.out = Some(ring);
    }

    /// Carries a transfer over the ring, now or when it is there.
    pub(super) fn carry(&mut self, outgoing: &Outgoing) {
        match &self.out {
            Some(ring) => ring.carry(outgoing),
            None => self.waiting.push(outgoing.clone()),
        }
    }

    /// Nobody waits for the ring with a transfer that is over.
    pub(super) fn forget(&mut self, outgoing: &Outgoing) {
        self.waiting.retain(|waiting| !waiting.is(outgoing));
    }

    /// Hangs up.
    pub(super) fn close(&self) {
        if let Some(ring) = &self.out {
            ring.close();
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

/// What a peer has to know to fetch a ring, or memory.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) socket: String,
    pub(super) token: (Nonce, Nonce),
}

/// Makes ready to hand a ring over, or memory.
pub(super) fn offer(listener: &Listener) -> Result<(Expected, Offer), String> {
    let token = Token::random().map_err(|error| error.to_string())?;
    let expected = listener.expect(&token).map_err(|error| error.to_string())?;
    let (first, second) = token.as_bytes().split_at(16);
    let half = |bytes: &[u8]| Nonce(std::array::from_fn(|i| bytes[i]));
    let offer = Offer {
        socket: listener.name().as_str().to_owned(),
        token: (half(first), half(second)),
    };
    Ok((expected, offer))
}

/// Waits until the peer fetches the ring, and hands our end to the driver.
pub(super) async fn hand_over(expected: Expected, conn: ConnId, events: mpsc::Sender<Event>) {
    let handing = async {
        let connection = expected.connection(FETCHED_WITHIN).await?;
        connection.offer_producer(RingShape::DEFAULT).await
    };
    let event = match handing.await {
        Ok(producer) => Event::RingOut { conn, producer },
        Err(error) => Event::RingFailed {
            conn,
            why: error.to_string(),
        },
    };
    // The driver is gone where this fails.
    let _ = events.send(event).await;
}

/// Connects to where the peer hands over what it has offered.
pub(super) async fn connect(offer: Offer) -> Result<handover::Connection, String> {
    let socket = SocketName::try_from(offer.socket).map_err(|error| error.to_string())?;
    let mut token = [0; 32];
    token[..16].copy_from_slice(&offer.token.0.0);
    token[16..].copy_from_slice(&offer.token.1.0);
    let token = Token::from_bytes(token);
    let connection = handover::connect(&socket, &token, &Limits::default()).await;
    connection.map_err(|error| error.to_string())
}

/// Fetches a ring that the peer has offered, and hands our end to the driver.
pub(super) async fn fetch(offer: Offer, conn: ConnId, events: mpsc::Sender<Event>) {
    let fetching = async {
        let connection = connect(offer).await?;
        let consumer = connection.accept_consumer(RingLimits::default()).await;
        consumer.map_err(|error| error.to_string())
    };
    let event = match fetching.await {
        Ok(consumer) => Event::RingIn { conn, consumer },
        Err(why) => Event::RingFailed { conn, why },
    };
    // As above.
    let _ = events.send(event).await;
}
