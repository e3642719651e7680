//! The machine: everything that agents have to know of each other, without sockets or clock.

mod settle;

use std::sync::Arc;
use std::time::Duration;

use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, Rank, ServiceName, TransferId};

use crate::action::{Action, BlocksOf, Held};
use crate::context::{Context, Identity, Timer};
use crate::flows::{Flows, StreamRefusal};
use crate::ids::{ConnId, JobId, NoticeId};
use crate::job::{Job, JobRefused, JobSpec, Jobs, check_job, write_leases};
use crate::lease::{LeaseError, LeaseKey, LeaseSpec, OpenError};
use crate::message::{Envelope, MAX_DOCUMENT, Message, NoticeKind};
use crate::moment::Moment;
use crate::news::Notify;
use crate::notice::Notices;
use crate::options::Options;
use crate::outcome::JobError;
use crate::owner::Owner;
use crate::path::Path;
use crate::path::negotiation::{Negotiation, Report, Steps};
use crate::paths::Paths;
use crate::peers::{NoConnection, Peers};
use crate::planner::{PlanAsk, Planned, Planner};
use crate::refusal::{Failure, Text};
use crate::roles::Roles;
use crate::stream::{StreamHeader, StreamTrailer};
use crate::ticket::Ticket;

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
/// `P` knows plans, and what blocks are. See the [module](super) for the whole picture.
#[derive(Debug)]
pub struct Machine<P: Planner> {
    pub(crate) cx: Context<P>,
    pub(crate) peers: Peers,
    pub(crate) flows: Flows<P>,
    pub(crate) paths: Paths,
    pub(crate) owner: Owner<P>,
    pub(crate) jobs: Jobs<P>,
    notices: Notices,
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
    /// Asks that wait for the fence of an earlier attempt, and whatever waits for a plan.
    pub queued: usize,
    /// Transfers, in either direction.
    pub transfers: usize,
    /// Pulls and pushes of our own, and pushes that were invited.
    pub jobs: usize,
    /// Leases, jobs and transfers among these that memory has not been done with in time, and that keep their blocks.
    pub stalled: usize,
    /// Notices that have not been heard by all.
    pub notices: usize,
    /// Deadlines.
    pub timers: usize,
}

impl<P: Planner> Machine<P> {
    /// A machine that knows no peer yet.
    pub fn new(identity: Identity, options: Options, planner: P) -> Result<Self, DocumentTooLong> {
        let bytes = identity.document.len();
        if bytes > MAX_DOCUMENT {
            return Err(DocumentTooLong { bytes });
        }
        Ok(Self {
            peers: Peers::default(),
            flows: Flows::new(),
            paths: Paths::default(),
            owner: Owner::new(&options),
            jobs: Jobs::new(),
            notices: Notices::default(),
            cx: Context::new(identity, options, planner),
        })
    }

    /// What is to be done next. To be called until there is nothing, after every other call.
    pub fn poll_action(&mut self) -> Option<Action<P::Blocks>> {
        self.cx.actions.pop_front()
    }

    /// When [`on_deadline`](Self::on_deadline) has something to do.
    pub fn next_deadline(&self) -> Option<Moment> {
        let all = [self.cx.timers.next(), self.owner.next_deadline()];
        all.into_iter().flatten().min()
    }

    /// The blocks of a lease or a job, as long as it has them.
    pub fn blocks(&self, of: BlocksOf) -> Option<&P::Blocks> {
        let held = match of {
            BlocksOf::Lease(key) => self.owner.leases.blocks(&key)?,
            BlocksOf::Job(id) => self.jobs.blocks(id)?,
        };
        match held {
            Held::Own(blocks) => Some(blocks),
            Held::Of(other) => self.blocks(*other),
        }
    }

    /// Takes what a transfer that is to begin moves by; nothing if it is over.
    pub fn take_plan(&mut self, transfer: TransferId) -> Option<Arc<Planned<P::Plan>>> {
        self.flows.take_plan(transfer)
    }

    /// What knows the deployments of peers.
    pub fn planner(&self) -> &P {
        &self.cx.planner
    }

    /// Who is at the other end of a connection, once that is known.
    pub fn peer_agent(&self, conn: ConnId) -> Option<AgentId> {
        self.peers.agent(conn).cloned()
    }

    /// Whether anything here waits for this agent, so that an idle connection must not be closed.
    pub fn wants(&self, agent: &AgentId) -> bool {
        let mut transfers = self.flows.all();
        self.jobs.want(agent) || self.notices.want(agent) || transfers.any(|t| t.flow.agent == *agent)
    }

    /// Whether nothing is under way: no lease, no transfer, no job, no notice.
    pub fn is_idle(&self) -> bool {
        let gauges = self.gauges();
        gauges.leases + gauges.early + gauges.queued == 0 && gauges.transfers + gauges.jobs + gauges.notices == 0
    }

