//! Tests of one machine against a peer that the test plays, message by message.

mod asks;
mod devices;
mod greetings;
mod invitations;
mod invited;
mod jobs;
mod nonsense;
mod notices;
mod paths;
mod plans;
mod sources;
mod stalls;
mod write_leases;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use transload_plan::Request;
use transload_plan::codec::Codec;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{
    AgentId, ClusterName, DeploymentDigest, Direction, Incarnation, LeaseSetId, Nonce, PlanDigest, Rank, ServiceName,
    TransferId,
};

use crate::lease::{LeaseEnd, LeaseKey, LeaseSpec};
use crate::message::{Ask, Envelope, Hello, Invitation, Message, Notice, NoticeKind, VERSIONS};
use crate::moment::Moment;
use crate::path::negotiation::{Ending, MAX_WORD, Negotiation, Order, Report, Way};
use crate::path::quic::{self, Lanes};
use crate::path::ring::{self, Rings, SocketName, Token};
use crate::simulation::plan::{Shape, SimPlanner};
use crate::stream::{StreamHeader, StreamTrailer};
use crate::ticket::{Audience, Claims, RankAddress, Ticket, TicketKey};
use crate::*;

const BLOCKS: &str = "job blocks";
const CONTENT: ContentDigest = ContentDigest([1; 32]);
const OWNER: Shape = Shape { ranks: 2, salt: 0 };
const HOLDER: Shape = Shape { ranks: 2, salt: 2 };
const TOKENS: u64 = 10;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn agent(name: &str) -> AgentId {
    AgentId::new(name).unwrap()
}

fn all_but(role: Role) -> Roles {
    Role::ALL.into_iter().filter(|of| *of != role).collect()
}

fn cluster() -> ClusterName {
    ClusterName::new("west").unwrap()
}

fn key() -> TicketKey {
    TicketKey::new(&[3; 32])
}

fn life(n: u64) -> Incarnation {
    Incarnation::new(n, 0)
}

fn set(n: u8) -> LeaseSetId {
    LeaseSetId([n; 16])
}

fn transfer(n: u8) -> TransferId {
    TransferId([n; 16])
}

fn claims(n: u8, direction: Direction) -> Claims {
    let address = RankAddress { agent: agent("owner"), host: "owner.example".into(), port: 7600 };
    Claims {
        cluster: cluster(),
        set: set(n),
        direction,
        owner: OWNER.digest(),
        incarnation: life(1),
        start: 0,
        valid_tokens: TOKENS,
        ranks: vec![address.clone(), address],
        time_left: secs(10),
        audience: None,
    }
}

fn ticket(n: u8) -> Ticket {
    mint(&claims(n, Direction::Pull))
}

fn mint(claims: &Claims) -> Ticket {
    Ticket::mint(&key(), claims).unwrap()
}

/// A machine, and a peer on one connection of it, which the test plays.
struct Table {
    now: Moment,
    machine: Machine<SimPlanner<&'static str>>,
    conn: ConnId,
    sequence: u64,
    /// Actions of the machine, except for messages.
    did: Vec<Action<&'static str>>,
    /// Messages of the machine, except for those about paths.
    said: Vec<Message>,
    /// Messages about paths, and orders to carriers.
    worded: Vec<(Path, Vec<u8>)>,
    ordered: Vec<(Path, Order)>,
    /// Requested plans, and whether they are compiled at once.
    compiled: Vec<PlanAsk>,
    compiles: bool,
}

/// Returns the negotiations with a peer. Only one peer is on this host.
fn paths(peer: &str, dialled: bool) -> Vec<Box<dyn Negotiation>> {
    let lanes: Box<dyn Negotiation> = Box::new(Lanes::new(dialled, 4));
    match peer {
        "near" => vec![lanes, Box::new(Rings::default())],
        _ => vec![lanes],
    }
}

impl Table {
    fn lonely(name: &str, shape: Shape, options: Options) -> Self {
        let identity = Identity {
            agent: agent(name),
            cluster: cluster(),
            incarnation: life(1),
            document: shape.document(),
            ranks: (0..shape.ranks).map(Rank).collect(),
            ticket_key: key(),
            secret: Secret::new([7; 32]),
        };
        let planner =
            SimPlanner { me: shape, known: HashMap::new(), held: HashMap::new(), blocks: std::marker::PhantomData };
        Self {
            now: Moment(secs(100)),
            machine: Machine::new(identity, options, planner).unwrap(),
            conn: ConnId(0),
            sequence: 0,
            did: Vec::new(),
            said: Vec::new(),
            worded: Vec::new(),
            ordered: Vec::new(),
            compiled: Vec::new(),
            compiles: true,
        }
    }

