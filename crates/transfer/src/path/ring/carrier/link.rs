//! Rings on a connection: offering, fetching, sending and receiving.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Once};
use std::time::Duration;

use super::ends::Ends;
use super::handover::{self, Caches, Connection, Expected, HandoverError, Limits, Listener};
use super::slots::{RingError, RingShape};
use super::{RingIn, RingOut, random_token};
use crate::data::{Outgoing, Receiver, Region, SharedMemory};
use crate::path::carrier::{Carrier, Host, Link, Provider, Reporter};
use transload_plan::ids::AgentId;
use transload_wire::Path;
use transload_wire::internal::negotiation::{Ending, Negotiation, Order, decode, encode};
use transload_wire::internal::ring::{Rings, Word};

/// The time limit for a peer to fetch an offered ring.
const FETCHED_WITHIN: Duration = Duration::from_secs(5);

/// The time limit for a driver to register a ring before it is used.
const REGISTERED_WITHIN: Duration = Duration::from_secs(2);

/// The path between agents of one host.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ring;

impl Provider for Ring {
    fn path(&self) -> Path {
        Path::RING
    }

    fn open(&self, host: Host) -> io::Result<Box<dyn Carrier>> {
        Ok(Box::new(Local {
            listener: Arc::new(Listener::bind(Limits::default())?),
            rings: Staging {
                receiver: host.receiver,
                on_devices: host.on_devices,
                stall: host.endpoints.options().stall_timeout,
            },
        }))
    }
}

