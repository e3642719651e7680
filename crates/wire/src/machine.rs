//! The machine: the whole protocol of one agent, without sockets or clock.

mod settle;

use std::sync::Arc;
use std::time::Duration;

use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, Rank, ServiceName, TransferId};

use crate::action::{Action, BlocksOf, Held};
use crate::context::{Context, Identity, Timer};
use crate::deployments::KnownDeployments;
use crate::event::Notify;
use crate::flows::{Flows, StreamRefusal};
use crate::ids::{ConnId, JobId, NoticeId};
use crate::job::{Job, JobRefused, JobSpec, Jobs, check_job, write_leases};
use crate::lease::{LeaseError, LeaseKey, LeaseSpec, OpenError};
use crate::message::{Envelope, MAX_DOCUMENT, Message, NoticeKind};
use crate::moment::Moment;
use crate::notice::Notices;
use crate::options::Options;
use crate::outcome::JobError;
use crate::owner::Owner;
use crate::path::Path;
use crate::path::negotiation::{Negotiation, Report, Steps};
use crate::paths::Paths;
use crate::peers::{NoConnection, Peers};
use crate::plans::{PlanAsk, Planned};
use crate::refusal::{Failure, Text};
use crate::roles::Roles;
use crate::stream::{StreamHeader, StreamTrailer};
use crate::ticket::Ticket;

/// The deployment's document is too long to be sent to peers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deployment document has {bytes} bytes, at most {MAX_DOCUMENT} are allowed")]
#[non_exhaustive]
pub struct DocumentTooLong {
    /// The document's length.
    pub bytes: usize,
}

/// The protocol of one agent: all its leases, transfers and jobs.
///
/// Report every event to it, and after every call take the [`Action`]s until there are none. `D` knows the plans and
/// the type of blocks. The [module](super) describes the whole protocol.
#[derive(Debug)]
pub struct Machine<D: KnownDeployments> {
    pub(crate) cx: Context<D>,
    pub(crate) peers: Peers,
    pub(crate) flows: Flows<D>,
    pub(crate) paths: Paths,
    pub(crate) owner: Owner<D>,
    pub(crate) jobs: Jobs<D>,
    notices: Notices,
}

/// Counts of the machine's contents, for metrics and for tests of the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gauges {
    /// Control connections, whether welcome or not.
    pub sessions: usize,
    /// Agents that are connected or being connected to.
    pub agents: usize,
    /// Open leases.
    pub leases: usize,
    /// Asks, notices and invitations that wait for their lease.
    pub early: usize,
    /// Asks that wait for the fence of an earlier attempt, and everything that waits for a plan.
    pub queued: usize,
    /// Transfers in both directions.
    pub transfers: usize,
    /// Pulls and pushes of this agent, including invited pushes.
    pub jobs: usize,
    /// Leases, jobs and transfers among these whose memory did not finish its work in time, and that keep their blocks.
    pub stalled: usize,
    /// Notices that some agent has not answered.
    pub notices: usize,
    /// Pending deadlines.
    pub timers: usize,
}