    fn owner_with(peer: &str, options: Options) -> Self {
        let mut t = Self::lonely("owner", OWNER, options);
        t.greet(peer, Roles::all(), hello(peer));
        t
    }

    fn owner() -> Self {
        Self::owner_with("holder", Options::default())
    }

    fn greet(&mut self, peer: &str, roles: Roles, hello: Hello) {
        self.connect(peer, roles);
        self.hear(Message::Hello(hello));
        if self.said.last() == Some(&Message::DocumentWanted) {
            let document = HOLDER.document();
            self.hear(Message::Document { document });
        }
        if self.said.last() == Some(&Message::Welcome) {
            self.hear(Message::Welcome);
        }
    }

    fn connect(&mut self, peer: &str, roles: Roles) {
        self.conn = ConnId(self.conn.0 + 1);
        self.sequence = 0;
        let (service, paths) = (ServiceName::from(&agent(peer)), paths(peer, false));
        self.do_(|machine, now, conn| machine.connected(now, conn, service, None, roles, paths));
    }

    fn dialled(&mut self, peer: &str) {
        self.conn = ConnId(self.conn.0 + 1);
        self.sequence = 0;
        let (service, meant) = (ServiceName::from(&agent(peer)), Some(agent(peer)));
        let paths = paths(peer, true);
        self.do_(|machine, now, conn| {
            machine.connected(now, conn, service, meant, Roles::all(), paths);
        });
    }

    fn do_<R>(&mut self, call: impl FnOnce(&mut Machine<SimPlanner<&'static str>>, Moment, ConnId) -> R) -> R {
        let result = call(&mut self.machine, self.now, self.conn);
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Send(_, envelope) => match envelope.message {
                    Message::Path { path, word } => self.worded.push((path, word)),
                    message => self.said.push(message),
                },
                Action::Path(_, path, order) => self.ordered.push((path, order)),
                Action::Compile(ask) => {
                    self.compiled.push(ask.clone());
                    if self.compiles {
                        let plan = self.machine.deployments().compile(&ask);
                        self.machine.compiled(self.now, &ask, plan);
                    }
                }
                other => self.did.push(other),
            }
        }
        result
    }

    fn hear(&mut self, message: Message) {
        self.sequence += 1;
        let sequence = self.sequence;
        let envelope = Envelope { sequence, message };
        self.do_(|machine, now, conn| machine.on_message(now, conn, envelope));
    }

    fn answer(&mut self, message: Message) -> Option<Message> {
        self.said.clear();
        self.hear(message);
        self.said.pop()
    }

    fn refusal(&mut self, message: Message) -> Refusal {
        match self.answer(message) {
            Some(Message::Refused { refusal, .. }) => refusal,
            other => panic!("{other:?}"),
        }
    }

    fn late(&self, id: JobId) -> JobError {
        let machine = &self.machine;
        JobError::TimedOut {
            timeout: secs(30),
            waiting: machine.jobs.awaits(&machine.cx, &machine.peers, &machine.flows, id),
        }
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.machine.next_deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.do_(|machine, now, _| machine.on_deadline(now));
        }
        self.now = until;
    }

    fn lease(&mut self, n: u8, rank: u32, direction: Direction, prefilled: bool) {
        let spec = spec(n, rank, direction, prefilled);
        self.do_(|machine, now, _| machine.lease(now, spec, "blocks")).unwrap();
    }

    /// Returns the actions since the last call, except for claims, which the lease table's tests cover.
    fn took(&mut self) -> Vec<Action<&'static str>> {
        let did = std::mem::take(&mut self.did).into_iter();
        let is_claim = |action: &Action<_>| matches!(action, Action::LeaseClaimed { .. });
        did.filter(|action| !is_claim(action)).collect()
    }

    fn ended(&mut self) -> Vec<LeaseEnd> {
        let ends = self.took().into_iter().filter_map(|action| match action {
            Action::LeaseEnded { end, .. } => Some(end),
            _ => None,
        });
        ends.collect()
    }

    fn job(&mut self) -> Result<JobReport, JobError> {
        let mut results = self.took().into_iter().filter_map(|action| match action {
            Action::JobDone { result, blocks, .. } => {
                assert_eq!(blocks, BLOCKS);
                Some(result)
            }
            _ => None,
        });
        results.next().expect("the job is done")
    }
}

