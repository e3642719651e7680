//! What the owner of leases does: opens them, and answers who holds a ticket.

use super::destination::Destination;
use super::held::Held;
use super::message::{Ask, Message, WaitingOn};
use super::planner::{Planner, Route, RouteAsk};
use super::refusal::{Failure, Refusal, Role as Permission, Text};
use super::source::Source;
use super::transfer::{Role, Side, Transfer};
use super::waiting::{Parked, Queued};
use super::{Action, BlocksOf, ConnId, Flow, JobId, Machine, Timer};
use crate::content::ContentDigest;
use crate::ids::{AgentId, Direction, Rank, TransferId};
use crate::lease::{
    Holder, LeaseError, LeaseKey, LeaseSpec, LeaseUse, OpenError, OpenFault, UseError,
};
use crate::moment::Moment;
use crate::path::Path;
use crate::ticket::{Claims, Ticket};

/// What the owner does.
impl<B, P: Planner> Machine<B, P> {
    /// Opens a lease. From here on the blocks belong to it, until [`Action::LeaseEnded`].
    pub fn lease(&mut self, now: Moment, spec: LeaseSpec<B>) -> Result<(), OpenError<B>> {
        let key = spec.key;
        let checked = if self.draining {
            Err(OpenFault::ShuttingDown)
        } else if !self.me.ranks.contains(&key.rank) {
            Err(OpenFault::NotOurs { rank: key.rank })
        } else {
            let (start, valid_tokens) = (spec.start, spec.valid_tokens);
            self.leases.check_open(now, key, start, valid_tokens)
        };
        if let Err(reason) = checked {
            self.settle(now);
            let blocks = spec.blocks;
            return Err(OpenError {
                key,
                reason,
                blocks,
            });
        }
        self.open(now, spec.with_blocks(Held::Own));
        self.settle(now);
        Ok(())
    }

    /// Opens what nothing stands against, and lets in what has waited for it.
    pub(super) fn open(&mut self, now: Moment, spec: LeaseSpec<Held<B>>) {
        let key = spec.key;
        self.leases.insert(now, spec);
        for parked in self.early.take(&key) {
            self.unpark(now, parked);
        }
    }

    /// The first `tokens` tokens of a layer are ready.
    pub fn ready(&mut self, key: LeaseKey, layer: u32, tokens: u64) -> Result<(), LeaseError> {
        if self.leases.ready(key, layer, tokens)? {
            let transfers: Vec<_> = self.leases.pins(&key).copied().collect();
            for transfer in transfers {
                match self.pushes.get(&transfer) {
                    Some(push) => self.job_ready(push.job, key.rank, layer, tokens),
                    None => self.layer_ready(transfer, layer, tokens),
                }
            }
        }
        Ok(())
    }

    /// The prefill is over: everything is ready.
    pub fn finish_prefill(&mut self, now: Moment, key: LeaseKey) -> Result<(), LeaseError> {
        if self.leases.finish_prefill(key)? {
            let transfers: Vec<_> = self.leases.pins(&key).copied().collect();
            for transfer in transfers {
                match self.pushes.get(&transfer) {
                    Some(push) => self.job_prefilled(now, push.job),
                    None => self.all_ready(now, transfer),
                }
            }
        }
        self.settle(now);
        Ok(())
    }

    /// Lets a lease live on for `ttl` from now at least.
    pub fn renew(
        &mut self,
        now: Moment,
        key: LeaseKey,
        ttl: std::time::Duration,
    ) -> Result<(), LeaseError> {
        let renewed = self.leases.renew(now, key, ttl);
        self.settle(now);
        renewed
    }

    /// Gives a lease up. It is over when [`Action::LeaseEnded`] says so.
    pub fn cancel_lease(&mut self, now: Moment, key: LeaseKey) -> Result<(), LeaseError> {
        let cancelled = self.leases.cancel(now, key);
        self.settle(now);
        cancelled
    }
}