    /// How much of everything there is.
    pub fn gauges(&self) -> Gauges {
        let (sessions, agents) = self.peers.counts();
        let (early, queued) = self.owner.waiting();
        Gauges {
            sessions,
            agents,
            leases: self.owner.leases.len(),
            early,
            queued,
            transfers: self.flows.all().count(),
            jobs: self.cx.jobs.count(),
            stalled: self.owner.leases.stalled() + self.jobs.stalled() + self.flows.all().filter(|t| t.stalled).count(),
            notices: self.notices.len(),
            timers: self.cx.timers.len() + self.owner.timers(),
        }
    }
}

/// Time, and the end.
impl<P: Planner> Machine<P> {
    /// Does what is due.
    pub fn on_deadline(&mut self, now: Moment) {
        self.enter(now, |m| {
            m.owner.on_deadline(&mut m.cx);
            while let Some(timer) = m.cx.timers.pop_due(now) {
                m.on_timer(timer);
                // What a timer has led to may be what the next one is about.
                m.settle();
            }
        });
    }

    /// Takes nothing new from here on. What is under way goes on until it is over.
    pub fn drain(&mut self, now: Moment) {
        self.enter(now, |m| {
            m.cx.draining = true;
            m.owner.drain(&mut m.cx);
        });
    }

    /// Ends every lease as cancelled and every job with [`JobError::ShuttingDown`]: the second step
    /// of a shutdown, where draining takes too long.
    pub fn give_up(&mut self, now: Moment) {
        self.drain(now);
        self.enter(now, |m| {
            let keys: Vec<_> = m.owner.leases.keys().copied().collect();
            for key in keys {
                // One that is ending already is no error here.
                let _ = m.owner.leases.cancel(now, key);
            }
            for job in m.jobs.ids() {
                m.stop(job, JobError::ShuttingDown);
            }
        });
    }
}

/// What the transport reports of connections.
impl<P: Planner> Machine<P> {
    /// A control connection is there. `service` and `roles` are from the peer's certificate; `dialled` is the
    /// agent that was to be reached, where we have made it; `paths` are those that it may have. `conn` was never used before.
    pub fn connected(
        &mut self,
        now: Moment,
        conn: ConnId,
        service: ServiceName,
        dialled: Option<AgentId>,
        roles: Roles,
        paths: Vec<Box<dyn Negotiation>>,
    ) {
        self.enter(now, |m| {
            if m.peers.connected(&mut m.cx, conn, service, dialled, roles) {
                m.paths.connected(conn, paths);
            }
        });
    }

    /// Nobody has answered what [`Action::Connect`] asked for in time.
    pub fn connect_unanswered(&mut self, now: Moment, agent: &AgentId, why: impl Into<Text>) {
        self.not_connected(now, agent, NoConnection::Unanswered, why.into());
    }

    /// No process is at the port that [`Action::Connect`] asked for.
    pub fn connect_refused(&mut self, now: Moment, agent: &AgentId, why: impl Into<Text>) {
        self.not_connected(now, agent, NoConnection::Closed, why.into());
    }

    /// What [`Action::Connect`] asked for has failed otherwise.
    pub fn connect_failed(&mut self, now: Moment, agent: &AgentId, why: impl Into<Text>) {
        self.not_connected(now, agent, NoConnection::Failed, why.into());
    }

    fn not_connected(&mut self, now: Moment, agent: &AgentId, cause: NoConnection, why: Text) {
        self.enter(now, |m| {
            let agent = agent.clone();
            m.peers.dial_failed(&mut m.cx, agent, cause, why);
        });
    }

    /// A connection is lost.
    pub fn disconnected(&mut self, now: Moment, conn: ConnId) {
        self.enter(now, |m| m.peers.lost(&mut m.cx, conn));
    }

    /// A message has come.
    pub fn on_message(&mut self, now: Moment, conn: ConnId, envelope: Envelope) {
        self.enter(now, |m| {
            let wanted = match &envelope.message {
                Message::Hello(hello) => m.wants(&hello.agent),
                _ => false,
            };
            if let Some(message) = m.peers.hear(&mut m.cx, conn, envelope, wanted) {
                m.on_talk(conn, message);
            }
        });
    }

    /// What [`Action::Compile`] asked for is compiled; or there is no such plan, and why.
    pub fn compiled(&mut self, now: Moment, ask: &PlanAsk, plan: Result<Planned<P::Plan>, impl Into<Text>>) {
        self.enter(now, |m| {
            let plan = plan.map(Arc::new).map_err(Into::into);
            m.cx.plans.compiled(ask, plan.as_ref().ok());
            let (mut g, owner, jobs, _) = m.parts();
            let plan = plan.as_ref().map(|_| ());
            owner.compiled(&mut g, ask, plan);
            jobs.compiled(&mut g, ask, plan);
        });
    }

