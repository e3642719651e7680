//! A hostile peer: what strangers and members of the cluster that lie can do to an agent, while an
//! ordinary peer works beside them. Every refusal is the typed one, canaries stay where they are, and
//! nothing is left over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use transload_layout::Rank;
use transload_tests::cluster::{
    CLUSTER, Cache, Origins, Side, TOKENS, claims_of, content_of, idle, impatient, lease_of, mint,
    set_of, ticket_of, transfer_of,
};
use transload_tests::process::Chance;
use transload_transfer::agent::{Agent, PullError};
use transload_transfer::copy::Crc32c;
use transload_transfer::identity::{Authority, Identity, Role, Roles};
use transload_transfer::ids::{
    AgentId, ClusterName, DeploymentDigest, Direction, Incarnation, LeaseSetId, Nonce, PlanDigest,
    TransferId,
};
use transload_transfer::plan::{Plan, Request, Side as End};
use transload_transfer::ticket::{Audience, Claims, RankAddress, TicketKey};
use transload_transfer::transport::quic::{
    ConnectError, ControlConnection, DataSender, Endpoints, Lane, QuicOptions, SessionToken,
};
use transload_transfer::wire::message::{
    Ask, Envelope, Hello, LaneMessage, Message, Notice, NoticeKind, VERSIONS,
};
use transload_transfer::wire::stream::{StreamHeader, StreamTrailer};
use transload_transfer::wire::{
    Failure, HelloRefusal, JobError, Path, PathSet, Refusal, Role as RefusedRole, frame,
};

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(10);

/// An owner of leases, and an ordinary peer that pulls from it all the time.
struct Town {
    authority: Authority,
    owner: Agent,
    owner_cache: Cache,
    stop: Arc<AtomicBool>,
    ordinary: tokio::task::JoinHandle<u64>,
}

impl Town {
    fn new() -> Self {
        let authority = Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap();
        let owner_cache = Cache::new(Side::Prefill);
        let mut options = impatient();
        options.data.header_timeout = Duration::from_millis(300);
        let identity = issue(&authority, "prefill-0", Roles::all());
        let life = Incarnation::new(1, 1);
        let ranks = [Rank(0), Rank(1)];
        let owner = owner_cache.agent(identity, ranks, life, options);
        let stop = Arc::new(AtomicBool::new(false));
        let identity = issue(&authority, "ordinary", Roles::all());
        let ordinary = ordinary(owner.clone(), owner_cache.clone(), identity, stop.clone());
        Self {
            authority,
            owner,
            owner_cache,
            stop,
            ordinary: tokio::spawn(ordinary),
        }
    }

    fn hostile(&self, roles: Roles) -> Identity {
        issue(&self.authority, "hostile", roles)
    }

    /// The ordinary peer was served all the time, and nothing is left of the others.
    async fn stays_well(self) {
        self.stop.store(true, Ordering::Relaxed);
        let served = timeout(PATIENCE, self.ordinary).await.unwrap().unwrap();
        assert!(served > 0, "nobody was served");
        println!("{served} requests were served beside it");
        idle(&self.owner).await;
        assert!(self.owner_cache.holds(2), "the owner's memory is as it was");
    }
}

/// Leases and pulls request 2 (whose content the owner's memory holds) over and over.
async fn ordinary(owner: Agent, cache: Cache, identity: Identity, stop: Arc<AtomicBool>) -> u64 {
    let mine = Cache::new(Side::Decode);
    let origins = Origins::new();
    let ranks = [0, 1, 2, 3].map(Rank);
    let agent = mine.agent(identity, ranks, Incarnation::new(2, 2), impatient());
    cache.fill(2);
    let mut served = 0;
    while !stop.load(Ordering::Relaxed) {
        let set = LeaseSetId((u128::from(served) + 1).to_le_bytes());
        for rank in [Rank(0), Rank(1)] {
            let mut lease = lease_of(Side::Prefill, rank, 2);
            lease.set = set;
            // Kept by the agent until it has ended.
            let lease = owner.lease(lease).await.unwrap().unwrap();
            tokio::spawn(lease.ended());
        }
        let mut claims = owners_claims(&owner, 2);
        claims.set = set;
        let ticket = mint(&owner.ticket_key(), &claims);
        mine.clear();
        agent
            .pull(transfer_of(Side::Decode, &ranks, ticket, 2))
            .await
            .unwrap();
        origins.check(&mine, 2, &ranks).unwrap();
        served += 1;
        sleep(Duration::from_millis(20)).await;
    }
    agent.shutdown(Duration::from_secs(1)).await;
    served
}