/// Answers.
impl<B, P: Planner> Machine<B, P> {
    /// Whatever a peer may say once it is welcome.
    pub(super) fn on_talk(&mut self, now: Moment, conn: ConnId, message: Message) {
        match message {
            Message::Pull(ask) => self.on_ask(now, conn, Direction::Pull, Box::new(ask)),
            Message::Push(ask) => self.on_ask(now, conn, Direction::Push, Box::new(ask)),
            Message::Refused { transfer, .. }
            | Message::Accepted { transfer, .. }
            | Message::Waiting { transfer, .. }
            | Message::Progress { transfer, .. }
            | Message::Commit { transfer, .. }
            | Message::Landed { transfer } => self.on_transfer(now, conn, transfer, message),
            Message::Abort { transfer, .. } => {
                self.forget_ask(conn, transfer);
                self.on_transfer(now, conn, transfer, message);
            }
            Message::Notice(notice) => self.on_notice(now, conn, notice),
            Message::NoticeHeard { id, outcome } => self.on_heard(conn, id, outcome),
            Message::Invite(invitation) => self.on_invitation(now, conn, invitation),
            Message::Invited { id, outcome } => self.on_invited(now, conn, JobId(id), outcome),
            Message::Lanes(message) => self.actions.push_back(Action::Lanes { conn, message }),
            Message::Hello(_)
            | Message::DocumentWanted
            | Message::Document { .. }
            | Message::Welcome
            | Message::Unwelcome(_) => {
                let reason = super::CloseReason::Violation("a greeting after the welcome");
                self.close(now, conn, reason);
            }
        }
    }

    fn on_ask(&mut self, now: Moment, conn: ConnId, direction: Direction, ask: Box<Ask>) {
        if self.is_known(ask.transfer) {
            return;
        }
        match self.check_ask(conn, direction, &ask) {
            Ok(key) if self.leases.knows(&key) => self.decide(now, conn, key, direction, ask),
            Ok(key) => self.park_ask(now, conn, key, direction, ask),
            Err(refusal) => self.refuse_ask(now, conn, direction, &ask, refusal),
        }
    }

    fn refuse_ask(
        &mut self,
        now: Moment,
        conn: ConnId,
        direction: Direction,
        ask: &Ask,
        refusal: Refusal,
    ) {
        self.refuse(conn, ask.transfer, refusal.clone());
        if direction == Direction::Push {
            self.opening_refused(now, conn, ask, &refusal);
        }
    }

    /// Whether something with this number is under way, queued or parked: each is in one of these
    /// places, once. Two transfers of one number would share one fence, and one lease would never end.
    fn is_known(&self, transfer: TransferId) -> bool {
        let is_it =
            |parked: &Parked| matches!(parked, Parked::Ask { ask, .. } if ask.transfer == transfer);
        let mut queued = self.queued.values();
        self.transfers.contains_key(&transfer)
            || queued.any(|queued| queued.ask.transfer == transfer)
            || self.early.any(is_it)
    }

    /// Everything about an ask that does not need the lease.
    fn check_ask(
        &self,
        conn: ConnId,
        direction: Direction,
        ask: &Ask,
    ) -> Result<LeaseKey, Refusal> {
        let claims = self.authenticate(conn, &ask.ticket)?;
        let (rank, peer_rank) = ranks(direction, ask);
        let set = claims.set;
        let key = LeaseKey { set, rank };
        // What is pushed into a pull of our own belongs to what goes on until it is over.
        if self.draining && self.opened_by(&key).is_none() {
            return Err(Refusal::ShuttingDown);
        }
        let ticket = claims.direction;
        if ticket != direction {
            return Err(Refusal::WrongDirection { ticket });
        }
        self.permit(conn, permission(direction))?;
        if !self.me.ranks.contains(&rank) {
            return Err(Refusal::RankNotHere { rank });
        }
        let peer = self.peer(conn).ok_or(Refusal::WrongPeer)?;
        if !peer.ranks.contains(&peer_rank) {
            return Err(Refusal::RankNotYours { rank: peer_rank });
        }
        self.check_room(conn)?;
        Ok(key)
    }

