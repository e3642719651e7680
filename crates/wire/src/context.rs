//! What every part of the machine works with: the moment, who we are, and what comes of it all.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use transload_plan::ids::{
    AgentId, ClusterName, DeploymentDigest, Incarnation, LeaseSetId, Nonce, Rank, ServiceName, TransferId,
};

use crate::action::Action;
use crate::ids::{ConnId, JobId, NoticeId};
use crate::message::{Envelope, Message};
use crate::moment::{Moment, Timers};
use crate::news::News;
use crate::options::Options;
use crate::outcome::JobError;
use crate::planner::{PlanAsk, Planned, Planner};
use crate::plans::{MOST_COMPILING, Plans};
use crate::refusal::Refusal;
use crate::ticket::{Claims, Ticket, TicketKey};

/// What every part is given.
///
/// A part calls only parts below it. What those above have to know it [tells](Self::tell), and the machine carries
/// it there before the entry ends.
#[derive(Debug)]
pub(crate) struct Context<P: Planner> {
    /// The moment of the entry.
    pub(crate) now: Moment,
    pub(crate) me: Identity,
    /// The deployment of which that is.
    pub(crate) deployment: DeploymentDigest,
    pub(crate) options: Options,
    pub(crate) planner: P,
    pub(crate) plans: Plans<P::Plan>,
    pub(crate) timers: Timers<Timer>,
    /// Whether nothing new is taken any more.
    pub(crate) draining: bool,
    /// Our ranks whose memory is lost.
    pub(crate) lost: BTreeSet<Rank>,
    pub(crate) jobs: Book,
    /// What the agent has to do, and what those above have to know: taken by the machine alone.
    pub(crate) actions: VecDeque<Action<P::Blocks>>,
    pub(crate) news: VecDeque<News>,
    /// Numbers of the last messages sent, of connections that are open.
    sent: HashMap<ConnId, u64>,
    numbers: u64,
}

/// Who this agent is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its name, below the service of its certificate.
    pub agent: AgentId,
    /// Its cluster.
    pub cluster: ClusterName,
    /// The life of its deployment.
    pub incarnation: Incarnation,
    /// The canonical document of its deployment, at most [`MAX_DOCUMENT`](crate::message::MAX_DOCUMENT) bytes.
    pub document: Vec<u8>,
    /// The ranks whose memory it holds.
    pub ranks: BTreeSet<Rank>,
    /// The cluster's key for tickets.
    pub ticket_key: TicketKey,
    /// What names and nonces of transfers are derived from.
    pub secret: Secret,
}

/// Which ranks have a job with a ticket of which set.
#[derive(Debug, Default)]
pub(crate) struct Book {
    jobs: usize,
    busy: BTreeSet<(LeaseSetId, Rank)>,
}

impl Book {
    pub(crate) fn count(&self) -> usize {
        self.jobs
    }

    /// The first of these ranks that has a job with a ticket of this set.
    pub(crate) fn busy(&self, set: LeaseSetId, ranks: &BTreeSet<Rank>) -> Option<Rank> {
        let mut ranks = ranks.iter().copied();
        ranks.find(|rank| self.busy.contains(&(set, *rank)))
    }

    pub(crate) fn add(&mut self, set: LeaseSetId, ranks: &BTreeSet<Rank>) {
        self.jobs += 1;
        self.busy.extend(ranks.iter().map(|rank| (set, *rank)));
    }

    pub(crate) fn remove(&mut self, set: LeaseSetId, ranks: &BTreeSet<Rank>) {
        self.jobs -= 1;
        for rank in ranks {
            self.busy.remove(&(set, *rank));
        }
    }
}

/// 256 random bits of this process. They are never printed.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// From bytes that no other process knows.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What the machine waits for. Leases and what is pending have timers of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Timer {
    /// Both sides of a connection are welcome.
    Hello(ConnId),
    /// The pause before the next attempt to connect is over.
    Dial(AgentId),
    /// A transfer has stood still for too long.
    Stall(TransferId),
    /// Memory takes too long to be done with a transfer that was stopped.
    Fence(TransferId),
    /// The peer of a waiting transfer shall hear from us.
    Heartbeat(TransferId),
    /// A job takes too long.
    Job(JobId),
    /// The pause before an agent that was busy is invited again is over.
    Invite(JobId, AgentId),
    /// An agent that an invited push needs has been away for too long.
    Away(JobId),
    /// The pause before a route's next attempt is over.
    Route(JobId, usize),
    /// A notice has been offered for long enough.
    Notice(NoticeId),
}

