//! What the owner of leases does: opens them, and answers who holds a ticket.

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
use crate::flows::refuse;
use crate::ground::Ground;
use crate::ids::{ConnId, JobId};
use crate::lease::{LeaseKey, LeaseSpec, LeaseTable, OpenError, OpenFault, UseError};
use crate::options::Options;
use crate::planner::{PlanAsk, Planned, Planner};
use crate::plans::MOST_COMPILING;
use crate::refusal::{Refusal, Text};

use pending::{Asked, Demand, PendingDemands};
use push::InvitedPush;

pub(crate) use limits::check_places_of_one;

/// The leases of this agent, and what waits at them.
#[derive(Debug)]
pub(crate) struct Owner<P: Planner> {
    pub(crate) leases: LeaseTable<Held<P::Blocks>>,
    /// What waits for its lease, or for a plan.
    pending: PendingDemands,
    /// What waits for the fence of an earlier attempt of the same pair of ranks.
    queued: HashMap<(LeaseKey, Rank), Asked>,
    /// Pushes that were invited here, by what pins their leases.
    pushes: HashMap<TransferId, InvitedPush>,
    /// Plans of lease sets of which more routes may be asked for.
    plans: HashMap<LeaseSetId, KeptPlan<P::Plan>>,
}

/// What the leases of a set move by.
#[derive(Debug)]
struct KeptPlan<L> {
    plan: Arc<Planned<L>>,
    /// Who has asked for it.
    by: AgentId,
    /// Whose leases are open.
    ranks: BTreeSet<Rank>,
}

impl<P: Planner> Owner<P> {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            leases: LeaseTable::new(options.leases.clone()),
            pending: PendingDemands::new(options),
            queued: HashMap::new(),
            pushes: HashMap::new(),
            plans: HashMap::new(),
        }
    }

    /// How much waits: for its lease; and for a plan, or the fence of an earlier attempt.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let (for_lease, for_plan) = self.pending.len();
        (for_lease, for_plan + self.queued.len())
    }

    /// How many invited pushes have pinned a lease.
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

    /// Does what is due.
    pub(crate) fn on_deadline(&mut self, cx: &mut Context<P>) {
        self.leases.on_deadline(cx.now);
        while let Some(late) = self.pending.pop_due(cx.now) {
            let refusal = match late.plan {
                None => Refusal::UnknownLease,
                Some(_) => Refusal::busy(MOST_COMPILING as u64),
            };
            self.refuse_pending(cx, late.demand, refusal);
        }
    }

    /// Refuses whatever waits for a lease.
    pub(crate) fn drain(&mut self, cx: &mut Context<P>) {
        for demand in self.pending.take_early() {
            self.refuse_pending(cx, demand, Refusal::ShuttingDown);
        }
    }
}

/// What the owner itself does.
impl<P: Planner> Owner<P> {
    /// Opens a lease, and lets in what has waited for it.
    pub(crate) fn lease(
        &mut self,
        g: &mut Ground<'_, P>,
        spec: LeaseSpec,
        blocks: P::Blocks,
    ) -> Result<(), OpenError<P::Blocks>> {
        let key = spec.key;
        let checked = if g.cx.draining {
            Err(OpenFault::ShuttingDown)
        } else if !g.cx.me.ranks.contains(&key.rank) {
            Err(OpenFault::NotOurs { rank: key.rank })
        } else if g.cx.lost.contains(&key.rank) {
            Err(OpenFault::DeviceLost { rank: key.rank })
        } else {
            self.leases.check_open(g.cx.now, &spec)
        };
        match checked {
            Ok(()) => self.open(g, spec, Held::Own(blocks)),
            Err(reason) => {
                return Err(OpenError { key, reason, blocks });
            }
        }
        Ok(())
    }

    /// Opens what nothing stands against, and lets in what has waited for it.
    pub(crate) fn open(&mut self, g: &mut Ground<'_, P>, spec: LeaseSpec, blocks: Held<P::Blocks>) {
        self.leases.insert(g.cx.now, spec, blocks);
        for demand in self.pending.opened(&spec.key) {
            self.let_in(g, demand);
        }
    }

