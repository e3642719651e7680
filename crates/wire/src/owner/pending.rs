//! Requests that wait at an owner, for their lease or for a plan.
//!
//! A worker may learn of a lease after its scheduler has handed out the ticket, so an authentic ticket for an unknown
//! lease is no error. Remembering such requests costs memory, hence the limits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use transload_plan::ids::{AgentId, Direction, Rank};

use crate::ids::ConnId;
use crate::lease::{Holder, LeaseKey};
use crate::message::{Ask, Invitation, NoticeKind};
use crate::moment::Moment;
use crate::options::Options;
use crate::plans::PlanAsk;
use crate::refusal::{Refusal, room};

#[derive(Debug)]
pub(super) enum Demand {
    Ask(Asked),
    Notice(Said),
    Push(WantedPush),
}

#[derive(Debug)]
pub(super) struct Asked {
    pub(super) conn: ConnId,
    pub(super) direction: Direction,
    pub(super) key: LeaseKey,
    pub(super) ask: Box<Ask>,
}

/// An invitation, with authentic tickets, to push the blocks of one lease.
#[derive(Clone, Debug)]
pub(super) struct WantedPush {
    pub(super) conn: ConnId,
    pub(super) key: LeaseKey,
    pub(super) invitation: Arc<Invitation>,
}

#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) key: LeaseKey,
    pub(super) direction: Direction,
    pub(super) agent: AgentId,
    pub(super) holder: Holder,
    pub(super) says: NoticeKind,
}

impl Demand {
    fn key(&self) -> LeaseKey {
        match self {
            Demand::Ask(asked) => asked.key,
            Demand::Notice(said) => said.key,
            Demand::Push(wanted) => wanted.key,
        }
    }

    pub(super) fn ask(&self) -> Option<&Asked> {
        match self {
            Demand::Ask(asked) => Some(asked),
            _ => None,
        }
    }

    /// Returns the connection without which the request is pointless.
    pub(super) fn conn(&self) -> Option<ConnId> {
        match self {
            Demand::Ask(Asked { conn, .. }) | Demand::Push(WantedPush { conn, .. }) => Some(*conn),
            Demand::Notice(_) => None,
        }
    }
}

impl Asked {
    pub(super) fn peer_rank(&self) -> Rank {
        match self.direction {
            Direction::Pull => self.ask.destination,
            Direction::Push => self.ask.source,
        }
    }
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) demand: Demand,
    /// The plan that it waits for. `None` if it waits for its lease.
    pub(super) plan: Option<PlanAsk>,
    agent: AgentId,
    until: Moment,
}

#[derive(Debug)]
pub(super) struct PendingDemands {
    /// In order of arrival. All wait equally long, so this is also the order of deadlines.
    waiting: VecDeque<Pending>,
    wait: Duration,
    for_lease: Most,
    /// The requests that wait for a plan have passed every check. A limit of their own keeps them from taking room of
    /// those that wait for a lease.
    for_plan: Most,
}

#[derive(Debug)]
struct Most {
    in_all: usize,
    per_agent: usize,
    per_service: usize,
}

