//! A source that can send anything to an agent that pulls from it.

use std::time::{Duration, Instant};

use tokio::task::block_in_place;
use tokio::time::timeout;
use transload_layout::Rank;
use transload_tests::cluster::{Side, TOKENS, claims_of, mint, transfer_of};
use transload_tests::words;
use transload_transfer::internal::handover::{Limits, Listener};
use transload_transfer::internal::quic::{DataSender, Endpoints, Lane};
use transload_transfer::internal::ring::random_token;
use transload_transfer::internal::slots::{Producer, RingShape};
use transload_transfer::plan::ids::{DeploymentDigest, Nonce};
use transload_transfer::wire::Failure;
use transload_transfer::wire::internal::stream::{StreamHeader, StreamTrailer};
use transload_transfer::wire::message::{Ask, Message};
use transload_transfer::{
    AgentId, Direction, Incarnation, JobError, Path, Plan, PullReport, RankAddress, Request, Roles, Ticket,
    TransferError,
};

use crate::peer::Hostile;
use crate::town::{Destination, PATIENCE, Town, issue};

/// A source that listens as an agent of its own, so that no peer knows it from before.
pub(crate) struct Source {
    pub(crate) endpoints: Endpoints,
    /// The time limit of a pull from it.
    pub(crate) timeout: Duration,
    name: String,
}

impl Source {
    pub(crate) fn new(town: &Town, name: &str, roles: Roles) -> Self {
        let name = format!("hostile-{name}");
        let endpoints = Hostile::endpoints(issue(&town.authority, &name, roles));
        // Two attempts that stall fit in.
        let timeout = Duration::from_secs(4);
        Self { endpoints, timeout, name }
    }

    /// Returns a ticket that leads to this source, as the owner of `side`.
    pub(crate) fn ticket(&self, to: &Destination, side: Side, request: u64, direction: Direction) -> Ticket {
        let address = RankAddress {
            agent: AgentId::new(&self.name).unwrap(),
            host: "127.0.0.1".to_owned(),
            port: self.endpoints.control_addr().port(),
        };
        let deployment = side.deployment();
        let document = postcard::to_allocvec(deployment.document()).unwrap();
        let owner = DeploymentDigest::of(&document);
        let addresses = deployment.ranks().map(|_| address.clone()).collect();
        let claims = claims_of(request, direction, owner, Incarnation::new(6, 6), addresses);
        mint(&to.agent.ticket_key(), &claims)
    }

    /// Makes an agent pull from it, and answers each of its asks this way.
    pub(crate) async fn pulled(
        &self,
        to: &Destination,
        ranks: &[Rank],
        request: u64,
        answer: impl AsyncFnMut(&mut Hostile, Ask),
    ) -> Result<PullReport, TransferError> {
        let ticket = self.ticket(to, Side::Prefill, request, Direction::Pull);
        let mut pull = transfer_of(Side::Decode, ranks, ticket, request);
        pull.timeout = self.timeout;
        to.cache.clear();
        tokio::select! {
            ended = timeout(PATIENCE, to.agent.pull(pull)) => ended.expect("it ends"),
            () = self.serve(Side::Prefill, answer) => unreachable!("it listens on"),
        }
    }

    /// Greets one agent after another as `side`, and answers each ask this way.
    pub(crate) async fn serve(&self, side: Side, mut answer: impl AsyncFnMut(&mut Hostile, Ask)) {
        while let Some(mut hostile) = Hostile::visited(&self.endpoints, side).await {
            while let Some(ask) = hostile.asked().await {
                answer(&mut hostile, ask).await;
            }
        }
    }
}

/// Returns the reason why a pull or push failed; it must have failed.
pub(crate) fn failure<T: std::fmt::Debug>(result: Result<T, TransferError>) -> Failure {
    match result {
        Err(TransferError::Job(JobError::Failed { failure, .. })) => failure,
        other => panic!("{other:?}"),
    }
}

/// Returns whether a stream broke off, or a copy, for a reason in which these words are.
pub(crate) fn is_broken_by(failure: &Failure, words: &str) -> bool {
    matches!(failure, Failure::StreamBroken { why } if why.to_string().contains(words))
}

/// Returns how many bytes a route has.
pub(crate) fn route_bytes(ask: &Ask) -> u64 {
    let (src, dst) = (Side::Prefill.deployment(), Side::Decode.deployment());
    let plan = Plan::compile(&src, &dst, &Request::tokens(TOKENS)).unwrap();
    plan.route_bytes(plan.route(ask.source, ask.destination).unwrap())
}

/// The path of the bytes.
pub(crate) enum Way {
    Lane(Lane),
    Ring(Producer),
}

impl Way {
    /// Accepts an ask for this path, and makes the path on the connection's first one.
    pub(crate) async fn accept(hostile: &mut Hostile, ask: &Ask, path: Path, way: &mut Option<Way>) {
        let transfer = ask.transfer;
        hostile.say(Message::Accepted { transfer, path }).await;
        if way.is_none() {
            *way = match path {
                Path::QUIC => Self::lane(hostile).await,
                _ => Some(Self::ring(hostile).await),
            };
        }
    }

