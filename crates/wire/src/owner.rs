//! The owner of leases: opens them, and answers the holders of tickets.

mod asks;
mod invitations;
mod limits;
mod notices;
mod pending;
mod push;

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use transload_plan::MAX_SLICES;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, Incarnation, LeaseSetId, Rank, TransferId};

use crate::action::{Action, BlocksOf, Held};
use crate::context::Context;
use crate::deployments::KnownDeployments;
use crate::flows::refuse;
use crate::ids::{ConnId, JobId};
use crate::lease::{LeaseKey, LeaseSpec, LeaseTable, OpenError, OpenFault, UseError};
use crate::lower::Lower;
use crate::options::Options;
use crate::plans::{MOST_COMPILING, PlanAsk, Planned};
use crate::refusal::{Refusal, Text};

use pending::{Asked, Demand, PendingDemands};
use push::InvitedPush;

pub(crate) use limits::check_places_of_one;

#[derive(Debug)]
pub(crate) struct Owner<D: KnownDeployments> {
    pub(crate) leases: LeaseTable<Held<D::Blocks>>,
    /// Requests that wait for their lease, or for a plan.
    pending: PendingDemands,
    /// Asks that wait for the fence of an earlier attempt of the same pair of ranks.
    queued: HashMap<(LeaseKey, Rank), Asked>,
    /// Invited pushes, by the ids that pin their leases.
    pushes: HashMap<TransferId, InvitedPush>,
    /// Plans of lease sets for which more routes may be asked.
    plans: HashMap<LeaseSetId, KeptPlan<D::Plan>>,
}

#[derive(Debug)]
struct KeptPlan<L> {
    plan: Arc<Planned<L>>,
    by: AgentId,
    /// The local ranks whose leases are open.
    ranks: BTreeSet<Rank>,
}

