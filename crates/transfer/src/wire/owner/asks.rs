//! Asks: whether a peer may read leased blocks, or write opened ones.

use std::sync::Arc;

use super::Owner;
use super::pending::{Demand, Queued};
use crate::ids::{Direction, Rank, TransferId};
use crate::lease::{LeaseKey, LeaseUse};
use crate::path::Path;
use crate::path::negotiation::Way;
use crate::wire::action::{BlocksOf, Flow};
use crate::wire::flows::destination::Destination;
use crate::wire::flows::refuse;
use crate::wire::flows::source::Source;
use crate::wire::flows::transfer::{Role, Transfer};
use crate::wire::ground::Ground;
use crate::wire::ids::{ConnId, JobId};
use crate::wire::message::{Ask, Message, WaitingOn};
use crate::wire::news::{News, Side};
use crate::wire::planner::{PlanAsk, Planned, Planner, Route};
use crate::wire::refusal::{Failure, Refusal, Role as Permission};

/// An ask that was let in: between which ranks, for what, and how.
struct Admitted<P: Planner> {
    key: LeaseKey,
    direction: Direction,
    plan: Arc<Planned<P::Plan>>,
    route: Route,
    path: Path,
}

/// What becomes of an ask that nothing stands against.
enum Verdict<P: Planner> {
    Admitted(Admitted<P>),
    /// An earlier attempt has to be fenced first: two must never write, or even read, at a time.
    Fence,
    /// The plan has to be compiled first.
    Plan(PlanAsk),
}

impl<P: Planner> Owner<P> {
    pub(in crate::wire) fn on_ask(
        &mut self,
        g: &mut Ground<'_, P>,
        conn: ConnId,
        direction: Direction,
        ask: Box<Ask>,
    ) {
        if self.is_known(g, ask.transfer) {
            return;
        }
        match self.check_ask(g, conn, direction, &ask) {
            Ok(key) if self.leases.knows(&key) => self.decide(g, conn, key, direction, ask),
            Ok(key) => self.keep_ask(g, conn, key, direction, ask, None),
            Err(refusal) => self.refuse_ask(g, conn, direction, ask, refusal),
        }
    }

    fn refuse_ask(
        &mut self,
        g: &mut Ground<'_, P>,
        conn: ConnId,
        direction: Direction,
        ask: Box<Ask>,
        refusal: Refusal,
    ) {
        refuse(g.cx, conn, ask.transfer, refusal.clone());
        if direction == Direction::Push {
            g.cx.tell(News::PushRefused { conn, ask, refusal });
        }
    }

    /// Whether something with this number is under way, queued or pending: each is in one of these
    /// places, once. Two transfers of one number would share one fence, and one lease would never end.
    fn is_known(&self, g: &Ground<'_, P>, transfer: TransferId) -> bool {
        let is_it =
            |demand: &Demand| matches!(demand, Demand::Ask { ask, .. } if ask.transfer == transfer);
        let mut queued = self.queued.values();
        g.flows.get(transfer).is_some()
            || queued.any(|queued| queued.ask.transfer == transfer)
            || self.pending.any(is_it)
    }

    /// Everything about an ask that does not need the lease.
    fn check_ask(
        &self,
        g: &Ground<'_, P>,
        conn: ConnId,
        direction: Direction,
        ask: &Ask,
    ) -> Result<LeaseKey, Refusal> {
        let claims = g.peers.authenticate(g.cx, conn, &ask.ticket)?;
        let (rank, peer_rank) = ranks(direction, ask);
        let set = claims.set;
        let key = LeaseKey { set, rank };
        // What is pushed into a pull of our own belongs to what goes on until it is over.
        if g.cx.draining && self.opened_by(&key).is_none() {
            return Err(Refusal::ShuttingDown);
        }
        let ticket = claims.direction;
        if ticket != direction {
            return Err(Refusal::WrongDirection { ticket });
        }
        g.peers.permit(conn, permission(direction))?;
        if !g.cx.me.ranks.contains(&rank) {
            return Err(Refusal::RankNotHere { rank });
        }
        let (_, peer) = g.peers.asker(conn)?;
        if !peer.ranks.contains(&peer_rank) {
            return Err(Refusal::RankNotYours { rank: peer_rank });
        }
        self.check_room(g, conn)?;
        Ok(key)
    }