fn owners_claims(owner: &Agent, request: u64) -> Claims {
    let digest = owner.deployment_digest();
    let addresses = vec![owner.address("127.0.0.1"); 2];
    claims_of(
        request,
        Direction::Pull,
        digest,
        owner.incarnation(),
        addresses,
    )
}

fn issue(authority: &Authority, name: &str, roles: Roles) -> Identity {
    authority
        .issue(&AgentId::new(name).unwrap(), roles)
        .unwrap()
}

/// A peer that says what it likes.
struct Hostile {
    control: ControlConnection,
    sequence: u64,
    endpoints: Endpoints,
}

impl Hostile {
    fn endpoints(identity: Identity) -> Endpoints {
        let mut options = QuicOptions::default();
        options.lanes = 1;
        Endpoints::bind(identity, options, "127.0.0.1:0".parse().unwrap()).unwrap()
    }

    /// Connected, and no word said.
    async fn silent(identity: Identity, to: &Agent) -> Self {
        let endpoints = Self::endpoints(identity);
        let control = endpoints.connect(to.control_addr(), None).await.unwrap();
        Self {
            control,
            sequence: 0,
            endpoints,
        }
    }

    /// Connected, and welcome as all ranks of `side`.
    async fn welcome(identity: Identity, to: &Agent, side: Side) -> Self {
        let mut this = Self::silent(identity, to).await;
        this.greet(side).await;
        this
    }

    fn hello(&self, side: Side) -> (Hello, Vec<u8>) {
        let deployment = side.deployment();
        let document = postcard::to_allocvec(deployment.document()).unwrap();
        let hello = Hello {
            versions: VERSIONS,
            cluster: ClusterName::new(CLUSTER).unwrap(),
            agent: self.endpoints.identity().peer().agent.clone(),
            incarnation: Incarnation::new(6, 6),
            deployment: DeploymentDigest::of(&document),
            ranks: deployment.ranks().collect(),
        };
        (hello, document)
    }

    async fn greet(&mut self, side: Side) {
        let (hello, document) = self.hello(side);
        self.say(Message::Hello(hello)).await;
        loop {
            match self.hear().await.expect("a greeting") {
                Message::Hello(_) => self.say(Message::Welcome).await,
                Message::DocumentWanted => {
                    let document = document.clone();
                    self.say(Message::Document { document }).await;
                }
                Message::Welcome => return,
                other => panic!("{other:?}"),
            }
        }
    }

    async fn say(&mut self, message: Message) {
        self.sequence += 1;
        let envelope = Envelope {
            sequence: self.sequence,
            message,
        };
        // Whoever is hostile is hung up on now and then.
        let _ = self.control.send(frame::encode(&envelope).unwrap()).await;
    }

    /// The next message; `None` where the connection is gone.
    async fn hear(&mut self) -> Option<Message> {
        let body = timeout(PATIENCE, self.control.recv())
            .await
            .expect("nobody answers");
        Some(frame::decode(&body.ok()?).unwrap().message)
    }

    async fn is_hung_up_on(&mut self) -> bool {
        while self.hear().await.is_some() {}
        true
    }

