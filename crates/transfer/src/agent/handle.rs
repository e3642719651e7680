//! The handle of an agent, with everything that its users call.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::after::After;
use super::client::Client;
use super::driver::Driver;
use super::error::{AgentGone, LeaseOpenError, NoticeError, TransferError};
use super::lease::{Lease, LeaseControl};
use super::metrics::AgentMetrics;
use super::outcome::{JobLabel, PullReport};
use super::promise::Handle;
use super::request::{Keeper, LeaseRequest, PullRequest, PushRequest};
use super::transfer::Transfer;
use crate::identity::{Identity, RenewalError};
use crate::quic::{CloseCode, Endpoints};
use transload_layout::{Deployment, Rank, Side};
use transload_plan::Tables;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, DeploymentDigest, Direction, Incarnation};
use transload_wire::{
    Gauges, JobError, JobSpec, LeaseKey, LeaseSpec, NoticeId, NoticeOutcome, OpenError, OpenFault, RankAddress, Ticket,
    TicketKey,
};

/// An agent. Clones refer to the same agent, which stops when the last one is dropped, or at
/// [`shutdown`](Self::shutdown).
#[derive(Clone, Debug)]
pub struct Agent {
    pub(super) client: Client,
    pub(super) info: Arc<AgentInfo>,
}

/// The constant properties of an agent.
pub(super) struct AgentInfo {
    pub(super) dropped: mpsc::UnboundedSender<Handle>,
    pub(super) id: AgentId,
    pub(super) endpoints: Endpoints,
    pub(super) deployment: Arc<Deployment>,
    pub(super) digest: DeploymentDigest,
    pub(super) incarnation: Incarnation,
}

impl Drop for AgentInfo {
    /// Stops the agent, since the last handle is gone.
    fn drop(&mut self) {
        // An error means that the driver has stopped already.
        let _ = self.dropped.send(Handle::Agent);
    }
}