impl<P: Planner> Context<P> {
    pub(crate) fn new(me: Identity, options: Options, planner: P) -> Self {
        Self {
            deployment: DeploymentDigest::of(&me.document),
            now: Moment::default(),
            me,
            options,
            planner,
            plans: Plans::default(),
            timers: Timers::default(),
            draining: false,
            lost: BTreeSet::new(),
            jobs: Book::default(),
            actions: VecDeque::new(),
            news: VecDeque::new(),
            sent: HashMap::new(),
            numbers: 0,
        }
    }

    pub(crate) fn act(&mut self, action: Action<P::Blocks>) {
        self.actions.push_back(action);
    }

    /// Tells those above what has happened.
    pub(crate) fn tell(&mut self, news: News) {
        self.news.push_back(news);
    }

    /// A plan, if it is compiled. Otherwise it will be, and whoever waits for it hears of that.
    pub(crate) fn plan(&mut self, ask: &PlanAsk) -> Option<Arc<Planned<P::Plan>>> {
        if !self.plans.knows(ask) {
            self.compile(ask, None);
        }
        self.plans.get(ask)
    }

    /// The same for a peer, whose service may not have any number of them compiled at a time.
    pub(crate) fn plan_for_peer(
        &mut self,
        agent: &AgentId,
        ask: &PlanAsk,
    ) -> Result<Option<Arc<Planned<P::Plan>>>, Refusal> {
        if !self.plans.knows(ask) {
            let service = ServiceName::from(agent);
            if self.plans.compiling_for(&service) >= MOST_COMPILING {
                return Err(Refusal::busy(MOST_COMPILING as u64));
            }
            self.compile(ask, Some(service));
        }
        Ok(self.plans.get(ask))
    }

    fn compile(&mut self, ask: &PlanAsk, service: Option<ServiceName>) {
        self.plans.compile(ask.clone(), service);
        self.act(Action::Compile(ask.clone()));
    }

    /// Sets a timer that is due after so long.
    pub(crate) fn after(&mut self, wait: std::time::Duration, timer: Timer) {
        self.timers.set(timer, self.now + wait);
    }

    /// A connection may be written to.
    pub(crate) fn opened(&mut self, conn: ConnId) {
        self.sent.insert(conn, 0);
    }

    /// Nothing is sent on a connection any more.
    pub(crate) fn closed(&mut self, conn: ConnId) {
        self.sent.remove(&conn);
    }

    /// Sends a message, with its number. Nothing where the connection is gone.
    pub(crate) fn send(&mut self, conn: ConnId, message: Message) {
        if let Some(sent) = self.sent.get_mut(&conn) {
            *sent += 1;
            let sequence = *sent;
            let envelope = Envelope { sequence, message };
            self.act(Action::Send(conn, envelope));
        }
    }

    /// What a ticket says, whoever's it is, if it is one of this cluster.
    pub(crate) fn read_ticket(&self, ticket: &Ticket) -> Result<Claims, Refusal> {
        let claims = ticket.open(&self.me.ticket_key);
        let claims = claims.map_err(|_| Refusal::Forged)?;
        if claims.cluster != self.me.cluster {
            let ours = self.me.cluster.clone();
            return Err(Refusal::WrongCluster { ours });
        }
        Ok(claims)
    }

    /// Opens a ticket that is to be used here.
    pub(crate) fn open_ticket(&self, ticket: &Ticket) -> Result<Claims, JobError> {
        let claims = ticket.open(&self.me.ticket_key)?;
        if claims.cluster != self.me.cluster {
            return Err(JobError::Cluster { ours: self.me.cluster.clone(), theirs: claims.cluster });
        }
        if !claims.is_for(&self.me.agent, &self.deployment) {
            return Err(JobError::Audience);
        }
        Ok(claims)
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A new name and a new nonce, which only who has the secret can tell from the name.
    pub(crate) fn draw(&mut self) -> (TransferId, Nonce) {
        let number = self.next_number();
        let drawn = blake3::keyed_hash(&self.me.secret.0, &number.to_le_bytes());
        let (name, nonce) = drawn.as_bytes().split_at(16);
        let half = |bytes: &[u8]| std::array::from_fn(|i| bytes[i]);
        (TransferId(half(name)), Nonce(half(nonce)))
    }
}

impl Identity {
    /// Whether bytes can move between us and a peer. An agent without memory gives up tickets or renews them, whatever
    /// layouts the two have, and neither has to know the other's.
    pub(crate) fn moves_bytes(&self, peer_has_no_memory: bool) -> bool {
        !peer_has_no_memory && !self.ranks.is_empty()
    }
}
