//! What waits at an owner: for its lease, for a plan, or for the fence of an earlier attempt.

use super::Owner;
use super::asks::ranks;
use super::notices::Said;
use crate::ids::{AgentId, Direction, Incarnation, TransferId};
use crate::lease::{Early, Holder, LeaseKey};
use crate::moment::Moment;
use crate::wire::context::Context;
use crate::wire::flows::refuse;
use crate::wire::ground::Ground;
use crate::wire::ids::ConnId;
use crate::wire::message::{Ask, Invitation, Message, NoticeKind, WaitingOn};
use crate::wire::options::Options;
use crate::wire::planner::{PlanAsk, Planner};
use crate::wire::refusal::{Refusal, Text};

/// A demand that waits: for its lease, or for the plan of a lease that is there.
#[derive(Debug)]
pub(super) struct Pending {
    /// The plan that it waits for; `None` where it waits for its lease.
    pub(super) plan: Option<PlanAsk>,
    pub(super) demand: Demand,
}

/// What a peer wants of a lease.
#[derive(Debug)]
pub(super) enum Demand {
    Ask {
        conn: ConnId,
        direction: Direction,
        ask: Box<Ask>,
    },
    Notice {
        key: LeaseKey,
        direction: Direction,
        agent: AgentId,
        holder: Holder,
        says: NoticeKind,
    },
    Invitation {
        conn: ConnId,
        key: LeaseKey,
        invitation: Box<Invitation>,
    },
}

/// All pending demands. Those that wait for a plan have passed every check, so they take no room from those that come before
/// their lease.
#[derive(Debug)]
pub(super) struct PendingDemands {
    for_lease: Early<Pending>,
    for_plan: Early<Pending>,
}

impl PendingDemands {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            for_lease: Early::new(
                options.early_wait,
                options.early,
                options.early_per_agent,
                options.early_per_service,
            ),
            for_plan: Early::new(
                options.early_wait,
                usize::MAX,
                options.transfers_per_agent,
                options.transfers_per_service,
            ),
        }
    }

    fn keep(&mut self, now: Moment, key: LeaseKey, agent: &AgentId, pending: Pending) -> bool {
        match pending.plan {
            None => self.for_lease.keep(now, key, agent, pending),
            Some(_) => self.for_plan.keep(now, key, agent, pending),
        }
    }

    /// How much waits for a lease, and how much for a plan.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.for_lease.len(), self.for_plan.len())
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let deadlines = [&self.for_lease, &self.for_plan].map(Early::next_deadline);
        deadlines.into_iter().flatten().min()
    }

    /// Takes what has waited for a lease.
    pub(super) fn opened(&mut self, key: &LeaseKey) -> Vec<Pending> {
        self.for_lease.take(key)
    }

    /// Takes the first thing that has waited for a plan.
    fn pop_compiled(&mut self, ask: &PlanAsk) -> Option<Pending> {
        let waits = |pending: &Pending| pending.plan.as_ref() == Some(ask);
        self.for_plan.pop_if(waits)
    }

    /// Takes one thing that has waited for too long.
    pub(super) fn pop_due(&mut self, now: Moment) -> Option<Pending> {
        let due = self.for_lease.pop_due(now);
        due.or_else(|| self.for_plan.pop_due(now))
    }

    /// Takes all that waits for leases.
    pub(super) fn take_early(&mut self) -> Vec<Pending> {
        self.for_lease.take_if(|_| true)
    }

    /// Drops everything that is like this.
    pub(super) fn forget(&mut self, like: impl Fn(&Demand) -> bool) {
        for table in [&mut self.for_lease, &mut self.for_plan] {
            table.take_if(|pending| like(&pending.demand));
        }
    }

    pub(super) fn any(&self, like: impl Fn(&Demand) -> bool) -> bool {
        let mut tables = [&self.for_lease, &self.for_plan].into_iter();
        tables.any(|table| table.any(|pending| like(&pending.demand)))
    }

    pub(super) fn any_for(&self, key: &LeaseKey, like: impl Fn(&Demand) -> bool) -> bool {
        let mut tables = [&self.for_lease, &self.for_plan].into_iter();
        tables.any(|table| table.any_for(key, |pending| like(&pending.demand)))
    }
}

/// An ask that waits for the fence of an earlier attempt.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) conn: ConnId,
    pub(super) direction: Direction,
    pub(super) ask: Box<Ask>,
}

