//! Connections between two processes of one host, and what passes over them: one ring.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::error::HandoverError;
use super::message::{self, Answer, Caches, Offer};
use super::socket::Packets;
use crate::path::ring::carrier::memfd;
use crate::path::ring::carrier::slots::{Consumer, Mapped, Producer, Ring, RingShape};
use transload_wire::internal::negotiation::encode;
use transload_wire::internal::ring::{SocketName, Token};

/// Limits of what a peer may use.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The time limit of each step: to greet, to offer, to answer, to map. Default: 2 s.
    pub timeout: Duration,
    /// The effective users whose processes may connect. Default: the user of this process.
    pub users: Vec<u32>,
    /// The most peers in the middle of their greeting. Each costs one descriptor. Default: 32; others wait in the
    /// kernel's queue.
    pub greetings: usize,
    /// The most peers that are expected at a time. Default: 1,024.
    pub expected: usize,
    /// The most bytes of a peer's ring, as [`RingShape::bytes`] counts them. Default: 32 MiB of slots.
    pub ring_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            users: vec![rustix::process::geteuid().as_raw()],
            greetings: 32,
            expected: 1024,
            ring_bytes: (32 << 20) + RingShape::CONTROL_BYTES,
        }
    }
}

impl Limits {
    pub(super) fn check_user(&self, packets: &Packets) -> Result<(), HandoverError> {
        let uid = packets.peer_uid()?;
        match self.users.contains(&uid) {
            true => Ok(()),
            false => Err(HandoverError::ForeignUser { uid }),
        }
    }
}

/// Connects to the agent that listens on `name`, and presents the token, which both must have.
///
/// Success proves that both are on one host and in one session.
pub async fn connect(name: &SocketName, token: &Token, limits: &Limits) -> Result<Connection, HandoverError> {
    connect_with(name, token, limits, Caches::OnHost).await
}

/// Connects as [`connect`] does, and also tells the other side where our caches are. An older agent closes the
/// connection on such a hello and keeps the token valid; it then gets the plain hello.
pub(crate) async fn connect_with(
    name: &SocketName,
    token: &Token,
    limits: &Limits,
    caches: Caches,
) -> Result<Connection, HandoverError> {
    match greet(name, token, limits, caches).await {
        Err(HandoverError::PeerGone) if caches == Caches::OnDevice => greet(name, token, limits, Caches::OnHost).await,
        greeted => greeted,
    }
}

async fn greet(name: &SocketName, token: &Token, limits: &Limits, caches: Caches) -> Result<Connection, HandoverError> {
    within(limits, async {
        let packets = Packets::connect(name).await?;
        limits.check_user(&packets)?;
        let hello = message::encode_greeting(message::hello(token, caches));
        packets.send(&hello, &[]).await?;
        let (welcome, _) = packets.receive(false).await?;
        if message::welcome(token) != message::decode_greeting(&welcome)? {
            return Err(HandoverError::UnknownToken);
        }
        let limits = limits.clone();
        Ok(Connection { packets, limits, peer_caches: Caches::OnHost })
    })
    .await
}

/// An authenticated connection between two processes of one host, for one offer.
#[derive(Debug)]
pub struct Connection {
    pub(super) packets: Packets,
    pub(super) limits: Limits,
    pub(super) peer_caches: Caches,
}

impl Connection {
    /// Returns where the caches of the connecting side are, as that side states. The listening side does not state its
    /// own.
    pub fn peer_caches(&self) -> Caches {
        self.peer_caches
    }

    /// Makes a ring with this side as the producer. The other side calls [`accept_consumer`](Self::accept_consumer).
    pub async fn offer_producer(self, shape: RingShape) -> Result<Producer, HandoverError> {
        self.offer_with(shape, None).await
    }

    /// Makes a ring as [`offer_producer`](Self::offer_producer) does, with a descriptor of further memory that belongs
    /// to it. The other side calls [`accept_with`](Self::accept_with).
    pub async fn offer_with(self, shape: RingShape, more: Option<OwnedFd>) -> Result<Producer, HandoverError> {
        // Mapped before it is sent: the other side may seal it when it has mapped it.
        let making = blocking(move || Mapped::create(shape));
        let mapped = within(&self.limits, making).await?;
        let offering = async {
            let offer = Offer { slots: shape.slots(), slot_bytes: shape.slot_bytes() };
            let memory = std::iter::once(mapped.memory()).chain(more.as_ref().map(AsFd::as_fd));
            let memory: Vec<_> = memory.collect();
            self.packets.send(&encode(&offer), &memory).await?;
            let (packet, _) = self.packets.receive(false).await?;
            match message::decode(&packet, "answer")? {
                Answer::Taken => Ok(()),
                Answer::Refused => Err(HandoverError::Refused),
            }
        };
        within(&self.limits, offering).await?;
        self.into_ring(mapped).await.map(Producer::new)
    }