impl<D: KnownDeployments> Owner<D> {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            leases: LeaseTable::new(options.leases.clone()),
            pending: PendingDemands::new(options),
            queued: HashMap::new(),
            pushes: HashMap::new(),
            plans: HashMap::new(),
        }
    }

    /// Returns the number of requests that wait for their lease, and for a plan or the fence of an earlier attempt.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let (for_lease, for_plan) = self.pending.len();
        (for_lease, for_plan + self.queued.len())
    }

    #[cfg(test)]
    pub(crate) fn pushes(&self) -> usize {
        self.pushes.len()
    }

    pub(crate) fn next_deadline(&self) -> Option<crate::moment::Moment> {
        let deadlines = [self.leases.next_deadline(), self.pending.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    pub(crate) fn timers(&self) -> usize {
        let (for_lease, for_plan) = self.pending.len();
        self.leases.timers() + for_lease + for_plan
    }

    pub(crate) fn on_deadline(&mut self, cx: &mut Context<D>) {
        self.leases.on_deadline(cx.now);
        while let Some(late) = self.pending.pop_due(cx.now) {
            let refusal = match late.plan {
                None => Refusal::UnknownLease,
                Some(_) => Refusal::busy(MOST_COMPILING as u64),
            };
            self.refuse_pending(cx, late.demand, refusal);
        }
    }

    pub(crate) fn drain(&mut self, cx: &mut Context<D>) {
        for demand in self.pending.take_early() {
            self.refuse_pending(cx, demand, Refusal::ShuttingDown);
        }
    }
}

impl<D: KnownDeployments> Owner<D> {
    /// Opens a lease, and handles the requests that have waited for it.
    pub(crate) fn lease(
        &mut self,
        lower: &mut Lower<'_, D>,
        spec: LeaseSpec,
        blocks: D::Blocks,
    ) -> Result<(), OpenError<D::Blocks>> {
        let key = spec.key;
        let checked = if lower.cx.draining {
            Err(OpenFault::ShuttingDown)
        } else if !lower.cx.me.ranks.contains(&key.rank) {
            Err(OpenFault::NotOurs { rank: key.rank })
        } else if lower.cx.lost.contains(&key.rank) {
            Err(OpenFault::DeviceLost { rank: key.rank })
        } else {
            self.leases.check_open(lower.cx.now, &spec)
        };
        match checked {
            Ok(()) => self.open(lower, spec, Held::Own(blocks)),
            Err(reason) => {
                return Err(OpenError { key, reason, blocks });
            }
        }
        Ok(())
    }

    /// Opens a lease that has passed its checks, and handles the requests that have waited for it.
    pub(crate) fn open(&mut self, lower: &mut Lower<'_, D>, spec: LeaseSpec, blocks: Held<D::Blocks>) {
        self.leases.insert(lower.cx.now, spec, blocks);
        for demand in self.pending.opened(&spec.key) {
            self.let_in(lower, demand);
        }
    }

    /// Keeps the plan of a lease for further routes, if there is room. One service gets at most half of the room, so
    /// that one certificate cannot take all of it.
    fn keep_plan(&mut self, key: LeaseKey, by: &AgentId, plan: &Arc<Planned<D::Plan>>) {
        if let Some(kept) = self.plans.get_mut(&key.set)
            && Arc::ptr_eq(&kept.plan, plan)
        {
            kept.ranks.insert(key.rank);
            return;
        }
        // A later request for other tokens replaces an earlier one.
        self.plans.remove(&key.set);
        let (mut in_all, mut of_service) = (plan.slices, plan.slices);
        for kept in self.plans.values() {
            in_all += kept.plan.slices;
            if kept.by.service() == by.service() {
                of_service += kept.plan.slices;
            }
        }
        if in_all <= MAX_SLICES && of_service <= MAX_SLICES / 2 {
            let kept = KeptPlan { plan: plan.clone(), by: by.clone(), ranks: [key.rank].into() };
            self.plans.insert(key.set, kept);
        }
    }

    /// Drops the plan of a set when the last of its leases has ended.
    pub(crate) fn forget_plan(&mut self, key: LeaseKey) {
        if let Entry::Occupied(mut kept) = self.plans.entry(key.set) {
            kept.get_mut().ranks.remove(&key.rank);
            if kept.get().ranks.is_empty() {
                kept.remove();
            }
        }
    }

    /// Returns the transfers that use the blocks of a lease, each with its job if it is an invited push.
    pub(crate) fn pins(&self, key: &LeaseKey) -> Vec<(TransferId, Option<JobId>)> {
        let pins = self.leases.pins(key).copied();
        pins.map(|pin| (pin, self.push_of(pin))).collect()
    }

    pub(crate) fn push_of(&self, pin: TransferId) -> Option<JobId> {
        self.pushes.get(&pin).map(|push| push.job)
    }

    pub(crate) fn opened_by(&self, key: &LeaseKey) -> Option<JobId> {
        match self.leases.blocks(key)? {
            Held::Of(BlocksOf::Job(id)) => Some(*id),
            _ => None,
        }
    }

    /// Handles an agent that has connected in this life. What its other lives left here ends.
    pub(crate) fn agent_up(&mut self, cx: &mut Context<D>, agent: &AgentId, incarnation: Incarnation) {
        self.leases.agent_up(cx.now, agent, incarnation);
        // Other agents' requests stay, even if they claim another life of this agent's deployment: a claim proves
        // nothing.
        self.pending.forget(|demand| match demand {
            Demand::Notice(said) => said.agent == *agent && said.holder.incarnation != incarnation,
            // These ended with the connection that they came on.
            Demand::Ask(_) | Demand::Push(_) => false,
        });
    }

    /// Converts a refused use to the refusal for the peer.
    fn refuse_use(&self, cx: &mut Context<D>, key: LeaseKey, stated: &ContentDigest, error: UseError) -> Refusal {
        if error == UseError::Content
            && let Some(spec) = self.leases.spec(&key)
        {
            let (held, stated) = (spec.content, *stated);
            cx.act(Action::OtherContent { key, held, stated });
        }
        error.into()
    }

    /// Unpins a transfer with `peer_rank`, which no longer touches the blocks. Continues with that pair's next attempt.
    pub(crate) fn unpin(&mut self, lower: &mut Lower<'_, D>, key: LeaseKey, peer_rank: Rank, transfer: TransferId) {
        self.leases.unpin(lower.cx.now, key, transfer);
        if let Some(next) = self.queued.remove(&(key, peer_rank)) {
            self.decide(lower, next);
        }
    }

    /// Ends the leases of a rank whose device is lost, and refuses what waits for others of its leases.
    pub(crate) fn lose(&mut self, cx: &mut Context<D>, rank: Rank) {
        self.leases.lose(rank);
        for demand in self.pending.of_rank(rank) {
            self.refuse_pending(cx, demand, Refusal::DeviceLost);
        }
    }

    /// Ends a lease because memory does not finish its work on the blocks. Returns the blocks, the first time only.
    /// Attempts that wait for the fence are refused.
    pub(crate) fn stall(
        &mut self,
        cx: &mut Context<D>,
        key: LeaseKey,
        transfer: Option<TransferId>,
    ) -> Option<&Held<D::Blocks>> {
        let blocks = self.leases.stall(key, transfer)?;
        for (_, asked) in self.queued.extract_if(|(of, _), _| *of == key) {
            refuse(cx, asked.conn, asked.ask.transfer, Refusal::DeviceStalled);
        }
        Some(blocks)
    }

    /// Ends the lease of an invited push, which no longer touches its blocks.
    pub(crate) fn push_over(&mut self, key: LeaseKey, landed: bool) {
        if let Some(pin) = self.leases.push_over(key, landed) {
            self.pushes.remove(&pin);
        }
    }
}

impl<D: KnownDeployments> Owner<D> {
    /// Continues or refuses the requests that wait for a plan, which is compiled or cannot be.
    pub(crate) fn compiled(&mut self, lower: &mut Lower<'_, D>, ask: &PlanAsk, outcome: Result<(), &Text>) {
        self.pending.bring_compiled(ask);
        // One at a time: an invitation is answered when none of its ranks waits any more.
        while let Some(demand) = self.pending.pop_compiled(ask) {
            match outcome {
                Ok(()) => self.let_in(lower, demand),
                Err(why) => {
                    let why = why.clone();
                    self.refuse_pending(lower.cx, demand, Refusal::Unplannable { why });
                }
            }
        }
    }

    /// Continues with a request whose lease is open now, or whose plan is compiled.
    fn let_in(&mut self, lower: &mut Lower<'_, D>, demand: Demand) {
        match demand {
            Demand::Ask(asked) => self.decide(lower, asked),
            // Its agent has had an answer already.
            Demand::Notice(said) => drop(self.apply(lower.cx, said)),
            Demand::Push(wanted) => {
                let into = self.check_target(lower, wanted.conn, &wanted.invitation.into);
                let (conn, id) = (wanted.conn, wanted.invitation.id);
                let outcome = into.and_then(|into| self.accept(lower, wanted, &into));
                self.answer_invitation(lower.cx, conn, id, outcome);
            }
        }
    }

    fn refuse_pending(&mut self, cx: &mut Context<D>, demand: Demand, refusal: Refusal) {
        match demand {
            Demand::Ask(asked) => self.refuse_ask(cx, asked, refusal),
            Demand::Push(wanted) => {
                self.answer_invitation(cx, wanted.conn, wanted.invitation.id, Err(refusal));
            }
            Demand::Notice(_) => {}
        }
    }

    pub(crate) fn forget_asks(&mut self, conn: ConnId) {
        self.pending.forget(|demand| demand.conn() == Some(conn));
        self.queued.retain(|_, asked| asked.conn != conn);
    }

    /// Drops an ask that has not begun and that its sender has cancelled.
    pub(crate) fn forget_ask(&mut self, conn: ConnId, transfer: TransferId) {
        let is_it = |asked: &Asked| asked.conn == conn && asked.ask.transfer == transfer;
        self.pending.forget(|demand| demand.ask().is_some_and(is_it));
        self.queued.retain(|_, asked| !is_it(asked));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::simulation::plan::SimPlanner;

    #[test]
    fn kept_plans_of_one_service_leave_room_for_others() {
        let mut owner: Owner<SimPlanner<()>> = Owner::new(&Options::default());
        let key = |n| LeaseKey { set: LeaseSetId([n; 16]), rank: Rank(0) };
        let mut keeps = |n, agent: &str, slices| {
            let plan = Planned { routes: BTreeMap::new(), slices, plan: () };
            owner.keep_plan(key(n), &AgentId::new(agent).unwrap(), &Arc::new(plan));
            owner.plans.contains_key(&key(n).set)
        };
        let half = MAX_SLICES / 2;
        assert!(!keeps(1, "a", half + 1) && keeps(1, "a", half - 1));
        assert!(keeps(2, "a/1", 1) && !keeps(3, "a/2", 1));
        assert!(keeps(4, "b", half) && !keeps(5, "c", 1), "all is taken");
        assert!(keeps(1, "a", half - 2) && keeps(5, "c", 1), "in its place");
        owner.forget_plan(key(1));
        assert_eq!(owner.plans.len(), 3);
    }
}
