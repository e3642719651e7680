//! What waits at an owner: for its lease, or for the fence of an earlier attempt.

use super::Owner;
use super::asks::ranks;
use crate::ids::{AgentId, Direction, Incarnation, TransferId};
use crate::lease::{Holder, LeaseKey};
use crate::wire::ConnId;
use crate::wire::context::Context;
use crate::wire::flows::refuse;
use crate::wire::ground::Ground;
use crate::wire::message::{Ask, Invitation, Message, NoticeKind, WaitingOn};
use crate::wire::planner::Planner;
use crate::wire::refusal::Refusal;

/// What waits for its lease.
#[derive(Debug)]
pub(super) enum Pending {
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

/// An ask that waits for the fence of an earlier attempt.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) conn: ConnId,
    pub(super) direction: Direction,
    pub(super) ask: Box<Ask>,
}

impl<P: Planner> Owner<P> {
    /// Keeps an ask until its lease is opened.
    pub(super) fn keep_ask(
        &mut self,
        g: &mut Ground<'_, P>,
        conn: ConnId,
        key: LeaseKey,
        direction: Direction,
        ask: Box<Ask>,
    ) {
        let transfer = ask.transfer;
        let Some(agent) = g.peers.agent(conn) else {
            return;
        };
        let pending = Pending::Ask {
            conn,
            direction,
            ask,
        };
        match self.pending.park(g.cx.now, key, agent, pending) {
            Ok(()) => {
                let on = WaitingOn::Lease;
                g.cx.send(conn, Message::Waiting { transfer, on });
            }
            Err(_) => {
                let busy = Refusal::busy(g.cx.options.early_per_agent as u64);
                refuse(g.cx, conn, transfer, busy);
            }
        }
    }

    /// Goes on with what has waited for a lease that is open now.
    pub(super) fn let_in(&mut self, g: &mut Ground<'_, P>, pending: Pending) {
        match pending {
            Pending::Ask {
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
            Pending::Notice {
                key,
                direction,
                agent,
                holder,
                says,
            } => {
                // Nobody waits for the answer any more.
                let _ = self.apply(g.cx, key, direction, &agent, holder, &says);
            }
            Pending::Invitation {
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
        pending: Pending,
        refusal: Refusal,
    ) {
        match pending {
            Pending::Ask { conn, ask, .. } => refuse(cx, conn, ask.transfer, refusal),
            Pending::Invitation {
                conn, invitation, ..
            } => self.answer_invitation(cx, conn, invitation.id, Err(refusal)),
            Pending::Notice { .. } => {}
        }
    }

    /// What a connection has asked for, and was not begun, is of no use without it.
    pub(in crate::wire) fn forget_asks(&mut self, conn: ConnId) {
        self.pending.take_if(|pending| match pending {
            Pending::Ask { conn: c, .. } | Pending::Invitation { conn: c, .. } => *c == conn,
            Pending::Notice { .. } => false,
        });
        self.queued.retain(|_, queued| queued.conn != conn);
    }

    /// An agent shows another life than before: what it has left here in its last one binds nothing any
    /// more. What others have left is theirs, whatever life they claimed: a claim proves nothing.
    pub(super) fn forget_past(&mut self, agent: &AgentId, incarnation: Incarnation) {
        self.pending.take_if(|pending| match pending {
            Pending::Notice {
                agent: by, holder, ..
            } => by == agent && holder.incarnation != incarnation,
            // They went with the connection they came on.
            Pending::Ask { .. } | Pending::Invitation { .. } => false,
        });
    }

    /// The asker has given up an ask that was not begun.
    pub(in crate::wire) fn forget_ask(&mut self, conn: ConnId, transfer: TransferId) {
        self.pending.take_if(|pending| match pending {
            Pending::Ask { conn: c, ask, .. } => *c == conn && ask.transfer == transfer,
            Pending::Notice { .. } | Pending::Invitation { .. } => false,
        });
        let it = |queued: &Queued| queued.conn == conn && queued.ask.transfer == transfer;
        self.queued.retain(|_, queued| !it(queued));
    }
}
