//! What waits at an owner: for its lease, or for the fence of an earlier attempt.

use super::message::{Ask, Invitation, Message, WaitingOn};
use super::owner::ranks;
use super::planner::Planner;
use super::refusal::Refusal;
use super::{ConnId, Machine};
use crate::ids::{AgentId, Direction, Incarnation, TransferId};
use crate::lease::{Holder, LeaseKey};
use crate::moment::Moment;
use crate::wire::message::NoticeKind;

/// What waits for its lease.
#[derive(Debug)]
pub(crate) enum Parked {
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
pub(crate) struct Queued {
    pub(super) conn: ConnId,
    pub(super) direction: Direction,
    pub(super) ask: Box<Ask>,
}

impl<B, P: Planner> Machine<B, P> {
    pub(super) fn park_ask(
        &mut self,
        now: Moment,
        conn: ConnId,
        key: LeaseKey,
        direction: Direction,
        ask: Box<Ask>,
    ) {
        let transfer = ask.transfer;
        let Some(agent) = self.peer_agent(conn) else {
            return;
        };
        let parked = Parked::Ask {
            conn,
            direction,
            ask,
        };
        match self.early.park(now, key, &agent, parked) {
            Ok(()) => {
                let on = WaitingOn::Lease;
                self.send(conn, Message::Waiting { transfer, on });
            }
            Err(_) => {
                let limit = u32::try_from(self.options.early_per_agent).unwrap_or(u32::MAX);
                self.refuse(conn, transfer, Refusal::Busy { limit });
            }
        }
    }

    pub(super) fn unpark(&mut self, now: Moment, parked: Parked) {
        match parked {
            Parked::Ask {
                conn,
                direction,
                ask,
            } => {
                let (rank, _) = ranks(direction, &ask);
                if let Ok(claims) = self.authenticate(conn, &ask.ticket) {
                    let set = claims.set;
                    self.decide(now, conn, LeaseKey { set, rank }, direction, ask);
                }
            }
            Parked::Notice {
                key,
                direction,
                agent,
                holder,
                says,
            } => {
                // Nobody waits for the answer any more.
                let _ = self.apply(now, key, direction, &agent, holder, &says);
            }
            Parked::Invitation {
                conn,
                key,
                invitation,
            } => {
                let outcome = self
                    .check_target(conn, &invitation.into)
                    .and_then(|into| self.accept_invitation(now, conn, key, &invitation, &into));
                self.answer_invitation(conn, invitation.id, outcome);
            }
        }
    }

    /// What was parked has waited for too long.
    pub(super) fn refuse_parked(&mut self, parked: Parked, refusal: Refusal) {
        match parked {
            Parked::Ask { conn, ask, .. } => self.refuse(conn, ask.transfer, refusal),
            Parked::Invitation {
                conn, invitation, ..
            } => self.answer_invitation(conn, invitation.id, Err(refusal)),
            Parked::Notice { .. } => {}
        }
    }

    /// What a connection has asked for, and was not begun, is of no use without it.
    pub(super) fn forget_asks(&mut self, conn: ConnId) {
        self.early.take_if(|parked| match parked {
            Parked::Ask { conn: c, .. } | Parked::Invitation { conn: c, .. } => *c == conn,
            Parked::Notice { .. } => false,
        });
        self.queued.retain(|_, queued| queued.conn != conn);
    }

    /// An agent shows another life than before: what it has left here in its last one binds nothing any
    /// more. What others have left is theirs, whatever life they claimed: a claim proves nothing.
    pub(super) fn forget_past(&mut self, agent: &AgentId, incarnation: Incarnation) {
        self.early.take_if(|parked| match parked {
            Parked::Notice {
                agent: by, holder, ..
            } => by == agent && holder.incarnation != incarnation,
            // They went with the connection they came on.
            Parked::Ask { .. } | Parked::Invitation { .. } => false,
        });
    }

    /// The asker has given up an ask that was not begun.
    pub(super) fn forget_ask(&mut self, conn: ConnId, transfer: TransferId) {
        self.early.take_if(|parked| match parked {
            Parked::Ask { conn: c, ask, .. } => *c == conn && ask.transfer == transfer,
            Parked::Notice { .. } | Parked::Invitation { .. } => false,
        });
        let it = |queued: &Queued| queued.conn == conn && queued.ask.transfer == transfer;
        self.queued.retain(|_, queued| !it(queued));
    }
}