    async fn lane(hostile: &mut Hostile) -> Option<Self> {
        let wanted = |message: &Message| words::wants_lanes(message).then_some(());
        hostile.wait_for(wanted).await?;
        let endpoints = hostile.endpoints.clone();
        let mut session = endpoints.expect_lanes(&hostile.peer(), 1).unwrap();
        let nonce = *session.token();
        let ports = endpoints.lane_ports();
        hostile.say(words::lanes_offered(&ports, nonce)).await;
        let lane = timeout(PATIENCE, session.accept()).await.unwrap();
        lane.map(Self::Lane)
    }

    async fn ring(hostile: &mut Hostile) -> Self {
        let listener = Listener::bind(Limits::default()).unwrap();
        let token = random_token().unwrap();
        let expected = listener.expect(&token).unwrap();
        let (socket, token) = (listener.name().as_str(), halves(&token.0));
        hostile.say(words::ring_offered(socket, token)).await;
        let connection = expected.connection(PATIENCE).await.unwrap();
        Self::Ring(connection.offer_producer(RingShape::DEFAULT).await.unwrap())
    }

    /// Sends a stream: its header, `sent` bytes, its trailer and what comes behind.
    pub(crate) async fn send(&mut self, stream: Stream) {
        let bytes = stream.bytes();
        match self {
            // The other side may have stopped it already.
            Self::Lane(lane) => {
                if let Some(mut stream) = Self::stream(lane).await {
                    let _ = stream.send_all(&bytes).await;
                    let _ = stream.finish();
                }
            }
            Self::Ring(producer) => block_in_place(|| {
                let slots = bytes.chunks(256 << 10);
                let offsets = (0..).step_by(256 << 10);
                for (offset, slot) in offsets.zip(slots) {
                    let soon = Instant::now() + PATIENCE;
                    let Ok(mut window) = producer.reserve(Some(soon)) else {
                        return;
                    };
                    window.put(0, slot).unwrap();
                    let _ = window.publish(stream.tag(), offset, slot.len());
                }
            }),
        }
    }

    /// Sends a stream one byte at a time, as long as it is read.
    pub(crate) async fn trickle(&mut self, stream: Stream) {
        let bytes = stream.bytes();
        let each = Duration::from_millis(20);
        match self {
            Self::Lane(lane) => {
                let Some(mut stream) = Self::stream(lane).await else {
                    return;
                };
                for byte in bytes {
                    if stream.send_all(&[byte]).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(each).await;
                }
            }
            Self::Ring(producer) => {
                // The header has to be in one slot.
                let (header, rest) = bytes.split_at(transload_transfer::wire::internal::stream::HEADER);
                let slots = [header].into_iter().chain(rest.chunks(1));
                let mut offset = 0;
                for slot in slots {
                    let sent = block_in_place(|| {
                        let soon = Instant::now() + PATIENCE;
                        let mut window = producer.reserve(Some(soon)).ok()?;
                        window.put(0, slot)?;
                        window.publish(stream.tag(), offset, slot.len()).ok()
                    });
                    if sent.is_none() {
                        return;
                    }
                    offset += slot.len() as u64;
                    tokio::time::sleep(each).await;
                }
            }
        }
    }

    async fn stream(lane: &Lane) -> Option<DataSender> {
        lane.open_stream().await.ok()
    }
}

/// A stream to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) header: StreamHeader,
    /// The number of bytes that follow, all of them [`FILL`].
    pub(crate) sent: usize,
    pub(crate) trailer: StreamTrailer,
    pub(crate) behind: usize,
}

/// The byte that hostile sources send.
pub(crate) const FILL: u8 = 0xEE;

impl Stream {
    /// Makes the whole stream of a route, as an honest source would send it.
    pub(crate) fn whole(ask: &Ask) -> Self {
        let length = route_bytes(ask);
        let mut sum = transload_transfer::memory::copy::Crc32c::new();
        sum.update(&vec![FILL; length as usize]);
        Self {
            header: StreamHeader { transfer: ask.transfer, nonce: ask.nonce, stream: 0, offset: 0, length },
            sent: length as usize,
            trailer: StreamTrailer { length, crc: sum.value() },
            behind: 0,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.encode().to_vec();
        bytes.resize(bytes.len() + self.sent, FILL);
        bytes.extend(self.trailer.encode());
        bytes.resize(bytes.len() + self.behind, FILL);
        bytes
    }

    /// Returns its number on a ring, any that was not used before.
    fn tag(&self) -> u64 {
        let transfer = self.header.transfer.0;
        let transfer = u64::from_le_bytes(std::array::from_fn(|i| transfer[i]));
        transfer.wrapping_add(self.header.stream.into())
    }
}

/// Splits a token into the halves in which it travels.
pub(crate) fn halves(token: &[u8; 32]) -> (Nonce, Nonce) {
    let half = |at: usize| Nonce(std::array::from_fn(|i| token[at + i]));
    (half(0), half(16))
}

/// Commits to all bytes of a transfer, in one stream.
pub(crate) async fn commit(hostile: &mut Hostile, ask: &Ask) {
    let (transfer, bytes) = (ask.transfer, route_bytes(ask));
    let streams = 1;
    let commit = Message::Commit { transfer, streams, bytes };
    hostile.say(commit).await;
}