    /// Asks, and hears the refusal.
    async fn refused(&mut self, direction: Direction, ask: Ask) -> Refusal {
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

    /// A lane to the peer, as it would be opened by an honest one.
    async fn lane(&mut self) -> (Lane, u16) {
        self.say(Message::Lanes(LaneMessage::Wanted { lanes: 1 }))
            .await;
        loop {
            if let Message::Lanes(LaneMessage::Offer { ports, nonce }) = self.hear().await.unwrap()
            {
                let token = SessionToken::from(nonce.0);
                return (self.lane_with(ports[0], &token).await.unwrap(), ports[0]);
            }
        }
    }

    async fn lane_with(&self, port: u16, token: &SessionToken) -> Result<Lane, ConnectError> {
        let mut address = self.control.remote_address();
        address.set_port(port);
        self.endpoints
            .connect_lane(0, address, self.control.peer(), token)
            .await
    }
}

/// A good ask for the route from rank 0 to rank 0.
fn ask(number: u8, claims: &Claims, key: &TicketKey, request: u64) -> Ask {
    let (src, dst) = (Side::Prefill.deployment(), Side::Decode.deployment());
    let of = Request::tokens(TOKENS);
    let plan = Plan::compile_for(&src, &dst, &of, End::Destination, Rank(0)).unwrap();
    Ask {
        transfer: TransferId([number; 16]),
        nonce: Nonce([number; 16]),
        ticket: mint(key, claims),
        source: Rank(0),
        destination: Rank(0),
        start: 0,
        tokens: TOKENS,
        content: content_of(request),
        plan: plan.route_digest(plan.route(Rank(0), Rank(0)).unwrap()),
        lanes: 1,
        by_layer: false,
        paths: PathSet::QUIC,
        attempt: 1,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_ask_that_is_not_allowed_is_refused_by_name() {
    let town = Town::new();
    let owner = &town.owner;
    let key = owner.ticket_key();
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    let lease = owner
        .lease(lease_of(Side::Prefill, Rank(0), 3))
        .await
        .unwrap()
        .unwrap();
    let mut short = lease_of(Side::Prefill, Rank(0), 5);
    short.ttl = Duration::from_millis(1);
    let expired = owner.lease(short).await.unwrap().unwrap();
    let cancelled = owner
        .lease(lease_of(Side::Prefill, Rank(0), 7))
        .await
        .unwrap()
        .unwrap();
    cancelled.cancel().await.unwrap();
    expired.ended().await.unwrap();
    cancelled.ended().await.unwrap();

    let good = owners_claims(owner, 3);
    let with = |change: &dyn Fn(&mut Claims)| {
        let mut claims = good.clone();
        change(&mut claims);
        ask(1, &claims, &key, 3)
    };
    let but = |change: &dyn Fn(&mut Ask)| {
        let mut ask = ask(1, &good, &key, 3);
        change(&mut ask);
        ask
    };
    let other = Authority::new(ClusterName::new("other").unwrap()).unwrap();
    let other = issue(&other, "hostile", Roles::all());
    let forged = TicketKey::new(other.ticket_secret().as_bytes());

    type Matches = fn(&Refusal) -> bool;
    let cases: Vec<(&str, Ask, Matches)> = vec![
        (
            "forged",
            but(&|ask| ask.ticket = mint(&forged, &good)),
            |r| *r == Refusal::Forged,
        ),
        (
            "of another cluster",
            with(&|claims| claims.cluster = ClusterName::new("other").unwrap()),
            |r| matches!(r, Refusal::WrongCluster { .. }),
        ),
        (
            "of another deployment",
            with(&|claims| claims.owner = DeploymentDigest([1; 32])),
            |r| matches!(r, Refusal::WrongDeployment { .. }),
        ),
        (
            "of another life",
            with(&|claims| claims.incarnation = Incarnation::new(0, 9)),
            |r| matches!(r, Refusal::WrongIncarnation { .. }),
        ),
        (
            "of another agent",
            with(&|claims| {
                claims.audience = Some(Audience::Agent(AgentId::new("ordinary").unwrap()))
            }),
            |r| *r == Refusal::WrongPeer,
        ),
        (
            "of the other direction",
            with(&|claims| claims.direction = Direction::Push),
            |r| matches!(r, Refusal::WrongDirection { .. }),
        ),
        ("expired", with(&|claims| claims.set = set_of(5)), |r| {
            *r == Refusal::Expired
        }),
        ("cancelled", with(&|claims| claims.set = set_of(7)), |r| {
            *r == Refusal::Cancelled
        }),
        ("of no lease", with(&|claims| claims.set = set_of(9)), |r| {
            *r == Refusal::UnknownLease
        }),
        (
            "other plan",
            but(&|ask| ask.plan = PlanDigest([7; 32])),
            |r| matches!(r, Refusal::PlanDigestMismatch { .. }),
        ),
        (
            "other content",
            but(&|ask| ask.content = content_of(4)),
            |r| matches!(r, Refusal::DigestMismatch { .. }),
        ),
        (
            "too many tokens",
            but(&|ask| ask.tokens = TOKENS + 1),
            |r| matches!(r, Refusal::NotEnoughTokens { .. }),
        ),
        (
            "tokens that run over",
            but(&|ask| (ask.start, ask.tokens) = (u64::MAX, u64::MAX)),
            |r| matches!(r, Refusal::NotEnoughTokens { .. }),
        ),
        (
            "a rank that is not here",
            but(&|ask| ask.source = Rank(9)),
            |r| matches!(r, Refusal::RankNotHere { .. }),
        ),
        (
            "a rank that is nobody's",
            but(&|ask| ask.destination = Rank(4)),
            |r| matches!(r, Refusal::RankNotYours { .. }),
        ),
        ("no route", but(&|ask| ask.destination = Rank(3)), |r| {
            matches!(r, Refusal::NoRoute { .. })
        }),
        (
            "a path that is none",
            but(&|ask| ask.paths = PathSet::default()),
            |r| matches!(r, Refusal::PathUnavailable { .. }),
        ),
    ];
    for (number, (what, mut ask, matches)) in (1..).zip(cases) {
        ask.transfer = TransferId([number; 16]);
        let refusal = hostile.refused(Direction::Pull, ask).await;
        assert!(matches(&refusal), "{what}: {refusal}");
    }

    drop(hostile);
    let roles = Roles::from_iter([Role::Push, Role::Serve]);
    let mut hostile = Hostile::welcome(town.hostile(roles), owner, Side::Decode).await;
    let refusal = hostile.refused(Direction::Pull, but(&|_| ())).await;
    assert_eq!(
        refusal,
        Refusal::RoleMissing {
            role: RefusedRole::Pull
        }
    );
    drop(hostile);
    let roles = Roles::from_iter([Role::Pull]);
    let mut hostile = Hostile::welcome(town.hostile(roles), owner, Side::Decode).await;
    let push = with(&|claims| claims.direction = Direction::Push);
    let refusal = hostile.refused(Direction::Push, push).await;
    assert_eq!(
        refusal,
        Refusal::RoleMissing {
            role: RefusedRole::Push
        }
    );

    // And that the same ask is good where nothing is wrong with it; once.
    drop(hostile);
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    hostile.say(Message::Pull(but(&|_| ()))).await;
    assert!(matches!(
        hostile.hear().await,
        Some(Message::Accepted {
            path: Path::Quic,
            ..
        })
    ));
    let refusal = hostile
        .refused(
            Direction::Pull,
            but(&|ask| ask.transfer = TransferId([99; 16])),
        )
        .await;
    assert!(matches!(refusal, Refusal::Superseded { .. }), "{refusal}");
    drop(hostile);
    lease.ended().await.unwrap();
    town.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_breaks_the_protocol_is_hung_up_on() {
    let town = Town::new();
    let owner = &town.owner;
    let identity = || town.hostile(Roles::all());

    let stranger = Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap();
    let stranger = Hostile::endpoints(issue(&stranger, "hostile", Roles::all()));
    let refused = stranger
        .connect(owner.control_addr(), None)
        .await
        .unwrap_err();
    assert!(
        matches!(refused, ConnectError::Certificate { .. }),
        "{refused}"
    );

    let garbage = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut chance = Chance(7);
    let ports = owner.endpoints().lane_ports().into_iter();
    for port in ports.chain([owner.control_addr().port()]) {
        for _ in 0..1000 {
            let length = chance.below(1400) as usize;
            let bytes: Vec<u8> = (0..length).map(|_| chance.draw() as u8).collect();
            garbage.send_to(&bytes, ("127.0.0.1", port)).unwrap();
        }
    }

    let mut silent = Hostile::silent(identity(), owner).await;
    assert!(silent.is_hung_up_on().await);
    let framed = |body: &[u8]| [&(body.len() as u32).to_le_bytes(), body].concat();
    let mut half = framed(&[1; 100]);
    half.truncate(50);
    for said in [
        framed(&[]),
        framed(&[1]),
        framed(&[0xFF; 100]),
        framed(&[1; 40_000]),
        framed(&[1; 70_000]),
        u32::MAX.to_le_bytes().to_vec(),
        half,
    ] {
        let mut hostile = Hostile::welcome(identity(), owner, Side::Decode).await;
        let _ = hostile.control.send(said.into()).await;
        assert!(hostile.is_hung_up_on().await);
    }
    // A byte at a time keeps no message alive.
    let mut hostile = Hostile::welcome(identity(), owner, Side::Decode).await;
    for byte in framed(&[1; 200]) {
        if hostile.control.send(vec![byte].into()).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(hostile.is_hung_up_on().await);
    let mut hostile = Hostile::welcome(identity(), owner, Side::Decode).await;
    hostile.sequence += 1;
    hostile.say(Message::Welcome).await;
    assert!(hostile.is_hung_up_on().await);
    let mut hostile = Hostile::welcome(identity(), owner, Side::Decode).await;
    hostile.say(Message::Welcome).await;
    assert!(hostile.is_hung_up_on().await);

    // Those who are not welcome hear why.
    type Lie = fn(&mut Hello);
    type Matches = fn(&HelloRefusal) -> bool;
    let lies: [(Lie, Matches); 5] = [
        (
            |hello| hello.versions = (7, 9),
            |r| matches!(r, HelloRefusal::Version { .. }),
        ),
        (
            |hello| hello.cluster = ClusterName::new("other").unwrap(),
            |r| matches!(r, HelloRefusal::Cluster { .. }),
        ),
        (
            |hello| hello.agent = AgentId::new("ordinary").unwrap(),
            |r| matches!(r, HelloRefusal::Agent),
        ),
        (
            |hello| hello.ranks.push(Rank(4)),
            |r| matches!(r, HelloRefusal::Rank { .. }),
        ),
        (
            |hello| hello.deployment = DeploymentDigest([9; 32]),
            |r| matches!(r, HelloRefusal::Document { .. }),
        ),
    ];
    for (lie, matches) in lies {
        let mut hostile = Hostile::silent(identity(), owner).await;
        let (mut hello, document) = hostile.hello(Side::Decode);
        lie(&mut hello);
        hostile.say(Message::Hello(hello)).await;
        let refusal = loop {
            match hostile.hear().await.expect("a reason") {
                Message::DocumentWanted => {
                    let document = document.clone();
                    hostile.say(Message::Document { document }).await;
                }
                Message::Unwelcome(refusal) => break refusal,
                _ => {}
            }
        };
        assert!(matches(&refusal), "{refusal}");
        assert!(hostile.is_hung_up_on().await);
    }
    town.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_are_bounded() {
    let town = Town::new();
    let owner = &town.owner;
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;

    // Lanes: other tokens, and thousands of streams that begin badly, or not at all.
    let (lane, port) = hostile.lane().await;
    let refused = hostile
        .lane_with(port, &SessionToken::from([3; 16]))
        .await
        .unwrap_err();
    assert_eq!(refused, ConnectError::LaneRefused);
    let mut open = Vec::new();
    for number in 0..4000_u32 {
        let Ok(Ok(mut stream)) = timeout(Duration::from_secs(2), lane.open_stream()).await else {
            break;
        };
        let header = StreamHeader {
            transfer: TransferId([number as u8; 16]),
            nonce: Nonce([5; 16]),
            stream: number,
            offset: u64::MAX - 3,
            length: u64::MAX,
        };
        let bytes = header.encode();
        let bytes: &[u8] = match number % 3 {
            0 => &bytes,
            1 => &bytes[..7],
            _ => b"garbage garbage garbage garbage garbage garbage garbage garbage garbage",
        };
        let _ = stream.send_all(bytes).await;
        open.push(stream);
        if open.len() > 100 {
            open.clear();
        }
    }
    drop((open, lane));

    // Asks and notices without a lease to them are parked up to a bound.
    let key = owner.ticket_key();
    let mut claims = owners_claims(owner, 3);
    for number in 0..3000_u64 {
        claims.set = set_of(1000 + number);
        let mut ask = ask(0, &claims, &key, 3);
        ask.transfer = TransferId(u128::from(number).to_le_bytes());
        hostile.say(Message::Pull(ask)).await;
        hostile
            .say(Message::Lanes(LaneMessage::Wanted { lanes: u16::MAX }))
            .await;
        let (socket, token) = ("nowhere".to_owned(), (Nonce([0; 16]), Nonce([0; 16])));
        hostile
            .say(Message::Lanes(LaneMessage::Local { socket, token }))
            .await;
    }
    let gauges = owner.gauges().await.unwrap();
    assert!(gauges.early <= 1024, "{gauges:?}");
    drop(hostile);

    // One that asks and does not read.
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    let ticket = ticket_of(owner, 3, Direction::Pull);
    for id in 0..200_000 {
        let says = NoticeKind::Renew { ttl_ms: 1 };
        let notice = Notice {
            id,
            ticket: ticket.clone(),
            says,
        };
        hostile.say(Message::Notice(notice)).await;
        if owner.endpoints().open_connections() == 0 {
            break;
        }
        if id % 1000 == 0 && owner.gauges().await.unwrap().sessions < 2 {
            break;
        }
    }
    drop(hostile);

    // One that connects over and over, without a word.
    let endpoints = Hostile::endpoints(town.hostile(Roles::all()));
    let mut connections = Vec::new();
    for _ in 0..40 {
        if let Ok(connection) = endpoints.connect(owner.control_addr(), None).await {
            connections.push(connection);
        }
    }
    let gauges = owner.gauges().await.unwrap();
    assert!(gauges.sessions <= 1 + 1 + 8, "{gauges:?}");
    drop((connections, endpoints));
    town.stays_well().await;
}

/// What a source does wrong with the bytes of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Bytes that were damaged on their way.
    Checksum,
    /// A stream that goes on.
    TooLong,
    /// A stream that ends early.
    TooShort,
    /// Bytes beyond the end of the route.
    Outside,
    /// The same bytes in two streams.
    Twice,
    /// A commit of bytes that never came.
    Nothing,
    /// Fewer streams than there were.
    Miscounted,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_lies_is_not_believed() {
    let authority = Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap();
    let cache = Cache::new(Side::Decode);
    let origins = Origins::new();
    let ranks = [0, 1, 2, 3].map(Rank);
    let identity = issue(&authority, "decode-0", Roles::all());
    let agent = cache.agent(identity, ranks, Incarnation::new(1, 1), impatient());
    let lies = [
        Lie::Checksum,
        Lie::TooLong,
        Lie::TooShort,
        Lie::Outside,
        Lie::Twice,
        Lie::Nothing,
        Lie::Miscounted,
    ];
    for (request, lie) in (0..).step_by(4).zip(lies) {
        let endpoints = Hostile::endpoints(issue(&authority, "hostile", Roles::all()));
        let address = RankAddress {
            agent: AgentId::new("hostile").unwrap(),
            host: "127.0.0.1".to_owned(),
            port: endpoints.control_addr().port(),
        };
        let document = postcard::to_allocvec(Side::Prefill.deployment().document()).unwrap();
        let owner = DeploymentDigest::of(&document);
        let life = Incarnation::new(6, 6);
        let addresses = vec![address; 2];
        let claims = claims_of(request, Direction::Pull, owner, life, addresses);
        let ticket = mint(&agent.ticket_key(), &claims);
        cache.clear();
        let lying = tokio::spawn(serve_lies(endpoints, lie));
        let pull = agent.pull(transfer_of(Side::Decode, &ranks, ticket, request));
        let error = timeout(PATIENCE, pull).await.expect("it ends").unwrap_err();
        let PullError::Job(JobError::Failed { failure, .. }) = &error else {
            panic!("{lie:?}: {error}");
        };
        let named = match lie {
            Lie::Nothing => matches!(failure, Failure::Stalled | Failure::Length { .. }),
            Lie::Outside | Lie::Twice | Lie::Miscounted => matches!(
                failure,
                Failure::Streams | Failure::Length { .. } | Failure::Stalled
            ),
            _ => matches!(
                failure,
                Failure::StreamBroken { .. } | Failure::Checksum { .. }
            ),
        };
        assert!(named, "{lie:?}: {failure}");
        println!("{lie:?}: {failure}");
        lying.abort();
        let sum = cache.checksum();
        origins.check_canaries(&cache, request).unwrap();
        sleep(Duration::from_millis(100)).await;
        assert_eq!(cache.checksum(), sum, "{lie:?}: written after the failure");
    }
    idle(&agent).await;
}

/// A source that accepts everything and sends it wrongly.
async fn serve_lies(endpoints: Endpoints, lie: Lie) {
    loop {
        let Some(control) = endpoints.accept().await else {
            return;
        };
        let mut hostile = Hostile {
            control,
            sequence: 0,
            endpoints: endpoints.clone(),
        };
        hostile.greet(Side::Prefill).await;
        let mut asks = Vec::new();
        let mut lane = None;
        let plan = {
            let (src, dst) = (Side::Prefill.deployment(), Side::Decode.deployment());
            Plan::compile(&src, &dst, &Request::tokens(TOKENS)).unwrap()
        };
        while let Some(message) = hostile.hear().await {
            match message {
                Message::Pull(ask) => {
                    let (transfer, path) = (ask.transfer, Path::Quic);
                    hostile.say(Message::Accepted { transfer, path }).await;
                    asks.push(ask);
                }
                Message::Lanes(LaneMessage::Wanted { .. }) => {
                    let peer = hostile.control.peer().clone();
                    let mut session = endpoints.expect_lanes(&peer, 1).unwrap();
                    let nonce = Nonce(*session.token().as_bytes());
                    let ports = endpoints.lane_ports();
                    hostile
                        .say(Message::Lanes(LaneMessage::Offer { ports, nonce }))
                        .await;
                    lane = timeout(PATIENCE, session.accept()).await.unwrap();
                }
                _ => {}
            }
            if let Some(lane) = &lane {
                for ask in asks.drain(..) {
                    let route = plan.route(ask.source, ask.destination).unwrap();
                    let bytes = plan.route_bytes(route);
                    lie_about(lane, &ask, bytes, lie).await;
                    let streams = match lie {
                        Lie::Twice => 2,
                        Lie::Miscounted => 0,
                        _ => 1,
                    };
                    let transfer = ask.transfer;
                    hostile
                        .say(Message::Commit {
                            transfer,
                            streams,
                            bytes,
                        })
                        .await;
                }
            }
        }
    }
}

async fn lie_about(lane: &Lane, ask: &Ask, bytes: u64, lie: Lie) {
    let mut number = 0;
    let mut send = async |offset, length, trailer: StreamTrailer, sent: usize| {
        // The other side may have stopped it already.
        let Ok(mut stream): Result<DataSender, _> = lane.open_stream().await else {
            return;
        };
        let header = StreamHeader {
            transfer: ask.transfer,
            nonce: ask.nonce,
            stream: number,
            offset,
            length,
        };
        number += 1;
        let mut all = header.encode().to_vec();
        all.resize(all.len() + sent, 0xEE);
        all.extend(trailer.encode());
        if lie == Lie::TooLong {
            all.extend([0xEE; 1000]);
        }
        let _ = stream.send_all(&all).await;
        let _ = stream.finish();
    };
    let mut sum = Crc32c::new();
    sum.update(&vec![0xEE; bytes as usize]);
    let sum = sum.value();
    let trailer = StreamTrailer {
        length: bytes,
        crc: sum,
    };
    let all = bytes as usize;
    match lie {
        Lie::Checksum => {
            let crc = sum ^ 1;
            send(0, bytes, StreamTrailer { crc, ..trailer }, all).await;
        }
        Lie::TooShort => send(0, bytes, trailer, all / 2).await,
        Lie::Outside => send(64, bytes, trailer, all).await,
        Lie::Twice => {
            send(0, bytes, trailer, all).await;
            send(0, bytes, trailer, all).await;
        }
        Lie::Nothing => {}
        Lie::TooLong | Lie::Miscounted => send(0, bytes, trailer, all).await,
    }
}
