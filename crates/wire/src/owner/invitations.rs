//! Invitations: the holder of a ticket has opened blocks of its own, and wants the owner to push into them.
//!
//! ```text
//!  holder, data destination                      owner, data source
//!
//!  opens its blocks
//!  Invite{ticket, into}                       ──► authentic? allowed? alive? same content?
//!                                                 into blocks of the asker's own engine?
//!                                                 then: bind and pin the lease
//!                                             ◄── Invited        (or why not)
//!  owner of write leases  ◄── Push … Landed ──►   holder of their ticket
//!                                                 all landed: the lease has completed
//! ```
//!
//! Every agent of the holder sends the same invitation to every agent of the owner, since none knows about the others.
//! Those after the first are answered, and have no effect. A push that fails ends the lease, and tells the holder by
//! cancelling its write leases.

use std::sync::Arc;

use transload_plan::ids::Direction;

use super::Owner;
use super::asks::check_direction;
use super::pending::{Demand, WantedPush};
use super::push::InvitedPush;
use crate::context::Context;
use crate::deployments::KnownDeployments;
use crate::event::Event;
use crate::ids::{ConnId, JobId};
use crate::lease::{LeaseKey, LeasePush};
use crate::lower::Lower;
use crate::message::{Invitation, Message};
use crate::plans::PlanAsk;
use crate::refusal::Refusal;
use crate::roles::Role;
use crate::ticket::{Claims, Ticket};

impl<D: KnownDeployments> Owner<D> {
    pub(crate) fn on_invitation(&mut self, lower: &mut Lower<'_, D>, conn: ConnId, invitation: Invitation) {
        let id = invitation.id;
        let outcome = self.take_invitation(lower, conn, invitation);
        self.answer_invitation(lower.cx, conn, id, outcome);
    }

    /// Answers an invitation: no as soon as one local rank refuses, and yes when no local rank waits any more.
    pub(super) fn answer_invitation(
        &mut self,
        cx: &mut Context<D>,
        conn: ConnId,
        id: u64,
        outcome: Result<(), Refusal>,
    ) {
        let waits = |demand: &Demand| match demand {
            Demand::Push(wanted) => (wanted.conn, wanted.invitation.id) == (conn, id),
            _ => false,
        };
        match outcome {
            Ok(()) if self.pending.any(waits) => return,
            Ok(()) => {}
            // The holder gives up then, so no other rank may begin.
            Err(_) => self.pending.forget(waits),
        }
        cx.send(conn, Message::Invited { id, outcome });
    }

    fn take_invitation(
        &mut self,
        lower: &mut Lower<'_, D>,
        conn: ConnId,
        invitation: Invitation,
    ) -> Result<(), Refusal> {
        let claims = lower.peers.authenticate(lower.cx, conn, &invitation.ticket)?;
        check_direction(&claims, Direction::Pull)?;
        // A holder that may read the blocks may have them written into its own, if its certificate lets it serve those.
        lower.peers.permit(conn, Role::Pull)?;
        lower.peers.permit(conn, Role::Serve)?;
        let into = self.check_target(lower, conn, &invitation.into)?;
        let (agent, _) = lower.peers.asker(conn)?;
        let (set, invitation) = (claims.set, Arc::new(invitation));
        for rank in lower.cx.me.ranks.clone() {
            let wanted = WantedPush { conn, key: LeaseKey { set, rank }, invitation: invitation.clone() };
            if self.leases.knows(&wanted.key) {
                self.accept(lower, wanted, &into)?;
                continue;
            }
            if lower.cx.draining {
                return Err(Refusal::ShuttingDown);
            }
            if lower.cx.lost.contains(&rank) {
                return Err(Refusal::DeviceLost);
            }
            let demand = Demand::Push(wanted);
            self.pending.keep(lower.cx.now, &agent, demand, None)?;
        }
        Ok(())
    }

    /// Checks that the push goes to blocks of the asker's own engine, and not to a third party's.
    pub(super) fn check_target(&self, lower: &Lower<'_, D>, conn: ConnId, into: &Ticket) -> Result<Claims, Refusal> {
        let claims = lower.cx.read_ticket(into)?;
        check_direction(&claims, Direction::Push)?;
        if !claims.is_for(&lower.cx.me.agent, &lower.cx.deployment) {
            return Err(Refusal::WrongPeer);
        }
        let (agent, peer) = lower.peers.asker(conn)?;
        let engine = (peer.holder.deployment, peer.holder.incarnation);
        let named = claims.ranks.iter().any(|address| address.agent == agent);
        match named && (claims.owner, claims.incarnation) == engine {
            true => Ok(claims),
            false => Err(Refusal::NotYourBlocks),
        }
    }

    /// Begins the push of a known lease, unless it has begun. `into` are the claims of the invitation's own ticket.
    pub(super) fn accept(
        &mut self,
        lower: &mut Lower<'_, D>,
        wanted: WantedPush,
        into: &Claims,
    ) -> Result<(), Refusal> {
        let (conn, key, invitation) = (wanted.conn, wanted.key, &wanted.invitation);
        let (agent, peer) = lower.peers.asker(conn)?;
        let (pin, _) = lower.cx.draw();
        let push = LeasePush {
            agent: &agent,
            holder: peer.holder,
            pin,
            into: into.set,
            content: invitation.content,
            request: into.request(invitation.by_layer),
        };
        let checked = self.leases.check_push(lower.cx.now, key, &push);
        if !checked.map_err(|error| self.refuse_use(lower.cx, key, &push.content, error))? {
            // Another rank of the holder has already begun this push.
            return Ok(());
        }
        if lower.cx.draining {
            return Err(Refusal::ShuttingDown);
        }
        self.check_room(lower, conn)?;
        self.check_pushes(lower.cx, &agent)?;
        // This rank already has a job that pushes into the same blocks.
        if lower.cx.jobs.busy(into.set, &[key.rank].into()).is_some() {
            return Err(Refusal::Consumed);
        }
        let ask = PlanAsk { peer: into.owner, local_is_source: true, request: push.request };
        let Some(plan) = lower.cx.plan_for_peer(&agent, &ask)? else {
            let demand = Demand::Push(wanted);
            return self.pending.keep(lower.cx.now, &agent, demand, Some(ask));
        };
        let places = plan.places_of(key.rank);
        self.check_places(lower, &agent, places)?;
        self.keep_plan(key, &agent, &plan);
        self.leases.begin_push(key, &push);
        let job = JobId(lower.cx.next_number());
        lower.cx.jobs.add(into.set, &[key.rank].into());
        let push = InvitedPush { job, by: agent, places };
        self.pushes.insert(pin, push);
        lower.cx.emit(Event::Invited {
            job,
            key,
            invitation: wanted.invitation,
            into: into.clone(),
            ready: self.leases.progress(&key),
        });
        Ok(())
    }
}
