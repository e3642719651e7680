//! The machine: everything that agents have to know of each other, without sockets or clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::held::Held;
use super::invitation::InvitedPush;
use super::job::{Invited, Job};
use super::message::{Envelope, LaneMessage, MAX_DOCUMENT, Message};
use super::notice::Pending;
use super::peers::{Known, Session};
use super::planner::Planner;
use super::refusal::{Failure, Refusal};
use super::transfer::Transfer;
use super::waiting::{Parked, Queued};
use super::{Action, BlocksOf, ConnId, JobId, NoticeId, Options};
use crate::ids::{AgentId, ClusterName, DeploymentDigest, Incarnation, Nonce, Rank, TransferId};
use crate::lease::{Early, LeaseEvent, LeaseKey, LeaseTable};
use crate::moment::{Moment, Timers};
use crate::ticket::TicketKey;

/// Who this agent is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its name, below the service of its certificate.
    pub agent: AgentId,
    /// Its cluster.
    pub cluster: ClusterName,
    /// The life of its deployment.
    pub incarnation: Incarnation,
    /// The canonical document of its deployment, at most [`MAX_DOCUMENT`] bytes.
    pub document: Vec<u8>,
    /// The ranks whose memory it holds.
    pub ranks: BTreeSet<Rank>,
    /// The cluster's key for tickets.
    pub ticket_key: TicketKey,
    /// What names and nonces of transfers are derived from.
    pub secret: Secret,
}

/// 256 random bits of this process. They are never printed.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// From bytes that nobody else knows.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The deployment's document is too long to be handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deployment document has {bytes} bytes, at most {MAX_DOCUMENT} are allowed")]
pub struct DocumentTooLong {
    /// Its length.
    pub bytes: usize,
}

/// The protocol of one agent: all its leases, transfers and jobs.
///
/// Feed it with what happens, and after every call take the [`Action`]s until there are none.
/// `B` are the blocks that leases and jobs carry, whatever the agent makes of them; `P` knows plans.
/// See the [module](super) for the whole picture.
#[derive(Debug)]
pub struct Machine<B, P> {
    pub(super) me: Me,
    pub(super) options: Options,
    pub(super) planner: P,
    pub(super) leases: LeaseTable<Held<B>>,
    pub(super) early: Early<Parked>,
    pub(super) queued: HashMap<(LeaseKey, Rank), Queued>,
    pub(super) sessions: HashMap<ConnId, Session>,
    pub(super) agents: HashMap<AgentId, Known>,
    pub(super) transfers: BTreeMap<TransferId, Transfer>,
    pub(super) jobs: BTreeMap<JobId, Job<B>>,
    /// Pulls whose owner was invited to push.
    pub(super) invited: BTreeMap<JobId, Invited<B>>,
    /// Pushes that were invited here, by what pins their leases.
    pub(super) pushes: HashMap<TransferId, InvitedPush>,
    pub(super) notices: BTreeMap<NoticeId, Pending>,
    pub(super) timers: Timers<Timer>,
    pub(super) actions: VecDeque<Action<B>>,
    pub(super) draining: bool,
    numbers: u64,
    secret: Secret,
    #[cfg(test)]
    pub(super) fault: Option<super::simulation::Fault>,
}

/// [`Identity`], as the machine keeps it.
#[derive(Debug)]
pub(super) struct Me {
    pub(super) agent: AgentId,
    pub(super) cluster: ClusterName,
    pub(super) incarnation: Incarnation,
    pub(super) deployment: DeploymentDigest,
    pub(super) document: Vec<u8>,
    pub(super) ranks: BTreeSet<Rank>,
    pub(super) ticket_key: TicketKey,
}

/// What the machine waits for. Leases and what is parked have timers of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// Both sides of a connection are welcome.
    Hello(ConnId),
    /// The pause before the next attempt to connect is over.
    Dial(AgentId),
    /// A transfer has stood still for too long.
    Stall(TransferId),
    /// The peer of a waiting transfer shall hear from us.
    Beat(TransferId),
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

