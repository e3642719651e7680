//! What users of an agent call.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::builder::Builder;
use super::event::{Command, Event, Started};
use super::lease::Lease;
use crate::content::ContentDigest;
use crate::identity::Identity;
use crate::ids::{AgentId, DeploymentDigest, Direction, Incarnation, LeaseSetId, Rank};
use crate::lease::{LeaseKey, LeaseSpec, OpenError};
use crate::plan::Tables;
use crate::ticket::{RankAddress, Ticket, TicketKey};
use crate::transport::quic::{CloseCode, Endpoints};
use crate::wire::{Gauges, JobError, JobReport, JobSpec, PathSet, Refusal};
use transload_layout::Deployment;

/// An agent. Clones are the same agent; it stops when the last is dropped, or at
/// [`shutdown`](Self::shutdown).
#[derive(Clone, Debug)]
pub struct Agent {
    pub(super) events: mpsc::Sender<Event>,
    pub(super) shared: Arc<Shared>,
}

/// What never changes about an agent.
pub(super) struct Shared {
    /// For what handles have to say when they are dropped, where nobody can wait.
    pub(super) urgent: mpsc::UnboundedSender<Event>,
    pub(super) endpoints: Endpoints,
    pub(super) deployment: Arc<Deployment>,
    pub(super) digest: DeploymentDigest,
    pub(super) incarnation: Incarnation,
    pub(super) lanes: u16,
}

impl Drop for Shared {
    /// The last handle is gone: nobody can use the agent any more.
    fn drop(&mut self) {
        let stop = Event::Command(Command::Shutdown {
            patience: Duration::ZERO,
            done: oneshot::channel().0,
        });
        // The driver is gone already where this fails.
        let _ = self.urgent.send(stop);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

/// The agent has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the agent has stopped")]
pub struct AgentGone;

/// What to lease.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The lease set of the request, the same on all ranks.
    pub set: LeaseSetId,
    /// The rank whose blocks they are.
    pub rank: Rank,
    /// The blocks: one table for each group of the agent's deployment.
    pub tables: Tables,
    /// What they hold, or will hold when the prefill is over.
    pub content: ContentDigest,
    /// First token that moves: 0, but for a push into the end of a sequence.
    pub start: u64,
    /// How many tokens are valid, counted from position 0.
    pub valid_tokens: u64,
    /// How long the lease lives unless it is renewed or used.
    pub ttl: Duration,
    /// How long a transfer under way can keep it alive.
    pub hard_bound: Duration,
    /// Whether the blocks hold everything already. Otherwise tell [`Lease::ready`] and
    /// [`Lease::finish_prefill`].
    pub prefilled: bool,
}

impl LeaseRequest {
    /// A lease of finished blocks for 60 seconds, and ten minutes at most.
    pub fn new(
        set: LeaseSetId,
        rank: Rank,
        tables: Tables,
        content: ContentDigest,
        valid_tokens: u64,
    ) -> Self {
        Self {
            set,
            rank,
            tables,
            content,
            start: 0,
            valid_tokens,
            ttl: Duration::from_secs(60),
            hard_bound: Duration::from_secs(600),
            prefilled: true,
        }
    }
}

/// What to pull.
#[derive(Clone, Debug)]
pub struct PullRequest {
    /// What allows it.
    pub ticket: Ticket,
    /// The ranks of this agent that receive; all of them have the same block tables.
    pub ranks: BTreeSet<Rank>,
    /// The blocks: one table for each group of the agent's deployment.
    pub tables: Tables,
    /// First token.
    pub start: u64,
    /// How many tokens from there on.
    pub tokens: u64,
    /// What the blocks there are taken to hold.
    pub content: ContentDigest,
    /// Whether layers may come before the prefill is over.
    pub by_layer: bool,
    /// The paths that may be taken: [`PathSet::QUIC`] and [`PathSet::LOCAL`] refuse any other.
    pub paths: PathSet,
    /// How long all of it may take, retries included.
    pub timeout: Duration,
}

impl PullRequest {
    /// The first `tokens` tokens, by any path, within five minutes.
    pub fn new(
        ticket: Ticket,
        ranks: impl IntoIterator<Item = Rank>,
        tables: Tables,
        content: ContentDigest,
        tokens: u64,
    ) -> Self {
        Self {
            ticket,
            ranks: ranks.into_iter().collect(),
            tables,
            start: 0,
            tokens,
            content,
            by_layer: false,
            paths: PathSet::ANY,
            timeout: Duration::from_secs(300),
        }
    }
}

/// What to push: the same, with the owner's blocks as the destination. `start` and `tokens` have to be
/// those of the ticket.
pub type PushRequest = PullRequest;

/// What a pull or a push has done.
pub type PullReport = JobReport;

/// Why a pull or a push came to nothing. Nothing touches its blocks any more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PullError {
    /// It was refused, or it failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The ticket is for the other direction.
    #[error("the ticket allows a {allowed}")]
    Direction {
        /// What it is for.
        allowed: Direction,
    },
    /// The agent has stopped.
    #[error(transparent)]
    Gone(#[from] AgentGone),
}

/// What has become of a cancellation or renewal by ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeOutcome {
    /// How many agents of the ticket have heard it, out of all.
    pub heard: (usize, usize),
    /// Of a renewal: how long the leases live on at least.
    pub left: Option<Duration>,
    /// The last refusal, if there was any.
    pub refusal: Option<Refusal>,
}

