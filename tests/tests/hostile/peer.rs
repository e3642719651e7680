//! A peer that can send any message.

use std::collections::VecDeque;

use tokio::time::timeout;
use transload_layout::{Rank, Side as End};
use transload_tests::cluster::{CLUSTER, Side, TOKENS, content_of, mint};
use transload_tests::words;
use transload_transfer::internal::quic::{ConnectError, ControlConnection, Endpoints, Lane};
use transload_transfer::plan::ids::{DeploymentDigest, Nonce, TransferId};
use transload_transfer::wire::Refusal;
use transload_transfer::wire::internal::frame;
use transload_transfer::wire::message::{Ask, Envelope, Hello, Message, VERSIONS};
use transload_transfer::{
    Agent, AgentId, Claims, ClusterName, Direction, Identity, Incarnation, PathSet, Plan, QuicOptions, Request, Ticket,
    TicketKey,
};

use crate::town::PATIENCE;

/// A peer that can send any message.
pub(crate) struct Hostile {
    pub(crate) control: ControlConnection,
    pub(crate) sequence: u64,
    pub(crate) endpoints: Endpoints,
    /// Asks that came while something else was waited for.
    asks: VecDeque<Ask>,
}

impl Hostile {
    pub(crate) fn endpoints(identity: Identity) -> Endpoints {
        let options = QuicOptions { lanes: 1, ..QuicOptions::default() };
        Endpoints::bind(identity, options, "127.0.0.1:0".parse().unwrap()).unwrap()
    }

    /// Connects without sending a message.
    pub(crate) async fn silent(identity: Identity, to: &Agent) -> Self {
        let endpoints = Self::endpoints(identity);
        let control = endpoints.connect(to.control_addr(), None).await.unwrap();
        Self::new(control, endpoints)
    }

    fn new(control: ControlConnection, endpoints: Endpoints) -> Self {
        Self { control, sequence: 0, endpoints, asks: VecDeque::new() }
    }

    /// Accepts the next connection, and greets as all ranks of `side`.
    pub(crate) async fn visited(endpoints: &Endpoints, side: Side) -> Option<Self> {
        let control = endpoints.accept().await?;
        let mut this = Self::new(control, endpoints.clone());
        this.greet(side).await;
        Some(this)
    }

    /// Connects, and greets as all ranks of `side`.
    pub(crate) async fn welcome(identity: Identity, to: &Agent, side: Side) -> Self {
        let mut this = Self::silent(identity, to).await;
        this.greet(side).await;
        this
    }

    /// Returns the id of the agent at the other end, the only one of its service.
    pub(crate) fn peer(&self) -> AgentId {
        AgentId::from(&self.control.peer().service)
    }

    pub(crate) fn hello(&self, side: Side) -> (Hello, Vec<u8>) {
        let deployment = side.deployment();
        let document = postcard::to_allocvec(deployment.document()).unwrap();
        let hello = Hello {
            versions: VERSIONS,
            cluster: ClusterName::new(CLUSTER).unwrap(),
            agent: AgentId::from(&self.endpoints.identity().peer().service),
            incarnation: Incarnation::new(6, 6),
            deployment: DeploymentDigest::of(&document),
            ranks: deployment.ranks().collect(),
            codecs: Vec::new(),
        };
        (hello, document)
    }

    pub(crate) async fn greet(&mut self, side: Side) {
        let (hello, document) = self.hello(side);
        self.say(Message::Hello(hello)).await;
        loop {
            match self.hear().await.expect("a greeting") {
                Message::Hello(_) => {
                    self.say(Message::Welcome).await;
                }
                Message::DocumentWanted => {
                    let document = document.clone();
                    self.say(Message::Document { document }).await;
                }
                Message::Welcome => return,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends a message. Returns whether that was possible.
    pub(crate) async fn say(&mut self, message: Message) -> bool {
        self.sequence += 1;
        let envelope = Envelope { sequence: self.sequence, message };
        // Whoever is hostile is hung up on now and then.
        let frame = frame::encode(&envelope).unwrap();
        self.control.sender.send(frame).await.is_ok()
    }

    /// Returns the next message; `None` where the connection is gone.
    pub(crate) async fn hear(&mut self) -> Option<Message> {
        let body = timeout(PATIENCE, self.control.receiver.recv()).await.expect("nobody answers");
        Some(frame::decode(&body.ok()?).unwrap().message)
    }

    /// Returns the next message that `wanted` accepts. Asks are kept. Returns `None` if the connection is gone or a
    /// transfer was aborted.
    pub(crate) async fn wait_for<T>(&mut self, mut wanted: impl FnMut(&Message) -> Option<T>) -> Option<T> {
        loop {
            let message = self.hear().await?;
            if let Some(found) = wanted(&message) {
                return Some(found);
            }
            match message {
                Message::Pull(ask) | Message::Push(ask) => self.asks.push_back(ask),
                Message::Abort { .. } => return None,
                _ => {}
            }
        }
    }

    /// Returns the next ask; `None` where the connection is gone.
    pub(crate) async fn asked(&mut self) -> Option<Ask> {
        loop {
            if let Some(ask) = self.asks.pop_front() {
                return Some(ask);
            }
            match self.hear().await? {
                Message::Pull(ask) | Message::Push(ask) => return Some(ask),
                _ => {}
            }
        }
    }

    pub(crate) async fn is_hung_up_on(&mut self) -> bool {
        while self.hear().await.is_some() {}
        true
    }

    /// Asks, and hears the refusal.
    pub(crate) async fn refused(&mut self, direction: Direction, ask: Ask) -> Refusal {
        self.say(match direction {
            Direction::Pull => Message::Pull(ask),
            Direction::Push => Message::Push(ask),
        })
        .await;
        loop {
            match self.hear().await.expect("an answer") {
                Message::Refused { refusal, .. } => return refusal,
                Message::Waiting { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Opens a lane to the peer as an honest agent would.
    pub(crate) async fn lane(&mut self) -> (Lane, u16) {
        self.say(words::lanes_wanted(1)).await;
        loop {
            if let Some((ports, nonce)) = words::offers_lanes(&self.hear().await.unwrap()) {
                return (self.lane_with(ports[0], &nonce).await.unwrap(), ports[0]);
            }
        }
    }

    pub(crate) async fn lane_with(&self, port: u16, token: &Nonce) -> Result<Lane, ConnectError> {
        let mut address = self.control.remote_address();
        address.set_port(port);
        self.endpoints.connect_lane(0, address, &self.peer(), token).await
    }
}

/// Returns a valid ask for the route from rank 0 to rank 0.
pub(crate) fn ask(number: u8, claims: &Claims, key: &TicketKey, request: u64) -> Ask {
    ask_with(number, mint(key, claims), request)
}

/// Like `ask`, with an existing ticket.
pub(crate) fn ask_with(number: u8, ticket: Ticket, request: u64) -> Ask {
    let (src, dst) = (Side::Prefill.deployment(), Side::Decode.deployment());
    let of = Request::tokens(TOKENS);
    let plan = Plan::compile_for(&src, &dst, &of, End::Destination, &[Rank(0)]).unwrap();
    Ask {
        transfer: TransferId([number; 16]),
        nonce: Nonce([number; 16]),
        ticket,
        source: Rank(0),
        destination: Rank(0),
        request: of,
        content: content_of(request),
        plan: plan.route_digest(plan.route(Rank(0), Rank(0)).unwrap()),
        lanes: 1,
        paths: PathSet::QUIC,
        attempt: 1,
    }
}
