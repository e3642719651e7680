//! What waits at an owner: for its lease, or for a plan.
//!
//! A worker may learn of a lease after its scheduler has handed the ticket out, so an authentic ticket for a lease
//! that is not known yet is no error. It is also a way to make an agent remember things, hence the bounds.

use std::time::Duration;

use crate::ids::{AgentId, Direction, Rank};
use crate::lease::{Holder, LeaseKey};
use crate::moment::Moment;
use crate::wire::ids::ConnId;
use crate::wire::message::{Ask, Invitation, NoticeKind};
use crate::wire::options::Options;
use crate::wire::planner::PlanAsk;

/// What a peer wants of a lease.
#[derive(Debug)]
pub(super) enum Demand {
    Ask(Asked),
    Notice(Said),
    Invitation {
        conn: ConnId,
        key: LeaseKey,
        invitation: Box<Invitation>,
    },
}

/// An ask with an authentic ticket.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) conn: ConnId,
    pub(super) direction: Direction,
    pub(super) key: LeaseKey,
    pub(super) ask: Box<Ask>,
}

/// What a notice says of one lease, and who does.
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
            Demand::Invitation { key, .. } => *key,
        }
    }

    /// The connection that it is of no use without.
    pub(super) fn conn(&self) -> Option<ConnId> {
        match self {
            Demand::Ask(Asked { conn, .. }) | Demand::Invitation { conn, .. } => Some(*conn),
            Demand::Notice(_) => None,
        }
    }
}

impl Asked {
    /// The asker's rank.
    pub(super) fn peer_rank(&self) -> Rank {
        match self.direction {
            Direction::Pull => self.ask.destination,
            Direction::Push => self.ask.source,
        }
    }
}

/// A demand that waits, for its lease or for a plan.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) demand: Demand,
    /// The plan of a lease that is there, where it is that which it waits for.
    pub(super) plan: Option<PlanAsk>,
    agent: AgentId,
    until: Moment,
}

/// All pending demands.
#[derive(Debug)]
pub(super) struct PendingDemands {
    /// As they came. All wait equally long, so they are due in the same order.
    waiting: Vec<Pending>,
    wait: Duration,
    for_lease: Most,
    /// They have passed every check, so they take no room from those that come before their lease.
    for_plan: Most,
}

/// How many may wait.
#[derive(Debug)]
struct Most {
    in_all: usize,
    per_agent: usize,
    per_service: usize,
}

