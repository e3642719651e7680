//! One machine against a peer that says what the test wants, typed answer by typed answer.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::message::{
    Ask, Envelope, Hello, LaneMessage, Message, Notice, NoticeKind, VERSIONS, WaitingOn,
};
use super::simulation::plan::{Shape, SimPlanner};
use super::simulation::rng::Rng;
use super::stream::{StreamHeader, StreamTrailer};
use super::*;
use crate::content::ContentDigest;
use crate::ids::{
    AgentId, ClusterName, DeploymentDigest, Direction, Incarnation, LeaseSetId, Nonce, PlanDigest,
    Rank, TransferId,
};
use crate::lease::{LeaseEnd, LeaseKey, LeaseSpec};
use crate::moment::Moment;
use crate::ticket::{Audience, Claims, RankAddress, Ticket, TicketKey};

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
    let address = RankAddress {
        agent: agent("owner"),
        host: "owner.example".into(),
        port: 7600,
    };
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

/// A machine, and a peer played by the test on one connection of it.
struct Table {
    now: Moment,
    machine: Machine<&'static str, SimPlanner>,
    conn: ConnId,
    sequence: u64,
    /// What the machine wanted, sending apart.
    did: Vec<Action<&'static str>>,
    /// What the machine said.
    said: Vec<Message>,
}

impl Table {
    /// A machine that nobody has connected to.
    fn lonely(name: &str, shape: Shape, options: Options) -> Self {
        let identity = Identity {
            agent: agent(name),
            cluster: cluster(),
            incarnation: life(1),
            document: shape.document(),
            ranks: (0..shape.ranks).map(Rank).collect(),
            ticket_key: key(),
            secret: [7; 32],
        };
        let planner = SimPlanner {
            me: shape,
            known: HashMap::new(),
            near: vec![agent("near")],
            near_paths: PathSet::ANY,
        };
        Self {
            now: Moment(secs(100)),
            machine: Machine::new(identity, options, planner).unwrap(),
            conn: ConnId(0),
            sequence: 0,
            did: Vec::new(),
            said: Vec::new(),
        }
    }

    /// An owner with a holder called `peer` connected to it.
    fn owner_with(peer: &str, options: Options) -> Self {
        let mut t = Self::lonely("owner", OWNER, options);
        t.greet(peer, Permits::ALL, hello(peer));
        t
    }

    fn owner() -> Self {
        Self::owner_with("holder", Options::default())
    }

    /// A new connection, greeted as far as the machine lets.
    fn greet(&mut self, peer: &str, permits: Permits, hello: Hello) {
        self.connect(peer, permits);
        self.hear(Message::Hello(hello));
        if self.said.last() == Some(&Message::DocumentWanted) {
            let document = HOLDER.document();
            self.hear(Message::Document { document });
        }
        if self.said.last() == Some(&Message::Welcome) {
            self.hear(Message::Welcome);
        }
    }

    fn connect(&mut self, peer: &str, permits: Permits) {
        self.conn = ConnId(self.conn.0 + 1);
        self.sequence = 0;
        self.do_(|machine, now, conn| machine.connected(now, conn, agent(peer), permits));
    }

    fn do_<R>(
        &mut self,
        call: impl FnOnce(&mut Machine<&'static str, SimPlanner>, Moment, ConnId) -> R,
    ) -> R {
        let result = call(&mut self.machine, self.now, self.conn);
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Send { envelope, .. } => self.said.push(envelope.message),
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

    /// What the machine answers to a message.
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
        self.do_(|machine, now, _| machine.lease(now, spec))
            .unwrap();
    }

    fn took(&mut self) -> Vec<Action<&'static str>> {
        std::mem::take(&mut self.did)
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
                assert_eq!(blocks, "job blocks");
                Some(result)
            }
            _ => None,
        });
        results.next().expect("the job is done")
    }
}

fn spec(n: u8, rank: u32, direction: Direction, prefilled: bool) -> LeaseSpec<&'static str> {
    LeaseSpec {
        key: LeaseKey {
            set: set(n),
            rank: Rank(rank),
        },
        direction,
        content: CONTENT,
        start: 0,
        valid_tokens: TOKENS,
        ttl: secs(10),
        hard_bound: secs(30),
        prefilled,
        blocks: "blocks",
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
    }
}

/// Rank 0 to rank 0, as both sides plan it.
fn ask(n: u8, attempt: u32) -> Ask {
    let by_layer = false;
    Ask {
        transfer: transfer(n * 16 + attempt as u8),
        nonce: Nonce([n; 16]),
        ticket: ticket(n),
        source: Rank(0),
        destination: Rank(0),
        start: 0,
        tokens: TOKENS,
        content: CONTENT,
        plan: plan(by_layer),
        lanes: 1,
        by_layer,
        paths: PathSet::ANY,
        attempt,
    }
}

fn planner(me: Shape) -> SimPlanner {
    SimPlanner {
        me,
        known: HashMap::from([(HOLDER.digest(), HOLDER), (OWNER.digest(), OWNER)]),
        near: Vec::new(),
        near_paths: PathSet::default(),
    }
}

fn route(by_layer: bool) -> Route {
    let mut planner = planner(OWNER);
    let routes = planner.routes(&RouteAsk {
        peer: HOLDER.digest(),
        rank: Rank(0),
        local_is_source: true,
        start: 0,
        tokens: TOKENS,
        by_layer,
    });
    routes.unwrap().remove(0)
}

fn plan(by_layer: bool) -> PlanDigest {
    route(by_layer).digest
}

fn push_ask(n: u8, attempt: u32) -> Ask {
    let mut planner = planner(HOLDER);
    let routes = planner.routes(&RouteAsk {
        peer: OWNER.digest(),
        rank: Rank(0),
        local_is_source: true,
        start: 0,
        tokens: TOKENS,
        by_layer: false,
    });
    let ticket = mint(&claims(n, Direction::Push));
    let plan = routes.unwrap()[0].digest;
    Ask {
        ticket,
        plan,
        ..ask(n, attempt)
    }
}

fn done(n: u8, ranks: &[u32]) -> Message {
    let ranks = ranks.iter().map(|r| Rank(*r)).collect();
    Message::Notice(Notice {
        id: 1,
        ticket: ticket(n),
        says: NoticeKind::Done {
            ranks,
            content: CONTENT,
        },
    })
}

mod greetings {
    use super::*;

