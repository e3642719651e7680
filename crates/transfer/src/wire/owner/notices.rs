//! Notices from holders of tickets: done, cancel, renew.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Owner;
use super::asks::permission;
use super::pending::Pending;
use crate::ids::{AgentId, Direction, LeaseSetId, Rank};
use crate::lease::{Holder, LeaseDone, LeaseKey, UseError};
use crate::plan::Request;
use crate::wire::ConnId;
use crate::wire::context::Context;
use crate::wire::message::{Message, Notice, NoticeKind};
use crate::wire::peers::Peers;
use crate::wire::planner::{Planner, RouteAsk};
use crate::wire::refusal::{Refusal, Role};

impl<P: Planner> Owner<P> {
    pub(in crate::wire) fn on_notice(
        &mut self,
        cx: &mut Context<P>,
        peers: &Peers,
        conn: ConnId,
        notice: &Notice,
    ) {
        let id = notice.id;
        let outcome = self.take_notice(cx, peers, conn, notice);
        cx.send(conn, Message::NoticeHeard { id, outcome });
    }

    /// Does what our own notice says to our own leases of a set: nobody connects to itself. Gives what a peer would be
    /// answered.
    pub(in crate::wire) fn on_own_notice(
        &mut self,
        cx: &mut Context<P>,
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
                NoticeKind::Cancel { .. } | NoticeKind::Done { .. } => {
                    (self.leases.cancel(cx.now, key), 0)
                }
            };
            if done.is_ok() {
                outcome = Ok(left);
            }
        }
        outcome
    }

    fn take_notice(
        &mut self,
        cx: &mut Context<P>,
        peers: &Peers,
        conn: ConnId,
        notice: &Notice,
    ) -> Result<u64, Refusal> {
        let claims = peers.authenticate(cx, conn, &notice.ticket)?;
        let direction = claims.direction;
        peers.permit(
            conn,
            match notice.says {
                NoticeKind::Renew { .. } => Role::Renew,
                NoticeKind::Done { .. } | NoticeKind::Cancel { .. } => permission(direction),
            },
        )?;
        let (agent, peer) = peers.asker(conn)?;
        let holder = peer.holder;
        if let NoticeKind::Done { ranks, .. } = &notice.says
            && let Some(&rank) = ranks.iter().find(|rank| !peer.ranks.contains(rank))
        {
            return Err(Refusal::RankNotYours { rank });
        }
        let (set, ours) = (claims.set, cx.me.ranks.clone());
        let mut outcome = Err(Refusal::UnknownLease);
        for rank in ours {
            let key = LeaseKey { set, rank };
            let applied = if self.leases.knows(&key) {
                self.apply(cx, key, direction, &agent, holder, &notice.says)
            } else {
                self.keep_notice(cx, key, direction, &agent, holder, &notice.says)
            };
            outcome = match (outcome, applied) {
                (Ok(known), Ok(left)) => Ok(left.min(known)),
                (Err(Refusal::UnknownLease), applied) => applied,
                (Ok(known), Err(Refusal::UnknownLease)) => Ok(known),
                (outcome, applied) => outcome.and(applied),
            };
        }
        outcome
    }

    /// Keeps a notice until its lease is opened.
    fn keep_notice(
        &mut self,
        cx: &mut Context<P>,
        key: LeaseKey,
        direction: Direction,
        agent: &AgentId,
        holder: Holder,
        says: &NoticeKind,
    ) -> Result<u64, Refusal> {
        if matches!(says, NoticeKind::Renew { .. }) {
            return Err(Refusal::UnknownLease);
        }
        let same = |pending: &Pending| match pending {
            Pending::Notice {
                holder: by,
                says: said,
                ..
            } => *by == holder && said == says,
            Pending::Ask { .. } | Pending::Invitation { .. } => false,
        };
        if self.pending.any_for(&key, same) {
            return Ok(0);
        }
        let pending = Pending::Notice {
            key,
            direction,
            agent: agent.clone(),
            holder,
            says: says.clone(),
        };
        let busy = Refusal::busy(cx.options.early_per_agent as u64);
        let pending = self.pending.park(cx.now, key, agent, pending);
        pending.map(|()| 0).map_err(|_| busy)
    }

    /// Does what a notice says to one lease. Gives the milliseconds that a renewed one has left.
    pub(super) fn apply(
        &mut self,
        cx: &mut Context<P>,
        key: LeaseKey,
        direction: Direction,
        agent: &AgentId,
        holder: Holder,
        says: &NoticeKind,
    ) -> Result<u64, Refusal> {
        let applied = match says {
            NoticeKind::Done { ranks, content } => {
                let needed = self.must_write(cx, key, direction, &holder)?;
                let said = LeaseDone {
                    agent,
                    holder,
                    ranks,
                    content,
                    needed: &needed,
                };
                self.leases.done(cx.now, key, direction, &said)
            }
            NoticeKind::Cancel { content } => {
                let content = content.as_ref();
                self.leases
                    .cancel_by(cx.now, key, direction, &holder, content)
            }
            NoticeKind::Renew { ttl_ms } => {
                let ttl = Duration::from_millis(*ttl_ms);
                let left = self.leases.renew_by(cx.now, key, direction, &holder, ttl)?;
                return Ok(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
            }
        };
        match applied {
            // It was said before, or it is too late to matter: heard all the same.
            Ok(()) | Err(UseError::Ended { .. }) => Ok(0),
            Err(error) => Err(match says {
                NoticeKind::Done { content, .. }
                | NoticeKind::Cancel {
                    content: Some(content),
                } => self.refuse_use(cx, key, content, error),
                _ => error.into(),
            }),
        }
    }

    /// The ranks of the pusher that have to write for this rank's blocks to be whole.
    fn must_write(
        &self,
        cx: &mut Context<P>,
        key: LeaseKey,
        direction: Direction,
        holder: &Holder,
    ) -> Result<BTreeSet<Rank>, Refusal> {
        let Some((start, valid_tokens)) = self.leases.range(&key) else {
            return Ok(BTreeSet::new());
        };
        if direction == Direction::Pull {
            return Ok(BTreeSet::new());
        }
        let routes = cx.planner.routes(&RouteAsk {
            peer: holder.deployment,
            rank: key.rank,
            local_is_source: false,
            request: Request {
                start,
                tokens: valid_tokens - start,
                by_layer: false,
            },
        });
        let routes = routes.map_err(|why| Refusal::Unplannable { why: why.into() })?;
        Ok(routes.into_iter().map(|route| route.peer_rank).collect())
    }
}
