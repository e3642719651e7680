//! One route of a job, and the attempts at it.

use std::time::Duration;

use transload_plan::ids::{Direction, PlanDigest, Rank, TransferId};

use super::spec::JobSpec;
use crate::action::Flow;
use crate::message::{Ask, Message};
use crate::news::Why;
use crate::options::Options;
use crate::outcome::{JobError, RouteReport};
use crate::path::{Path, PathSet};
use crate::planner::Route;
use crate::refusal::Refusal;

/// As many attempts as an owner may say that there were: more are not to be reached in the life of a lease.
const MOST_ATTEMPTS: u32 = 1 << 20;

#[derive(Debug)]
pub(super) struct JobRoute {
    /// Its attempts have a number and a transfer of their own each.
    pub(super) report: RouteReport,
    digest: PlanDigest,
    pub(super) state: RouteState,
    /// Those of its attempts that failed.
    failures: u32,
    /// Of a push: whether a commit was sent, so that it may have landed without our knowing.
    pub(super) committed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteState {
    Idle,
    Pausing {
        /// Whether the owner was busy, rather than that an attempt has failed.
        busy: bool,
    },
    Trying(TransferId),
    Landed,
}

impl JobRoute {
    /// A route of a local rank that has not been tried.
    pub(super) fn new(rank: Rank, route: &Route) -> Self {
        Self {
            report: RouteReport { rank, peer_rank: route.peer_rank, bytes: route.bytes, path: Path::QUIC, attempts: 0 },
            digest: route.digest,
            state: RouteState::Idle,
            failures: 0,
            committed: false,
        }
    }

    pub(super) fn trying(&self) -> Option<TransferId> {
        match self.state {
            RouteState::Trying(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// What follows from the end of an attempt without success: a pause before the next, if it has not landed after all; or
    /// the end of the job.
    pub(super) fn ended(&mut self, options: &Options, why: Why) -> Result<Option<Duration>, JobError> {
        let RouteReport { rank, peer_rank, attempts, .. } = self.report;
        let busy = matches!(&why, Why::Refused(refusal) if refusal.is_transient());
        match why {
            // Our commit came through, and only the answer was lost.
            Why::Refused(Refusal::Consumed) if self.committed => {
                self.state = RouteState::Landed;
                return Ok(None);
            }
            Why::Refused(_) if busy => {}
            // An earlier job of ours, which has left the leases alone, has tried as often.
            Why::Refused(Refusal::Superseded { latest })
                if (attempts..MOST_ATTEMPTS).contains(&latest) && self.failures + 1 < options.attempts =>
            {
                self.report.attempts = latest;
            }
            Why::Refused(refusal) => {
                return Err(JobError::Refused { rank, peer_rank, refusal });
            }
            Why::Failed(failure) if failure.is_final() || self.failures + 1 >= options.attempts => {
                return Err(JobError::Failed { rank, peer_rank, attempts, failure });
            }
            Why::Failed(_) => {}
        }
        self.failures += u32::from(!busy);
        self.state = RouteState::Pausing { busy };
        let pauses = if busy { attempts } else { self.failures };
        Ok(Some(options.pause(pauses)))
    }

    /// What is said to the peer of an attempt.
    pub(super) fn ask(&self, spec: &JobSpec, flow: &Flow, paths: PathSet, direction: Direction) -> Message {
        let (source, destination) = match direction {
            Direction::Push => (flow.rank, flow.peer_rank),
            Direction::Pull => (flow.peer_rank, flow.rank),
        };
        let ask = Ask {
            transfer: flow.transfer,
            nonce: flow.nonce,
            ticket: spec.ticket.clone(),
            source,
            destination,
            request: spec.request,
            content: spec.content,
            plan: self.digest,
            lanes: spec.lanes,
            paths,
            attempt: self.report.attempts,
        };
        match direction {
            Direction::Push => Message::Push(ask),
            Direction::Pull => Message::Pull(ask),
        }
    }
}