    /// Whether the agent may have more under way here by its own asking, and its service.
    ///
    /// An agent's name below its service is its own choice, so what bounds agents has to bound services too.
    pub(super) fn check_room(&self, conn: ConnId) -> Result<(), Refusal> {
        let Some(agent) = self.peer_agent(conn) else {
            return Err(Refusal::WrongPeer);
        };
        let of_agent = |by: &AgentId| *by == agent;
        let of_service = |by: &AgentId| by.service() == agent.service();
        room(self.options.transfers_per_agent, self.asked_by(of_agent))?;
        room(
            self.options.transfers_per_service,
            self.asked_by(of_service),
        )
    }

    /// How much is under way here that such agents have asked for.
    fn asked_by(&self, its: impl Fn(&AgentId) -> bool) -> usize {
        let running = self.transfers.values();
        let running = running.filter(|t| matches!(t.side, Side::Lease(_)) && its(&t.flow.agent));
        let queued = self.queued.values();
        let queued =
            queued.filter(|queued| self.peer_agent(queued.conn).is_some_and(|by| its(&by)));
        let pushes = self.pushes.values().filter(|push| its(&push.by));
        running.count() + queued.count() + pushes.count()
    }

    /// Whether routes of so many places may be bound beside those that the agent has under way here by its own asking,
    /// and its service.
    pub(super) fn check_places(&self, agent: &AgentId, places: u64) -> Result<(), Refusal> {
        self.check_places_of_one(places)
            .map_err(|why| Refusal::Unplannable { why })?;
        let room = |limit: u64, its: &dyn Fn(&AgentId) -> bool| {
            let asked = self.transfers.values();
            let asked = asked.filter(|t| matches!(t.side, Side::Lease(_)) && its(&t.flow.agent));
            let pushes = self.pushes.values().filter(|push| its(&push.by));
            let places_of_all = asked
                .map(|t| t.places)
                .chain(pushes.map(|push| push.places));
            let taken: u64 = places_of_all.sum();
            match taken > 0 && taken.saturating_add(places) > limit {
                true => Err(Refusal::Busy {
                    limit: u32::try_from(limit).unwrap_or(u32::MAX),
                }),
                false => Ok(()),
            }
        };
        room(self.options.places_per_agent, &|by| by == agent)?;
        let of_service = |by: &AgentId| by.service() == agent.service();
        room(self.options.places_per_service, &of_service)
    }

    /// Whether so many places may be bound for one transfer, whoever has asked for it.
    pub(super) fn check_places_of_one(&self, places: u64) -> Result<(), Text> {
        let most = self.options.places_per_service;
        match places <= most {
            true => Ok(()),
            false => Err(format!(
                "binding it would take {places} places, more than {most}: ask for fewer tokens at a time, or have larger blocks"
            )
            .into()),
        }
    }

    /// Whether a ticket is authentic and means us, in this life, and this peer.
    pub(super) fn authenticate(&self, conn: ConnId, ticket: &Ticket) -> Result<Claims, Refusal> {
        let claims = self.read_ticket(ticket)?;
        if claims.owner != self.me.deployment {
            let ours = self.me.deployment;
            return Err(Refusal::WrongDeployment { ours });
        }
        if claims.incarnation != self.me.incarnation && !fault!(self, AnyIncarnation) {
            let ours = self.me.incarnation;
            return Err(Refusal::WrongIncarnation { ours });
        }
        let peer = self.peer(conn).zip(self.sessions.get(&conn));
        let meant = |(peer, session): (&super::peers::Peer, &super::peers::Session)| {
            let agent = session.agent.as_ref();
            agent.is_some_and(|agent| claims.is_for(agent, &peer.holder.deployment))
        };
        if !peer.is_some_and(meant) {
            return Err(Refusal::WrongPeer);
        }
        Ok(claims)
    }