    /// The carrier of a path has something to tell of a connection.
    pub fn path_reported(&mut self, now: Moment, conn: ConnId, path: Path, report: Report) {
        let told = |of: &mut dyn Negotiation, steps: &mut Steps| of.report(report, steps);
        self.enter(now, |m| m.paths.negotiate(&mut m.cx, conn, path, told));
    }
}

/// What the agent reports of data streams.
impl<P: Planner> Machine<P> {
    /// Data source: a stream is written whole, trailer and all. Its memory is not read any more.
    pub fn stream_sent(&mut self, now: Moment, transfer: TransferId, bytes: u64) {
        self.enter(now, |m| m.flows.stream_sent(&mut m.cx, transfer, bytes));
    }

    /// Either side: a stream broke off, or cannot be had.
    pub fn stream_failed(&mut self, now: Moment, transfer: TransferId, why: impl Into<Text>) {
        let why = why.into();
        self.enter(now, |m| m.flows.stream_failed(&mut m.cx, transfer, why));
    }

    /// Either side: so many bytes of a transfer have moved by now. To be called now and then, once a second will do.
    pub fn moved(&mut self, now: Moment, transfer: TransferId, bytes: u64) {
        self.enter(now, |m| m.flows.moved(&mut m.cx, transfer, bytes));
    }

    /// Data destination: a stream from `agent` wants in. Only once it is admitted may it place
    /// bytes, and only within what its header says.
    pub fn admit(&mut self, now: Moment, agent: &AgentId, header: &StreamHeader) -> Result<(), StreamRefusal> {
        self.enter(now, |m| m.flows.admit(&mut m.cx, agent, header))
    }

    /// Data destination: a stream that was admitted has ended, and all its bytes are placed. `crc`
    /// is of the bytes as they arrived.
    pub fn stream_arrived(&mut self, now: Moment, header: &StreamHeader, trailer: &StreamTrailer, crc: u32) {
        self.enter(now, |m| m.flows.stream_arrived(&mut m.cx, header, trailer, crc));
    }

    /// Either side: what [`Action::Fence`] asked for is done. No byte of this transfer is read
    /// or placed any more, and none will be.
    pub fn fenced(&mut self, now: Moment, transfer: TransferId) {
        self.enter(now, |m| m.flows.fenced(&mut m.cx, transfer));
    }
}

/// What the agent reports of devices.
impl<P: Planner> Machine<P> {
    /// The device that has the memory of a rank is lost, for good. Its leases and jobs end, and there are no new ones.
    pub fn device_lost(&mut self, now: Moment, rank: Rank) {
        self.enter(now, |m| {
            m.cx.lost.insert(rank);
            let (mut g, owner, jobs, _) = m.parts();
            jobs.lose(&mut g, rank);
            owner.lose(g.cx, rank);
        });
    }

    /// Either side: a device stands still, so that a transfer cannot begin. Nothing of it is under way.
    pub fn device_unready(&mut self, now: Moment, transfer: TransferId) {
        let failure = Failure::DeviceStalled;
        self.enter(now, |m| m.flows.fail(&mut m.cx, transfer, failure, true));
    }

    /// Either side: what a device was asked to do for a transfer does not come to an end. Its lease or job fails, and keeps its
    /// blocks until [`fenced`](Self::fenced). To be told once or more.
    pub fn device_stalled(&mut self, now: Moment, transfer: TransferId) {
        self.enter(now, |m| m.flows.device_stalled(&mut m.cx, transfer));
    }
}

/// What the owner of leases does.
impl<P: Planner> Machine<P> {
    /// Opens a lease. From here on the blocks belong to it, until [`Action::LeaseEnded`].
    pub fn lease(&mut self, now: Moment, spec: LeaseSpec, blocks: P::Blocks) -> Result<(), OpenError<P::Blocks>> {
        self.enter(now, |m| {
            let (mut g, owner, ..) = m.parts();
            owner.lease(&mut g, spec, blocks)
        })
    }

    /// The first `tokens` tokens of a layer are ready.
    pub fn ready(&mut self, key: LeaseKey, layer: u32, tokens: u64) -> Result<(), LeaseError> {
        if self.owner.leases.ready(key, layer, tokens)? {
            let (mut g, owner, jobs, _) = self.parts();
            for (pin, push) in owner.pins(&key) {
                match push {
                    Some(job) => jobs.ready(&mut g, job, key.rank, layer, tokens),
                    None => g.flows.layer_ready(g.cx, pin, layer, tokens),
                }
            }
        }
        Ok(())
    }

