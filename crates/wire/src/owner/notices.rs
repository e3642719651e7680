//! Notices of ticket holders: done, cancel and renew.

use std::collections::BTreeSet;
use std::time::Duration;

use transload_plan::Request;
use transload_plan::ids::{Direction, LeaseSetId, Rank};

use super::Owner;
use super::asks::permission;
use super::pending::{Demand, Said};
use crate::context::Context;
use crate::deployments::KnownDeployments;
use crate::ids::ConnId;
use crate::lease::{LeaseDone, LeaseKey, UseError};
use crate::message::{Message, Notice, NoticeKind};
use crate::peers::Peers;
use crate::plans::PlanAsk;
use crate::refusal::Refusal;
use crate::roles::Role;

impl<D: KnownDeployments> Owner<D> {
    pub(crate) fn on_notice(&mut self, cx: &mut Context<D>, peers: &Peers, conn: ConnId, notice: &Notice) {
        let id = notice.id;
        let outcome = self.take_notice(cx, peers, conn, notice);
        cx.send(conn, Message::NoticeHeard { id, outcome });
    }

    /// Applies this agent's own notice, because no agent connects to itself. Returns the answer that a peer would get.
    pub(crate) fn on_own_notice(
        &mut self,
        cx: &mut Context<D>,
        set: LeaseSetId,
        says: &NoticeKind,
    ) -> Result<u64, Refusal> {
        let mut outcome = Err(Refusal::UnknownLease);
        for &rank in &cx.me.ranks {
            let key = LeaseKey { set, rank };
            let (done, left) = match says {
                NoticeKind::Renew { ttl_ms } => {
                    let ttl = Duration::from_millis(*ttl_ms);
                    (self.leases.renew(cx.now, key, ttl), *ttl_ms)
                }
                NoticeKind::Cancel { content: Some(content) }
                    if self.leases.spec(&key).is_some_and(|spec| spec.content != *content) =>
                {
                    outcome = outcome.or(Err(Refusal::DigestMismatch));
                    continue;
                }
                NoticeKind::Cancel { .. } | NoticeKind::Done { .. } => (self.leases.cancel(cx.now, key), 0),
            };
            if done.is_ok() {
                outcome = Ok(left);
            }
        }
        outcome
    }

    fn take_notice(
        &mut self,
        cx: &mut Context<D>,
        peers: &Peers,
        conn: ConnId,
        notice: &Notice,
    ) -> Result<u64, Refusal> {
        let claims = peers.authenticate(cx, conn, &notice.ticket)?;
        let direction = claims.direction;
        let role = match notice.says {
            NoticeKind::Renew { .. } => Role::Renew,
            NoticeKind::Done { .. } | NoticeKind::Cancel { .. } => permission(direction),
        };
        peers.permit(conn, role)?;
        let (agent, peer) = peers.asker(conn)?;
        let holder = peer.holder;
        if let NoticeKind::Done { ranks, .. } = &notice.says
            && let Some(&rank) = ranks.iter().find(|rank| !peer.ranks.contains(rank))
        {
            return Err(Refusal::RankNotYours { rank });
        }
        let set = claims.set;
        // A notice is for the leases of all local ranks, but not every rank needs to have one: the outcome is
        // `UnknownLease` only if no rank knows the lease.
        let mut outcome = Err(Refusal::UnknownLease);
        for rank in cx.me.ranks.clone() {
            let said = Said {
                key: LeaseKey { set, rank },
                direction,
                agent: agent.clone(),
                holder,
                says: notice.says.clone(),
            };
            let applied = match self.leases.knows(&said.key) {
                true => self.apply(cx, said),
                false => self.keep_notice(cx, said, None),
            };
            // The first other refusal counts. Of several renewed leases, the least remaining time counts.
            outcome = match (outcome, applied) {
                (Ok(known), Ok(left)) => Ok(left.min(known)),
                (Err(Refusal::UnknownLease), applied) => applied,
                (Ok(known), Err(Refusal::UnknownLease)) => Ok(known),
                (outcome, applied) => outcome.and(applied),
            };
        }
        outcome
    }

    /// Keeps a notice until its lease is opened, or its plan is compiled.
    fn keep_notice(&mut self, cx: &Context<D>, said: Said, plan: Option<PlanAsk>) -> Result<u64, Refusal> {
        if matches!(said.says, NoticeKind::Renew { .. }) {
            return Err(Refusal::UnknownLease);
        }
        let same = |demand: &Demand| match demand {
            Demand::Notice(other) => (other.key, other.holder, &other.says) == (said.key, said.holder, &said.says),
            _ => false,
        };
        if self.pending.any(same) {
            return Ok(0);
        }
        let agent = said.agent.clone();
        let demand = Demand::Notice(said);
        let kept = self.pending.keep(cx.now, &agent, demand, plan);
        kept.map(|()| 0)
    }

    /// Applies a notice to one lease. Returns the remaining milliseconds of a renewed lease.
    pub(super) fn apply(&mut self, cx: &mut Context<D>, said: Said) -> Result<u64, Refusal> {
        let (now, key, direction, by) = (cx.now, said.key, said.direction, &said.holder);
        let (applied, content) = match &said.says {
            NoticeKind::Done { ranks, content } => {
                let needed = match self.must_write(cx, &said)? {
                    Ok(needed) => needed,
                    Err(unplanned) => return self.keep_notice(cx, said, Some(unplanned)),
                };
                let done = LeaseDone { agent: &said.agent, holder: said.holder, ranks, content, needed: &needed };
                (self.leases.done(now, key, direction, &done), Some(content))
            }
            NoticeKind::Cancel { content } => {
                let content = content.as_ref();
                let applied = self.leases.cancel_by(now, key, direction, by, content);
                (applied, content)
            }
            NoticeKind::Renew { ttl_ms } => {
                let ttl = Duration::from_millis(*ttl_ms);
                let left = self.leases.renew_by(now, key, direction, by, ttl)?;
                return Ok(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
            }
        };
        match (applied, content) {
            // The lease ended before, because of this notice or otherwise. That counts as heard.
            (Ok(()) | Err(UseError::Ended { .. }), _) => Ok(0),
            (Err(error), Some(content)) => Err(self.refuse_use(cx, key, content, error)),
            (Err(error), None) => Err(error.into()),
        }
    }

    /// Returns the ranks of the holder that must write to make this rank's blocks complete. If nothing was pushed yet,
    /// only a plan can tell; the inner error is the plan that must be compiled first.
    fn must_write(&self, cx: &mut Context<D>, said: &Said) -> Result<Result<BTreeSet<Rank>, PlanAsk>, Refusal> {
        let key = said.key;
        let spec = self.leases.spec(&key);
        let Some(spec) = spec.filter(|_| said.direction == Direction::Push) else {
            return Ok(Ok(BTreeSet::new()));
        };
        if let Some(writers) = self.leases.writers(&key) {
            return Ok(Ok(writers.clone()));
        }
        let wanted = PlanAsk {
            peer: said.holder.deployment,
            local_is_source: false,
            // The order of layers does not affect which routes there are.
            request: Request { start: spec.start, ..Request::tokens(spec.valid_tokens - spec.start) },
        };
        let plan = cx.plan_for_peer(&said.agent, &wanted)?;
        Ok(plan.map(|plan| plan.peers_of(key.rank)).ok_or(wanted))
    }
}