    /// Accepts the consuming end of a ring that the other side makes.
    pub async fn accept_consumer(self) -> Result<Consumer, HandoverError> {
        let nothing = |_, _| std::future::ready(Ok(()));
        let (consumer, ()) = self.accept(1, nothing).await?;
        Ok(consumer)
    }

    /// Accepts a ring with further memory, which `take` checks and maps with calls of a driver.
    pub async fn accept_with<T: Send + 'static>(
        self,
        take: impl FnOnce(RingShape, OwnedFd) -> Result<T, String> + Send + 'static,
    ) -> Result<(Consumer, T), HandoverError> {
        let take = |shape, mut more: Vec<OwnedFd>| async move {
            match more.pop() {
                Some(more) => in_driver(move || take(shape, more)).await?,
                None => Err("it has no descriptor".to_owned()),
            }
            .map_err(HandoverError::More)
        };
        self.accept(2, take).await
    }

    /// Accepts the consuming end of a ring that comes with `expected` descriptors. `take` gets all but the first.
    async fn accept<T, Taking: Future<Output = Result<T, HandoverError>>>(
        self,
        expected: usize,
        take: impl FnOnce(RingShape, Vec<OwnedFd>) -> Taking,
    ) -> Result<(Consumer, T), HandoverError> {
        let accepting = async {
            let (packet, descriptors) = self.packets.receive(true).await?;
            let offer = message::decode(&packet, "offer")?;
            let checked = check_ring(offer, descriptors, expected, self.limits.ring_bytes);
            let taken = match checked {
                Ok((memory, more, shape)) => match blocking(move || Mapped::new(memory, shape)).await {
                    Ok(mapped) => take(shape, more).await.map(|taken| (mapped, taken)),
                    Err(fault) => Err(fault),
                },
                Err(fault) => Err(fault),
            };
            match &taken {
                Ok(_) => self.packets.send(&encode(&Answer::Taken), &[]).await?,
                // The fault is reported here. If the peer does not get the answer, it sees the end of the connection.
                Err(_) => drop(self.packets.send(&encode(&Answer::Refused), &[]).await),
            }
            taken
        };
        let (mapped, taken) = within(&self.limits, accepting).await?;
        let ring = self.into_ring(mapped).await?;
        Ok((Consumer::new(ring), taken))
    }

    async fn into_ring(self, mapped: Mapped) -> Result<Ring, HandoverError> {
        let socket = self.packets.into_socket().map_err(HandoverError::Map)?;
        within(&self.limits, blocking(move || mapped.keep(socket))).await
    }
}

pub(super) fn check_ring(
    offer: Offer,
    descriptors: Vec<OwnedFd>,
    expected: usize,
    limit: u64,
) -> Result<(OwnedFd, Vec<OwnedFd>, RingShape), HandoverError> {
    let shape = RingShape::new(offer.slots, offer.slot_bytes)?;
    if shape.bytes() > limit {
        return Err(HandoverError::too_much("bytes of a ring", limit));
    }
    let found = descriptors.len();
    let mut more = descriptors.into_iter();
    let Some(memory) = more.next().filter(|_| found == expected) else {
        return Err(HandoverError::Descriptors { found, expected });
    };
    memfd::check(&memory, shape.bytes())?;
    Ok((memory, more.collect(), shape))
}

pub(super) async fn within<T>(
    limits: &Limits,
    step: impl Future<Output = Result<T, HandoverError>>,
) -> Result<T, HandoverError> {
    tokio::time::timeout(limits.timeout, step).await.unwrap_or(Err(HandoverError::TimedOut))
}

/// Limits the number of mappings at a time in this process. Each takes a few milliseconds; further ones wait, so that
/// they do not delay other blocking work.
static MAPS: Semaphore = Semaphore::const_new(2);

/// Calls a device's driver on a blocking thread. A device that is held by a debugger or a compilation delays only other
/// calls for rings in device memory.
pub(in crate::path) async fn in_driver<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HandoverError> {
    static TURNS: Semaphore = Semaphore::const_new(2);
    on_thread(&TURNS, work).await
}

/// Maps memory on a blocking thread, because touching pages takes too long for an async one.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, HandoverError> {
    on_thread(&MAPS, work).await?.map_err(HandoverError::Map)
}

async fn on_thread<T: Send + 'static>(
    turns: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HandoverError> {
    // The semaphore is never closed.
    let turn = turns.acquire().await.ok();
    let working = tokio::task::spawn_blocking(move || {
        // Held until the work is done, even if its caller stops waiting.
        let _turn = turn;
        work()
    });
    working.await.map_err(|_| HandoverError::ShuttingDown)
}