    /// The prefill is over: everything is ready.
    pub fn finish_prefill(&mut self, now: Moment, key: LeaseKey) -> Result<(), LeaseError> {
        self.enter(now, |m| {
            if !m.owner.leases.finish_prefill(key)? {
                return Ok(());
            }
            let (mut g, owner, jobs, _) = m.parts();
            for (pin, push) in owner.pins(&key) {
                match push {
                    Some(job) => jobs.prefilled(&mut g, job),
                    None => g.flows.all_ready(g.cx, pin),
                }
            }
            Ok(())
        })
    }

    /// Lets a lease live on for `ttl` from now at least.
    pub fn renew(&mut self, now: Moment, key: LeaseKey, ttl: Duration) -> Result<(), LeaseError> {
        self.enter(now, |m| m.owner.leases.renew(now, key, ttl))
    }

    /// Gives a lease up. It is over when [`Action::LeaseEnded`] says so.
    pub fn cancel_lease(&mut self, now: Moment, key: LeaseKey) -> Result<(), LeaseError> {
        self.enter(now, |m| m.owner.leases.cancel(now, key))
    }
}

/// What the holder of a ticket does.
impl<P: Planner> Machine<P> {
    /// Begins to pull or to push. From here on the blocks belong to that, until [`Action::JobDone`].
    pub fn start(&mut self, now: Moment, spec: JobSpec, blocks: P::Blocks) -> Result<JobId, JobRefused<P::Blocks>> {
        self.enter(now, |m| m.try_start(spec, blocks))
    }

    fn try_start(&mut self, spec: JobSpec, blocks: P::Blocks) -> Result<JobId, JobRefused<P::Blocks>> {
        let now = self.cx.now;
        let (mut g, owner, jobs, _) = self.parts();
        let checked = check_job(g.cx, &spec).and_then(|(claims, opens)| {
            let leases = write_leases(&opens, &spec);
            for lease in &leases {
                let checked = owner.leases.check_open(now, lease);
                checked.map_err(|reason| JobError::WriteLease { why: reason.to_string().into() })?;
            }
            Ok((claims, opens, leases))
        });
        let (claims, opens, leases) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                let error = Box::new(error);
                return Err(JobRefused { error, blocks });
            }
        };
        let id = JobId(g.cx.next_number());
        g.cx.jobs.add(claims.set, &spec.ranks);
        // What it opens ends it in time, where it opens anything.
        if opens.is_empty() {
            g.cx.after(spec.timeout, Timer::Job(id));
        }
        let job = Job::new(now, spec, claims, Held::Own(blocks), opens);
        jobs.begin(&mut g, id, job);
        for lease in leases {
            owner.open(&mut g, lease, Held::Of(BlocksOf::Job(id)));
        }
        jobs.advance(&mut g, id);
        Ok(id)
    }

    /// Of a push: the first `tokens` tokens of a layer are ready to be read.
    pub fn job_ready(&mut self, id: JobId, rank: Rank, layer: u32, tokens: u64) {
        let (mut g, _, jobs, _) = self.parts();
        jobs.ready(&mut g, id, rank, layer, tokens);
    }

    /// Of a push: everything is ready to be read.
    pub fn job_prefilled(&mut self, now: Moment, id: JobId) {
        self.enter(now, |m| {
            let (mut g, _, jobs, _) = m.parts();
            jobs.prefilled(&mut g, id);
        });
    }

    /// Gives a job up. It is over when [`Action::JobDone`] says so.
    pub fn cancel_job(&mut self, now: Moment, id: JobId) {
        self.enter(now, |m| m.stop(id, JobError::Cancelled));
    }

    /// Gives up what a ticket stands for, where no job has begun: a request that was aborted before
    /// it was scheduled. With `content`, only leases of that content are cancelled.
    pub fn cancel_ticket(
        &mut self,
        now: Moment,
        ticket: &Ticket,
        content: Option<ContentDigest>,
    ) -> Result<NoticeId, JobError> {
        self.tell_owner(now, ticket, NoticeKind::Cancel { content })
    }

    /// Asks the owner to let the leases live for `ttl` from then at least: for a request that has to
    /// wait before it can pull.
    pub fn renew_ticket(&mut self, now: Moment, ticket: &Ticket, ttl: Duration) -> Result<NoticeId, JobError> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.tell_owner(now, ticket, NoticeKind::Renew { ttl_ms })
    }

    fn tell_owner(&mut self, now: Moment, ticket: &Ticket, says: NoticeKind) -> Result<NoticeId, JobError> {
        let notify =
            Notify { claims: self.cx.open_ticket(ticket)?, ticket: ticket.clone(), says, dials: true, reported: true };
        Ok(self.enter(now, |m| m.notify(notify)))
    }
}