    /// What a ticket says, whoever's it is, if it is one of this cluster.
    pub(super) fn read_ticket(&self, ticket: &Ticket) -> Result<Claims, Refusal> {
        let claims = ticket.open(&self.me.ticket_key);
        let claims = claims.map_err(|_| Refusal::Forged)?;
        if claims.cluster != self.me.cluster {
            let ours = self.me.cluster.clone();
            return Err(Refusal::WrongCluster { ours });
        }
        Ok(claims)
    }

    pub(super) fn permit(&self, conn: ConnId, role: Permission) -> Result<(), Refusal> {
        let session = self.sessions.get(&conn);
        match session.is_some_and(|session| session.permits.allow(role)) {
            true => Ok(()),
            false => Err(Refusal::RoleMissing { role }),
        }
    }

    /// The lease is known: lets the ask in, or says why not.
    pub(super) fn decide(
        &mut self,
        now: Moment,
        conn: ConnId,
        key: LeaseKey,
        direction: Direction,
        ask: Box<Ask>,
    ) {
        let transfer = ask.transfer;
        match self.try_admit(now, conn, key, direction, &ask) {
            Ok(Some((route, path))) => self.begin(now, conn, key, direction, &ask, &route, path),
            Ok(None) => {
                let queued = Queued {
                    conn,
                    direction,
                    ask,
                };
                let (_, peer_rank) = ranks(direction, &queued.ask);
                if let Some(older) = self.queued.insert((key, peer_rank), queued) {
                    let latest = self.queued[&(key, peer_rank)].ask.attempt;
                    self.refuse(
                        older.conn,
                        older.ask.transfer,
                        Refusal::Superseded { latest },
                    );
                }
                let on = WaitingOn::Fence;
                self.send(conn, Message::Waiting { transfer, on });
            }
            Err(refusal) => self.refuse_ask(now, conn, direction, &ask, refusal),
        }
    }

    /// Checks everything, and only then binds the lease. Nothing, where an earlier attempt has to
    /// be fenced first: two must never write, or even read, at a time.
    fn try_admit(
        &mut self,
        now: Moment,
        conn: ConnId,
        key: LeaseKey,
        direction: Direction,
        ask: &Ask,
    ) -> Result<Option<(Route, Path)>, Refusal> {
        let (rank, peer_rank) = ranks(direction, ask);
        let agent = self.peer_agent(conn).ok_or(Refusal::WrongPeer)?;
        let holder = self.peer(conn).ok_or(Refusal::WrongPeer)?.holder;
        let mut wanted = LeaseUse {
            agent: &agent,
            holder,
            rank: peer_rank,
            attempt: ask.attempt,
            transfer: ask.transfer,
            content: ask.content,
            start: ask.start,
            tokens: ask.tokens,
        };
        if fault!(self, AnyContent)
            && let Some(content) = self.leases.content(&key)
        {
            wanted.content = content;
        }
        let checked = self.leases.check(now, key, direction, &wanted);
        checked.map_err(|error| self.refuse_use(key, &wanted.content, error))?;
        let route = self.route(direction, ask, rank, peer_rank, &holder)?;
        let local_is_source = direction == Direction::Pull;
        let offered = self.planner.paths(&agent, local_is_source);
        let wanted_paths = ask.paths;
        let path = wanted_paths.and(offered).best();
        let path = path.ok_or(Refusal::PathUnavailable {
            wanted: wanted_paths,
            offered,
        })?;
        let earlier = self
            .transfers
            .values()
            .find(|t| t.side == Side::Lease(key) && t.flow.peer_rank == peer_rank);
        if let Some(earlier) = earlier.map(|t| t.flow.transfer)
            && !fault!(self, RetryBeforeFence)
        {
            self.fail(now, earlier, Failure::Superseded, true);
            if self.transfers.contains_key(&earlier) {
                return Ok(None);
            }
        }
        self.check_places(&agent, route.places)?;
        self.leases.admit(now, key, direction, &wanted)?;
        Ok(Some((route, path)))
    }

