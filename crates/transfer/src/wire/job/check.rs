//! What has to be so for a job to begin.

use super::JobSpec;
use crate::ids::Direction;
use crate::lease::{LeaseKey, LeaseSpec, covers};
use crate::ticket::Claims;
use crate::wire::context::Context;
use crate::wire::outcome::JobError;
use crate::wire::peers::check_life;
use crate::wire::planner::Planner;

/// Whether a job may begin. Gives what its ticket says.
pub(crate) fn check_job<P: Planner>(
    cx: &Context<P>,
    spec: &JobSpec<P::Blocks>,
) -> Result<Claims, JobError> {
    if cx.draining {
        return Err(JobError::ShuttingDown);
    }
    if cx.jobs.count() >= cx.options.jobs {
        let limit = cx.options.jobs;
        return Err(JobError::TooMany { limit });
    }
    let claims = cx.open_ticket(&spec.ticket)?;
    if spec.ranks.is_empty() {
        return Err(JobError::NoRanks);
    }
    if let Some(&rank) = spec.ranks.iter().find(|r| !cx.me.ranks.contains(r)) {
        return Err(JobError::NotOurs { rank });
    }
    check_not_own(cx, &claims)?;
    let range = (claims.start, claims.valid_tokens);
    if !covers(claims.direction, range, &spec.request) {
        return Err(other_tokens(spec, &claims));
    }
    if spec.into.is_some() && claims.direction != Direction::Pull {
        let why = "only the owner of a pull's leases can push".into();
        return Err(JobError::WriteLease { why });
    }
    match cx.jobs.busy(claims.set, &spec.ranks) {
        Some(rank) => Err(JobError::UnderWay { rank }),
        None => Ok(claims),
    }
}

/// Whether a ticket is of another engine. One that names this agent in another life is of before a restart, and no
/// agent has to be dialled to know that.
fn check_not_own<P: Planner>(cx: &Context<P>, claims: &Claims) -> Result<(), JobError> {
    let (me, ours) = (&cx.me.agent, (cx.deployment, cx.me.incarnation));
    if claims.ranks.iter().any(|rank| rank.agent == *me) {
        check_life(me, ours, claims)?;
    }
    match (claims.owner, claims.incarnation) == ours {
        true => Err(JobError::OwnTicket),
        false => Ok(()),
    }
}

fn other_tokens<B>(spec: &JobSpec<B>, claims: &Claims) -> JobError {
    JobError::Tokens {
        start: spec.request.start,
        end: spec.request.end(),
        first: claims.start,
        valid: claims.valid_tokens,
    }
}

/// What a pull opens whose owner shall push; none for any other. Whether the leases can be opened, their table says.
pub(crate) fn check_write_leases<P: Planner>(
    cx: &Context<P>,
    spec: &JobSpec<P::Blocks>,
) -> Result<Vec<LeaseSpec>, JobError> {
    let Some(into) = &spec.into else {
        return Ok(Vec::new());
    };
    let claims = into.open(&cx.me.ticket_key)?;
    let fault = |why: String| JobError::WriteLease { why: why.into() };
    if claims.direction != Direction::Push {
        return Err(fault(format!("their ticket is for a {}", claims.direction)));
    }
    let ours = (&cx.me.cluster, cx.deployment, cx.me.incarnation);
    if (&claims.cluster, claims.owner, claims.incarnation) != ours {
        return Err(fault("their ticket is of another engine".to_owned()));
    }
    let range = (claims.start, claims.valid_tokens);
    if !covers(claims.direction, range, &spec.request) {
        return Err(other_tokens(spec, &claims));
    }
    let leases = spec.ranks.iter().map(|&rank| LeaseSpec {
        key: LeaseKey {
            set: claims.set,
            rank,
        },
        direction: claims.direction,
        content: spec.content,
        start: spec.request.start,
        valid_tokens: spec.request.end(),
        ttl: spec.timeout,
        hard_bound: spec.timeout,
        prefilled: true,
    });
    Ok(leases.collect())
}