impl std::fmt::Debug for AgentInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentInfo").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl Agent {
    /// Returns its name: the service in its certificate, and its instance name.
    pub fn id(&self) -> &AgentId {
        &self.info.id
    }

    /// Makes new connections use another certificate of the same service and cluster, or other authorities. Open
    /// connections continue. An agent whose identity was read from files does this itself when they change
    /// ([`AgentOptions::renew_every`](super::AgentOptions::renew_every)).
    ///
    /// Tickets are still sealed with the key that the agent was made with.
    ///
    /// # Errors
    /// [`RenewalError::Another`].
    pub fn renew_identity(&self, identity: Identity) -> Result<(), RenewalError> {
        self.info.endpoints.renew(identity)
    }

    /// Returns the incarnation of its deployment.
    pub fn incarnation(&self) -> Incarnation {
        self.info.incarnation
    }

    /// Returns its deployment.
    pub fn deployment(&self) -> &Deployment {
        &self.info.deployment
    }

    /// Returns the digest of its deployment, as tickets contain it.
    pub fn deployment_digest(&self) -> DeploymentDigest {
        self.info.digest
    }

    /// Returns the bound address of control connections.
    pub fn control_addr(&self) -> SocketAddr {
        self.info.endpoints.control_addr()
    }

    /// Returns the sockets, with the buffer sizes that the kernel granted.
    #[doc(hidden)]
    pub fn endpoints(&self) -> &Endpoints {
        &self.info.endpoints
    }

    /// Returns a ticket's entry for a rank of this agent, which peers reach at `host`.
    pub fn address(&self, host: &str) -> RankAddress {
        RankAddress { agent: self.id().clone(), host: host.to_owned(), port: self.control_addr().port() }
    }

    /// Returns the key that seals tickets of this cluster.
    pub fn ticket_key(&self) -> TicketKey {
        TicketKey::new(self.info.endpoints.ticket_secret().as_bytes())
    }

    /// Leases blocks of a rank for reading, to the holder of a ticket for the set.
    ///
    /// # Errors
    /// [`LeaseOpenError`], which returns the blocks if the lease was refused.
    pub async fn lease(&self, request: LeaseRequest) -> Result<Lease, LeaseOpenError> {
        self.open_lease(request, Direction::Pull, Side::Source).await
    }

    /// Opens blocks of a rank for writing, to the holder of a ticket for the set. It is the other half of a
    /// [`push`](Self::push).
    ///
    /// # Errors
    /// [`LeaseOpenError`], which returns the blocks if the lease was refused.
    pub async fn open(&self, request: LeaseRequest) -> Result<Lease, LeaseOpenError> {
        self.open_lease(request, Direction::Push, Side::Destination).await
    }

    async fn open_lease(
        &self,
        request: LeaseRequest,
        direction: Direction,
        side: Side,
    ) -> Result<Lease, LeaseOpenError> {
        let checked = request.tables.check(self.deployment(), side, request.valid_tokens);
        if let Err(fault) = checked {
            return Err(LeaseOpenError::Tables { fault, tables: request.tables });
        }
        let (after, later) = (request.after, self.client.later());
        // An admitted peer writes at once, so blocks to be written are opened only after `after`. Blocks to be read are
        // leased now, as blocks whose prefill is not over.
        let key = LeaseKey { set: request.set, rank: request.rank };
        if side == Side::Destination
            && let Err(why) = after.done().await
        {
            let (tables, lost) = (request.tables, self.lost_of([key.rank].into()).await?);
            return Err(match lost {
                None => LeaseOpenError::After { why, tables },
                Some(rank) => LeaseOpenError::Refused { key, reason: OpenFault::DeviceLost { rank }, tables },
            });
        }
        let awaited = request.prefilled && !after.is_done();
        let spec = LeaseSpec {
            key,
            direction,
            content: request.content,
            start: request.start,
            valid_tokens: request.valid_tokens,
            ttl: request.ttl,
            hard_bound: request.hard_bound,
            prefilled: request.prefilled && !awaited,
        };
        let (blocks, keeper) = (Arc::new(request.tables), request.keeper);
        let control = LeaseControl { key, claimed: Arc::default(), client: self.client.clone() };
        let claimed = control.claimed.clone();
        let opened = self.client.ask(move |driver| {
            let opened = driver.lease(spec, blocks, claimed, keeper)?;
            if awaited {
                later.prefill_after(Handle::Lease(key), &after);
            }
            Ok::<_, OpenError<_>>(opened)
        });
        match opened.await? {
            Ok(outcome) => Ok(Lease { control, outcome }),
            Err(refused) => Err(LeaseOpenError::Refused {
                key,
                reason: refused.reason,
                tables: Arc::unwrap_or_clone(refused.blocks),
            }),
        }
    }

    /// Pulls what a ticket allows into this agent's blocks, or has the owner push it ([`PullRequest::into`]), and waits
    /// until all of it has landed.
    ///
    /// Dropping this future cancels the pull. Its blocks may still be written for a moment; [`PullRequest::keeper`] or
    /// [`start_pull`](Self::start_pull) tell when that is over.
    ///
    /// # Errors
    /// [`TransferError`].
    pub async fn pull(&self, request: PullRequest) -> Result<PullReport, TransferError> {
        self.start_pull(request).await?.finish().await
    }

    /// Pushes this agent's blocks into those that a ticket opens, and waits until all of it has landed. Dropping this
    /// future has the same effect as for [`pull`](Self::pull).
    ///
    /// # Errors
    /// [`TransferError`].
    pub async fn push(&self, request: PushRequest) -> Result<PullReport, TransferError> {
        self.start_push(request).await?.finish().await
    }

    /// Begins a pull, which writes this agent's blocks. The ticket must be for a pull.
    ///
    /// # Errors
    /// [`TransferError`].
    pub async fn start_pull(&self, request: PullRequest) -> Result<Transfer, TransferError> {
        let spec = JobSpec {
            ticket: request.ticket,
            ranks: request.ranks,
            request: request.request,
            content: request.content,
            lanes: self.endpoints().options().lanes,
            paths: request.paths,
            timeout: request.timeout,
            keep_leases: request.keep_leases,
            prefilled: true,
            into: request.into,
        };
        self.start(Direction::Pull, spec, request.tables, request.after, request.keeper).await
    }

    /// Begins a push, which reads this agent's blocks. The ticket must be for a push. If the blocks are not `prefilled`
    /// but still being computed, report [`ready`](super::TransferControl::ready) and
    /// [`finish_prefill`](super::TransferControl::finish_prefill).
    ///
    /// # Errors
    /// [`TransferError`].
    pub async fn start_push(&self, request: PushRequest) -> Result<Transfer, TransferError> {
        let spec = JobSpec {
            ticket: request.ticket,
            ranks: request.ranks,
            request: request.request,
            content: request.content,
            lanes: self.endpoints().options().lanes,
            paths: request.paths,
            timeout: request.timeout,
            keep_leases: request.keep_leases,
            prefilled: request.prefilled,
            into: None,
        };
        self.start(Direction::Push, spec, request.tables, request.after, request.keeper).await
    }

    /// Begins a pull or a push. `wanted` must match the ticket, which must not decide whether this agent's blocks are
    /// written.
    async fn start(
        &self,
        wanted: Direction,
        mut spec: JobSpec,
        tables: Tables,
        after: After,
        keeper: Option<Keeper>,
    ) -> Result<Transfer, TransferError> {
        let claims = spec.ticket.open(&self.ticket_key());
        let claims = claims.map_err(JobError::from)?;
        let (allowed, set) = (claims.direction, claims.set);
        if allowed != wanted {
            return Err(TransferError::Direction { allowed });
        }
        let side = match wanted {
            Direction::Pull => Side::Destination,
            Direction::Push => Side::Source,
        };
        let checked = tables.check(self.deployment(), side, spec.request.end());
        checked.map_err(TransferError::Tables)?;
        // A destination is written as soon as the job begins, so the job begins only after the work that still uses the
        // blocks.
        if side == Side::Destination
            && let Err(why) = after.done().await
        {
            let lost = self.lost_of(spec.ranks).await?;
            let lost = lost.map(|rank| JobError::DeviceLost { rank }.into());
            return Err(lost.unwrap_or(TransferError::After(why)));
        }
        // A source may begin at once: its blocks become readable when that work is done.
        let awaited = spec.prefilled && !after.is_done();
        spec.prefilled &= !awaited;
        let (later, blocks) = (self.client.later(), Arc::new(tables));
        let label = JobLabel { direction: wanted, set, content: spec.content };
        let started = self.client.ask(move |driver| {
            let started = driver.start(spec, blocks, label, keeper)?;
            if awaited {
                later.prefill_after(Handle::Job(started.0), &after);
            }
            Ok::<_, JobError>(started)
        });
        Ok(Transfer::new(started.await??, self.client.clone()))
    }

    /// Returns one of these ranks whose device is lost, which explains a failed wait.
    async fn lost_of(&self, ranks: BTreeSet<Rank>) -> Result<Option<Rank>, AgentGone> {
        self.client.ask(move |driver| driver.lost_of(&ranks)).await
    }

    /// Cancels the leases of a ticket for which no pull has begun. With `content`, only leases of that content are
    /// cancelled.
    ///
    /// # Errors
    /// [`NoticeError`].
    pub async fn cancel(&self, ticket: Ticket, content: Option<ContentDigest>) -> Result<NoticeOutcome, NoticeError> {
        self.notify(move |driver| driver.machine.cancel_ticket(driver.now(), &ticket, content)).await
    }

    /// Asks the owner of a ticket to extend its leases to at least `ttl` from then.
    ///
    /// # Errors
    /// [`NoticeError`].
    pub async fn renew(&self, ticket: Ticket, ttl: Duration) -> Result<NoticeOutcome, NoticeError> {
        self.notify(move |driver| driver.machine.renew_ticket(driver.now(), &ticket, ttl)).await
    }

    async fn notify(
        &self,
        begin: impl FnOnce(&mut Driver) -> Result<NoticeId, JobError> + Send + 'static,
    ) -> Result<NoticeOutcome, NoticeError> {
        let begun = self.client.ask(|driver| driver.notice(begin));
        let heard = begun.await?.map_err(NoticeError::Ticket)?;
        Ok(heard.await.map_err(|_| AgentGone)?)
    }

    /// Returns counts of everything in progress.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn gauges(&self) -> Result<Gauges, AgentGone> {
        self.client.ask(|driver| driver.machine.gauges()).await
    }

    /// Returns the counters since the agent was bound.
    ///
    /// # Errors
    /// [`AgentGone`].
    pub async fn metrics(&self) -> Result<AgentMetrics, AgentGone> {
        self.client.ask(|driver| driver.counters.read()).await
    }

    /// Stops taking anything new, waits up to `patience` for everything in progress, gives up the rest, and closes all
    /// connections.
    pub async fn shutdown(&self, patience: Duration) {
        let (done, stopped) = oneshot::channel();
        let stopping = move |driver: &mut Driver| driver.shut_down(patience, Some(done));
        // An error means that the driver has stopped already.
        if self.client.tell(stopping).await.is_ok() {
            let _ = stopped.await;
        }
        self.info.endpoints.close(CloseCode::DONE, "shutdown").await;
    }
}
