//! Asks: requests of peers to read leased blocks, or to write opened ones.

use std::sync::Arc;

use transload_plan::ids::{AgentId, Direction, Rank, TransferId};

use super::Owner;
use super::pending::{Asked, Demand};
use crate::action::{BlocksOf, Flow};
use crate::context::Context;
use crate::deployments::KnownDeployments;
use crate::event::{Event, Side};
use crate::flows::refuse;
use crate::flows::transfer::Transfer;
use crate::ids::ConnId;
use crate::lease::{LeaseKey, LeaseUse};
use crate::lower::Lower;
use crate::message::{Ask, Message};
use crate::path::Path;
use crate::path::negotiation::Way;
use crate::plans::{PlanAsk, Planned, Route};
use crate::refusal::{Failure, Refusal};
use crate::roles::Role;
use crate::ticket::Claims;
use crate::waiting::Awaited;

enum Verdict<D: KnownDeployments> {
    Admitted(AgentId, Arc<Planned<D::Plan>>, Route, Path),
    /// An earlier attempt must be fenced first: two attempts must never write, or even read, at the same time.
    Fence,
    Plan(PlanAsk),
}

impl<D: KnownDeployments> Owner<D> {
    pub(crate) fn on_ask(&mut self, lower: &mut Lower<'_, D>, conn: ConnId, direction: Direction, ask: Box<Ask>) {
        if self.is_known(lower, ask.transfer) {
            return;
        }
        let claims = match lower.peers.authenticate(lower.cx, conn, &ask.ticket) {
            Ok(claims) => claims,
            Err(refusal) => return refuse(lower.cx, conn, ask.transfer, refusal),
        };
        let rank = match direction {
            Direction::Pull => ask.source,
            Direction::Push => ask.destination,
        };
        let set = claims.set;
        let asked = Asked { conn, direction, key: LeaseKey { set, rank }, ask };
        match self.check_ask(lower, &asked, &claims) {
            Ok(()) if self.leases.knows(&asked.key) => self.decide(lower, asked),
            Ok(()) => self.keep_ask(lower, asked, None),
            Err(refusal) => self.refuse_ask(lower.cx, asked, refusal),
        }
    }

    /// Refuses an ask. If it was a push into a pull's write lease, the pull may fail with it.
    pub(super) fn refuse_ask(&mut self, cx: &mut Context<D>, asked: Asked, refusal: Refusal) {
        let conn = asked.conn;
        refuse(cx, conn, asked.ask.transfer, refusal.clone());
        // After a transient refusal the asker tries again; a superseded or consumed attempt was overtaken by a later
        // one.
        let later = matches!(refusal, Refusal::Superseded { .. } | Refusal::Consumed);
        if asked.direction == Direction::Push
            && !refusal.is_transient()
            && !later
            && let Some(job) = self.opened_by(&asked.key)
        {
            cx.emit(Event::PushRefused(job, conn, refusal));
        }
    }

    /// Returns whether this id is in use. Two transfers with one id would share a fence, and one lease would never end.
    fn is_known(&self, lower: &Lower<'_, D>, transfer: TransferId) -> bool {
        let mut asks = self.queued.values().chain(self.pending.asks());
        lower.flows.get(transfer).is_some() || asks.any(|asked| asked.ask.transfer == transfer)
    }

    /// Makes all checks of an ask that do not need the lease.
    fn check_ask(&self, lower: &Lower<'_, D>, asked: &Asked, claims: &Claims) -> Result<(), Refusal> {
        // A push into a pull of this agent belongs to what continues until it is over.
        if lower.cx.draining && self.opened_by(&asked.key).is_none() {
            return Err(Refusal::ShuttingDown);
        }
        check_direction(claims, asked.direction)?;
        lower.peers.permit(asked.conn, permission(asked.direction))?;
        let rank = asked.key.rank;
        if !lower.cx.me.ranks.contains(&rank) {
            return Err(Refusal::RankNotHere { rank });
        }
        if lower.cx.lost.contains(&rank) {
            return Err(Refusal::DeviceLost);
        }
        let codec = asked.ask.request.codec;
        let pulled = asked.direction == Direction::Pull;
        let sent = codec.is_exact() || pulled && lower.cx.options.codecs.contains(&codec);
        if !sent {
            return Err(Refusal::Codec { codec });
        }
        let (_, peer) = lower.peers.asker(asked.conn)?;
        let rank = asked.peer_rank();
        if !peer.ranks.contains(&rank) {
            return Err(Refusal::RankNotYours { rank });
        }
        self.check_room(lower, asked.conn)
    }

    pub(super) fn decide(&mut self, lower: &mut Lower<'_, D>, asked: Asked) {
        match self.try_admit(lower, &asked) {
            Ok(Verdict::Admitted(agent, plan, route, path)) => {
                self.begin(lower, &asked, agent, plan, (&route, path));
            }
            Ok(Verdict::Fence) => self.queue(lower, asked),
            Ok(Verdict::Plan(plan)) => self.keep_ask(lower, asked, Some(plan)),
            Err(refusal) => self.refuse_ask(lower.cx, asked, refusal),
        }
    }

    /// Keeps an ask until its lease is opened, or its plan is compiled.
    fn keep_ask(&mut self, lower: &mut Lower<'_, D>, asked: Asked, plan: Option<PlanAsk>) {
        let (conn, transfer) = (asked.conn, asked.ask.transfer);
        let Some(agent) = lower.peers.agent(conn) else {
            return;
        };
        let planned = plan.is_some();
        match self.pending.keep(lower.cx.now, agent, Demand::Ask(asked), plan) {
            // A plan takes only a moment, so the asker need not be told.
            Ok(()) if planned => {}
            Ok(()) => {
                let on = Awaited::Lease;
                lower.cx.send(conn, Message::Waiting { transfer, on });
            }
            Err(busy) => refuse(lower.cx, conn, transfer, busy),
        }
    }