impl<D: KnownDeployments> Machine<D> {
    /// Makes a machine that knows no peer yet.
    pub fn new(identity: Identity, options: Options, deployments: D) -> Result<Self, DocumentTooLong> {
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
            cx: Context::new(identity, options, deployments),
        })
    }

    /// Returns the next action. Must be called until it returns `None`, after every other call.
    pub fn poll_action(&mut self) -> Option<Action<D::Blocks>> {
        self.cx.actions.pop_front()
    }

    /// Returns when [`on_deadline`](Self::on_deadline) must be called next.
    pub fn next_deadline(&self) -> Option<Moment> {
        let all = [self.cx.timers.next(), self.owner.next_deadline()];
        all.into_iter().flatten().min()
    }

    /// Returns the blocks of a lease or a job, until it has returned them.
    pub fn blocks(&self, of: BlocksOf) -> Option<&D::Blocks> {
        let held = match of {
            BlocksOf::Lease(key) => self.owner.leases.blocks(&key)?,
            BlocksOf::Job(id) => self.jobs.blocks(id)?,
        };
        match held {
            Held::Own(blocks) => Some(blocks),
            Held::Of(other) => self.blocks(*other),
        }
    }

    /// Takes the plan of a transfer that is about to begin. Returns `None` if the transfer is over.
    pub fn take_plan(&mut self, transfer: TransferId) -> Option<Arc<Planned<D::Plan>>> {
        self.flows.take_plan(transfer)
    }

    /// Returns the known deployments of peers.
    pub fn deployments(&self) -> &D {
        &self.cx.deployments
    }

    /// Returns the agent at the other end of a connection, once that is known.
    pub fn peer_agent(&self, conn: ConnId) -> Option<AgentId> {
        self.peers.agent(conn).cloned()
    }

    /// Returns whether anything waits for this agent, so that an idle connection to it must stay open.
    pub fn wants(&self, agent: &AgentId) -> bool {
        let mut transfers = self.flows.all();
        self.jobs.want(agent) || self.notices.want(agent) || transfers.any(|t| t.flow.agent == *agent)
    }

    /// Returns whether nothing is in progress: no lease, no transfer, no job, no notice.
    pub fn is_idle(&self) -> bool {
        let gauges = self.gauges();
        gauges.leases + gauges.early + gauges.queued == 0 && gauges.transfers + gauges.jobs + gauges.notices == 0
    }

    /// Counts the machine's contents.
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

/// Time and shutdown.
impl<D: KnownDeployments> Machine<D> {
    /// Handles all deadlines that are due.
    pub fn on_deadline(&mut self, now: Moment) {
        self.enter(now, |m| {
            m.owner.on_deadline(&mut m.cx);
            while let Some(timer) = m.cx.timers.pop_due(now) {
                m.on_timer(timer);
                // The next timer may be about a consequence of this one.
                m.settle();
            }
        });
    }

    /// Stops taking anything new. Everything in progress continues until it is over.
    pub fn drain(&mut self, now: Moment) {
        self.enter(now, |m| {
            m.cx.draining = true;
            m.owner.drain(&mut m.cx);
        });
    }

    /// Ends every lease as cancelled and every job with [`JobError::ShuttingDown`]. This is the second step of a
    /// shutdown, if draining takes too long.
    pub fn give_up(&mut self, now: Moment) {
        self.drain(now);
        self.enter(now, |m| {
            let keys: Vec<_> = m.owner.leases.keys().copied().collect();
            for key in keys {
                // A lease that is ending already returns an error, which is harmless.
                let _ = m.owner.leases.cancel(now, key);
            }
            for job in m.jobs.ids() {
                m.stop(job, JobError::ShuttingDown);
            }
        });
    }
}

/// Reports of the transport about connections.
impl<D: KnownDeployments> Machine<D> {
    /// A control connection is established. `service` and `roles` are from the peer's certificate. `dialled` names the
    /// agent that was dialled, unless the peer has connected. `paths` are the paths that the connection may use. `conn`
    /// must be a new id.
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

    /// An [`Action::Connect`] got no answer in time.
    pub fn connect_unanswered(&mut self, now: Moment, agent: &AgentId, why: impl Into<Text>) {
        self.not_connected(now, agent, NoConnection::Unanswered, why.into());
    }

    /// An [`Action::Connect`] found the port closed: no process listens there.
    pub fn connect_refused(&mut self, now: Moment, agent: &AgentId, why: impl Into<Text>) {
        self.not_connected(now, agent, NoConnection::Closed, why.into());
    }

    /// An [`Action::Connect`] failed for another reason.
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

    /// A message has arrived.
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

    /// An [`Action::Compile`] is done: the plan, or the reason why there is none.
    pub fn compiled(&mut self, now: Moment, ask: &PlanAsk, plan: Result<Planned<D::Plan>, impl Into<Text>>) {
        self.enter(now, |m| {
            let plan = plan.map(Arc::new).map_err(Into::into);
            m.cx.plans.compiled(ask, plan.as_ref().ok());
            let (mut lower, owner, jobs, _) = m.parts();
            let plan = plan.as_ref().map(|_| ());
            owner.compiled(&mut lower, ask, plan);
            jobs.compiled(&mut lower, ask, plan);
        });
    }

