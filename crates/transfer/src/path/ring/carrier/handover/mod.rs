//! How the two ends of a ring get hold of the same memory.
//!
//! A [`Listener`] has a socket with a random name. Whoever connects must be of an allowed user and
//! must hold a [`Token`] that the two agents agreed upon over their mutually authenticated control
//! connection; that is what binds the memory to the session. Then either side offers one
//! [ring](super::staging) for each [`Connection`], which from then on serves as doorbell and as sign of life.
//!
//! Every step has a deadline, [`Limits::timeout`]. Descriptors that come from the peer are counted,
//! checked (an ordinary memfd, sealed in size, of exactly the size announced, which is within the
//! limits of the receiver) and closed if anything is wrong.

mod listener;
mod message;
mod socket;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tokio::sync::Semaphore;

pub use listener::{Expected, Listener};

pub(crate) use super::memfd::MemfdFault;

use self::message::{Answer, Offer};
use self::socket::Packets;
use super::memfd;
use super::staging::{Consumer, Mapped, Producer, Ring, RingShape, ShapeError};
use transload_wire::internal::negotiation::encode;
use transload_wire::internal::ring::{SocketName, Token};

/// Bounds on what a peer may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long any one step may take: to greet, to offer, to answer, to map. Default 2 s.
    pub timeout: Duration,
    /// Effective users whose processes may connect. Default: the one of this process.
    pub users: Vec<u32>,
    /// How many peers may be in the middle of their greeting. Each costs one descriptor.
    /// Default 32; more wait in the kernel's queue.
    pub greetings: usize,
    /// How many peers may be expected at a time. Default 1,024.
    pub expected: usize,
    /// Most bytes of a ring that a peer offers, as [`RingShape::bytes`] counts them. Default: 32 MiB of slots.
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
    fn check_user(&self, packets: &Packets) -> Result<(), HandoverError> {
        let uid = packets.peer_uid()?;
        match self.users.contains(&uid) {
            true => Ok(()),
            false => Err(HandoverError::ForeignUser { uid }),
        }
    }
}

/// Where the caches are of a side of a handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// All in memory of the host.
    OnHost,
    /// Some in memory of a device, or all.
    OnDevice,
}

/// Connects to the agent that listens on `name` and shows it the token, once both have it.
///
/// That it succeeds proves that both are on one host and in one session.
pub async fn connect(name: &SocketName, token: &Token, limits: &Limits) -> Result<Connection, HandoverError> {
    connect_with(name, token, limits, Caches::OnHost).await
}

/// The same, and tells the other side where our caches are, if that understands it: an agent that knows nothing of caches on devices hangs
/// up on such a hello, which leaves the token unspent, and hears the one that it knows.
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

/// An authenticated connection between two processes of one host, good for one offer.
#[derive(Debug)]
pub struct Connection {
    packets: Packets,
    limits: Limits,
    peer_caches: Caches,
}

impl Connection {
    /// Where the caches are of the side that has connected, by its own word; the one that listens says nothing of its own.
    pub fn peer_caches(&self) -> Caches {
        self.peer_caches
    }

    /// Makes a ring of which this side is the producer; the other calls
    /// [`accept_consumer`](Self::accept_consumer).
    pub async fn offer_producer(self, shape: RingShape) -> Result<Producer, HandoverError> {
        self.offer_with(shape, None).await
    }

    /// The same, with a descriptor of more memory that belongs to the ring; the other side calls
    /// [`accept_with`](Self::accept_with).
    pub async fn offer_with(self, shape: RingShape, more: Option<OwnedFd>) -> Result<Producer, HandoverError> {
        // Before it is out of our hands: the other side may have it sealed when it has mapped it too.
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

    /// Takes the consuming end of a ring that the other side makes.
    pub async fn accept_consumer(self) -> Result<Consumer, HandoverError> {
        let nothing = |_, _| std::future::ready(Ok(()));
        let (consumer, ()) = self.accept(1, nothing).await?;
        Ok(consumer)
    }

    /// The same, for a ring to which more memory belongs: `take` checks and takes that, by calls of a driver.
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

    /// Takes the consuming end of a ring that comes with so many descriptors, of which `take` takes all but the first.
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
                // The fault is what counts; a peer that does not hear of it sees the hang-up.
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

/// Why a handover failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum HandoverError {
    /// Nobody listens on that name here: another host, another network namespace, or gone.
    #[error("nobody listens on the peer's local socket")]
    NobodyThere,
    /// A process of another user.
    #[error("the peer runs as user {uid}, who is not allowed")]
    ForeignUser { uid: u32 },
    /// The other side does not hold the token, or it was spent.
    #[error("the peer does not hold the token of this session")]
    UnknownToken,
    /// A step took longer than [`Limits::timeout`].
    #[error("the peer was too slow")]
    TimedOut,
    /// The peer hung up; a listener does that to whom it turns away.
    #[error("the peer has hung up")]
    PeerGone,
    /// A packet that means nothing.
    #[error("the peer's {packet} is malformed")]
    Malformed { packet: &'static str },
    /// An offer comes with a descriptor for each memory.
    #[error("the peer's offer came with {found} descriptors instead of {expected}")]
    Descriptors { found: usize, expected: usize },
    /// Memory of another kind, which belongs to the ring, cannot be used.
    #[error("the peer's memory cannot be used: {0}")]
    More(String),
    /// Over a limit.
    #[error("more than {limit} {what}")]
    TooMuch { what: &'static str, limit: u64 },
    /// A ring that cannot be.
    #[error("the peer offers an impossible ring")]
    Shape(#[from] ShapeError),
    /// The memory is not what it has to be.
    #[error(transparent)]
    Memfd(#[from] MemfdFault),
    /// The peer refused what was offered; it knows why.
    #[error("the peer refused the offer")]
    Refused,
    /// Memory could not be made or mapped.
    #[error("mapping memory failed")]
    Map(#[source] io::Error),
    /// A system call on the socket failed.
    #[error("{doing} failed on the local socket")]
    Socket { doing: &'static str, source: io::Error },
    /// The runtime is being shut down.
    #[error("the runtime is being shut down")]
    ShuttingDown,
}

impl HandoverError {
    fn too_much(what: &'static str, limit: u64) -> Self {
        Self::TooMuch { what, limit }
    }
}

fn check_ring(
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

async fn within<T>(limits: &Limits, step: impl Future<Output = Result<T, HandoverError>>) -> Result<T, HandoverError> {
    tokio::time::timeout(limits.timeout, step).await.unwrap_or(Err(HandoverError::TimedOut))
}

/// How many mappings there are at a time in this process, each of which takes a few milliseconds: the rest waits for its
/// turn, so that nobody else who needs a thread for blocking work waits for them.
static MAPS: Semaphore = Semaphore::const_new(2);

/// Has a device's driver called where it may take its time. A device that is held (by a debugger, or while it compiles) holds up
/// no more than the calls of others for rings in device memory.
pub(in crate::path) async fn in_driver<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HandoverError> {
    static TURNS: Semaphore = Semaphore::const_new(2);
    on_thread(&TURNS, work).await
}

/// Mapping may touch pages, which takes too long for an async thread.
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
        // Until it is done, whatever becomes of who wanted it.
        let _turn = turn;
        work()
    });
    working.await.map_err(|_| HandoverError::ShuttingDown)
}