    fn unwelcome(permits: Permits, hello: Hello) -> HelloRefusal {
        let mut t = Table::lonely("owner", OWNER, Options::default());
        t.greet("holder", permits, hello);
        let closed = matches!(t.took()[..], [Action::Close { .. }]);
        assert!(closed && t.machine.gauges() == Gauges::default());
        match t.said.pop() {
            Some(Message::Unwelcome(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn say_why_somebody_is_not_welcome() {
        let ours = VERSIONS;
        let theirs = (2, 9);
        let future = Hello {
            versions: theirs,
            ..hello("holder")
        };
        assert_eq!(
            unwelcome(Permits::ALL, future),
            HelloRefusal::Version { ours, theirs }
        );
        let east = ClusterName::new("east").unwrap();
        let stranger = Hello {
            cluster: east.clone(),
            ..hello("holder")
        };
        let (ours, theirs) = (cluster(), east);
        assert_eq!(
            unwelcome(Permits::ALL, stranger),
            HelloRefusal::Cluster { ours, theirs }
        );
        assert_eq!(
            unwelcome(Permits::ALL, hello("somebody-else")),
            HelloRefusal::Agent
        );
        let (rank, ranks) = (Rank(2), 2);
        let greedy = Hello {
            ranks: vec![rank],
            ..hello("holder")
        };
        assert_eq!(
            unwelcome(Permits::ALL, greedy),
            HelloRefusal::Rank { rank, ranks }
        );
        let mixed_up = Hello {
            deployment: DeploymentDigest([9; 32]),
            ..hello("holder")
        };
        assert!(matches!(
            unwelcome(Permits::ALL, mixed_up),
            HelloRefusal::Document { .. }
        ));
    }

    #[test]
    fn name_what_cannot_be_bridged() {
        let mut t = Table::lonely("owner", OWNER, Options::default());
        let document = vec![1, 2, 3];
        let deployment = DeploymentDigest::of(&document);
        t.greet(
            "holder",
            Permits::ALL,
            Hello {
                deployment,
                ..hello("holder")
            },
        );
        // The helper has sent another document; do it again with this one.
        t.connect("holder", Permits::ALL);
        t.hear(Message::Hello(Hello {
            deployment,
            ..hello("holder")
        }));
        let refused = t.answer(Message::Document { document });
        let Some(Message::Unwelcome(HelloRefusal::Specs(difference))) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(
            difference.to_string(),
            "document cannot be bridged: 2 bytes here, 3 bytes there"
        );
    }

    #[test]
    fn hand_documents_over_once() {
        let mut t = Table::owner();
        assert_eq!(
            t.said
                .iter()
                .filter(|m| **m == Message::DocumentWanted)
                .count(),
            1
        );
        t.said.clear();
        t.greet("other", Permits::ALL, hello("other"));
        assert!(
            !t.said.contains(&Message::DocumentWanted),
            "it is known by its digest"
        );
    }

    #[test]
    fn keep_to_their_turn() {
        for early in [
            Message::Pull(ask(1, 1)),
            done(1, &[0]),
            Message::Document {
                document: Vec::new(),
            },
        ] {
            let mut t = Table::lonely("owner", OWNER, Options::default());
            t.connect("holder", Permits::ALL);
            t.hear(early);
            assert!(matches!(
                t.took()[..],
                [Action::Close {
                    reason: CloseReason::Violation(_),
                    ..
                }]
            ));
        }
        let mut t = Table::owner();
        t.hear(Message::Hello(hello("holder")));
        assert!(matches!(t.took()[..], [Action::Close { .. }]));
    }

    #[test]
    fn end_in_time() {
        let mut t = Table::lonely("owner", OWNER, Options::default());
        t.connect("holder", Permits::ALL);
        t.wait(secs(6));
        let reason = CloseReason::HelloLate;
        assert!(matches!(&t.took()[..], [Action::Close { reason: r, .. }] if *r == reason));
    }

    #[test]
    fn drop_duplicates_and_notice_gaps() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        t.hear(Message::Pull(ask(1, 1)));
        let envelope = Envelope {
            sequence: t.sequence,
            message: Message::Pull(ask(1, 1)),
        };
        t.said.clear();
        t.do_(|machine, now, conn| machine.on_message(now, conn, envelope));
        assert!(t.said.is_empty());
        t.took();
        t.sequence += 1;
        t.hear(done(1, &[0]));
        let fenced_then_closed =
            |actions: &[Action<_>]| matches!(actions, [Action::Close { .. }, Action::Fence { .. }]);
        assert!(fenced_then_closed(&t.took()));
    }

    #[test]
    fn let_a_later_life_replace_an_earlier() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        t.hear(Message::Pull(ask(1, 1)));
        t.took();
        let first = t.conn;
        let reborn = Hello {
            incarnation: life(2),
            ..hello("holder")
        };
        t.greet("holder", Permits::ALL, reborn);
        let actions = t.took();
        assert!(
            matches!(&actions[..], [
                Action::Close { conn, reason: CloseReason::Replaced },
                Action::Fence { transfer: fenced },
            ] if *conn == first && *fenced == ask(1, 1).transfer),
            "{actions:?}"
        );
        t.do_(|machine, now, _| machine.fenced(now, ask(1, 1).transfer));
        assert_eq!(t.ended(), [LeaseEnd::PeerLost]);
        t.greet("holder", Permits::ALL, hello("holder"));
        let later = life(2);
        let refusal = HelloRefusal::Superseded { later };
        assert_eq!(t.said.pop(), Some(Message::Unwelcome(refusal)));
    }
}

mod asks {
    use super::*;

    #[test]
    fn are_refused_by_name() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        let pull = |change: fn(&mut Ask)| {
            let mut ask = ask(1, 1);
            change(&mut ask);
            Message::Pull(ask)
        };
        let by = |change: fn(&mut Claims)| {
            let mut claims = claims(1, Direction::Pull);
            change(&mut claims);
            let ticket = mint(&claims);
            Message::Pull(Ask {
                ticket,
                ..ask(1, 1)
            })
        };

        let forged = Ticket::mint(&TicketKey::new(&[4; 32]), &claims(1, Direction::Pull)).unwrap();
        let forged = Message::Pull(Ask {
            ticket: forged,
            ..ask(1, 1)
        });
        assert_eq!(t.refusal(forged), Refusal::Forged);
        let east = |claims: &mut Claims| claims.cluster = ClusterName::new("east").unwrap();
        assert_eq!(
            t.refusal(by(east)),
            Refusal::WrongCluster { ours: cluster() }
        );
        let ours = OWNER.digest();
        let other = |claims: &mut Claims| claims.owner = DeploymentDigest([9; 32]);
        assert_eq!(t.refusal(by(other)), Refusal::WrongDeployment { ours });
        let ours = life(1);
        let past = |claims: &mut Claims| claims.incarnation = life(0);
        assert_eq!(t.refusal(by(past)), Refusal::WrongIncarnation { ours });
        let ticket = Direction::Push;
        let push = |claims: &mut Claims| claims.direction = Direction::Push;
        assert_eq!(t.refusal(by(push)), Refusal::WrongDirection { ticket });
        let somebody = |claims: &mut Claims| {
            claims.audience = Some(Audience::Agent(agent("somebody-else")));
        };
        assert_eq!(t.refusal(by(somebody)), Refusal::WrongPeer);

        let rank = Rank(2);
        assert_eq!(
            t.refusal(pull(|a| a.source = Rank(2))),
            Refusal::RankNotHere { rank }
        );
        assert_eq!(
            t.refusal(pull(|a| a.destination = Rank(2))),
            Refusal::RankNotYours { rank }
        );
        let content = CONTENT;
        let other = pull(|a| a.content = ContentDigest([9; 32]));
        assert_eq!(t.refusal(other), Refusal::DigestMismatch { content });
        let (ours, theirs) = (plan(false), PlanDigest([9; 32]));
        let other = pull(|a| a.plan = PlanDigest([9; 32]));
        assert_eq!(
            t.refusal(other),
            Refusal::PlanDigestMismatch { ours, theirs }
        );
        let (start, valid, asked) = (0, TOKENS, TOKENS + 1);
        let more = pull(|a| a.tokens += 1);
        assert_eq!(
            t.refusal(more),
            Refusal::NotEnoughTokens {
                start,
                valid,
                asked
            }
        );
        let (owner, asker) = (Rank(0), Rank(1));
        let nowhere = pull(|a| a.destination = Rank(1));
        assert_eq!(t.refusal(nowhere), Refusal::NoRoute { owner, asker });
        let (wanted, offered) = (PathSet::LOCAL, PathSet::QUIC);
        let local = pull(|a| a.paths = PathSet::LOCAL);
        assert_eq!(
            t.refusal(local),
            Refusal::PathUnavailable { wanted, offered }
        );

        assert_eq!(t.machine.gauges().transfers, 0);
        let accepted = t.answer(Message::Pull(ask(1, 1)));
        assert!(
            matches!(accepted, Some(Message::Accepted { .. })),
            "none of that has bound it"
        );
    }

    #[test]
    fn need_a_role() {
        let nothing = Permits {
            pull: false,
            push: false,
            renew: false,
        };
        let mut t = Table::lonely("owner", OWNER, Options::default());
        t.greet("holder", nothing, hello("holder"));
        t.lease(1, 0, Direction::Pull, true);
        let role = Role::Pull;
        assert_eq!(
            t.refusal(Message::Pull(ask(1, 1))),
            Refusal::RoleMissing { role }
        );
        let role = Role::Push;
        assert_eq!(
            t.refusal(Message::Push(push_ask(1, 1))),
            Refusal::RoleMissing { role }
        );
        let renew = Message::Notice(Notice {
            id: 5,
            ticket: ticket(1),
            says: NoticeKind::Renew { ttl_ms: 1 },
        });
        let outcome = Err(Refusal::RoleMissing { role: Role::Renew });
        assert_eq!(
            t.answer(renew),
            Some(Message::NoticeHeard { id: 5, outcome })
        );
        let outcome = Err(Refusal::RoleMissing { role: Role::Pull });
        assert_eq!(
            t.answer(done(1, &[0])),
            Some(Message::NoticeHeard { id: 1, outcome })
        );
    }

    #[test]
    fn are_told_how_a_lease_has_ended() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        t.wait(secs(11));
        assert_eq!(t.refusal(Message::Pull(ask(1, 1))), Refusal::Expired);
        t.lease(2, 0, Direction::Pull, true);
        let key = spec(2, 0, Direction::Pull, true).key;
        t.do_(|machine, now, _| machine.cancel_lease(now, key))
            .unwrap();
        assert_eq!(t.refusal(Message::Pull(ask(2, 1))), Refusal::Cancelled);
        t.lease(3, 0, Direction::Pull, true);
        t.hear(done(3, &[0, 1]));
        assert_eq!(t.refusal(Message::Pull(ask(3, 1))), Refusal::Consumed);
        let ends = [LeaseEnd::Expired, LeaseEnd::Cancelled, LeaseEnd::Completed];
        assert_eq!(t.ended(), ends);
    }

