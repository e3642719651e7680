//! Agents of one host that use their local paths side by side: none of them waits for another.

use std::time::Duration;

use transload_layout::{Rank, Side as End};
use transload_tests::cluster::{
    CLUSTER, Cache, Origins, Side, TOKENS, all_end, claims_of, content_of, impatient, lease_of, mint, transfer_of,
};
use transload_tests::words;
use transload_transfer::internal::handover::{HandoverError, Limits, Listener, connect};
use transload_transfer::internal::quic::{ControlConnection, Endpoints};
use transload_transfer::internal::ring::random_token;
use transload_transfer::plan::ids::{DeploymentDigest, Nonce, TransferId};
use transload_transfer::wire::Failure;
use transload_transfer::wire::internal::frame;
use transload_transfer::wire::internal::ring::{SocketName, Token};
use transload_transfer::wire::message::{Ask, Envelope, Hello, Message, VERSIONS};
use transload_transfer::{
    Agent, AgentId, Authority, ClusterName, Direction, Identity, Incarnation, Lease, LeaseEnd, Path, PathSet, Plan,
    PullReport, QuicOptions, RankAddress, Request, Roles, ServiceName, Ticket,
};

const ALL: [Rank; 4] = [Rank(0), Rank(1), Rank(2), Rank(3)];

/// Request 3 may take any path: 2 of 4 are over the network only.
const REQUEST: u64 = 3;

struct Town {
    authority: Authority,
}

impl Town {
    fn new() -> Self {
        let cluster = ClusterName::new(CLUSTER).unwrap();
        let authority = Authority::new(cluster).unwrap();
        Self { authority }
    }

    fn identity(&self, name: &str) -> Identity {
        let service = ServiceName::new(name).unwrap();
        self.authority.issue(&service, Roles::all()).unwrap()
    }

    /// Returns an agent for some ranks of a cache. Those of one engine have one `life`.
    fn agent(&self, name: &str, cache: &Cache, ranks: &[Rank], life: u64) -> Agent {
        let life = Incarnation::new(life, life);
        cache.agent(self.identity(name), ranks.iter().copied(), life, impatient())
    }
}

/// Leases a request's blocks on these ranks.
async fn lease(agent: &Agent, side: Side, ranks: &[Rank]) -> Vec<Lease> {
    let mut leases = Vec::new();
    for rank in ranks {
        let mut request = lease_of(side, *rank, REQUEST);
        request.ttl = Duration::from_secs(60);
        request.hard_bound = Duration::from_secs(60);
        leases.push(agent.lease(request).await.unwrap());
    }
    leases
}

fn ticket(owner: &Agent, addresses: Vec<RankAddress>) -> Ticket {
    let claims = claims_of(REQUEST, Direction::Pull, owner.deployment_digest(), owner.incarnation(), addresses);
    mint(&owner.ticket_key(), &claims)
}

/// Pulls over rings, at the first attempt.
async fn pull(agent: &Agent, side: Side, ranks: &[Rank], ticket: Ticket) -> PullReport {
    let mut request = transfer_of(side, ranks, ticket, REQUEST);
    request.paths = PathSet::LOCAL;
    let report = agent.pull(request).await.unwrap();
    for route in &report.routes {
        assert_eq!((route.path, route.attempts), (Path::RING, 1), "{report:?}");
    }
    report
}

#[tokio::test]
async fn one_agent_receives_from_two() {
    let town = Town::new();
    let (from, into) = (Cache::new(Side::Prefill), Cache::new(Side::Decode));
    from.fill(REQUEST);
    let sources = [town.agent("prefill-0", &from, &[Rank(0)], 1), town.agent("prefill-1", &from, &[Rank(1)], 1)];
    let decode = town.agent("decode", &into, &ALL, 2);
    let mut leases = lease(&sources[0], Side::Prefill, &[Rank(0)]).await;
    leases.extend(lease(&sources[1], Side::Prefill, &[Rank(1)]).await);
    // The second by its name, which is looked up while the first ring is there.
    let addresses = vec![sources[0].address("127.0.0.1"), sources[1].address("localhost")];
    let ticket = ticket(&sources[0], addresses);
    pull(&decode, Side::Decode, &ALL, ticket).await;
    Origins::new().check(&into, REQUEST, &ALL).unwrap();
    all_end(leases, LeaseEnd::Completed).await;
}

#[tokio::test]
async fn agents_receive_and_send() {
    let town = Town::new();
    let names = ["prefill", "decode", "prefill-again", "decode-again"];
    let sides = [Side::Prefill, Side::Decode, Side::Prefill, Side::Decode];
    let caches = sides.map(Cache::new);
    caches[0].fill(REQUEST);
    let agents: Vec<_> = (0..4).map(|i| town.agent(names[i], &caches[i], ranks(sides[i]), i as u64 + 1)).collect();
    // From each to the next. The ring that it has received over is still there when it sends.
    for i in 1..4 {
        let (from, to) = (&agents[i - 1], &agents[i]);
        let owned = ranks(sides[i - 1]);
        let leases = lease(from, sides[i - 1], owned).await;
        let ticket = ticket(from, vec![from.address("127.0.0.1"); owned.len()]);
        pull(to, sides[i], ranks(sides[i]), ticket).await;
        all_end(leases, LeaseEnd::Completed).await;
    }
    Origins::new().check(&caches[3], REQUEST, &ALL).unwrap();
    for agent in agents {
        agent.shutdown(Duration::from_secs(5)).await;
    }
}

fn ranks(side: Side) -> &'static [Rank] {
    match side {
        Side::Prefill => &ALL[..2],
        Side::Decode => &ALL,
    }
}