    fn queue(&mut self, lower: &mut Lower<'_, D>, asked: Asked) {
        let (conn, transfer, latest) = (asked.conn, asked.ask.transfer, asked.ask.attempt);
        let pair = (asked.key, asked.peer_rank());
        if let Some(older) = self.queued.insert(pair, asked) {
            let superseded = Refusal::Superseded { latest };
            refuse(lower.cx, older.conn, older.ask.transfer, superseded);
        }
        let on = Awaited::Fence;
        lower.cx.send(conn, Message::Waiting { transfer, on });
    }

    /// Makes all checks, and binds the lease only after all of them.
    fn try_admit(&mut self, lower: &mut Lower<'_, D>, asked: &Asked) -> Result<Verdict<D>, Refusal> {
        let (key, direction, ask) = (asked.key, asked.direction, &asked.ask);
        let peer_rank = asked.peer_rank();
        let (agent, peer) = lower.peers.asker(asked.conn)?;
        let holder = peer.holder;
        let using = LeaseUse {
            agent: &agent,
            holder,
            rank: peer_rank,
            attempt: ask.attempt,
            transfer: ask.transfer,
            content: ask.content,
            request: ask.request,
        };
        let checked = self.leases.check(lower.cx.now, key, direction, &using);
        checked.map_err(|error| self.refuse_use(lower.cx, key, &ask.content, error))?;
        let wanted_plan =
            PlanAsk { peer: holder.deployment, local_is_source: direction == Direction::Pull, request: ask.request };
        let Some(plan) = lower.cx.plan_for_peer(&agent, &wanted_plan)? else {
            return Ok(Verdict::Plan(wanted_plan));
        };
        let route = agreed_route(&plan, (key.rank, peer_rank), ask)?.clone();
        let codec = ask.request.codec;
        let offered = lower.paths.offered(lower.peers, &agent, way(direction));
        let path = ask.paths.carrying(codec).and(offered).best();
        let wanted = ask.paths;
        let path = path.ok_or(Refusal::PathUnavailable { wanted, offered })?;
        // A pair of ranks has one attempt at a time. The earlier one fails here, but may still move bytes until it is
        // fenced.
        let of_pair = |t: &&Transfer<D>| t.side == Side::Lease(key) && t.flow.peer_rank == peer_rank;
        let earlier = lower.flows.all().find(of_pair).map(|t| t.flow.transfer);
        if let Some(earlier) = earlier {
            lower.flows.fail(lower.cx, earlier, Failure::Superseded, true);
            if lower.flows.get(earlier).is_some() {
                return Ok(Verdict::Fence);
            }
        }
        // Checked only here, because the earlier attempt has returned its places by now.
        self.check_places(lower, &agent, route.places)?;
        let writers = || plan.peers_of(key.rank);
        self.leases.admit(lower.cx.now, key, &using, writers);
        self.keep_plan(key, &agent, &plan);
        Ok(Verdict::Admitted(agent, plan, route, path))
    }

    fn begin(
        &mut self,
        lower: &mut Lower<'_, D>,
        asked: &Asked,
        agent: AgentId,
        plan: Arc<Planned<D::Plan>>,
        (route, path): (&Route, Path),
    ) {
        let (conn, key, ask) = (asked.conn, asked.key, &asked.ask);
        let transfer = ask.transfer;
        let flow = Flow {
            transfer,
            nonce: ask.nonce,
            conn,
            agent,
            rank: key.rank,
            peer_rank: asked.peer_rank(),
            request: ask.request,
            bytes: route.bytes,
            lanes: ask.lanes,
            path: Some(path),
            blocks: BlocksOf::Lease(key),
            all_readable: true,
            ready: Vec::new(),
        };
        let (ready, prefilled) = self.leases.progress(&key);
        let way = (way(asked.direction), prefilled);
        let mut attempt = Transfer::new(flow, plan, Side::Lease(key), way, ask.paths);
        attempt.places = route.places;
        lower.flows.begin(lower.cx, attempt);
        lower.cx.send(conn, Message::Accepted { transfer, path });
        match asked.direction {
            Direction::Push => lower.cx.emit(Event::Travels(transfer)),
            Direction::Pull => lower.flows.read_if_ready(lower.cx, transfer, ready),
        }
    }
}

/// Returns the route between the owner's rank and the asker's, if both sides have compiled the same.
fn agreed_route<'p, L>(plan: &'p Planned<L>, (owner, asker): (Rank, Rank), ask: &Ask) -> Result<&'p Route, Refusal> {
    let mut routes = plan.of_rank(owner).iter();
    let route = routes.find(|route| route.peer_rank == asker);
    let route = route.ok_or(Refusal::NoRoute { owner, asker })?;
    match route.digest == ask.plan {
        true => Ok(route),
        false => Err(Refusal::PlanDigestMismatch { ours: route.digest, theirs: ask.plan }),
    }
}

fn way(direction: Direction) -> Way {
    match direction {
        Direction::Pull => Way::Out,
        Direction::Push => Way::In,
    }
}

pub(super) fn check_direction(claims: &Claims, wanted: Direction) -> Result<(), Refusal> {
    let ticket = claims.direction;
    match ticket == wanted {
        true => Ok(()),
        false => Err(Refusal::WrongDirection { ticket }),
    }
}

pub(super) fn permission(direction: Direction) -> Role {
    match direction {
        Direction::Pull => Role::Pull,
        Direction::Push => Role::Push,
    }
}
