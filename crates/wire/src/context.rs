//! The context: what every part of the machine uses, such as the time of the entry, this agent's identity, actions and
//! events.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use transload_plan::ids::{
    AgentId, ClusterName, DeploymentDigest, Incarnation, LeaseSetId, Nonce, Rank, ServiceName, TransferId,
};

use crate::action::Action;
use crate::deployments::KnownDeployments;
use crate::event::Event;
use crate::ids::{ConnId, JobId, NoticeId};
use crate::message::{Envelope, Message};
use crate::moment::{Moment, Timers};
use crate::options::Options;
use crate::outcome::JobError;
use crate::plans::{MOST_COMPILING, PlanAsk, Planned, Plans};
use crate::refusal::Refusal;
use crate::ticket::{Claims, Ticket, TicketKey};

/// The state that every part is passed.
///
/// A part calls only parts below it. It [reports](Self::emit) to the parts above what they have to know, and the machine
/// delivers that before the entry ends.
#[derive(Debug)]
pub(crate) struct Context<D: KnownDeployments> {
    pub(crate) now: Moment,
    pub(crate) me: Identity,
    pub(crate) deployment: DeploymentDigest,
    pub(crate) options: Options,
    pub(crate) deployments: D,
    pub(crate) plans: Plans<D::Plan>,
    pub(crate) timers: Timers<Timer>,
    /// Whether the agent is shutting down and takes nothing new.
    pub(crate) draining: bool,
    pub(crate) lost: BTreeSet<Rank>,
    pub(crate) jobs: Book,
    /// Actions for the agent, and events for the parts above. Only the machine takes them out.
    pub(crate) actions: VecDeque<Action<D::Blocks>>,
    pub(crate) events: VecDeque<Event>,
    /// The number of the last message sent, for each open connection.
    sent: HashMap<ConnId, u64>,
    numbers: u64,
}

/// This agent's identity.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The name, of which the service is proven by the certificate.
    pub agent: AgentId,
    /// The cluster.
    pub cluster: ClusterName,
    /// The current life of the deployment.
    pub incarnation: Incarnation,
    /// The canonical document of its deployment, at most [`MAX_DOCUMENT`](crate::message::MAX_DOCUMENT) bytes.
    pub document: Vec<u8>,
    /// The ranks whose memory it holds.
    pub ranks: BTreeSet<Rank>,
    /// The cluster's key for tickets.
    pub ticket_key: TicketKey,
    /// The secret from which ids and nonces of transfers are derived.
    pub secret: Secret,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    jobs: usize,
    busy: BTreeSet<(LeaseSetId, Rank)>,
}

impl Book {
    pub(crate) fn count(&self) -> usize {
        self.jobs
    }

    /// Returns the first of these ranks that has a job with a ticket of this set.
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
    /// Makes a secret of bytes that no other process knows.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The machine's timers. Leases and pending requests have timers of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Timer {
    /// Both sides of a connection must have said welcome by now.
    Hello(ConnId),
    Dial(AgentId),
    /// A transfer has made no progress for too long.
    Stall(TransferId),
    /// A transfer that was stopped still uses memory.
    Fence(TransferId),
    /// A waiting peer is due for a sign of life.
    Heartbeat(TransferId),
    Job(JobId),
    /// The pause before a busy agent is invited again is over.
    Invite(JobId, AgentId),
    /// An agent that an invited push needs has been away for too long.
    Away(JobId),
    Route(JobId, usize),
    /// A notice has been offered for long enough.
    Notice(NoticeId),
}

impl<D: KnownDeployments> Context<D> {
    pub(crate) fn new(me: Identity, options: Options, deployments: D) -> Self {
        Self {
            deployment: DeploymentDigest::of(&me.document),
            now: Moment::default(),
            me,
            options,
            deployments,
            plans: Plans::default(),
            timers: Timers::default(),
            draining: false,
            lost: BTreeSet::new(),
            jobs: Book::default(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            sent: HashMap::new(),
            numbers: 0,
        }
    }

    pub(crate) fn act(&mut self, action: Action<D::Blocks>) {
        self.actions.push_back(action);
    }

    pub(crate) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Returns a plan if it is compiled. Otherwise has it compiled, and the requests that wait for it are resumed then.
    pub(crate) fn plan(&mut self, ask: &PlanAsk) -> Option<Arc<Planned<D::Plan>>> {
        if !self.plans.knows(ask) {
            self.compile(ask, None);
        }
        self.plans.get(ask)
    }

    /// Does the same as [`plan`](Self::plan) for a peer. The plans compiled for one service at a time are bounded.
    pub(crate) fn plan_for_peer(
        &mut self,
        agent: &AgentId,
        ask: &PlanAsk,
    ) -> Result<Option<Arc<Planned<D::Plan>>>, Refusal> {
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

    pub(crate) fn after(&mut self, wait: std::time::Duration, timer: Timer) {
        self.timers.set(timer, self.now + wait);
    }

    pub(crate) fn opened(&mut self, conn: ConnId) {
        self.sent.insert(conn, 0);
    }

    pub(crate) fn closed(&mut self, conn: ConnId) {
        self.sent.remove(&conn);
    }

    /// Numbers a message and sends it. Does nothing if the connection is gone.
    pub(crate) fn send(&mut self, conn: ConnId, message: Message) {
        if let Some(sent) = self.sent.get_mut(&conn) {
            *sent += 1;
            let sequence = *sent;
            let envelope = Envelope { sequence, message };
            self.act(Action::Send(conn, envelope));
        }
    }

    /// Opens a ticket of this cluster, whichever agent it was made for.
    pub(crate) fn read_ticket(&self, ticket: &Ticket) -> Result<Claims, Refusal> {
        let claims = ticket.open(&self.me.ticket_key);
        let claims = claims.map_err(|_| Refusal::Forged)?;
        if claims.cluster != self.me.cluster {
            let ours = self.me.cluster.clone();
            return Err(Refusal::WrongCluster { ours });
        }
        Ok(claims)
    }

    /// Opens a ticket that this agent is to use.
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

    /// Derives a new transfer id and nonce. The nonce cannot be derived from the id without the secret.
    pub(crate) fn draw(&mut self) -> (TransferId, Nonce) {
        let number = self.next_number();
        let drawn = blake3::keyed_hash(&self.me.secret.0, &number.to_le_bytes());
        let (name, nonce) = drawn.as_bytes().split_at(16);
        let half = |bytes: &[u8]| std::array::from_fn(|i| bytes[i]);
        (TransferId(half(name)), Nonce(half(nonce)))
    }
}

impl Identity {
    /// Returns whether bytes can move between this agent and a peer. An agent without memory only cancels or renews by
    /// ticket, so neither side needs the other's layout.
    pub(crate) fn moves_bytes(&self, peer_has_no_memory: bool) -> bool {
        !peer_has_no_memory && !self.ranks.is_empty()
    }
}