impl<P: Planner> Owner<P> {
    /// Keeps an ask until its lease is opened, or its plan compiled.
    pub(super) fn keep_ask(
        &mut self,
        g: &mut Ground<'_, P>,
        conn: ConnId,
        key: LeaseKey,
        direction: Direction,
        ask: Box<Ask>,
        plan: Option<PlanAsk>,
    ) {
        let transfer = ask.transfer;
        let Some(agent) = g.peers.agent(conn) else {
            return;
        };
        let demand = Demand::Ask {
            conn,
            direction,
            ask,
        };
        let planned = plan.is_some();
        match self.keep(g.cx, key, agent, Pending { plan, demand }) {
            // A plan is there in a moment.
            Ok(()) if planned => {}
            Ok(()) => {
                let on = WaitingOn::Lease;
                g.cx.send(conn, Message::Waiting { transfer, on });
            }
            Err(busy) => refuse(g.cx, conn, transfer, busy),
        }
    }

    /// Keeps something from `agent` until it can go on.
    pub(super) fn keep(
        &mut self,
        cx: &Context<P>,
        key: LeaseKey,
        agent: &AgentId,
        pending: Pending,
    ) -> Result<(), Refusal> {
        match self.pending.keep(cx.now, key, agent, pending) {
            true => Ok(()),
            false => Err(Refusal::busy(cx.options.early_per_agent as u64)),
        }
    }

    /// A plan is compiled, or cannot be: what waits for it goes on, or is refused.
    pub(in crate::wire) fn compiled(
        &mut self,
        g: &mut Ground<'_, P>,
        ask: &PlanAsk,
        outcome: Result<(), &Text>,
    ) {
        // One at a time: an invitation is answered when no rank of it waits any more.
        while let Some(pending) = self.pending.pop_compiled(ask) {
            match outcome {
                Ok(()) => self.let_in(g, pending.demand),
                Err(why) => {
                    let why = why.clone();
                    self.refuse_pending(g.cx, pending.demand, Refusal::Unplannable { why });
                }
            }
        }
    }

    /// Goes on with what has waited for a lease that is open now, or for its plan.
    pub(super) fn let_in(&mut self, g: &mut Ground<'_, P>, pending: Demand) {
        match pending {
            Demand::Ask {
                conn,
                direction,
                ask,
            } => {
                let (rank, _) = ranks(direction, &ask);
                if let Ok(claims) = g.peers.authenticate(g.cx, conn, &ask.ticket) {
                    let set = claims.set;
                    self.decide(g, conn, LeaseKey { set, rank }, direction, ask);
                }
            }
            Demand::Notice {
                key,
                direction,
                agent,
                holder,
                says,
            } => {
                let said = Said {
                    direction,
                    agent: &agent,
                    holder,
                    says: &says,
                };
                // Nobody waits for the answer any more.
                let _ = self.apply(g.cx, key, said);
            }
            Demand::Invitation {
                conn,
                key,
                invitation,
            } => {
                let into = self.check_target(g, conn, &invitation.into);
                let outcome = into.and_then(|into| self.accept(g, conn, key, &invitation, &into));
                self.answer_invitation(g.cx, conn, invitation.id, outcome);
            }
        }
    }

    /// Refuses what has waited for too long.
    pub(super) fn refuse_pending(
        &mut self,
        cx: &mut Context<P>,
        pending: Demand,
        refusal: Refusal,
    ) {
        match pending {
            Demand::Ask { conn, ask, .. } => refuse(cx, conn, ask.transfer, refusal),
            Demand::Invitation {
                conn, invitation, ..
            } => self.answer_invitation(cx, conn, invitation.id, Err(refusal)),
            Demand::Notice { .. } => {}
        }
    }

    /// What a connection has asked for, and was not begun, is of no use without it.
    pub(in crate::wire) fn forget_asks(&mut self, conn: ConnId) {
        self.pending.forget(|pending| match pending {
            Demand::Ask { conn: c, .. } | Demand::Invitation { conn: c, .. } => *c == conn,
            Demand::Notice { .. } => false,
        });
        self.queued.retain(|_, queued| queued.conn != conn);
    }

    /// An agent shows another life than before: what it has left here in its last one binds nothing any
    /// more. What others have left is theirs, whatever life they claimed: a claim proves nothing.
    pub(super) fn forget_past(&mut self, agent: &AgentId, incarnation: Incarnation) {
        self.pending.forget(|pending| match pending {
            Demand::Notice {
                agent: by, holder, ..
            } => by == agent && holder.incarnation != incarnation,
            // They went with the connection they came on.
            Demand::Ask { .. } | Demand::Invitation { .. } => false,
        });
    }

    /// The asker has given up an ask that was not begun.
    pub(in crate::wire) fn forget_ask(&mut self, conn: ConnId, transfer: TransferId) {
        self.pending.forget(|pending| match pending {
            Demand::Ask { conn: c, ask, .. } => *c == conn && ask.transfer == transfer,
            Demand::Notice { .. } | Demand::Invitation { .. } => false,
        });
        let it = |queued: &Queued| queued.conn == conn && queued.ask.transfer == transfer;
        self.queued.retain(|_, queued| !it(queued));
    }
}
