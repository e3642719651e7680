//! Pulls whose owner is invited to push.
//!
//! ```text
//!  ┌─────────┐ connected: invite every  ┌─────────┐ pushed by all   every write lease
//!  │ Opened  ├─────────────────────────►│ Waiting ├────────────────► completed: done
//!  └─────────┘ agent of the ticket      └────┬────┘
//!   a lease for each local rank              │ refused by either, unreachable, restarted, given up,
//!                                            │ or a write lease has ended otherwise
//!                                            ▼
//!                          stop: every other write lease is cancelled and fenced,
//!                                notice Cancel to every rank's agent
//! ```
//!
//! From the invitation on, the owner of the ticket is the holder of the write leases, and everything is as in any push.
//! The pull succeeds when every write lease has completed. It returns its blocks when every write lease has ended.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;

use transload_plan::ids::{AgentId, Direction};

use super::invitees::Invitees;
use super::spec::JobSpec;
use super::{Job, Jobs};
use crate::context::{Context, Timer};
use crate::deployments::KnownDeployments;
use crate::ids::{ConnId, JobId};
use crate::lease::{LeaseEnd, LeaseKey, LeaseSpec};
use crate::lower::Lower;
use crate::message::{Invitation, Message};
use crate::outcome::{JobError, RouteReport};
use crate::refusal::Refusal;
use crate::roles::Role;

/// Returns the write leases that a job opens for its owner to push into.
pub(crate) fn write_leases(keys: &BTreeSet<LeaseKey>, spec: &JobSpec) -> Vec<LeaseSpec> {
    let leases = keys.iter().map(|&key| LeaseSpec {
        key,
        direction: Direction::Push,
        content: spec.content,
        start: spec.request.start,
        valid_tokens: spec.request.end(),
        ttl: spec.timeout,
        hard_bound: spec.timeout,
        prefilled: true,
    });
    leases.collect()
}

impl<D: KnownDeployments> Job<D> {
    pub(super) fn invite_all(&mut self, lower: &mut Lower<'_, D>, id: JobId) -> Result<(), JobError> {
        let addresses: Vec<_> = self.agents().into_iter().cloned().collect();
        for address in addresses {
            let Some(conn) = lower.peers.connection(&address.agent) else {
                lower.peers.want(lower.cx, &address);
                continue;
            };
            let agent = address.agent;
            if let Err(refusal) = lower.peers.permit(conn, Role::Push) {
                return Err(JobError::PushRefused { agent, refusal });
            }
            self.invite(lower.cx, id, &agent, conn);
        }
        Ok(())
    }

    fn invite(&mut self, cx: &mut Context<D>, id: JobId, agent: &AgentId, conn: ConnId) {
        let unheard = self.invited.as_mut().map(|invited| &mut invited.unheard);
        let said = unheard.and_then(|unheard| unheard.get_mut(agent));
        let (Some(said), Some(into)) = (said, &self.spec.into) else {
            return;
        };
        if said.pausing || said.on.replace(conn) == Some(conn) {
            return;
        }
        let invitation = Invitation {
            id: id.0,
            ticket: self.spec.ticket.clone(),
            into: into.clone(),
            content: self.spec.content,
            lanes: self.spec.lanes,
            by_layer: self.spec.request.by_layer,
            paths: self.spec.paths,
        };
        cx.send(conn, Message::Invite(invitation));
    }
}

impl<D: KnownDeployments> Jobs<D> {
    fn invited_mut(&mut self, id: JobId) -> Option<&mut Invitees> {
        self.jobs.get_mut(&id)?.invited.as_mut()
    }

    /// Repeats invitations that were sent on a lost connection and not answered, if another connection is left.
    pub(crate) fn invite_again(&mut self, lower: &mut Lower<'_, D>, lost: ConnId) {
        let unheard = |job: &Job<D>| {
            let mut unheard = job.invited.iter().flat_map(|to| to.unheard.values());
            unheard.any(|said| said.on == Some(lost))
        };
        for id in self.like(unheard) {
            self.advance(lower, id);
        }
    }

    pub(crate) fn on_invited(
        &mut self,
        lower: &mut Lower<'_, D>,
        conn: ConnId,
        id: JobId,
        outcome: Result<(), Refusal>,
    ) {
        let Some((invited, agent)) = self.invited_mut(id).zip(lower.peers.agent(conn)) else {
            return;
        };
        let agent = agent.clone();
        let Entry::Occupied(mut said) = invited.unheard.entry(agent.clone()) else {
            return;
        };
        let timer = Timer::Invite(id, agent.clone());
        match outcome {
            Err(refusal) if refusal.is_transient() => {
                let said = said.get_mut();
                if !said.pausing {
                    said.on = None;
                    said.busy = said.busy.saturating_add(1);
                    said.pausing = true;
                    lower.cx.after(lower.cx.options.pause(said.busy), timer);
                }
            }
            outcome => {
                said.remove();
                lower.cx.timers.clear(&timer);
                match outcome {
                    Ok(()) => self.admitted(id),
                    Err(refusal) => self.stop(lower, id, JobError::NotPushed { agent, refusal }),
                }
            }
        }
    }

    pub(crate) fn invite_due(&mut self, lower: &mut Lower<'_, D>, id: JobId, agent: &AgentId) {
        let invited = self.invited_mut(id);
        if let Some(said) = invited.and_then(|invited| invited.unheard.get_mut(agent)) {
            said.pausing = false;
        }
        self.advance(lower, id);
    }

    pub(crate) fn write_lease_landed(&mut self, id: JobId, landed: RouteReport) {
        if let Some(invited) = self.invited_mut(id) {
            invited.routes.push(landed);
        }
    }

    /// Handles the refusal of a push into a pull's write lease. If the push is the owner's, the pull cannot succeed and
    /// stops now, since the owner's own word of it may never arrive.
    pub(crate) fn push_refused(&mut self, lower: &mut Lower<'_, D>, id: JobId, conn: ConnId, refusal: Refusal) {
        let Some((job, agent)) = self.jobs.get(&id).zip(lower.peers.agent(conn)) else {
            return;
        };
        let owner = lower.peers.check_owner(conn, agent, &job.claims);
        if job.wants(agent) && owner.is_ok() {
            let agent = agent.clone();
            self.stop(lower, id, JobError::PushRefused { agent, refusal });
        }
    }

    /// Handles the end of a write lease: nothing touches the blocks of its rank any more.
    pub(crate) fn write_lease_ended(&mut self, lower: &mut Lower<'_, D>, id: JobId, key: LeaseKey, end: LeaseEnd) {
        if let Some(invited) = self.invited_mut(id) {
            invited.open.remove(&key);
        }
        match end {
            LeaseEnd::Completed => {}
            LeaseEnd::Expired => self.timed_out(lower, id),
            end => self.stop(lower, id, JobError::LeaseEnded { end }),
        }
        self.finish_if_over(lower.cx, id);
    }
}