    /// Keeps the plan of a lease for the routes that are still to be asked for, where there is room. Half of it is for one
    /// service at most, so that one certificate does not take all.
    fn keep_plan(&mut self, key: LeaseKey, by: &AgentId, plan: &Arc<Planned<P::Plan>>) {
        if let Some(kept) = self.plans.get_mut(&key.set)
            && Arc::ptr_eq(&kept.plan, plan)
        {
            kept.ranks.insert(key.rank);
            return;
        }
        // A later request for other tokens takes the place of an earlier one.
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

    /// Nothing more is asked for by the plan of a lease.
    pub(crate) fn forget_plan(&mut self, key: LeaseKey) {
        if let Entry::Occupied(mut kept) = self.plans.entry(key.set) {
            kept.get_mut().ranks.remove(&key.rank);
            if kept.get().ranks.is_empty() {
                kept.remove();
            }
        }
    }

    /// What reads or writes the blocks of a lease, and the job of each that was invited to push them.
    pub(crate) fn pins(&self, key: &LeaseKey) -> Vec<(TransferId, Option<JobId>)> {
        let pins = self.leases.pins(key).copied();
        pins.map(|pin| (pin, self.push_of(pin))).collect()
    }

    pub(crate) fn push_of(&self, pin: TransferId) -> Option<JobId> {
        self.pushes.get(&pin).map(|push| push.job)
    }

    /// The pull whose write lease this is.
    pub(crate) fn opened_by(&self, key: &LeaseKey) -> Option<JobId> {
        match self.leases.blocks(key)? {
            Held::Of(BlocksOf::Job(id)) => Some(*id),
            _ => None,
        }
    }

    /// An agent shows a life: what others of its lives have left here is over.
    pub(crate) fn agent_up(&mut self, cx: &mut Context<P>, agent: &AgentId, incarnation: Incarnation) {
        self.leases.agent_up(cx.now, agent, incarnation);
        // What others have left is theirs, whatever life they claimed: a claim proves nothing.
        self.pending.forget(|demand| match demand {
            Demand::Notice(said) => said.agent == *agent && said.holder.incarnation != incarnation,
            // They went with the connection they came on.
            Demand::Ask(_) | Demand::Push(_) => false,
        });
    }

    /// What is told of a use that a lease does not allow.
    fn refuse_use(&self, cx: &mut Context<P>, key: LeaseKey, stated: &ContentDigest, error: UseError) -> Refusal {
        if error == UseError::Content
            && let Some(spec) = self.leases.spec(&key)
        {
            let (held, stated) = (spec.content, *stated);
            cx.act(Action::OtherContent { key, held, stated });
        }
        error.into()
    }

    /// A transfer with the holder's `peer_rank` touches the blocks no more: the next attempt of that pair may come.
    pub(crate) fn unpin(&mut self, g: &mut Ground<'_, P>, key: LeaseKey, peer_rank: Rank, transfer: TransferId) {
        self.leases.unpin(g.cx.now, key, transfer);
        if let Some(next) = self.queued.remove(&(key, peer_rank)) {
            self.decide(g, next);
        }
    }

    /// The device of a rank is lost: ends its leases, and refuses what waits for others.
    pub(crate) fn lose(&mut self, cx: &mut Context<P>, rank: Rank) {
        self.leases.lose(rank);
        for demand in self.pending.of_rank(rank) {
            self.refuse_pending(cx, demand, Refusal::DeviceLost);
        }
    }

    /// Memory is not done with the blocks of a lease: ends it, and gives its blocks where that is news. What waits for that
    /// fence is refused.
    pub(crate) fn stall(
        &mut self,
        cx: &mut Context<P>,
        key: LeaseKey,
        transfer: Option<TransferId>,
    ) -> Option<&Held<P::Blocks>> {
        let blocks = self.leases.stall(key, transfer)?;
        for (_, asked) in self.queued.extract_if(|(of, _), _| *of == key) {
            refuse(cx, asked.conn, asked.ask.transfer, Refusal::DeviceStalled);
        }
        Some(blocks)
    }

    /// An invited push touches the blocks of its lease no more.
    pub(crate) fn push_over(&mut self, key: LeaseKey, landed: bool) {
        if let Some(pin) = self.leases.push_over(key, landed) {
            self.pushes.remove(&pin);
        }
    }
}

/// What waits.
impl<P: Planner> Owner<P> {
    /// A plan is compiled, or cannot be: what waits for it goes on, or is refused.
    pub(crate) fn compiled(&mut self, g: &mut Ground<'_, P>, ask: &PlanAsk, outcome: Result<(), &Text>) {
        self.pending.bring_compiled(ask);
        // One at a time: an invitation is answered when no rank of it waits any more.
        while let Some(demand) = self.pending.pop_compiled(ask) {
            match outcome {
                Ok(()) => self.let_in(g, demand),
                Err(why) => {
                    let why = why.clone();
                    self.refuse_pending(g.cx, demand, Refusal::Unplannable { why });
                }
            }
        }
    }

    /// Goes on with what has waited for a lease that is open now, or for its plan.
    fn let_in(&mut self, g: &mut Ground<'_, P>, demand: Demand) {
        match demand {
            Demand::Ask(asked) => self.decide(g, asked),
            // No agent waits for the answer any more.
            Demand::Notice(said) => drop(self.apply(g.cx, said)),
            Demand::Push(wanted) => {
                let into = self.check_target(g, wanted.conn, &wanted.invitation.into);
                let (conn, id) = (wanted.conn, wanted.invitation.id);
                let outcome = into.and_then(|into| self.accept(g, wanted, &into));
                self.answer_invitation(g.cx, conn, id, outcome);
            }
        }
    }

    fn refuse_pending(&mut self, cx: &mut Context<P>, demand: Demand, refusal: Refusal) {
        match demand {
            Demand::Ask(asked) => self.refuse_ask(cx, asked, refusal),
            Demand::Push(wanted) => {
                self.answer_invitation(cx, wanted.conn, wanted.invitation.id, Err(refusal));
            }
            Demand::Notice(_) => {}
        }
    }

    /// What a connection has asked for, and was not begun, is of no use without it.
    pub(crate) fn forget_asks(&mut self, conn: ConnId) {
        self.pending.forget(|demand| demand.conn() == Some(conn));
        self.queued.retain(|_, asked| asked.conn != conn);
    }

    /// The asker has given up an ask that was not begun.
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