impl PendingDemands {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            waiting: VecDeque::new(),
            wait: options.early_wait,
            for_lease: Most {
                in_all: options.early,
                per_agent: options.early_per_agent,
                per_service: options.early_per_service,
            },
            for_plan: Most {
                // As for leases, one service gets at most half of all.
                in_all: options.transfers_per_service.saturating_mul(2),
                per_agent: options.transfers_per_agent,
                per_service: options.transfers_per_service,
            },
        }
    }

    /// Keeps a request of an agent, if there is room.
    pub(super) fn keep(
        &mut self,
        now: Moment,
        agent: &AgentId,
        demand: Demand,
        plan: Option<PlanAsk>,
    ) -> Result<(), Refusal> {
        let most = match plan {
            None => &self.for_lease,
            Some(_) => &self.for_plan,
        };
        let (mut in_all, mut of_service, mut of_agent) = (0, 0, 0);
        let alike = |pending: &&Pending| pending.plan.is_some() == plan.is_some();
        for pending in self.waiting.iter().filter(alike) {
            in_all += 1;
            of_service += usize::from(pending.agent.service() == agent.service());
            of_agent += usize::from(pending.agent == *agent);
        }
        room(most.per_agent, of_agent)?;
        room(most.per_service, of_service)?;
        room(most.in_all, in_all)?;
        self.waiting.push_back(Pending { demand, plan, agent: agent.clone(), until: now + self.wait });
        Ok(())
    }

    /// Returns the number of requests that wait for a lease, and of those that wait for a plan.
    pub(super) fn len(&self) -> (usize, usize) {
        let for_plan = self.waiting.iter().filter(|pending| pending.plan.is_some());
        let for_plan = for_plan.count();
        (self.waiting.len() - for_plan, for_plan)
    }

    /// Counts the asks of such agents that wait for a plan. Limits are not checked again when these continue.
    pub(super) fn asks_for_plans(&self, its: impl Fn(&AgentId) -> bool) -> usize {
        let for_plan = |pending: &&Pending| pending.plan.is_some() && its(&pending.agent);
        let waiting = self.waiting.iter().filter(for_plan);
        waiting.filter(|pending| pending.demand.ask().is_some()).count()
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.waiting.front().map(|pending| pending.until)
    }

    pub(super) fn pop_due(&mut self, now: Moment) -> Option<Pending> {
        let due = self.waiting.front()?.until <= now;
        due.then(|| self.waiting.pop_front())?
    }

    /// Moves the requests for a compiled plan to the front, so that taking them one by one needs no search.
    pub(super) fn bring_compiled(&mut self, ask: &PlanAsk) {
        // The sort is stable, and fast on long runs of equal keys.
        let waiting = self.waiting.make_contiguous();
        waiting.sort_by_key(|pending| pending.plan.as_ref() != Some(ask));
    }

    /// Takes the first request, if it waits for this plan.
    pub(super) fn pop_compiled(&mut self, ask: &PlanAsk) -> Option<Demand> {
        let compiled = self.waiting.front()?.plan.as_ref() == Some(ask);
        compiled.then(|| self.waiting.pop_front())?.map(|pending| pending.demand)
    }

    /// Takes the requests that wait for a lease.
    pub(super) fn opened(&mut self, key: &LeaseKey) -> Vec<Demand> {
        self.take(|pending| pending.plan.is_none() && pending.demand.key() == *key)
    }

    pub(super) fn of_rank(&mut self, rank: Rank) -> Vec<Demand> {
        self.take(|pending| pending.plan.is_none() && pending.demand.key().rank == rank)
    }

    /// Takes all requests that wait for leases.
    pub(super) fn take_early(&mut self) -> Vec<Demand> {
        self.take(|pending| pending.plan.is_none())
    }

    pub(super) fn forget(&mut self, like: impl Fn(&Demand) -> bool) {
        self.waiting.retain(|pending| !like(&pending.demand));
    }

    pub(super) fn asks(&self) -> impl Iterator<Item = &Asked> {
        self.waiting.iter().filter_map(|pending| pending.demand.ask())
    }

    pub(super) fn any(&self, like: impl Fn(&Demand) -> bool) -> bool {
        self.waiting.iter().any(|pending| like(&pending.demand))
    }

    fn take(&mut self, like: impl Fn(&Pending) -> bool) -> Vec<Demand> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (taken, left): (VecDeque<_>, VecDeque<_>) = waiting.partition(like);
        self.waiting = left;
        taken.into_iter().map(|pending| pending.demand).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transload_plan::Request;
    use transload_plan::ids::{DeploymentDigest, Incarnation, LeaseSetId};

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn key(rank: u32) -> LeaseKey {
        LeaseKey { set: LeaseSetId([0; 16]), rank: Rank(rank) }
    }

    fn deployment() -> DeploymentDigest {
        DeploymentDigest([0; 32])
    }

    /// Makes a renewal. Tests recognise it by its milliseconds.
    fn demand(rank: u32, agent: &AgentId, ttl_ms: u64) -> Demand {
        Demand::Notice(Said {
            key: key(rank),
            direction: Direction::Pull,
            agent: agent.clone(),
            holder: Holder { deployment: deployment(), incarnation: Incarnation::new(1, 1), ranks: 1 },
            says: NoticeKind::Renew { ttl_ms },
        })
    }

    fn number(demand: &Demand) -> u64 {
        match demand {
            Demand::Notice(Said { says: NoticeKind::Renew { ttl_ms }, .. }) => *ttl_ms,
            other => panic!("{other:?}"),
        }
    }

    fn demands(in_all: usize, per_agent: usize, per_service: usize) -> PendingDemands {
        PendingDemands::new(&Options {
            early_wait: Duration::from_secs(10),
            early: in_all,
            early_per_agent: per_agent,
            early_per_service: per_service,
            transfers_per_agent: 1,
            ..Options::default()
        })
    }

    #[test]
    fn demands_wait_for_a_bounded_time_and_in_bounded_number() {
        let (a, b) = (AgentId::new("a").unwrap(), AgentId::new("b").unwrap());
        let mut early = demands(3, 2, 3);
        let mut keep = |now, rank, agent: &AgentId, n| {
            let demand = demand(rank, agent, n);
            early.keep(at(now), agent, demand, None).is_ok()
        };
        assert!(keep(0, 0, &a, 1) && keep(1, 1, &a, 2));
        assert!(!keep(1, 1, &a, 3), "too many of one agent");
        assert!(keep(2, 0, &b, 4));
        assert!(!keep(2, 0, &b, 5), "too many in all");
        assert!(early.any(|demand| number(demand) == 2));
        assert!(!early.any(|demand| number(demand) == 5));
        assert!(early.pop_due(at(9)).is_none());
        let due = early.pop_due(at(10)).map(|due| number(&due.demand));
        assert_eq!((due, early.next_deadline()), (Some(1), Some(at(11))));
        let opened = early.opened(&key(0));
        assert_eq!(opened.iter().map(number).collect::<Vec<_>>(), [4]);
        early.forget(|demand| number(demand) == 2);
        assert_eq!((early.len(), early.next_deadline()), ((0, 0), None));
    }

    #[test]
    fn names_below_one_service_make_no_room() {
        let mut early = demands(9, 2, 3);
        let mut keep = |agent: &str| {
            let agent = AgentId::new(agent).unwrap();
            let demand = demand(0, &agent, 1);
            early.keep(at(0), &agent, demand, None).is_ok()
        };
        assert!(keep("a/1") && keep("a/2") && keep("a/3"));
        assert!(!keep("a/4"), "too many of one service");
        assert!(keep("b/1"));
    }

    #[test]
    fn what_waits_for_a_plan_has_room_of_its_own_and_no_lease_takes_it() {
        let a = AgentId::new("a").unwrap();
        let plan = plan(1);
        let mut all = demands(1, 1, 1);
        let mut keep = |n, plan| all.keep(at(0), &a, demand(0, &a, n), plan);
        assert_eq!(keep(1, None), Ok(()));
        assert_eq!(keep(2, Some(plan.clone())), Ok(()));
        assert_eq!(keep(3, Some(plan.clone())), Err(Refusal::busy(1)));
        assert_eq!(all.len(), (1, 1));
        let opened = all.opened(&key(0));
        assert_eq!(opened.iter().map(number).collect::<Vec<_>>(), [1]);
        all.bring_compiled(&plan);
        let compiled = all.pop_compiled(&plan).map(|demand| number(&demand));
        assert_eq!((compiled, all.len()), (Some(2), (0, 0)));
    }

    fn plan(tokens: u64) -> PlanAsk {
        PlanAsk { peer: deployment(), local_is_source: true, request: Request::tokens(tokens) }
    }

    #[test]
    fn what_waits_for_plans_is_bounded_in_all() {
        let mut all = PendingDemands::new(&Options { transfers_per_service: 2, ..Options::default() });
        let mut keep = |service: &str| {
            let agent = AgentId::new(service).unwrap();
            all.keep(at(0), &agent, demand(0, &agent, 1), Some(plan(1)))
        };
        for service in ["a", "a", "b", "b"] {
            assert_eq!(keep(service), Ok(()));
        }
        assert_eq!(keep("c"), Err(Refusal::busy(4)));
    }

    #[test]
    fn what_has_its_plan_is_taken_as_it_came_and_leaves_the_rest_in_order() {
        let a = AgentId::new("a").unwrap();
        let mut all = PendingDemands::new(&Options::default());
        for n in 0..6 {
            let plan = (n != 4).then(|| plan(n % 2));
            all.keep(at(n), &a, demand(0, &a, n), plan).unwrap();
        }
        all.bring_compiled(&plan(1));
        let take = || all.pop_compiled(&plan(1)).map(|demand| number(&demand));
        let compiled: Vec<_> = std::iter::from_fn(take).collect();
        assert_eq!(compiled, [1, 3, 5]);
        let due = || all.pop_due(at(99)).map(|due| number(&due.demand));
        assert_eq!(std::iter::from_fn(due).collect::<Vec<_>>(), [0, 2, 4]);
    }
}