    #[test]
    fn wait_for_their_lease_and_not_for_ever() {
        let mut t = Table::owner();
        let on = WaitingOn::Lease;
        let first = ask(1, 1);
        let waiting = Message::Waiting {
            transfer: first.transfer,
            on,
        };
        assert_eq!(t.answer(Message::Pull(first.clone())), Some(waiting));
        assert_eq!(
            t.answer(Message::Pull(first.clone())),
            None,
            "it waits already"
        );
        t.hear(Message::Pull(ask(2, 1)));
        t.lease(1, 0, Direction::Pull, true);
        let accepted = Message::Accepted {
            transfer: first.transfer,
            path: Path::Quic,
        };
        assert_eq!(t.said.pop(), Some(accepted));
        t.said.clear();
        t.wait(secs(11));
        let transfer = ask(2, 1).transfer;
        let refusal = Refusal::UnknownLease;
        assert!(t.said.contains(&Message::Refused { transfer, refusal }));
        assert_eq!(t.machine.gauges().early, 0);
    }

    #[test]
    fn wait_in_bounded_number_and_may_be_withdrawn() {
        let mut t = Table::owner_with(
            "holder",
            Options {
                early_per_agent: 2,
                ..Options::default()
            },
        );
        t.hear(Message::Pull(ask(1, 1)));
        t.hear(Message::Pull(ask(2, 1)));
        let limit = 2;
        assert_eq!(t.refusal(Message::Pull(ask(3, 1))), Refusal::Busy { limit });
        let failure = Failure::Cancelled;
        t.hear(Message::Abort {
            transfer: ask(1, 1).transfer,
            failure,
        });
        assert_eq!(t.machine.gauges().early, 1);
        t.do_(|machine, now, conn| machine.disconnected(now, conn));
        assert_eq!(t.machine.gauges().early, 0);
    }

    #[test]
    fn are_few_at_a_time() {
        let mut t = Table::owner_with(
            "holder",
            Options {
                transfers_per_agent: 1,
                ..Options::default()
            },
        );
        t.lease(1, 0, Direction::Pull, true);
        t.lease(2, 0, Direction::Pull, true);
        t.hear(Message::Pull(ask(1, 1)));
        let limit = 1;
        assert_eq!(t.refusal(Message::Pull(ask(2, 1))), Refusal::Busy { limit });
    }