    /// Lets an ask in whose lease is known, or says why not.
    pub(super) fn decide(
        &mut self,
        g: &mut Ground<'_, P>,
        conn: ConnId,
        key: LeaseKey,
        direction: Direction,
        ask: Box<Ask>,
    ) {
        match self.try_admit(g, conn, key, direction, &ask) {
            Ok(Verdict::Admitted(admitted)) => self.begin(g, conn, &ask, admitted),
            Ok(Verdict::Fence) => self.queue(g, conn, key, direction, ask),
            Ok(Verdict::Plan(plan)) => self.keep_ask(g, conn, key, direction, ask, Some(plan)),
            Err(refusal) => self.refuse_ask(g, conn, direction, ask, refusal),
        }
    }

    /// The pull of ours that does not come to anything since a push into what it has opened is refused.
    pub(in crate::wire) fn pull_refused(
        &self,
        g: &Ground<'_, P>,
        conn: ConnId,
        ask: &Ask,
        refusal: &Refusal,
    ) -> Option<JobId> {
        // It tries again after the first; the others are of attempts that later ones have overtaken.
        let later = matches!(refusal, Refusal::Superseded { .. } | Refusal::Consumed);
        if refusal.is_transient() || later {
            return None;
        }
        let claims = g.peers.authenticate(g.cx, conn, &ask.ticket).ok()?;
        let (set, rank) = (claims.set, ask.destination);
        self.opened_by(&LeaseKey { set, rank })
    }

    /// Keeps an ask until the earlier attempt of its pair of ranks is fenced.
    fn queue(
        &mut self,
        g: &mut Ground<'_, P>,
        conn: ConnId,
        key: LeaseKey,
        direction: Direction,
        ask: Box<Ask>,
    ) {
        let (transfer, latest) = (ask.transfer, ask.attempt);
        let (_, peer_rank) = ranks(direction, &ask);
        let queued = Queued {
            conn,
            direction,
            ask,
        };
        if let Some(older) = self.queued.insert((key, peer_rank), queued) {
            let superseded = Refusal::Superseded { latest };
            refuse(g.cx, older.conn, older.ask.transfer, superseded);
        }
        let on = WaitingOn::Fence;
        g.cx.send(conn, Message::Waiting { transfer, on });
    }

    /// Checks everything, and only then binds the lease.
    fn try_admit(
        &mut self,
        g: &mut Ground<'_, P>,
        conn: ConnId,
        key: LeaseKey,
        direction: Direction,
        ask: &Ask,
    ) -> Result<Verdict<P>, Refusal> {
        let (rank, peer_rank) = ranks(direction, ask);
        let (agent, peer) = g.peers.asker(conn)?;
        let holder = peer.holder;
        let wanted = LeaseUse {
            agent: &agent,
            holder,
            rank: peer_rank,
            attempt: ask.attempt,
            transfer: ask.transfer,
            content: ask.content,
            request: ask.request,
        };
        let checked = self.leases.check(g.cx.now, key, direction, &wanted);
        checked.map_err(|error| self.refuse_use(g.cx, key, &wanted.content, error))?;
        let wanted_plan = PlanAsk {
            peer: holder.deployment,
            local_is_source: direction == Direction::Pull,
            request: ask.request,
        };
        let Some(plan) = g.cx.plan_for_peer(&agent, &wanted_plan)? else {
            return Ok(Verdict::Plan(wanted_plan));
        };
        let route = agreed_route(&plan, (rank, peer_rank), ask)?.clone();
        let (wanted_paths, offered) = (ask.paths, g.paths.offered(g.peers, &agent, way(direction)));
        let path = wanted_paths.and(offered).best();
        let path = path.ok_or(Refusal::PathUnavailable {
            wanted: wanted_paths,
            offered,
        })?;
        let of_pair =
            |t: &&Transfer<P>| t.side == Side::Lease(key) && t.flow.peer_rank == peer_rank;
        let earlier = g.flows.all().find(of_pair).map(|t| t.flow.transfer);
        if let Some(earlier) = earlier {
            g.flows.fail(g.cx, earlier, Failure::Superseded, true);
            if g.flows.get(earlier).is_some() {
                return Ok(Verdict::Fence);
            }
        }
        self.check_places(g, &agent, route.places)?;
        self.leases.admit(g.cx.now, key, direction, &wanted)?;
        self.keep_plan(key, &plan);
        Ok(Verdict::Admitted(Admitted {
            key,
            direction,
            plan,
            route,
            path,
        }))
    }