/// Returns whether an address belongs to this host.
pub(in crate::path) fn is_here(address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    // Only addresses of this host can be bound.
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

struct Local {
    /// The socket to which peers of this host connect.
    listener: Arc<Listener>,
    rings: Staging,
}

impl Carrier for Local {
    /// The address may be of this host although the peer is not (a proxy, another namespace). Then the ring cannot be
    /// fetched, and the network is used.
    fn reaches(&self, address: SocketAddr) -> bool {
        is_here(address)
    }

    fn negotiation(&self, _dialled: bool) -> Box<dyn Negotiation> {
        Box::new(Rings::default())
    }

    fn link(&self, _address: SocketAddr, reporter: Reporter) -> Box<dyn Link> {
        Box::new(RingLink::new(&self.listener, self.rings.clone(), reporter))
    }
}

/// A kind of ring: its word, and how it is handed over and received from.
pub(in crate::path) trait Kind: Clone + Send {
    /// Encodes the word that tells where a ring can be fetched.
    fn word(&self, fetch: Word) -> Vec<u8>;

    /// Makes a ring once the peer fetches it.
    fn hand_over(self, expected: Expected) -> impl Future<Output = Result<RingOut, Ending>> + Send + 'static;

    /// Fetches the ring that a peer's word offers, and receives from it until it ends or this task does.
    fn receive(self, word: Vec<u8>, peer: AgentId) -> impl Future<Output = Result<Ending, Ending>> + Send + 'static;
}

/// The rings of one connection.
pub(in crate::path) struct RingLink<K> {
    listener: Arc<Listener>,
    kind: K,
    ends: Ends,
}

impl<K: Kind> RingLink<K> {
    pub(in crate::path) fn new(listener: &Arc<Listener>, kind: K, reporter: Reporter) -> Self {
        Self { listener: listener.clone(), kind, ends: Ends::new(reporter) }
    }
}

impl<K: Kind> Link for RingLink<K> {
    fn obey(&mut self, order: Order, peer: &AgentId) {
        let kind = self.kind.clone();
        match order {
            Order::Offer { .. } => match offer(&self.listener) {
                Ok((expected, fetch)) => {
                    let word = kind.word(fetch);
                    self.ends.hand_over(word, kind.hand_over(expected));
                }
                Err(why) => self.ends.not_offered(why),
            },
            Order::Meet { word } => self.ends.receive(kind.receive(word, peer.clone())),
        }
    }

    fn carry(&mut self, outgoing: &Outgoing) {
        self.ends.carry(outgoing);
    }

    fn forget(&mut self, outgoing: &Outgoing) {
        self.ends.forget(outgoing);
    }

    fn is_torn(&mut self) -> bool {
        self.ends.is_torn()
    }
}

/// Prepares to hand over a ring.
fn offer(listener: &Listener) -> Result<(Expected, Word), String> {
    let token = random_token().map_err(|error| error.to_string())?;
    let expected = listener.expect(&token).map_err(|error| error.to_string())?;
    let socket = listener.name().clone();
    Ok((expected, Word { socket, token }))
}

/// The error for an invalid word, which a negotiation never passes on.
pub(in crate::path) const NONSENSE: &str = "the peer's word of a ring makes no sense";

pub(in crate::path) fn failed(why: impl ToString) -> Ending {
    Ending::Failed(why.to_string())
}

/// Converts the error of a peer that fetches a ring. A peer that comes too late finds the connection closed.
pub(in crate::path) fn of_guest(error: HandoverError) -> Ending {
    match error {
        HandoverError::PeerGone => Ending::Lapsed,
        error => failed(error),
    }
}

/// Registers the memory of a ring with the drivers of devices, if there are any. The ring works without that, too.
async fn register(memory: Arc<SharedMemory>, on_devices: Arc<[Region]>) {
    static SAID: Once = Once::new();
    if on_devices.is_empty() {
        return;
    }
    let registering = move || {
        if let Err(error) = memory.register(&on_devices) {
            SAID.call_once(|| {
                tracing::warn!(%error, "staging rings are not registered with the GPU's driver: each byte is copied once more");
            });
        }
    };
    // Every page is pinned, which takes too long for an async thread.
    let registered = handover::in_driver(registering);
    let _ = tokio::time::timeout(REGISTERED_WITHIN, registered).await;
}

/// Waits for the peer that fetches a ring.
pub(in crate::path) async fn guest(expected: Expected) -> Result<Connection, Ending> {
    let visit = expected.connection(FETCHED_WITHIN).await;
    visit.map_err(|error| match error {
        HandoverError::TimedOut => Ending::Lapsed,
        error => failed(error),
    })
}

/// Fetches a ring that the peer has offered.
pub(in crate::path) async fn fetch(word: &Word, caches: Caches) -> Result<Connection, Ending> {
    let limits = Limits::default();
    let connected = handover::connect_with(&word.socket, &word.token, &limits, caches).await;
    connected.map_err(of_guest)
}

#[derive(Clone)]
struct Staging {
    receiver: Receiver,
    on_devices: Arc<[Region]>,
    stall: Duration,
}

impl Staging {
    fn caches(&self) -> Caches {
        match self.on_devices.is_empty() {
            true => Caches::OnHost,
            false => Caches::OnDevice,
        }
    }
}

impl Kind for Staging {
    fn word(&self, fetch: Word) -> Vec<u8> {
        encode(&fetch)
    }

    async fn hand_over(self, expected: Expected) -> Result<RingOut, Ending> {
        let connection = guest(expected).await?;
        let shape = match (self.caches(), connection.peer_caches()) {
            (Caches::OnDevice, Caches::OnDevice) => RingShape::BETWEEN_DEVICES,
            _ => RingShape::DEFAULT,
        };
        let producer = connection.offer_producer(shape).await;
        let producer = producer.map_err(failed)?;
        register(producer.memory().clone(), self.on_devices).await;
        RingOut::new(producer, self.stall).map_err(failed)
    }

    async fn receive(self, word: Vec<u8>, peer: AgentId) -> Result<Ending, Ending> {
        let word = decode(&word).ok_or_else(|| failed(NONSENSE))?;
        let connection = fetch(&word, self.caches()).await?;
        let consumer = connection.accept_consumer().await;
        let consumer = consumer.map_err(of_guest)?;
        register(consumer.memory().clone(), self.on_devices).await;
        let ring = RingIn::serve(&self.receiver, consumer, peer);
        Ok(over(ring.map_err(failed)?).await)
    }
}

/// Waits until a ring has ended, and returns how.
pub(in crate::path) async fn over(ring: RingIn) -> Ending {
    match ring.closed().await {
        RingError::Panicked => Ending::Panicked,
        why => failed(why),
    }
}