    #[test]
    fn of_a_later_attempt_wait_for_the_fence_of_the_earlier() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        t.hear(Message::Pull(ask(1, 1)));
        t.took();
        let on = WaitingOn::Fence;
        let waiting = Message::Waiting {
            transfer: ask(1, 2).transfer,
            on,
        };
        assert_eq!(t.answer(Message::Pull(ask(1, 2))), Some(waiting));
        let latest = 3;
        t.said.clear();
        t.hear(Message::Pull(ask(1, 3)));
        let refusal = Refusal::Superseded { latest };
        assert!(t.said.contains(&Message::Refused {
            transfer: ask(1, 2).transfer,
            refusal
        }));
        let fence = ask(1, 1).transfer;
        assert!(matches!(t.took()[..], [Action::Fence { transfer }] if transfer == fence));
        t.do_(|machine, now, _| machine.fenced(now, fence));
        let began = |action: &Action<_>| matches!(action, Action::Read(flow) if flow.transfer == ask(1, 3).transfer);
        assert!(t.took().iter().any(began));
        let refusal = Refusal::Superseded { latest };
        assert_eq!(t.refusal(Message::Pull(ask(1, 2))), refusal);
    }
}

mod sources {
    use super::*;

    fn key_of(n: u8) -> LeaseKey {
        spec(n, 0, Direction::Pull, true).key
    }

    #[test]
    fn commit_and_complete() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        let id = ask(1, 1).transfer;
        t.hear(Message::Pull(ask(1, 1)));
        let Action::Read(flow) = t.took().remove(0) else {
            panic!("reads at once");
        };
        assert_eq!(
            (flow.bytes, flow.path),
            (route(false).bytes, Some(Path::Quic))
        );
        t.said.clear();
        t.do_(|machine, now, _| machine.stream_sent(now, id, flow.bytes - 1, true));
        t.do_(|machine, now, _| machine.stream_sent(now, id, 1, false));
        assert!(t.said.is_empty(), "some is lent");
        t.do_(|machine, now, _| machine.borrow_dropped(now, id));
        let (streams, bytes) = (2, flow.bytes);
        assert_eq!(
            t.said.pop(),
            Some(Message::Commit {
                transfer: id,
                streams,
                bytes
            })
        );
        t.hear(Message::Landed { transfer: id });
        assert!(matches!(t.took()[..], [Action::Finished { .. }]));
        let again = Ask {
            transfer: transfer(99),
            attempt: 2,
            ..ask(1, 1)
        };
        assert_eq!(t.refusal(Message::Pull(again)), Refusal::Consumed);
        t.hear(done(1, &[0]));
        assert!(t.ended().is_empty());
        t.hear(done(1, &[1]));
        assert_eq!(t.ended(), [LeaseEnd::Completed]);
        assert!(
            !t.machine.is_idle(),
            "rank 1 may still be opened, and is to hear of it then"
        );
        t.wait(secs(10));
        assert!(t.machine.is_idle());
    }

    #[test]
    fn never_commit_what_is_over() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        let id = ask(1, 1).transfer;
        t.hear(Message::Pull(ask(1, 1)));
        t.said.clear();
        // The hard bound has passed, and no timer has fired.
        t.now = t.now + secs(31);
        t.do_(|machine, now, _| machine.stream_sent(now, id, route(false).bytes, false));
        let end = LeaseEnd::Expired;
        let failure = Failure::LeaseEnded { end };
        assert_eq!(
            t.said,
            [Message::Abort {
                transfer: id,
                failure
            }]
        );
        assert!(t.ended().is_empty(), "not before the fence");
        t.do_(|machine, now, _| machine.fenced(now, id));
        assert_eq!(t.ended(), [LeaseEnd::Expired]);
    }

    #[test]
    fn wait_for_the_prefill_and_say_so() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, false);
        let id = ask(1, 1).transfer;
        t.hear(Message::Pull(ask(1, 1)));
        assert!(t.took().is_empty(), "nothing is read yet");
        let on = WaitingOn::Prefill;
        assert_eq!(t.said.pop(), Some(Message::Waiting { transfer: id, on }));
        t.said.clear();
        t.wait(secs(12));
        assert_eq!(t.said.len(), 2, "every five seconds");
        t.do_(|machine, now, _| machine.finish_prefill(now, key_of(1)))
            .unwrap();
        assert!(matches!(&t.took()[..], [Action::Read(flow)] if flow.all_readable));
    }

    #[test]
    fn read_layer_by_layer() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, false);
        t.machine.ready(key_of(1), 0, TOKENS).unwrap();
        let by_layer = true;
        let plan = plan(by_layer);
        t.hear(Message::Pull(Ask {
            by_layer,
            plan,
            ..ask(1, 1)
        }));
        let actions = t.took();
        assert!(
            matches!(&actions[..], [Action::Read(flow)]
                if !flow.all_readable && flow.ready == [(0, TOKENS)]),
            "{actions:?}"
        );
        t.said.clear();
        t.do_(|machine, _, _| machine.ready(key_of(1), 1, 5))
            .unwrap();
        assert!(matches!(
            t.took()[..],
            [Action::Readable {
                layer: 1,
                tokens: 5,
                ..
            }]
        ));
        assert!(matches!(
            t.said[..],
            [Message::Progress {
                layer: 1,
                tokens: 5,
                ..
            }]
        ));
        let id = ask(1, 1).transfer;
        t.do_(|machine, now, _| machine.stream_sent(now, id, route(true).bytes, false));
        assert_eq!(t.said.len(), 1, "no commit before the prefill's end");
        t.do_(|machine, now, _| machine.finish_prefill(now, key_of(1)))
            .unwrap();
        assert!(matches!(t.said.last(), Some(Message::Commit { .. })));
    }

    #[test]
    fn lend_shared_memory_and_commit_once_it_was_taken() {
        let mut t = Table::owner_with("near", Options::default());
        t.lease(1, 0, Direction::Pull, true);
        let id = ask(1, 1).transfer;
        t.hear(Message::Pull(ask(1, 1)));
        assert!(matches!(
            t.said[..],
            [
                ..,
                Message::Accepted {
                    path: Path::Shared,
                    ..
                },
                Message::Lent { .. }
            ]
        ));
        assert!(matches!(
            t.answer(Message::Taken { transfer: id }),
            Some(Message::Commit { streams: 1, .. })
        ));
    }

    #[test]
    fn fail_what_does_not_add_up() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        let id = ask(1, 1).transfer;
        t.hear(Message::Pull(ask(1, 1)));
        t.do_(|machine, now, _| machine.stream_sent(now, id, u64::MAX, false));
        assert!(matches!(
            t.said.last(),
            Some(Message::Abort {
                failure: Failure::Local { .. },
                ..
            })
        ));
    }

    #[test]
    fn forget_a_commit_that_nobody_answers() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        let id = ask(1, 1).transfer;
        t.hear(Message::Pull(ask(1, 1)));
        t.do_(|machine, now, _| machine.stream_sent(now, id, route(false).bytes, false));
        t.took();
        t.wait(secs(120));
        assert!(matches!(
            t.took()[..],
            [
                Action::LeaseEnded {
                    end: LeaseEnd::Expired,
                    ..
                },
                Action::Fence { .. }
            ]
        ));
        t.do_(|machine, now, _| machine.fenced(now, id));
        assert!(t.machine.is_idle());
    }
}