    fn begin(&mut self, g: &mut Ground<'_, P>, conn: ConnId, ask: &Ask, admitted: Admitted<P>) {
        let Admitted {
            key,
            direction,
            plan,
            route,
            path,
        } = admitted;
        let Ok((agent, peer)) = g.peers.asker(conn) else {
            return;
        };
        let transfer = ask.transfer;
        let (rank, peer_rank) = ranks(direction, ask);
        let flow = Flow {
            transfer,
            nonce: ask.nonce,
            conn,
            agent,
            peer: peer.holder.deployment,
            rank,
            peer_rank,
            request: ask.request,
            bytes: route.bytes,
            lanes: ask.lanes,
            path: Some(path),
            blocks: BlocksOf::Lease(key),
            all_readable: true,
            ready: Vec::new(),
        };
        let (ready, prefilled) = match self.leases.progress(&key) {
            Some((layers, prefilled)) => (layers.collect(), prefilled),
            None => (Vec::new(), true),
        };
        let role = match direction {
            Direction::Pull => Role::Source(Source::accepted(
                route.bytes,
                ask.request.by_layer,
                prefilled,
            )),
            Direction::Push => Role::Destination(Destination::accepted(route.bytes, ask.nonce)),
        };
        let attempt = Transfer {
            flow,
            plan,
            side: Side::Lease(key),
            role,
            paths: ask.paths,
            under_way: direction == Direction::Push,
            places: route.places,
            waiting: None,
            moved: 0,
        };
        g.flows.begin(g.cx, attempt);
        g.cx.send(conn, Message::Accepted { transfer, path });
        if direction == Direction::Push {
            g.cx.tell(News::Travels(transfer));
        }
        g.flows.read_if_ready(g.cx, transfer, ready);
    }
}

/// The route between the owner's rank and the asker's, if both have compiled the same.
fn agreed_route<'p, L>(
    plan: &'p Planned<L>,
    ranks: (Rank, Rank),
    ask: &Ask,
) -> Result<&'p Route, Refusal> {
    let (owner, asker) = ranks;
    let mut routes = plan.of_rank(owner).iter();
    let route = routes.find(|route| route.peer_rank == asker);
    let route = route.ok_or(Refusal::NoRoute { owner, asker })?;
    match route.digest == ask.plan {
        true => Ok(route),
        false => Err(Refusal::PlanDigestMismatch {
            ours: route.digest,
            theirs: ask.plan,
        }),
    }
}

/// The owner's rank, and the asker's.
pub(super) fn ranks(direction: Direction, ask: &Ask) -> (Rank, Rank) {
    match direction {
        Direction::Pull => (ask.source, ask.destination),
        Direction::Push => (ask.destination, ask.source),
    }
}

/// Which way bytes go from the owner.
fn way(direction: Direction) -> Way {
    match direction {
        Direction::Pull => Way::Out,
        Direction::Push => Way::In,
    }
}

pub(super) fn permission(direction: Direction) -> Permission {
    match direction {
        Direction::Pull => Permission::Pull,
        Direction::Push => Permission::Push,
    }
}