/// How much of everything there is: for metrics, and for tests of the bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Connections, welcome or not.
    pub sessions: usize,
    /// Agents that are connected or being connected to.
    pub agents: usize,
    /// Open leases.
    pub leases: usize,
    /// Asks, notices and invitations that wait for their lease.
    pub early: usize,
    /// Asks that wait for the fence of an earlier attempt.
    pub queued: usize,
    /// Transfers, in either direction.
    pub transfers: usize,
    /// Pulls and pushes of our own, and pushes that were invited.
    pub jobs: usize,
    /// Notices that have not been heard by all.
    pub notices: usize,
    /// Deadlines.
    pub timers: usize,
}

impl<B, P: Planner> Machine<B, P> {
    /// A machine that knows nobody yet.
    pub fn new(identity: Identity, options: Options, planner: P) -> Result<Self, DocumentTooLong> {
        let bytes = identity.document.len();
        if bytes > MAX_DOCUMENT {
            return Err(DocumentTooLong { bytes });
        }
        Ok(Self {
            me: Me {
                agent: identity.agent,
                cluster: identity.cluster,
                incarnation: identity.incarnation,
                deployment: DeploymentDigest::of(&identity.document),
                document: identity.document,
                ranks: identity.ranks,
                ticket_key: identity.ticket_key,
            },
            leases: LeaseTable::new(options.leases.clone()),
            early: Early::new(
                options.early_wait,
                options.early,
                options.early_per_agent,
                options.early_per_service,
            ),
            options,
            planner,
            queued: HashMap::new(),
            sessions: HashMap::new(),
            agents: HashMap::new(),
            transfers: BTreeMap::new(),
            jobs: BTreeMap::new(),
            invited: BTreeMap::new(),
            pushes: HashMap::new(),
            notices: BTreeMap::new(),
            timers: Timers::default(),
            actions: VecDeque::new(),
            draining: false,
            numbers: 0,
            secret: identity.secret,
            #[cfg(test)]
            fault: None,
        })
    }

    /// What is to be done next. To be called until there is nothing, after every other call.
    pub fn poll_action(&mut self) -> Option<Action<B>> {
        self.actions.pop_front()
    }

    /// When [`on_deadline`](Self::on_deadline) has something to do.
    pub fn next_deadline(&self) -> Option<Moment> {
        let all = [
            self.timers.next(),
            self.leases.next_deadline(),
            self.early.next_deadline(),
        ];
        all.into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn on_deadline(&mut self, now: Moment) {
        self.leases.on_deadline(now);
        while let Some(parked) = self.early.pop_due(now) {
            self.refuse_parked(parked, Refusal::UnknownLease);
        }
        while let Some(timer) = self.timers.pop_due(now) {
            self.on_timer(now, timer);
        }
        self.settle(now);
    }

    fn on_timer(&mut self, now: Moment, timer: Timer) {
        match timer {
            Timer::Hello(conn) => self.close(now, conn, super::CloseReason::HelloLate),
            Timer::Dial(agent) => self.dial_due(&agent),
            Timer::Stall(transfer) => self.stalled(now, transfer),
            Timer::Beat(transfer) => self.beat(now, transfer),
            Timer::Job(job) => self.job_timed_out(now, job),
            Timer::Invite(job, agent) => self.invite_due(now, job, &agent),
            Timer::Away(job) => self.away(now, job),
            Timer::Route(job, route) => self.route_due(now, job, route),
            Timer::Notice(notice) => self.notice_over(notice),
        }
    }

    fn job_timed_out(&mut self, now: Moment, id: JobId) {
        if let Some(job) = self.jobs.get(&id) {
            let timeout = job.spec.timeout;
            let late = self.late(id, timeout);
            self.stop(now, id, late);
        }
    }

    /// The blocks of a lease or a job, as long as it has them.
    pub fn blocks(&self, of: BlocksOf) -> Option<&B> {
        let held = match of {
            BlocksOf::Lease(key) => self.leases.blocks(&key)?,
            BlocksOf::Job(id) => match self.jobs.get(&id) {
                Some(job) => &job.spec.blocks,
                None => return self.invited.get(&id).map(|job| &job.spec.blocks),
            },
        };
        match held {
            Held::Own(blocks) => Some(blocks),
            Held::Of(other) => self.blocks(*other),
        }
    }

    /// What knows the plans.
    pub fn planner_mut(&mut self) -> &mut P {
        &mut self.planner
    }

    /// Says something about lanes to a peer that is welcome.
    pub fn send_lanes(&mut self, conn: ConnId, message: LaneMessage) {
        if self.peer(conn).is_some() {
            self.send(conn, Message::Lanes(message));
        }
    }

    /// Takes nothing new from here on. What is under way goes on until it is over.
    pub fn drain(&mut self, now: Moment) {
        self.draining = true;
        for parked in self.early.take_if(|_| true) {
            self.refuse_parked(parked, Refusal::ShuttingDown);
        }
        self.settle(now);
    }

    /// Ends every lease as cancelled and every job with [`JobError::ShuttingDown`]: the second step
    /// of a shutdown, where draining takes too long.
    ///
    /// [`JobError::ShuttingDown`]: super::JobError::ShuttingDown
    pub fn give_up(&mut self, now: Moment) {
        self.drain(now);
        let keys: Vec<_> = self.leases.keys().copied().collect();
        for key in keys {
            // One that is ending already is no error here.
            let _ = self.leases.cancel(now, key);
        }
        let jobs = self.jobs.keys().chain(self.invited.keys());
        for job in jobs.copied().collect::<Vec<_>>() {
            self.stop(now, job, super::JobError::ShuttingDown);
        }
        self.settle(now);
    }

    /// Whether nothing is under way: no lease, no transfer, no job, no notice.
    pub fn is_idle(&self) -> bool {
        let gauges = self.gauges();
        gauges.leases + gauges.early + gauges.queued == 0
            && gauges.transfers + gauges.jobs + gauges.notices == 0
    }

    /// How much of everything there is.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            sessions: self.sessions.len(),
            agents: self.agents.len(),
            leases: self.leases.len(),
            early: self.early.len(),
            queued: self.queued.len(),
            transfers: self.transfers.len(),
            jobs: self.jobs_under_way(),
            notices: self.notices.len(),
            timers: self.timers.len() + self.leases.timers() + self.early.len(),
        }
    }
}