    /// The carrier of a path reports something about a connection.
    pub fn path_reported(&mut self, now: Moment, conn: ConnId, path: Path, report: Report) {
        let pass_on = |of: &mut dyn Negotiation, steps: &mut Steps| of.report(report, steps);
        self.enter(now, |m| m.paths.negotiate(&mut m.cx, conn, path, pass_on));
    }
}

/// Reports of the agent about data streams.
impl<D: KnownDeployments> Machine<D> {
    /// Data source: a stream is completely written, including its trailer. Its memory is no longer read.
    pub fn stream_sent(&mut self, now: Moment, transfer: TransferId, bytes: u64) {
        self.enter(now, |m| m.flows.stream_sent(&mut m.cx, transfer, bytes));
    }

    /// Both sides: a stream has broken off, or could not be opened.
    pub fn stream_failed(&mut self, now: Moment, transfer: TransferId, why: impl Into<Text>) {
        let why = why.into();
        self.enter(now, |m| m.flows.stream_failed(&mut m.cx, transfer, why));
    }

    /// Both sides: this many bytes of a transfer have moved so far. To be called about once a second.
    pub fn moved(&mut self, now: Moment, transfer: TransferId, bytes: u64) {
        self.enter(now, |m| m.flows.moved(&mut m.cx, transfer, bytes));
    }

    /// Data destination: decides about a stream from `agent`. The stream may place bytes only after it is admitted, and
    /// only within the range in its header.
    pub fn admit(&mut self, now: Moment, agent: &AgentId, header: &StreamHeader) -> Result<(), StreamRefusal> {
        self.enter(now, |m| m.flows.admit(&mut m.cx, agent, header))
    }

    /// Data destination: an admitted stream has ended, and all its bytes are placed. `crc` is computed over the bytes
    /// that arrived.
    pub fn stream_arrived(&mut self, now: Moment, header: &StreamHeader, trailer: &StreamTrailer, crc: u32) {
        self.enter(now, |m| m.flows.stream_arrived(&mut m.cx, header, trailer, crc));
    }

    /// Both sides: an [`Action::Fence`] is done. None of the transfer's bytes is read or placed any more.
    pub fn fenced(&mut self, now: Moment, transfer: TransferId) {
        self.enter(now, |m| m.flows.fenced(&mut m.cx, transfer));
    }
}

/// Reports of the agent about devices.
impl<D: KnownDeployments> Machine<D> {
    /// The device that holds a rank's memory is lost, for good. The rank's leases and jobs end, and it takes no new
    /// ones.
    pub fn device_lost(&mut self, now: Moment, rank: Rank) {
        self.enter(now, |m| {
            m.cx.lost.insert(rank);
            let (mut lower, owner, jobs, _) = m.parts();
            jobs.lose(&mut lower, rank);
            owner.lose(lower.cx, rank);
        });
    }

    /// Both sides: a transfer cannot begin because its device is stalled. Nothing of it is in progress.
    pub fn device_unready(&mut self, now: Moment, transfer: TransferId) {
        let failure = Failure::DeviceStalled;
        self.enter(now, |m| m.flows.fail(&mut m.cx, transfer, failure, true));
    }

    /// Both sides: a device does not finish its work for a transfer. The lease or job fails, and keeps its blocks until
    /// [`fenced`](Self::fenced). May be called repeatedly.
    pub fn device_stalled(&mut self, now: Moment, transfer: TransferId) {
        self.enter(now, |m| m.flows.device_stalled(&mut m.cx, transfer));
    }
}

/// Operations of the owner of leases.
impl<D: KnownDeployments> Machine<D> {
    /// Opens a lease. It owns the blocks until [`Action::LeaseEnded`].
    pub fn lease(&mut self, now: Moment, spec: LeaseSpec, blocks: D::Blocks) -> Result<(), OpenError<D::Blocks>> {
        self.enter(now, |m| {
            let (mut lower, owner, ..) = m.parts();
            owner.lease(&mut lower, spec, blocks)
        })
    }