/// A pull or push under way.
///
/// Await [`finish`](Self::finish). Dropping it cancels the transfer; its blocks must not be used before
/// it is over, so prefer [`cancel`](Self::cancel) and `finish`.
#[derive(Debug)]
#[must_use = "dropping a transfer cancels it"]
pub struct Transfer {
    started: Option<Started>,
    events: mpsc::Sender<Event>,
    urgent: mpsc::UnboundedSender<Event>,
}

impl std::fmt::Debug for Started {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.job.fmt(f)
    }
}

impl Transfer {
    /// Waits until all routes of all ranks have landed, or it has failed for good. Either way nothing
    /// touches the blocks any more.
    ///
    /// # Errors
    /// [`PullError`].
    pub async fn finish(mut self) -> Result<PullReport, PullError> {
        // It stays here while it is waited for, so that dropping the future cancels it too.
        let Some(started) = &mut self.started else {
            return Err(AgentGone.into());
        };
        let result = (&mut started.result).await.unwrap_or(Err(AgentGone.into()));
        self.started = None;
        result
    }

    /// Of a push whose blocks are still being computed: the first `tokens` tokens of a layer are ready.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn ready(&self, rank: Rank, layer: u32, tokens: u64) -> Result<(), AgentGone> {
        let job = self.job()?;
        self.send(Command::JobReady {
            job,
            rank,
            layer,
            tokens,
        })
        .await
    }

    /// Of a push whose blocks are still being computed: everything is ready.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn finish_prefill(&self) -> Result<(), AgentGone> {
        let job = self.job()?;
        self.send(Command::JobPrefilled { job }).await
    }

    /// Gives it up. [`finish`](Self::finish) tells when nothing touches the blocks any more.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn cancel(&self) -> Result<(), AgentGone> {
        let job = self.job()?;
        self.send(Command::CancelJob { job }).await
    }

    fn job(&self) -> Result<crate::wire::JobId, AgentGone> {
        self.started
            .as_ref()
            .map(|started| started.job)
            .ok_or(AgentGone)
    }

    async fn send(&self, command: Command) -> Result<(), AgentGone> {
        let sent = self.events.send(Event::Command(command)).await;
        sent.map_err(|_| AgentGone)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(started) = self.started.take() {
            let cancel = Event::Command(Command::CancelJob { job: started.job });
            // The agent is gone where this fails, and its jobs with it.
            let _ = self.urgent.send(cancel);
        }
    }
}

impl Agent {
    /// Begins to make an agent for some ranks of a deployment.
    pub fn builder(identity: Identity, deployment: Deployment) -> Builder {
        Builder::new(identity, deployment)
    }

    /// Its name, from its certificate.
    pub fn id(&self) -> &AgentId {
        &self.shared.endpoints.identity().peer().agent
    }