impl PendingDemands {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            waiting: Vec::new(),
            wait: options.early_wait,
            for_lease: Most {
                in_all: options.early,
                per_agent: options.early_per_agent,
                per_service: options.early_per_service,
            },
            for_plan: Most {
                in_all: usize::MAX,
                per_agent: options.transfers_per_agent,
                per_service: options.transfers_per_service,
            },
        }
    }

    /// Keeps what an agent demands, until it is taken; says whether there was room.
    #[must_use]
    pub(super) fn keep(
        &mut self,
        now: Moment,
        agent: &AgentId,
        demand: Demand,
        plan: Option<PlanAsk>,
    ) -> bool {
        let most = match plan {
            None => &self.for_lease,
            Some(_) => &self.for_plan,
        };
        let alike = self.waiting.iter();
        let alike = alike.filter(|pending| pending.plan.is_some() == plan.is_some());
        let of_service = alike
            .clone()
            .filter(|pending| pending.agent.service() == agent.service());
        let of_agent = of_service.clone().filter(|pending| pending.agent == *agent);
        let room = alike.count() < most.in_all
            && of_service.count() < most.per_service
            && of_agent.count() < most.per_agent;
        if room {
            self.waiting.push(Pending {
                demand,
                plan,
                agent: agent.clone(),
                until: now + self.wait,
            });
        }
        room
    }

    /// How much waits for a lease, and how much for a plan.
    pub(super) fn len(&self) -> (usize, usize) {
        let for_plan = self.waiting.iter().filter(|pending| pending.plan.is_some());
        let for_plan = for_plan.count();
        (self.waiting.len() - for_plan, for_plan)
    }

    /// How many asks of such agents wait for a plan: they are let in without a further look at how many there are.
    pub(super) fn asks_for_plans(&self, its: impl Fn(&AgentId) -> bool) -> usize {
        let waiting = self
            .waiting
            .iter()
            .filter(|pending| pending.plan.is_some() && matches!(pending.demand, Demand::Ask(_)));
        waiting.filter(|pending| its(&pending.agent)).count()
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.waiting.first().map(|pending| pending.until)
    }

    /// Takes one demand that has waited for too long.
    pub(super) fn pop_due(&mut self, now: Moment) -> Option<Pending> {
        let due = self.waiting.first()?.until <= now;
        due.then(|| self.waiting.remove(0))
    }

    /// Takes the first demand that has waited for a plan.
    pub(super) fn pop_compiled(&mut self, ask: &PlanAsk) -> Option<Demand> {
        let mut waiting = self.waiting.iter();
        let first = waiting.position(|pending| pending.plan.as_ref() == Some(ask))?;
        Some(self.waiting.remove(first).demand)
    }

    /// Takes what has waited for a lease.
    pub(super) fn opened(&mut self, key: &LeaseKey) -> Vec<Demand> {
        self.take(|pending| pending.plan.is_none() && pending.demand.key() == *key)
    }

    /// Takes all that waits for leases.
    pub(super) fn take_early(&mut self) -> Vec<Demand> {
        self.take(|pending| pending.plan.is_none())
    }

    /// Drops everything that is like this.
    pub(super) fn forget(&mut self, like: impl Fn(&Demand) -> bool) {
        self.waiting.retain(|pending| !like(&pending.demand));
    }

    pub(super) fn any(&self, like: impl Fn(&Demand) -> bool) -> bool {
        self.waiting.iter().any(|pending| like(&pending.demand))
    }

    fn take(&mut self, like: impl Fn(&Pending) -> bool) -> Vec<Demand> {
        let taken = self.waiting.extract_if(.., |pending| like(pending));
        taken.map(|pending| pending.demand).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DeploymentDigest, Incarnation, LeaseSetId};
    use crate::plan::Request;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn key(rank: u32) -> LeaseKey {
        LeaseKey {
            set: LeaseSetId([0; 16]),
            rank: Rank(rank),
        }
    }

    fn deployment() -> DeploymentDigest {
        DeploymentDigest([0; 32])
    }

    /// A renewal of so many milliseconds, by which it is known again.
    fn demand(rank: u32, agent: &AgentId, ttl_ms: u64) -> Demand {
        Demand::Notice(Said {
            key: key(rank),
            direction: Direction::Pull,
            agent: agent.clone(),
            holder: Holder {
                deployment: deployment(),
                incarnation: Incarnation::new(1, 1),
                ranks: 1,
            },
            says: NoticeKind::Renew { ttl_ms },
        })
    }

    fn number(demand: &Demand) -> u64 {
        match demand {
            Demand::Notice(Said {
                says: NoticeKind::Renew { ttl_ms },
                ..
            }) => *ttl_ms,
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
            early.keep(at(now), agent, demand, None)
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
            early.keep(at(0), &agent, demand(0, &agent, 1), None)
        };
        assert!(keep("a/1") && keep("a/2") && keep("a/3"));
        assert!(!keep("a/4"), "too many of one service");
        assert!(keep("b/1"));
    }

    #[test]
    fn what_waits_for_a_plan_has_room_of_its_own_and_no_lease_takes_it() {
        let a = AgentId::new("a").unwrap();
        let plan = PlanAsk {
            peer: deployment(),
            local_is_source: true,
            request: Request::tokens(1),
        };
        let mut all = demands(1, 1, 1);
        assert!(all.keep(at(0), &a, demand(0, &a, 1), None));
        assert!(all.keep(at(0), &a, demand(0, &a, 2), Some(plan.clone())));
        assert!(!all.keep(at(0), &a, demand(0, &a, 3), Some(plan.clone())));
        assert_eq!(all.len(), (1, 1));
        let opened = all.opened(&key(0));
        assert_eq!(opened.iter().map(number).collect::<Vec<_>>(), [1]);
        let compiled = all.pop_compiled(&plan).map(|demand| number(&demand));
        assert_eq!((compiled, all.len()), (Some(2), (0, 0)));
    }
}