    /// The first `tokens` tokens of a layer are ready.
    pub fn ready(&mut self, key: LeaseKey, layer: u32, tokens: u64) -> Result<(), LeaseError> {
        if self.owner.leases.ready(key, layer, tokens)? {
            let (mut lower, owner, jobs, _) = self.parts();
            for (pin, push) in owner.pins(&key) {
                match push {
                    Some(job) => jobs.ready(&mut lower, job, key.rank, layer, tokens),
                    None => lower.flows.layer_ready(lower.cx, pin, layer, tokens),
                }
            }
        }
        Ok(())
    }

    /// The prefill is over, and everything is ready.
    pub fn finish_prefill(&mut self, now: Moment, key: LeaseKey) -> Result<(), LeaseError> {
        self.enter(now, |m| {
            if !m.owner.leases.finish_prefill(key)? {
                return Ok(());
            }
            let (mut lower, owner, jobs, _) = m.parts();
            for (pin, push) in owner.pins(&key) {
                match push {
                    Some(job) => jobs.prefilled(&mut lower, job),
                    None => lower.flows.all_ready(lower.cx, pin),
                }
            }
            Ok(())
        })
    }

    /// Extends a lease to at least `ttl` from now.
    pub fn renew(&mut self, now: Moment, key: LeaseKey, ttl: Duration) -> Result<(), LeaseError> {
        self.enter(now, |m| m.owner.leases.renew(now, key, ttl))
    }

    /// Cancels a lease. [`Action::LeaseEnded`] reports its end.
    pub fn cancel_lease(&mut self, now: Moment, key: LeaseKey) -> Result<(), LeaseError> {
        self.enter(now, |m| m.owner.leases.cancel(now, key))
    }
}

/// Operations of the holder of a ticket.
impl<D: KnownDeployments> Machine<D> {
    /// Begins a pull or a push. It owns the blocks until [`Action::JobDone`].
    pub fn start(&mut self, now: Moment, spec: JobSpec, blocks: D::Blocks) -> Result<JobId, JobRefused<D::Blocks>> {
        self.enter(now, |m| m.try_start(spec, blocks))
    }

    fn try_start(&mut self, spec: JobSpec, blocks: D::Blocks) -> Result<JobId, JobRefused<D::Blocks>> {
        let now = self.cx.now;
        let (mut lower, owner, jobs, _) = self.parts();
        let checked = check_job(lower.cx, &spec).and_then(|(claims, opens)| {
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
        let id = JobId(lower.cx.next_number());
        lower.cx.jobs.add(claims.set, &spec.ranks);
        // Write leases have the same time limit, and end the job when it is over.
        if opens.is_empty() {
            lower.cx.after(spec.timeout, Timer::Job(id));
        }
        let job = Job::new(now, spec, claims, Held::Own(blocks), opens);
        jobs.begin(&mut lower, id, job);
        for lease in leases {
            owner.open(&mut lower, lease, Held::Of(BlocksOf::Job(id)));
        }
        jobs.advance(&mut lower, id);
        Ok(id)
    }

    /// The first `tokens` tokens of a layer are ready to be read. Used by pushes only.
    pub fn job_ready(&mut self, id: JobId, rank: Rank, layer: u32, tokens: u64) {
        let (mut lower, _, jobs, _) = self.parts();
        jobs.ready(&mut lower, id, rank, layer, tokens);
    }

    /// Everything is ready to be read. Used by pushes only.
    pub fn job_prefilled(&mut self, now: Moment, id: JobId) {
        self.enter(now, |m| {
            let (mut lower, _, jobs, _) = m.parts();
            jobs.prefilled(&mut lower, id);
        });
    }

    /// Cancels a job. [`Action::JobDone`] reports its end.
    pub fn cancel_job(&mut self, now: Moment, id: JobId) {
        self.enter(now, |m| m.stop(id, JobError::Cancelled));
    }

    /// Cancels the leases of a ticket for which no job has begun, such as when a request is aborted before it is
    /// scheduled. With `content`, only leases of that content are cancelled.
    pub fn cancel_ticket(
        &mut self,
        now: Moment,
        ticket: &Ticket,
        content: Option<ContentDigest>,
    ) -> Result<NoticeId, JobError> {
        self.tell_owner(now, ticket, NoticeKind::Cancel { content })
    }

    /// Asks the owner to extend the leases to at least `ttl` from then, for a request that must wait before it can
    /// pull.
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
