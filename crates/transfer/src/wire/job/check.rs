//! What has to be so for a job to begin, and to go on.

use std::collections::BTreeSet;

use super::{JobError, JobSpec};
use crate::ids::{AgentId, Direction, LeaseSetId, Rank};
use crate::ticket::{Claims, Ticket};
use crate::wire::planner::Planner;
use crate::wire::{ConnId, JobId, Machine};

/// Before it begins.
impl<B, P: Planner> Machine<B, P> {
    pub(super) fn check_job(&self, spec: &JobSpec<B>) -> Result<Claims, JobError> {
        if self.draining {
            return Err(JobError::ShuttingDown);
        }
        if self.jobs_under_way() >= self.options.jobs {
            let limit = self.options.jobs;
            return Err(JobError::TooMany { limit });
        }
        let claims = self.open_ticket(&spec.ticket)?;
        if spec.ranks.is_empty() {
            return Err(JobError::NoRanks);
        }
        if let Some(&rank) = spec.ranks.iter().find(|r| !self.me.ranks.contains(r)) {
            return Err(JobError::NotOurs { rank });
        }
        if self.is_own(&claims)? {
            return Err(JobError::OwnTicket);
        }
        let end = spec.start.saturating_add(spec.tokens);
        let covered = match claims.direction {
            Direction::Pull => spec.start >= claims.start && end <= claims.valid_tokens,
            Direction::Push => spec.start == claims.start && end == claims.valid_tokens,
        };
        if !covered {
            return Err(JobError::Tokens {
                start: spec.start,
                end,
                first: claims.start,
                valid: claims.valid_tokens,
            });
        }
        if spec.into.is_some() && claims.direction != Direction::Pull {
            let why = "only the owner of a pull's leases can push".into();
            return Err(JobError::Opening { why });
        }
        match self.busy_with(&claims.set, &spec.ranks) {
            Some(rank) => Err(JobError::UnderWay { rank }),
            None => Ok(claims),
        }
    }

    /// How many pulls and pushes are under way.
    pub(in crate::wire) fn jobs_under_way(&self) -> usize {
        self.jobs.len() + self.invited.len()
    }

    /// One of these ranks that a job with a ticket for this set has already.
    pub(in crate::wire) fn busy_with(
        &self,
        set: &LeaseSetId,
        ranks: &BTreeSet<Rank>,
    ) -> Option<Rank> {
        let jobs = self.jobs.values().map(|job| (&job.claims, &job.spec.ranks));
        let invited = self.invited.values();
        let invited = invited.map(|job| (&job.claims, &job.spec.ranks));
        let same = jobs.chain(invited).filter(|(claims, _)| claims.set == *set);
        let mut busy = same.flat_map(|(_, busy)| busy.intersection(ranks));
        busy.next().copied()
    }

    /// Whether a ticket is of this engine, in this life. One that names this agent in another life is of before a
    /// restart, and nobody has to be dialled to know that.
    fn is_own(&self, claims: &Claims) -> Result<bool, JobError> {
        let me = &self.me;
        if (claims.owner, claims.incarnation) == (me.deployment, me.incarnation) {
            return Ok(true);
        }
        match claims.ranks.iter().any(|rank| rank.agent == me.agent) {
            true if claims.owner != me.deployment => Err(JobError::Deployment {
                agent: me.agent.clone(),
                found: me.deployment,
                ticket: claims.owner,
            }),
            true => Err(JobError::Restarted {
                agent: me.agent.clone(),
                found: me.incarnation,
                ticket: claims.incarnation,
            }),
            false => Ok(false),
        }
    }

    /// Opens a ticket that is to be used here.
    pub(crate) fn open_ticket(&self, ticket: &Ticket) -> Result<Claims, JobError> {
        let claims = ticket.open(&self.me.ticket_key)?;
        if claims.cluster != self.me.cluster {
            return Err(JobError::Cluster {
                ours: self.me.cluster.clone(),
                theirs: claims.cluster,
            });
        }
        if !claims.is_for(&self.me.agent, &self.me.deployment) {
            return Err(JobError::Audience);
        }
        Ok(claims)
    }
}

/// Whenever somebody has connected.
impl<B, P: Planner> Machine<B, P> {
    /// Whether the agents that are connected are still those that the ticket means, and may be.
    pub(super) fn check_peers(&self, id: JobId) -> Result<(), JobError> {
        let Some(job) = self.jobs.get(&id) else {
            return Ok(());
        };
        for address in job.agents() {
            let agent = &address.agent;
            let Some(conn) = self.connection(agent).filter(|_| job.needs(agent)) else {
                continue;
            };
            self.check_owner(conn, agent, &job.claims)?;
        }
        Ok(())
    }

    /// Whether the agent at the other end is still the one that a ticket means, and may be.
    pub(super) fn check_owner(
        &self,
        conn: ConnId,
        agent: &AgentId,
        claims: &Claims,
    ) -> Result<(), JobError> {
        let Some(peer) = self.peer(conn) else {
            return Ok(());
        };
        if !self.may_serve(conn) {
            let agent = agent.clone();
            return Err(JobError::MayNotServe { agent });
        }
        if peer.holder.deployment != claims.owner {
            return Err(JobError::Deployment {
                agent: agent.clone(),
                found: peer.holder.deployment,
                ticket: claims.owner,
            });
        }
        if peer.holder.incarnation != claims.incarnation && !fault!(self, AnyIncarnation) {
            return Err(JobError::Restarted {
                agent: agent.clone(),
                found: peer.holder.incarnation,
                ticket: claims.incarnation,
            });
        }
        Ok(())
    }
}