    /// What a peer is told of a use that its lease does not allow.
    pub(super) fn refuse_use(
        &mut self,
        key: LeaseKey,
        stated: &ContentDigest,
        error: UseError,
    ) -> Refusal {
        if error == UseError::Content
            && let Some(held) = self.leases.content(&key)
        {
            let stated = *stated;
            self.actions
                .push_back(Action::OtherContent { key, held, stated });
        }
        error.into()
    }

    /// Finds the route on our own and compares plans.
    fn route(
        &mut self,
        direction: Direction,
        ask: &Ask,
        rank: Rank,
        peer_rank: Rank,
        holder: &Holder,
    ) -> Result<Route, Refusal> {
        let routes = self.planner.routes(&RouteAsk {
            peer: holder.deployment,
            rank,
            local_is_source: direction == Direction::Pull,
            start: ask.start,
            tokens: ask.tokens,
            by_layer: ask.by_layer,
        });
        let routes = routes.map_err(|why| Refusal::Unplannable { why: why.into() })?;
        let route = routes
            .into_iter()
            .find(|route| route.peer_rank == peer_rank);
        let route = route.ok_or(Refusal::NoRoute {
            owner: rank,
            asker: peer_rank,
        })?;
        match route.digest == ask.plan {
            true => Ok(route),
            false => Err(Refusal::PlanDigestMismatch {
                ours: route.digest,
                theirs: ask.plan,
            }),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "what was decided, in one place")]
    fn begin(
        &mut self,
        now: Moment,
        conn: ConnId,
        key: LeaseKey,
        direction: Direction,
        ask: &Ask,
        route: &Route,
        path: Path,
    ) {
        let Some((agent, peer)) = self.peer_agent(conn).zip(self.peer(conn)) else {
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
            start: ask.start,
            tokens: ask.tokens,
            by_layer: ask.by_layer,
            bytes: route.bytes,
            lanes: ask.lanes,
            path: Some(path),
            blocks: BlocksOf::Lease(key),
            all_readable: true,
            ready: Vec::new(),
        };
        let prefilled = self.leases.progress(&key).is_none_or(|(_, over)| over);
        let role = match direction {
            Direction::Pull => Role::Source(Source::accepted(route.bytes, ask.by_layer, prefilled)),
            Direction::Push => {
                self.actions.push_back(Action::Receive(flow.clone()));
                Role::Destination(Destination::accepted(route.bytes, ask.nonce))
            }
        };
        let attempt = Transfer {
            flow,
            side: Side::Lease(key),
            role,
            under_way: direction == Direction::Push,
            places: route.places,
            waiting: None,
            moved: 0,
        };
        self.transfers.insert(transfer, attempt);
        self.timers
            .set(Timer::Stall(transfer), now + self.options.stall);
        self.send(conn, Message::Accepted { transfer, path });
        self.read_if_ready(now, transfer);
    }

    /// A pair of ranks has nothing under way any more: the next attempt may come.
    pub(super) fn pair_free(&mut self, now: Moment, key: LeaseKey, peer_rank: Rank) {
        if let Some(next) = self.queued.remove(&(key, peer_rank)) {
            self.decide(now, next.conn, key, next.direction, next.ask);
        }
    }
}

/// Whether one more may be under way.
pub(super) fn room(limit: usize, under_way: usize) -> Result<(), Refusal> {
    match under_way < limit {
        true => Ok(()),
        false => Err(Refusal::Busy {
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
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

pub(super) fn permission(direction: Direction) -> Permission {
    match direction {
        Direction::Pull => Permission::Pull,
        Direction::Push => Permission::Push,
    }
}