/// A member of the cluster whose messages the test writes by hand.
struct ByHand {
    control: ControlConnection,
    sequence: u64,
    _endpoints: Endpoints,
}

impl ByHand {
    async fn welcome(identity: Identity, to: &Agent, side: Side) -> Self {
        let me = AgentId::from(&identity.peer().service);
        let any = "127.0.0.1:0".parse().unwrap();
        let endpoints = Endpoints::bind(identity, QuicOptions::default(), any).unwrap();
        let control = endpoints.connect(to.control_addr(), None).await.unwrap();
        let mut this = Self { control, sequence: 0, _endpoints: endpoints };
        let document = postcard::to_allocvec(side.deployment().document()).unwrap();
        this.say(Message::Hello(Hello {
            versions: VERSIONS,
            cluster: ClusterName::new(CLUSTER).unwrap(),
            agent: me,
            incarnation: Incarnation::new(6, 6),
            deployment: DeploymentDigest::of(&document),
            ranks: side.deployment().ranks().collect(),
            codecs: Vec::new(),
        }))
        .await;
        loop {
            match this.hear().await {
                Message::Hello(_) => this.say(Message::Welcome).await,
                Message::DocumentWanted => {
                    let document = document.clone();
                    this.say(Message::Document { document }).await;
                }
                Message::Welcome => return this,
                other => panic!("{other:?}"),
            }
        }
    }

    async fn say(&mut self, message: Message) {
        self.sequence += 1;
        let envelope = Envelope { sequence: self.sequence, message };
        let frame = frame::encode(&envelope).unwrap();
        self.control.sender.send(frame).await.unwrap();
    }

    async fn hear(&mut self) -> Message {
        let body = self.control.receiver.recv().await.unwrap();
        frame::decode(&body).unwrap().message
    }
}

#[tokio::test]
async fn a_ring_that_nobody_waits_for_is_not_fetched() {
    let town = Town::new();
    let cache = Cache::new(Side::Prefill);
    let owner = town.agent("prefill", &cache, &[Rank(0), Rank(1)], 1);
    let mut peer = ByHand::welcome(town.identity("stranger"), &owner, Side::Decode).await;
    let listener = Listener::bind(Limits::default()).unwrap();
    let token = random_token().unwrap();
    let expected = listener.expect(&token).unwrap();
    let half = |at: usize| Nonce(std::array::from_fn(|i| token.0[at + i]));
    let token = (half(0), half(16));
    peer.say(words::ring_offered(listener.name().as_str(), token)).await;
    // It is heard: what was said after it is answered.
    peer.say(words::lanes_wanted(1)).await;
    while words::offers_lanes(&peer.hear().await).is_none() {}
    let visit = expected.connection(Duration::from_millis(300)).await;
    assert!(matches!(visit, Err(HandoverError::TimedOut)), "{visit:?}");
}

/// Returns an ask of the peer's for the route from rank 0 to rank 0.
fn ask(attempt: u32, ticket: &Ticket, paths: PathSet) -> Ask {
    let (src, dst) = (Side::Prefill.deployment(), Side::Decode.deployment());
    let of = Request::tokens(TOKENS);
    let plan = Plan::compile_for(&src, &dst, &of, End::Destination, &[Rank(0)]).unwrap();
    Ask {
        transfer: TransferId([attempt as u8; 16]),
        nonce: Nonce([attempt as u8; 16]),
        ticket: ticket.clone(),
        source: Rank(0),
        destination: Rank(0),
        request: of,
        content: content_of(REQUEST),
        plan: plan.route_digest(plan.route(Rank(0), Rank(0)).unwrap()),
        lanes: 1,
        paths,
        attempt,
    }
}

#[tokio::test]
async fn a_ring_that_breaks_is_not_taken_again() {
    let town = Town::new();
    let cache = Cache::new(Side::Prefill);
    let owner = town.agent("prefill", &cache, &[Rank(0), Rank(1)], 1);
    let _leases = lease(&owner, Side::Prefill, &[Rank(0)]).await;
    let ticket = ticket(&owner, vec![owner.address("127.0.0.1"); 2]);
    let mut peer = ByHand::welcome(town.identity("stranger"), &owner, Side::Decode).await;

    let mut attempt = 1;
    peer.say(Message::Pull(ask(attempt, &ticket, PathSet::ANY))).await;
    loop {
        match peer.hear().await {
            Message::Accepted { path, .. } => assert_eq!(path, Path::RING),
            word if words::offers_ring(&word).is_some() => {
                let (socket, token) = words::offers_ring(&word).unwrap();
                let name = SocketName::try_from(socket).unwrap();
                let token = Token(std::array::from_fn(|i| match i {
                    0..16 => token.0.0[i],
                    _ => token.1.0[i - 16],
                }));
                let connection = connect(&name, &token, &Limits::default()).await.unwrap();
                let ring = connection.accept_consumer().await;
                // Fetched, and hung up.
                drop(ring.unwrap());
            }
            // All of it had room in the ring. So it is not with what comes on top.
            Message::Commit { .. } => {
                attempt += 1;
                peer.say(Message::Pull(ask(attempt, &ticket, PathSet::ANY))).await;
            }
            Message::Abort { failure: Failure::StreamBroken { .. }, .. } => break,
            Message::Waiting { .. } | Message::Abort { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    peer.say(Message::Pull(ask(attempt + 1, &ticket, PathSet::ANY))).await;
    loop {
        match peer.hear().await {
            Message::Accepted { path, .. } => return assert_eq!(path, Path::QUIC),
            Message::Waiting { .. } | Message::Abort { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}