mod openings {
    use super::*;

    /// The stream that carries all of a push.
    fn whole(ask: &Ask, bytes: u64) -> (StreamHeader, StreamTrailer) {
        let header = StreamHeader {
            transfer: ask.transfer,
            nonce: ask.nonce,
            stream: 0,
            offset: 0,
            length: bytes,
        };
        (
            header,
            StreamTrailer {
                length: bytes,
                crc: 5,
            },
        )
    }

    fn push_done(ranks: &[u32]) -> Message {
        let Message::Notice(notice) = done(1, ranks) else {
            unreachable!();
        };
        let ticket = mint(&claims(1, Direction::Push));
        Message::Notice(Notice { ticket, ..notice })
    }

    #[test]
    fn complete_with_everything_that_had_to_be_written() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Push, true);
        let push = push_ask(1, 1);
        t.hear(Message::Push(push.clone()));
        let Action::Receive(flow) = t.took().remove(0) else {
            panic!("receives before it says so");
        };
        let (header, trailer) = whole(&push, flow.bytes);
        let (streams, bytes) = (1, flow.bytes);
        let transfer = push.transfer;
        let stranger = agent("stranger");
        let admitted = t.do_(|machine, now, _| machine.admit(now, &stranger, &header));
        assert_eq!(
            admitted,
            Err(StreamRefusal::Unknown),
            "it is not the stranger's"
        );
        let holder = agent("holder");
        t.do_(|machine, now, _| machine.admit(now, &holder, &header))
            .unwrap();
        t.do_(|machine, now, _| machine.stream_arrived(now, &header, &trailer, 5));
        let landed = t.answer(Message::Commit {
            transfer,
            streams,
            bytes,
        });
        assert_eq!(landed, Some(Message::Landed { transfer }));
        let again = push_ask(1, 2);
        assert_eq!(t.refusal(Message::Push(again)), Refusal::Consumed);
        t.took();
        t.hear(push_done(&[0, 1]));
        assert_eq!(t.ended(), [LeaseEnd::Completed]);
    }

    #[test]
    fn are_not_complete_because_somebody_says_so() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Push, true);
        t.hear(push_done(&[0, 1]));
        assert_eq!(t.ended(), [LeaseEnd::Cancelled]);
    }

    #[test]
    fn that_are_over_are_fenced_first() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Push, true);
        let push = push_ask(1, 1);
        t.hear(Message::Push(push.clone()));
        let bytes = 10;
        let (header, _) = whole(&push, bytes);
        let holder = agent("holder");
        t.do_(|machine, now, _| machine.admit(now, &holder, &header))
            .unwrap();
        t.took();
        let key = spec(1, 0, Direction::Push, true).key;
        t.do_(|machine, now, _| machine.cancel_lease(now, key))
            .unwrap();
        assert!(matches!(t.took()[..], [Action::Fence { .. }]));
        let late = StreamHeader {
            stream: 1,
            offset: 5,
            length: 1,
            ..header
        };
        let admitted = t.do_(|machine, now, _| machine.admit(now, &holder, &late));
        assert_eq!(admitted, Err(StreamRefusal::Unknown));
        t.do_(|machine, now, _| machine.fenced(now, push.transfer));
        assert_eq!(t.ended(), [LeaseEnd::Cancelled]);
    }
}

mod jobs {
    use super::*;

