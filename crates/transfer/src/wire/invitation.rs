//! Invitations: the holder of a ticket has opened blocks of its own, and wants the owner to push.
//!
//! ```text
//!  holder, data destination                      owner, data source
//!
//!  opens its blocks
//!  Invite{ticket, into}                       ──► authentic? allowed? alive? same content?
//!                                                 into blocks of the asker's own engine?
//!                                                 then: bind and pin the lease
//!                                             ◄── Invited        (or why not)
//!  the owner of openings  ◄── Push … Landed ──►  the holder of their ticket
//!                                                 all landed: the lease has completed
//! ```
//!
//! Every agent of the holder says the same to every agent of the owner, since none knows whether the others
//! have; what comes after the first is heard, and does nothing. A push that fails ends the lease, and says
//! so by cancelling what was opened.

use std::collections::BTreeSet;
use std::time::Duration;

use super::held::Held;
use super::job::{JobError, JobReport, JobSpec};
use super::message::{Invitation, Message};
use super::owner::room;
use super::planner::{Planner, RouteAsk};
use super::refusal::{Refusal, Role};
use super::waiting::Parked;
use super::{Action, BlocksOf, ConnId, JobId, Machine};
use crate::ids::{AgentId, Direction};
use crate::lease::{LeaseKey, LeasePush};
use crate::moment::Moment;
use crate::ticket::{Claims, Ticket};

/// A push that was invited.
#[derive(Debug)]
pub(crate) struct InvitedPush {
    pub(crate) job: JobId,
    /// Whose invitation came first.
    pub(crate) by: AgentId,
    /// The most places that binding all its routes takes.
    pub(crate) places: u64,
}

impl<B, P: Planner> Machine<B, P> {
    pub(super) fn on_invitation(&mut self, now: Moment, conn: ConnId, invitation: Invitation) {
        let id = invitation.id;
        let outcome = self.take_invitation(now, conn, invitation);
        self.answer_invitation(conn, id, outcome);
    }

    /// Says no at the first rank here that refuses, and yes when no rank here has to wait for its lease.
    pub(super) fn answer_invitation(
        &mut self,
        conn: ConnId,
        id: u64,
        outcome: Result<(), Refusal>,
    ) {
        let waits = |parked: &Parked| match parked {
            Parked::Invitation {
                conn: c,
                invitation,
                ..
            } => (*c, invitation.id) == (conn, id),
            _ => false,
        };
        match outcome {
            Ok(()) if self.early.any(waits) => return,
            Ok(()) => {}
            // The holder gives up: nothing of it shall begin.
            Err(_) => drop(self.early.take_if(waits)),
        }
        self.send(conn, Message::Invited { id, outcome });
    }

    fn take_invitation(
        &mut self,
        now: Moment,
        conn: ConnId,
        invitation: Invitation,
    ) -> Result<(), Refusal> {
        let claims = self.authenticate(conn, &invitation.ticket)?;
        if claims.direction != Direction::Pull {
            let ticket = claims.direction;
            return Err(Refusal::WrongDirection { ticket });
        }
        // Whoever may read the blocks may have them written into its own, where that may be pushed into.
        self.permit(conn, Role::Pull)?;
        self.permit(conn, Role::Serve)?;
        let into = self.check_target(conn, &invitation.into)?;
        let agent = self.peer_agent(conn).ok_or(Refusal::WrongPeer)?;
        let set = claims.set;
        for rank in self.me.ranks.clone() {
            let key = LeaseKey { set, rank };
            if self.leases.knows(&key) {
                self.accept_invitation(now, conn, key, &invitation, &into)?;
                continue;
            }
            if self.draining {
                return Err(Refusal::ShuttingDown);
            }
            let invitation = Box::new(invitation.clone());
            let parked = Parked::Invitation {
                conn,
                key,
                invitation,
            };
            let limit = u32::try_from(self.options.early_per_agent).unwrap_or(u32::MAX);
            let parked = self.early.park(now, key, &agent, parked);
            parked.map_err(|_| Refusal::Busy { limit })?;
        }
        Ok(())
    }

