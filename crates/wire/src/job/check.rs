//! The conditions under which a job may begin.

use std::collections::BTreeSet;

use transload_plan::codec::Codec;
use transload_plan::ids::Direction;

use super::spec::JobSpec;
use crate::context::Context;
use crate::deployments::KnownDeployments;
use crate::lease::{LeaseKey, covers};
use crate::outcome::JobError;
use crate::path::PathSet;
use crate::peers::check_life;
use crate::ticket::Claims;

/// Checks whether a job may begin. Returns the claims of its ticket, and the write leases that it opens for its owner,
/// if any. Whether those can be opened is for the lease table to check.
pub(crate) fn check_job(
    cx: &Context<impl KnownDeployments>,
    spec: &JobSpec,
) -> Result<(Claims, BTreeSet<LeaseKey>), JobError> {
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
    if let Some(&rank) = spec.ranks.iter().find(|rank| cx.lost.contains(rank)) {
        return Err(JobError::DeviceLost { rank });
    }
    check_not_own(cx, &claims)?;
    check_tokens(spec, &claims)?;
    check_codec(spec, &claims)?;
    if spec.into.is_some() && claims.direction != Direction::Pull {
        let why = "only the owner of a pull's leases can push".into();
        return Err(JobError::WriteLease { why });
    }
    if let Some(rank) = cx.jobs.busy(claims.set, &spec.ranks) {
        return Err(JobError::UnderWay { rank });
    }
    let opens = check_write_leases(cx, spec)?;
    Ok((claims, opens))
}

/// Checks that a ticket is of another engine. A ticket that names this agent in another life is from before a restart,
/// which needs no dialling to find out.
fn check_not_own(cx: &Context<impl KnownDeployments>, claims: &Claims) -> Result<(), JobError> {
    let (me, ours) = (&cx.me.agent, (cx.deployment, cx.me.incarnation));
    if claims.ranks.iter().any(|rank| rank.agent == *me) {
        check_life(me, ours, claims)?;
    }
    match (claims.owner, claims.incarnation) == ours {
        true => Err(JobError::OwnTicket),
        false => Ok(()),
    }
}

fn check_tokens(spec: &JobSpec, claims: &Claims) -> Result<(), JobError> {
    let (first, valid) = (claims.start, claims.valid_tokens);
    let (start, end) = (spec.request.start, spec.request.end());
    match covers(claims.direction, (first, valid), &spec.request) {
        true => Ok(()),
        false => Err(JobError::Tokens { start, end, first, valid }),
    }
}

/// Checks that a job may use its codec. The receiver chooses it, since it must know that the bytes are not exact.
fn check_codec(spec: &JobSpec, claims: &Claims) -> Result<(), JobError> {
    let (codec, paths) = (spec.request.codec, spec.paths);
    let pulled = claims.direction == Direction::Pull && spec.into.is_none();
    let why = match codec {
        Codec::Exact => return Ok(()),
        _ if !pulled => "only what is pulled can, and is not pushed".into(),
        _ if spec.travels_by().iter().next().is_none() => {
            format!("codecs go over {}, and not {paths}", PathSet::QUIC).into()
        }
        _ => return Ok(()),
    };
    Err(JobError::Codec { codec, why })
}

fn check_write_leases(cx: &Context<impl KnownDeployments>, spec: &JobSpec) -> Result<BTreeSet<LeaseKey>, JobError> {
    let Some(into) = &spec.into else {
        return Ok(BTreeSet::new());
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
    check_tokens(spec, &claims)?;
    let set = claims.set;
    let keys = spec.ranks.iter().map(|&rank| LeaseKey { set, rank });
    Ok(keys.collect())
}