    fn job(n: u8, direction: Direction) -> JobSpec<&'static str> {
        JobSpec {
            ticket: mint(&claims(n, direction)),
            ranks: BTreeSet::from([Rank(0)]),
            start: 0,
            tokens: TOKENS,
            content: CONTENT,
            lanes: 1,
            by_layer: false,
            paths: PathSet::ANY,
            timeout: secs(30),
            prefilled: true,
            blocks: "job blocks",
        }
    }

    /// A holder whose job has connected it to the owner, played by the test.
    fn holder(direction: Direction) -> (Table, JobId) {
        let mut t = Table::lonely("holder", HOLDER, Options::default());
        let id = t
            .do_(|machine, now, _| machine.start(now, job(1, direction)))
            .unwrap();
        assert!(matches!(t.took()[..], [Action::Connect { .. }]));
        meet_owner(&mut t);
        (t, id)
    }

    fn meet_owner(t: &mut Table) {
        t.connect("owner", Permits::ALL);
        let hello = Hello {
            deployment: OWNER.digest(),
            ..hello("owner")
        };
        t.hear(Message::Hello(hello));
        if t.said.last() == Some(&Message::DocumentWanted) {
            let document = OWNER.document();
            t.hear(Message::Document { document });
        }
        t.hear(Message::Welcome);
    }

    fn asked(t: &Table) -> Ask {
        match t.said.last() {
            Some(Message::Pull(ask) | Message::Push(ask)) => ask.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn refused(t: &mut Table, spec: JobSpec<&'static str>) -> JobError {
        let refused = t
            .do_(|machine, now, _| machine.start(now, spec))
            .unwrap_err();
        assert_eq!(refused.blocks, "job blocks");
        refused.error
    }

    #[test]
    fn that_cannot_be_are_not_begun() {
        let mut t = Table::lonely(
            "holder",
            HOLDER,
            Options {
                jobs: 1,
                ..Options::default()
            },
        );
        let pull = || job(1, Direction::Pull);
        let ranks = BTreeSet::from([Rank(7)]);
        let rank = Rank(7);
        assert_eq!(
            refused(&mut t, JobSpec { ranks, ..pull() }),
            JobError::NotOurs { rank }
        );
        let ranks = BTreeSet::new();
        assert_eq!(
            refused(&mut t, JobSpec { ranks, ..pull() }),
            JobError::NoRanks
        );
        let (start, end, first, valid) = (5, 15, 0, TOKENS);
        assert_eq!(
            refused(&mut t, JobSpec { start, ..pull() }),
            JobError::Tokens {
                start,
                end,
                first,
                valid
            }
        );
        let part = JobSpec {
            tokens: 5,
            ..job(1, Direction::Push)
        };
        assert!(
            matches!(refused(&mut t, part), JobError::Tokens { .. }),
            "a push moves all of it"
        );
        let forged = Ticket::mint(&TicketKey::new(&[4; 32]), &claims(1, Direction::Pull)).unwrap();
        let forged = refused(
            &mut t,
            JobSpec {
                ticket: forged,
                ..pull()
            },
        );
        assert_eq!(forged, JobError::Ticket(crate::ticket::TicketError::Forged));
        t.do_(|machine, now, _| machine.start(now, pull())).unwrap();
        let limit = 1;
        assert_eq!(refused(&mut t, pull()), JobError::TooMany { limit });
    }

    #[test]
    fn do_not_run_twice_at_a_time() {
        let (mut t, _) = holder(Direction::Pull);
        let rank = Rank(0);
        assert_eq!(
            refused(&mut t, job(1, Direction::Pull)),
            JobError::UnderWay { rank }
        );
    }

    #[test]
    fn pull_and_tell_every_owner() {
        let (mut t, _) = holder(Direction::Pull);
        let asked = asked(&t);
        let Action::Receive(flow) = t.took().remove(0) else {
            panic!("receives before it asks");
        };
        let transfer = asked.transfer;
        let header = StreamHeader {
            transfer,
            nonce: asked.nonce,
            stream: 0,
            offset: 0,
            length: flow.bytes,
        };
        let trailer = StreamTrailer {
            length: flow.bytes,
            crc: 1,
        };
        let owner = agent("owner");
        t.do_(|machine, now, _| machine.admit(now, &owner, &header))
            .unwrap();
        t.do_(|machine, now, _| machine.stream_arrived(now, &header, &trailer, 1));
        t.hear(Message::Accepted {
            transfer,
            path: Path::Quic,
        });
        t.said.clear();
        let (streams, bytes) = (1, flow.bytes);
        t.hear(Message::Commit {
            transfer,
            streams,
            bytes,
        });
        let report = t.job().unwrap();
        assert_eq!((report.bytes, report.routes.len()), (flow.bytes, 1));
        let Some(Message::Notice(notice)) = t.said.pop() else {
            panic!("{:?}", t.said);
        };
        assert!(matches!(&notice.says, NoticeKind::Done { ranks, .. } if *ranks == [Rank(0)]));
        assert_eq!(t.said, [Message::Landed { transfer }]);
        t.hear(Message::NoticeHeard {
            id: notice.id,
            outcome: Ok(0),
        });
        assert!(t.machine.is_idle());
    }

    #[test]
    fn try_again_after_the_fence() {
        let (mut t, _) = holder(Direction::Pull);
        let first = asked(&t);
        t.took();
        t.hear(Message::Abort {
            transfer: first.transfer,
            failure: Failure::Stalled,
        });
        assert!(matches!(t.took()[..], [Action::Fence { .. }]));
        t.wait(secs(1));
        assert!(t.took().is_empty(), "not before the fence");
        t.do_(|machine, now, _| machine.fenced(now, first.transfer));
        t.wait(secs(1));
        let second = asked(&t);
        assert_eq!((second.attempt, first.attempt), (2, 1));
        assert_ne!(second.transfer, first.transfer);
        assert_ne!(second.nonce, first.nonce);
    }

    #[test]
    fn try_so_often_and_then_cancel() {
        let (mut t, _) = holder(Direction::Pull);
        let failure = Failure::Stalled;
        for _ in 0..3 {
            let transfer = asked(&t).transfer;
            t.said.clear();
            t.hear(Message::Abort {
                transfer,
                failure: failure.clone(),
            });
            t.do_(|machine, now, _| machine.fenced(now, transfer));
            t.wait(secs(1));
        }
        let attempts = 3;
        let (rank, peer_rank) = (Rank(0), Rank(0));
        assert_eq!(
            t.job(),
            Err(JobError::Failed {
                rank,
                peer_rank,
                attempts,
                failure
            })
        );
        let content = Some(CONTENT);
        assert!(matches!(t.said.last(), Some(Message::Notice(notice))
            if notice.says == NoticeKind::Cancel { content }));
    }

    #[test]
    fn do_not_cancel_what_is_not_theirs() {
        let (mut t, _) = holder(Direction::Pull);
        let transfer = asked(&t).transfer;
        t.said.clear();
        let refusal = Refusal::DigestMismatch { content: CONTENT };
        t.hear(Message::Refused {
            transfer,
            refusal: refusal.clone(),
        });
        t.do_(|machine, now, _| machine.fenced(now, transfer));
        let (rank, peer_rank) = (Rank(0), Rank(0));
        assert_eq!(
            t.job(),
            Err(JobError::Refused {
                rank,
                peer_rank,
                refusal
            })
        );
        assert!(t.said.is_empty() && t.machine.is_idle());
    }

    #[test]
    fn wait_while_the_owner_is_busy() {
        let (mut t, _) = holder(Direction::Pull);
        for attempt in 1..10 {
            let asked = asked(&t);
            assert_eq!(asked.attempt, attempt);
            let transfer = asked.transfer;
            let refusal = Refusal::Busy { limit: 1 };
            t.hear(Message::Refused { transfer, refusal });
            t.do_(|machine, now, _| machine.fenced(now, transfer));
            t.wait(secs(2));
        }
        t.took();
        let transfer = asked(&t).transfer;
        t.wait(secs(15));
        t.do_(|machine, now, _| machine.fenced(now, transfer));
        assert_eq!(t.job(), Err(JobError::TimedOut { timeout: secs(30) }));
    }

    #[test]
    fn notice_a_restarted_owner_at_once() {
        let mut t = Table::lonely("holder", HOLDER, Options::default());
        t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull)))
            .unwrap();
        t.connect("owner", Permits::ALL);
        t.hear(Message::Hello(Hello {
            deployment: OWNER.digest(),
            incarnation: life(2),
            ..hello("owner")
        }));
        t.hear(Message::Document {
            document: OWNER.document(),
        });
        t.hear(Message::Welcome);
        let (agent, found, ticket) = (agent("owner"), life(2), life(1));
        assert_eq!(
            t.job(),
            Err(JobError::Restarted {
                agent,
                found,
                ticket
            })
        );
        assert!(t.machine.is_idle(), "there is nobody to tell");
    }

    #[test]
    fn give_up_on_who_cannot_be_reached() {
        let mut t = Table::lonely("holder", HOLDER, Options::default());
        t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull)))
            .unwrap();
        for _ in 0..3 {
            t.do_(|machine, now, _| machine.connect_failed(now, &agent("owner")));
            t.wait(secs(1));
        }
        assert_eq!(
            t.job(),
            Err(JobError::Unreachable {
                agent: agent("owner")
            })
        );
        assert_eq!(t.machine.gauges().notices, 1, "it still wants to cancel");
        t.wait(secs(60));
        t.do_(|machine, now, _| machine.connect_failed(now, &agent("owner")));
        assert!(t.machine.is_idle());
        assert_eq!(t.machine.gauges(), Gauges::default());
    }

    #[test]
    fn take_no_path_that_they_did_not_want() {
        let mut t = Table::lonely("holder", HOLDER, Options::default());
        let spec = JobSpec {
            paths: PathSet::QUIC,
            ..job(1, Direction::Pull)
        };
        t.do_(|machine, now, _| machine.start(now, spec)).unwrap();
        meet_owner(&mut t);
        let transfer = asked(&t).transfer;
        t.hear(Message::Accepted {
            transfer,
            path: Path::Shared,
        });
        assert!(matches!(t.said.last(), Some(Message::Abort { .. })));
    }

    #[test]
    fn believe_a_push_has_landed_whose_answer_was_lost() {
        let (mut t, _) = holder(Direction::Push);
        let first = asked(&t);
        t.hear(Message::Accepted {
            transfer: first.transfer,
            path: Path::Quic,
        });
        let Action::Read(flow) = t.took().remove(0) else {
            panic!("reads once accepted");
        };
        t.do_(|machine, now, _| machine.stream_sent(now, first.transfer, flow.bytes, false));
        assert!(matches!(t.said.last(), Some(Message::Commit { .. })));
        t.do_(|machine, now, conn| machine.disconnected(now, conn));
        t.do_(|machine, now, _| machine.fenced(now, first.transfer));
        t.wait(secs(1));
        meet_owner(&mut t);
        let second = asked(&t);
        t.took();
        let refusal = Refusal::Consumed;
        t.hear(Message::Refused {
            transfer: second.transfer,
            refusal,
        });
        assert!(t.job().is_ok());
    }

    #[test]
    fn push_layer_by_layer() {
        let mut t = Table::lonely("holder", HOLDER, Options::default());
        let spec = JobSpec {
            by_layer: true,
            prefilled: false,
            ..job(1, Direction::Push)
        };
        let id = t.do_(|machine, now, _| machine.start(now, spec)).unwrap();
        meet_owner(&mut t);
        t.took();
        t.machine.job_ready(id, Rank(0), 3, TOKENS);
        let transfer = asked(&t).transfer;
        t.hear(Message::Accepted {
            transfer,
            path: Path::Ring,
        });
        assert!(matches!(&t.took()[..], [Action::Read(flow)]
            if flow.ready == [(3, TOKENS)] && !flow.all_readable));
        t.do_(|machine, _, _| machine.job_ready(id, Rank(0), 4, TOKENS));
        t.do_(|machine, now, _| machine.job_prefilled(now, id));
        assert!(matches!(
            t.took()[..],
            [
                Action::Readable { layer: 4, .. },
                Action::AllReadable { .. }
            ]
        ));
    }

    #[test]
    fn can_be_cancelled() {
        let (mut t, id) = holder(Direction::Pull);
        let transfer = asked(&t).transfer;
        t.took();
        t.do_(|machine, now, _| machine.cancel_job(now, id));
        assert!(matches!(t.took()[..], [Action::Fence { .. }]));
        t.do_(|machine, now, _| machine.fenced(now, transfer));
        assert_eq!(t.job(), Err(JobError::Cancelled));
    }
}