    /// The life of the deployment that it belongs to.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.incarnation
    }

    /// Its deployment.
    pub fn deployment(&self) -> &Deployment {
        &self.shared.deployment
    }

    /// The digest of its deployment, as tickets name it.
    pub fn deployment_digest(&self) -> DeploymentDigest {
        self.shared.digest
    }

    /// Where control connections arrive, as bound.
    pub fn control_addr(&self) -> SocketAddr {
        self.shared.endpoints.control_addr()
    }

    /// The sockets and what the kernel granted them.
    pub fn endpoints(&self) -> &Endpoints {
        &self.shared.endpoints
    }

    /// What a ticket says about a rank that this agent holds, reachable at `host`.
    pub fn address(&self, host: &str) -> RankAddress {
        RankAddress {
            agent: self.id().clone(),
            host: host.to_owned(),
            port: self.control_addr().port(),
        }
    }

    /// The key that seals tickets of this cluster.
    pub fn ticket_key(&self) -> TicketKey {
        TicketKey::new(self.shared.endpoints.identity().ticket_secret().as_bytes())
    }

    /// Leases blocks of a rank to whoever holds a ticket for the set, to be read.
    ///
    /// # Errors
    /// [`OpenError`], with the blocks; or [`AgentGone`].
    pub async fn lease(
        &self,
        request: LeaseRequest,
    ) -> Result<Result<Lease, OpenError<Arc<Tables>>>, AgentGone> {
        self.open_lease(request, Direction::Pull).await
    }

    /// Opens blocks of a rank to whoever holds a ticket for the set, to be written: the other half of a
    /// [`push`](Self::push).
    ///
    /// # Errors
    /// [`OpenError`], with the blocks; or [`AgentGone`].
    pub async fn open(
        &self,
        request: LeaseRequest,
    ) -> Result<Result<Lease, OpenError<Arc<Tables>>>, AgentGone> {
        self.open_lease(request, Direction::Push).await
    }

    async fn open_lease(
        &self,
        request: LeaseRequest,
        direction: Direction,
    ) -> Result<Result<Lease, OpenError<Arc<Tables>>>, AgentGone> {
        let key = LeaseKey {
            set: request.set,
            rank: request.rank,
        };
        let spec = LeaseSpec {
            key,
            direction,
            content: request.content,
            start: request.start,
            valid_tokens: request.valid_tokens,
            ttl: request.ttl,
            hard_bound: request.hard_bound,
            prefilled: request.prefilled,
            blocks: Arc::new(request.tables),
        };
        let (opened, outcome) = oneshot::channel();
        self.send(Command::Lease { spec, opened }).await?;
        let opened = outcome.await.map_err(|_| AgentGone)?;
        Ok(opened.map(|outcome| {
            Lease::new(
                key,
                self.events.clone(),
                self.shared.urgent.clone(),
                outcome,
            )
        }))
    }

    /// Pulls what a ticket allows into own blocks, and waits until all of it has landed.
    ///
    /// Where this future is dropped, the pull is cancelled, and its blocks may still be written for a
    /// moment: to know when they are not, use [`start`](Self::start).
    ///
    /// # Errors
    /// [`PullError`].
    pub async fn pull(&self, request: PullRequest) -> Result<PullReport, PullError> {
        self.expect(&request.ticket, Direction::Pull)?;
        self.start(request, true).await?.finish().await
    }

    /// Pushes own blocks into those that a ticket opens, and waits until all of it has landed.
    ///
    /// # Errors
    /// [`PullError`].
    pub async fn push(&self, request: PushRequest) -> Result<PullReport, PullError> {
        self.expect(&request.ticket, Direction::Push)?;
        self.start(request, true).await?.finish().await
    }

    /// A push reads the own blocks and a pull writes them: the ticket does not get to choose.
    fn expect(&self, ticket: &Ticket, wanted: Direction) -> Result<(), PullError> {
        let claims = ticket.open(&self.ticket_key()).map_err(JobError::from)?;
        match claims.direction == wanted {
            true => Ok(()),
            false => Err(PullError::Direction {
                allowed: claims.direction,
            }),
        }
    }

    /// Begins to pull or to push, as the ticket says. `prefilled` is false for a push whose blocks are
    /// still being computed.
    ///
    /// # Errors
    /// [`PullError`].
    pub async fn start(
        &self,
        request: PullRequest,
        prefilled: bool,
    ) -> Result<Transfer, PullError> {
        let spec = JobSpec {
            ticket: request.ticket,
            ranks: request.ranks,
            start: request.start,
            tokens: request.tokens,
            content: request.content,
            lanes: self.shared.lanes,
            by_layer: request.by_layer,
            paths: request.paths,
            timeout: request.timeout,
            prefilled,
            blocks: Arc::new(request.tables),
        };
        let (started, outcome) = oneshot::channel();
        self.send(Command::Start { spec, started }).await?;
        let started = outcome.await.map_err(|_| AgentGone)??;
        Ok(Transfer {
            started: Some(started),
            events: self.events.clone(),
            urgent: self.shared.urgent.clone(),
        })
    }

    /// Gives up what a ticket stands for, where no pull has begun. With `content`, only leases of that
    /// content are cancelled.
    ///
    /// # Errors
    /// [`PullError`].
    pub async fn cancel(
        &self,
        ticket: Ticket,
        content: Option<ContentDigest>,
    ) -> Result<NoticeOutcome, PullError> {
        let (answer, outcome) = oneshot::channel();
        self.send(Command::CancelTicket {
            ticket,
            content,
            answer,
        })
        .await?;
        let heard = outcome.await.map_err(|_| AgentGone)??;
        Ok(heard.await.map_err(|_| AgentGone)?)
    }

    /// Asks the owner of a ticket to let its leases live for `ttl` from then at least.
    ///
    /// # Errors
    /// [`PullError`].
    pub async fn renew(&self, ticket: Ticket, ttl: Duration) -> Result<NoticeOutcome, PullError> {
        let (answer, outcome) = oneshot::channel();
        self.send(Command::RenewTicket {
            ticket,
            ttl,
            answer,
        })
        .await?;
        let heard = outcome.await.map_err(|_| AgentGone)??;
        Ok(heard.await.map_err(|_| AgentGone)?)
    }

    /// How much of everything is under way.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn gauges(&self) -> Result<Gauges, AgentGone> {
        let (answer, gauges) = oneshot::channel();
        self.send(Command::Gauges { answer }).await?;
        gauges.await.map_err(|_| AgentGone)
    }

    /// Takes nothing new, waits up to `patience` for what is under way, gives up what is left, and
    /// closes all connections.
    pub async fn shutdown(&self, patience: Duration) {
        let (done, over) = oneshot::channel();
        if self
            .send(Command::Shutdown { patience, done })
            .await
            .is_ok()
        {
            // An error says that the driver is gone: the same as done.
            let _ = over.await;
        }
        self.shared
            .endpoints
            .close(CloseCode::DONE, "shutdown")
            .await;
    }

    async fn send(&self, command: Command) -> Result<(), AgentGone> {
        let sent = self.events.send(Event::Command(command)).await;
        sent.map_err(|_| AgentGone)
    }
}