    /// Nobody gets to have us write into a third party's blocks.
    pub(super) fn check_target(&self, conn: ConnId, into: &Ticket) -> Result<Claims, Refusal> {
        let claims = self.read_ticket(into)?;
        if claims.direction != Direction::Push {
            let ticket = claims.direction;
            return Err(Refusal::WrongDirection { ticket });
        }
        if !claims.is_for(&self.me.agent, &self.me.deployment) {
            return Err(Refusal::WrongPeer);
        }
        let holder = self.peer(conn).ok_or(Refusal::WrongPeer)?.holder;
        let agent = self.peer_agent(conn).ok_or(Refusal::WrongPeer)?;
        let engine = (holder.deployment, holder.incarnation);
        let named = claims.ranks.iter().any(|address| address.agent == agent);
        match named && (claims.owner, claims.incarnation) == engine {
            true => Ok(claims),
            false => Err(Refusal::NotYourBlocks),
        }
    }

    /// The lease is known: begins to push out of it, unless that has begun, or says why not. `into` is what the
    /// invitation's own ticket says.
    pub(super) fn accept_invitation(
        &mut self,
        now: Moment,
        conn: ConnId,
        key: LeaseKey,
        invitation: &Invitation,
        into: &Claims,
    ) -> Result<(), Refusal> {
        let holder = self.peer(conn).ok_or(Refusal::WrongPeer)?.holder;
        let agent = self.peer_agent(conn).ok_or(Refusal::WrongPeer)?;
        let (start, tokens) = (into.start, into.valid_tokens - into.start);
        let (pin, _) = self.draw();
        let wanted = LeasePush {
            agent: &agent,
            holder,
            pin,
            into: into.set,
            content: invitation.content,
            start,
            tokens,
        };
        let checked = self.leases.check_push(now, key, &wanted);
        if !checked.map_err(|error| self.refuse_use(key, &wanted.content, error))? {
            return Ok(());
        }
        if self.draining {
            return Err(Refusal::ShuttingDown);
        }
        self.check_room(conn)?;
        let places = self.can_push(&agent, key, into, invitation.by_layer)?;
        self.leases.begin_push(now, key, &wanted)?;
        let (layers, prefilled) = match self.leases.progress(&key) {
            Some((layers, prefilled)) => (layers.collect(), prefilled),
            None => (Vec::new(), true),
        };
        let spec = JobSpec {
            ticket: invitation.into.clone(),
            ranks: BTreeSet::from([key.rank]),
            start,
            tokens,
            content: invitation.content,
            lanes: invitation.lanes,
            by_layer: invitation.by_layer,
            paths: invitation.paths,
            // The lease stops it when its own time is over, which its owner may still put off.
            timeout: Duration::MAX,
            keep_leases: false,
            prefilled,
            into: None,
            blocks: Held::Of(BlocksOf::Lease(key)),
        };
        let job = JobId(self.next_number());
        self.pushes.insert(
            pin,
            InvitedPush {
                job,
                by: agent,
                places,
            },
        );
        self.begin_job(now, job, spec, into.clone());
        for (layer, tokens) in layers {
            self.job_ready(job, key.rank, layer, tokens);
        }
        Ok(())
    }

    /// Whether we could push so, which the asker wants to hear at once: and how many places that takes.
    fn can_push(
        &mut self,
        agent: &AgentId,
        key: LeaseKey,
        into: &Claims,
        by_layer: bool,
    ) -> Result<u64, Refusal> {
        room(self.options.jobs, self.jobs_under_way())?;
        let of_service = |push: &&InvitedPush| push.by.service() == agent.service();
        let invited = self.pushes.values().filter(of_service).count();
        let most = self.options.invited_per_service;
        room(most.min(self.options.jobs.div_ceil(2)), invited)?;
        let ranks = BTreeSet::from([key.rank]);
        if self.busy_with(&into.set, &ranks).is_some() {
            return Err(Refusal::Consumed);
        }
        let routes = self.planner.routes(&RouteAsk {
            peer: into.owner,
            rank: key.rank,
            local_is_source: true,
            start: into.start,
            tokens: into.valid_tokens - into.start,
            by_layer,
        });
        let routes = routes.map_err(|why| Refusal::Unplannable { why: why.into() })?;
        let places = routes.iter().map(|route| route.places);
        let places = places.fold(0, u64::saturating_add);
        self.check_places(agent, places)?;
        Ok(places)
    }

    /// A push that was invited touches the blocks of its lease no more.
    pub(super) fn push_over(&mut self, key: LeaseKey, result: Result<JobReport, JobError>) {
        if let Some(pin) = self.leases.push_over(key, result.is_ok()) {
            self.pushes.remove(&pin);
        }
        self.actions.push_back(Action::Pushed { key, result });
    }
}