mod notices {
    use super::*;

    #[test]
    fn cancel_what_nobody_holds_yet_even_before_it_is_opened() {
        let mut t = Table::owner();
        let cancel = |id, content| Notice {
            id,
            ticket: ticket(1),
            says: NoticeKind::Cancel { content },
        };
        t.lease(1, 0, Direction::Pull, true);
        let other = cancel(1, Some(ContentDigest([9; 32])));
        t.hear(Message::Notice(other));
        assert!(t.ended().is_empty(), "another request was meant");
        let heard = t.answer(Message::Notice(cancel(2, None)));
        assert_eq!(
            heard,
            Some(Message::NoticeHeard {
                id: 2,
                outcome: Ok(0)
            })
        );
        assert_eq!(t.ended(), [LeaseEnd::Cancelled]);
        t.lease(1, 1, Direction::Pull, true);
        assert_eq!(t.ended(), [LeaseEnd::Cancelled], "rank 1 was late");
        assert!(t.machine.is_idle());
    }

    #[test]
    fn renew_within_bounds() {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        let renew = |ttl_ms| {
            let says = NoticeKind::Renew { ttl_ms };
            Message::Notice(Notice {
                id: 1,
                ticket: ticket(1),
                says,
            })
        };
        let heard = |left| {
            Some(Message::NoticeHeard {
                id: 1,
                outcome: Ok(left),
            })
        };
        assert_eq!(t.answer(renew(20_000)), heard(20_000));
        assert_eq!(t.answer(renew(u64::MAX)), heard(30_000));
        t.wait(secs(31));
        let outcome = Err(Refusal::Expired);
        assert_eq!(
            t.answer(renew(1)),
            Some(Message::NoticeHeard { id: 1, outcome })
        );
    }

    #[test]
    fn report_when_somebody_asked_for_it() {
        let mut t = Table::lonely("scheduler", HOLDER, Options::default());
        let id = t
            .do_(|machine, now, _| machine.renew_ticket(now, &ticket(1), secs(5)))
            .unwrap();
        t.took();
        t.connect("owner", Permits::ALL);
        t.hear(Message::Hello(Hello {
            deployment: OWNER.digest(),
            ..hello("owner")
        }));
        t.hear(Message::Document {
            document: OWNER.document(),
        });
        t.hear(Message::Welcome);
        assert!(matches!(t.said.last(), Some(Message::Notice(_))));
        t.hear(Message::NoticeHeard {
            id: id.0,
            outcome: Ok(4000),
        });
        let actions = t.took();
        assert!(
            matches!(actions[..], [
            Action::NoticeDone { notice, heard: (1, 1), left: Some(left), refusal: None }
        ] if notice == id && left == secs(4)),
            "{actions:?}"
        );
    }