impl<B, P: Planner> Machine<B, P> {
    /// Carries on with what the table of leases says. Last in every call from outside.
    pub(super) fn settle(&mut self, now: Moment) {
        while let Some(event) = self.leases.poll_event() {
            match event {
                LeaseEvent::Claimed { key } => {
                    self.actions.push_back(Action::LeaseClaimed { key });
                }
                LeaseEvent::Fence {
                    key,
                    end,
                    transfers,
                } => {
                    for transfer in transfers {
                        if let Some(push) = self.pushes.get(&transfer) {
                            self.stop(now, push.job, super::JobError::LeaseEnded { end });
                            continue;
                        }
                        self.fail(now, transfer, Failure::LeaseEnded { end }, true);
                        if fault!(self, EndLeaseBeforeFence) {
                            self.leases.unpin(now, key, transfer);
                        }
                    }
                }
                LeaseEvent::Ended { key, end, blocks } => match blocks {
                    Held::Own(blocks) => {
                        let ended = Action::LeaseEnded { key, end, blocks };
                        self.actions.push_back(ended);
                    }
                    Held::Of(BlocksOf::Job(job)) => self.opening_ended(now, job, key, end),
                    Held::Of(BlocksOf::Lease(_)) => {}
                },
            }
        }
    }

    /// Sends a message, with its number. Nothing where the connection is gone.
    pub(super) fn send(&mut self, conn: ConnId, message: Message) {
        if let Some(session) = self.sessions.get_mut(&conn) {
            let sequence = session.next_sequence();
            let envelope = Envelope { sequence, message };
            self.actions.push_back(Action::Send { conn, envelope });
        }
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A new name and a new nonce. Nobody without the secret can tell the nonce from the name.
    pub(super) fn draw(&mut self) -> (TransferId, Nonce) {
        let number = self.next_number();
        let drawn = blake3::keyed_hash(&self.secret.0, &number.to_le_bytes());
        let (name, nonce) = drawn.as_bytes().split_at(16);
        let half = |bytes: &[u8]| std::array::from_fn(|i| bytes[i]);
        (TransferId(half(name)), Nonce(half(nonce)))
    }
}