fn spec(n: u8, rank: u32, direction: Direction, prefilled: bool) -> LeaseSpec {
    LeaseSpec {
        key: LeaseKey { set: set(n), rank: Rank(rank) },
        direction,
        content: CONTENT,
        start: 0,
        valid_tokens: TOKENS,
        ttl: secs(10),
        hard_bound: secs(30),
        prefilled,
    }
}

fn hello(name: &str) -> Hello {
    Hello {
        versions: VERSIONS,
        cluster: cluster(),
        agent: agent(name),
        incarnation: life(1),
        deployment: HOLDER.digest(),
        ranks: vec![Rank(0), Rank(1)],
        codecs: Vec::new(),
    }
}

/// Returns the route from rank 0 to rank 0, which both sides plan alike.
fn ask(n: u8, attempt: u32) -> Ask {
    Ask {
        transfer: transfer(n * 16 + attempt as u8),
        nonce: Nonce([n; 16]),
        ticket: ticket(n),
        source: Rank(0),
        destination: Rank(0),
        request: Request::tokens(TOKENS),
        content: CONTENT,
        plan: plan(false),
        lanes: 1,
        paths: PathSet::ANY,
        attempt,
    }
}

fn request(by_layer: bool) -> Request {
    Request { by_layer, codec: Codec::Exact, ..Request::tokens(TOKENS) }
}

fn planner(me: Shape) -> SimPlanner<&'static str> {
    SimPlanner {
        me,
        known: HashMap::from([(HOLDER.digest(), HOLDER), (OWNER.digest(), OWNER)]),
        held: HashMap::new(),
        blocks: std::marker::PhantomData,
    }
}

/// Returns the routes between one rank and a deployment.
fn routes(me: Shape, peer: (Shape, bool), rank: Rank, request: Request) -> Vec<Route> {
    let (peer, local_is_source) = (peer.0.digest(), peer.1);
    let ask = PlanAsk { peer, local_is_source, request };
    planner(me).compile(&ask).unwrap().of_rank(rank).to_vec()
}

fn route(by_layer: bool) -> Route {
    let routes = routes(OWNER, (HOLDER, true), Rank(0), request(by_layer));
    routes.into_iter().next().unwrap()
}

fn plan(by_layer: bool) -> PlanDigest {
    route(by_layer).digest
}

fn push_ask(n: u8, attempt: u32) -> Ask {
    let routes = routes(HOLDER, (OWNER, true), Rank(0), Request::tokens(TOKENS));
    let ticket = mint(&claims(n, Direction::Push));
    let plan = routes[0].digest;
    Ask { ticket, plan, ..ask(n, attempt) }
}

fn done(n: u8, ranks: &[u32]) -> Message {
    let ranks = ranks.iter().map(|r| Rank(*r)).collect();
    Message::Notice(Notice { id: 1, ticket: ticket(n), says: NoticeKind::Done { ranks, content: CONTENT } })
}

#[test]
fn a_shutdown_drains_and_then_gives_up() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.lease(2, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    t.hear(Message::Pull(ask(9, 1)));
    t.said.clear();
    t.do_(|machine, now, _| machine.drain(now));
    let refusal = Refusal::ShuttingDown;
    let transfer = ask(9, 1).transfer;
    assert_eq!(t.said, [Message::Refused { transfer, refusal: refusal.clone() }]);
    assert_eq!(t.refusal(Message::Pull(ask(2, 1))), refusal);
    let late = spec(3, 0, Direction::Pull, true);
    let error = t.do_(|machine, now, _| machine.lease(now, late, "blocks")).unwrap_err();
    let shutting_down = crate::lease::OpenFault::ShuttingDown;
    assert_eq!((error.reason, error.blocks), (shutting_down, "blocks"));
    t.took();
    t.do_(|machine, now, _| machine.give_up(now));
    assert_eq!(t.ended(), [LeaseEnd::Cancelled], "the other waits for its fence");
    t.do_(|machine, now, _| machine.fenced(now, ask(1, 1).transfer));
    assert_eq!(t.ended(), [LeaseEnd::Cancelled]);
    assert!(t.machine.is_idle());
}

/// Checks the sizes that the documentation states.
#[test]
fn things_are_as_small_as_documented() {
    use crate::flows::transfer::Transfer;
    use crate::job::Job;
    use crate::notice::Offered;
    assert!(size_of::<Transfer<SimPlanner<()>>>() <= 400);
    assert!(size_of::<Job<SimPlanner<()>>>() <= 800);
    assert!(size_of::<Offered>() <= 300);
}