    #[test]
    fn take_the_place_of_the_oldest() {
        let mut t = Table::lonely(
            "holder",
            HOLDER,
            Options {
                notices: 2,
                ..Options::default()
            },
        );
        let cancel = |t: &mut Table, n| {
            t.do_(|machine, now, _| machine.cancel_ticket(now, &ticket(n), None))
                .unwrap()
        };
        let first = cancel(&mut t, 1);
        cancel(&mut t, 2);
        t.took();
        cancel(&mut t, 3);
        assert!(matches!(t.took()[..], [
            Action::NoticeDone { notice, heard: (0, 1), .. }
        ] if notice == first));
    }
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
    assert_eq!(
        t.said,
        [Message::Refused {
            transfer,
            refusal: refusal.clone()
        }]
    );
    assert_eq!(t.refusal(Message::Pull(ask(2, 1))), refusal);
    let late = spec(3, 0, Direction::Pull, true);
    let error = t
        .do_(|machine, now, _| machine.lease(now, late))
        .unwrap_err();
    assert_eq!(error.reason, crate::lease::OpenFault::ShuttingDown);
    t.took();
    t.do_(|machine, now, _| machine.give_up(now));
    assert_eq!(
        t.ended(),
        [LeaseEnd::Cancelled],
        "the other waits for its fence"
    );
    t.do_(|machine, now, _| machine.fenced(now, ask(1, 1).transfer));
    assert_eq!(t.ended(), [LeaseEnd::Cancelled]);
    assert!(t.machine.is_idle());
}

#[test]
fn lanes_are_passed_through() {
    let mut t = Table::owner();
    let wanted = LaneMessage::Wanted { lanes: 4 };
    t.hear(Message::Lanes(wanted.clone()));
    assert!(matches!(&t.took()[..], [Action::Lanes { message, .. }] if *message == wanted));
    let offer = LaneMessage::Offer {
        ports: vec![7],
        nonce: Nonce([0; 16]),
    };
    t.do_(|machine, _, conn| machine.send_lanes(conn, offer.clone()));
    assert_eq!(t.said.pop(), Some(Message::Lanes(offer)));
}

/// Says whatever comes to its mind, in good frames and with good tickets.
#[test]
fn a_peer_that_talks_nonsense_breaks_nothing() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let options = Options {
            early: 5,
            early_per_agent: 5,
            transfers_per_agent: 4,
            ..Options::default()
        };
        let mut t = Table::owner_with(if rng.chance(0.3) { "near" } else { "holder" }, options);
        for n in 1..4 {
            let direction = if rng.chance(0.5) {
                Direction::Pull
            } else {
                Direction::Push
            };
            let prefilled = rng.chance(0.7);
            t.lease(n, rng.below(2) as u32, direction, prefilled);
        }
        let mut fences = Vec::new();
        for _ in 0..120 {
            let message = nonsense(&mut rng);
            t.hear(message);
            let header = StreamHeader {
                transfer: transfer(rng.below(80) as u8),
                nonce: Nonce([rng.below(4) as u8; 16]),
                stream: rng.below(3) as u32,
                offset: rng.below(20),
                length: rng.below(40),
            };
            let from = agent(if rng.chance(0.5) { "near" } else { "holder" });
            if t.do_(|machine, now, _| machine.admit(now, &from, &header))
                .is_ok()
            {
                let trailer = StreamTrailer {
                    length: header.length,
                    crc: rng.below(2) as u32,
                };
                t.do_(|machine, now, _| machine.stream_arrived(now, &header, &trailer, 0));
            }
            for action in t.took() {
                match action {
                    Action::Fence { transfer } => fences.push(transfer),
                    Action::Close { .. } => {
                        t.greet("holder", Permits::ALL, hello("holder"));
                    }
                    _ => {}
                }
            }
            if rng.chance(0.3)
                && let Some(fence) = fences.pop()
            {
                t.do_(|machine, now, _| machine.fenced(now, fence));
            }
            if rng.chance(0.1) {
                let time = Duration::from_millis(rng.below(4000));
                t.wait(time);
            }
            let gauges = t.machine.gauges();
            assert!(
                gauges.early <= 5 && gauges.queued + gauges.transfers <= 12,
                "{gauges:?}"
            );
            assert!(gauges.leases <= 3 && gauges.timers <= 40, "{gauges:?}");
        }
        t.do_(|machine, now, conn| machine.disconnected(now, conn));
        for _ in 0..10 {
            for action in t.took() {
                if let Action::Fence { transfer } = action {
                    fences.push(transfer);
                }
            }
            for fence in fences.drain(..) {
                t.do_(|machine, now, _| machine.fenced(now, fence));
            }
            t.wait(secs(60));
        }
        assert!(t.machine.is_idle(), "seed {seed}: {:?}", t.machine.gauges());
    }
}

fn nonsense(rng: &mut Rng) -> Message {
    let n = rng.within(1, 4) as u8;
    let attempt = rng.within(1, 3) as u32;
    let mut an_ask = if rng.chance(0.5) {
        ask(n, attempt)
    } else {
        push_ask(n, attempt)
    };
    if rng.chance(0.2) {
        an_ask.source = Rank(rng.below(3) as u32);
        an_ask.destination = Rank(rng.below(3) as u32);
    }
    if rng.chance(0.1) {
        an_ask.start = rng.next();
        an_ask.tokens = rng.next();
    }
    an_ask.by_layer = rng.chance(0.2);
    let transfer = transfer(rng.below(80) as u8);
    match rng.below(14) {
        0..4 => Message::Pull(an_ask),
        4..7 => Message::Push(an_ask),
        7 => Message::Commit {
            transfer,
            streams: rng.below(3) as u32,
            bytes: rng.below(40),
        },
        8 => Message::Landed { transfer },
        9 => Message::Taken { transfer },
        10 => Message::Abort {
            transfer,
            failure: Failure::Stalled,
        },
        11 => Message::Accepted {
            transfer,
            path: Path::Shared,
        },
        12 => Message::Lent { transfer },
        _ => {
            let says = match rng.below(6) {
                0 => NoticeKind::Cancel { content: None },
                1 | 2 => NoticeKind::Done {
                    ranks: vec![Rank(rng.below(3) as u32)],
                    content: CONTENT,
                },
                _ => NoticeKind::Renew {
                    ttl_ms: rng.below(30_000),
                },
            };
            let direction = if rng.chance(0.5) {
                Direction::Pull
            } else {
                Direction::Push
            };
            Message::Notice(Notice {
                id: rng.next(),
                ticket: mint(&claims(n, direction)),
                says,
            })
        }
    }
}
