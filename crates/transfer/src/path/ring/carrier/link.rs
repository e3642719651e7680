//! Rings as an agent has them: offered, fetched, sent over and received from.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Once};
use std::time::Duration;

use super::ends::Ends;
use super::handover::{self, Connection, Expected, HandoverError, Limits, Listener};
use super::staging::{RingError, RingShape};
use super::{RingIn, RingOut, Token};
use crate::data::{Outgoing, Receiver, Region, SharedMemory};
use crate::ids::AgentId;
use crate::path::Path;
use crate::path::carrier::{Carrier, Host, Link, Provider, Reporter};
use crate::path::negotiation::{Ending, Negotiation, Order, decode, encode};
use crate::path::ring::{Rings, Word};

/// How long a peer may take to fetch a ring that it was told of.
const FETCHED_WITHIN: Duration = Duration::from_secs(5);

/// How long a driver may take to register a ring before it is used.
const REGISTERED_WITHIN: Duration = Duration::from_secs(2);

/// The path between agents of one host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ring;

impl Provider for Ring {
    fn path(&self) -> Path {
        Path::RING
    }

    fn open(&self, host: Host) -> io::Result<Box<dyn Carrier>> {
        let listener = Arc::new(Listener::bind(Limits::default())?);
        Ok(Box::new(Local { listener, host }))
    }
}

/// Whether it is an address of this host's own.
pub(in crate::path) fn is_here(address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    // Only addresses of our own can be bound.
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

struct Local {
    /// Where peers of this host connect.
    listener: Arc<Listener>,
    host: Host,
}

impl Carrier for Local {
    /// Where it turns out wrong that the peer is here (a proxy, another namespace), the ring cannot be fetched, and the
    /// network is used.
    fn reaches(&self, address: SocketAddr) -> bool {
        is_here(address)
    }

    fn negotiation(&self, _dialled: bool) -> Box<dyn Negotiation> {
        Box::new(Rings::default())
    }

    fn link(&self, _address: SocketAddr, reporter: Reporter) -> Box<dyn Link> {
        Box::new(RingLink {
            listener: self.listener.clone(),
            receiver: self.host.receiver.clone(),
            on_devices: self.host.on_devices.clone(),
            stall: self.host.endpoints.options().stall_timeout,
            ends: Ends::new(reporter),
        })
    }
}

/// The rings of one connection.
struct RingLink {
    listener: Arc<Listener>,
    receiver: Receiver,
    on_devices: Arc<[Region]>,
    stall: Duration,
    ends: Ends,
}

impl Link for RingLink {
    fn obey(&mut self, order: Order, peer: &AgentId) {
        let on_devices = self.on_devices.clone();
        match order {
            Order::Offer { .. } => match offer(&self.listener) {
                Ok((expected, word)) => {
                    let handing = hand_over(expected, self.stall, on_devices);
                    self.ends.hand_over(encode(&word), handing);
                }
                Err(why) => self.ends.not_offered(why),
            },
            Order::Meet { word } => {
                let Some(word) = decode::<Word>(&word) else {
                    return;
                };
                let receiver = self.receiver.clone();
                let receiving = receive(word, receiver, on_devices, peer.clone());
                self.ends.receive(receiving);
            }
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

/// Makes ready to hand a ring over.
pub(in crate::path) fn offer(listener: &Listener) -> Result<(Expected, Word), String> {
    let token = Token::random().map_err(|error| error.to_string())?;
    let expected = listener.expect(&token).map_err(|error| error.to_string())?;
    let socket = listener.name().clone();
    Ok((expected, Word { socket, token }))
}

pub(in crate::path) fn failed(why: impl ToString) -> Ending {
    Ending::Failed(why.to_string())
}

/// Why a guest has not got what it came for: one who comes too late is hung up on.
pub(in crate::path) fn of_guest(error: HandoverError) -> Ending {
    match error {
        HandoverError::PeerGone => Ending::Lapsed,
        error => failed(error),
    }
}

/// Has devices reach the memory of a ring themselves, if there are any. That is not needed to go on.
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

/// Waits for whoever fetches a ring.
pub(in crate::path) async fn guest(expected: Expected) -> Result<Connection, Ending> {
    let visit = expected.connection(FETCHED_WITHIN).await;
    visit.map_err(|error| match error {
        HandoverError::TimedOut => Ending::Lapsed,
        error => failed(error),
    })
}

/// Waits until the peer fetches the ring.
async fn hand_over(
    expected: Expected,
    stall: Duration,
    on_devices: Arc<[Region]>,
) -> Result<RingOut, Ending> {
    let connection = guest(expected).await?;
    let producer = connection.offer_producer(RingShape::DEFAULT).await;
    let producer = producer.map_err(failed)?;
    register(producer.memory().clone(), on_devices).await;
    RingOut::new(producer, stall).map_err(failed)
}

/// Fetches a ring that the peer has offered and receives from it, as long as it lasts or this task does.
async fn receive(
    word: Word,
    receiver: Receiver,
    on_devices: Arc<[Region]>,
    peer: AgentId,
) -> Result<Ending, Ending> {
    let connection = handover::connect(&word.socket, &word.token, &Limits::default()).await;
    let connection = connection.map_err(of_guest)?;
    let consumer = connection.accept_consumer().await.map_err(of_guest)?;
    register(consumer.memory().clone(), on_devices).await;
    let ring = RingIn::serve(&receiver, consumer, peer);
    Ok(over(ring.map_err(failed)?).await)
}

/// Waits until a ring is gone, and says how.
pub(in crate::path) async fn over(ring: RingIn) -> Ending {
    match ring.closed().await {
        RingError::Panicked => Ending::Panicked,
        why => failed(why),
    }
}
