//! One route of a job, and its attempts.

use std::time::Duration;

use transload_plan::ids::{Direction, PlanDigest, Rank, TransferId};

use super::spec::JobSpec;
use crate::action::Flow;
use crate::event::Why;
use crate::message::{Ask, Message};
use crate::options::Options;
use crate::outcome::{JobError, RouteReport};
use crate::path::{Path, PathSet};
use crate::plans::Route;
use crate::refusal::Refusal;

/// The highest attempt number that an owner may report. A lease does not live long enough for more attempts.
const MOST_ATTEMPTS: u32 = 1 << 20;

#[derive(Debug)]
pub(super) struct JobRoute {
    /// The report so far. Each attempt has a number and a transfer of its own.
    pub(super) report: RouteReport,
    digest: PlanDigest,
    pub(super) state: RouteState,
    failures: u32,
    /// Used by pushes only: whether a commit was sent, so that the route may have landed without this agent's knowing.
    pub(super) committed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteState {
    Idle,
    Pausing {
        /// Whether the owner was busy; otherwise an attempt has failed.
        busy: bool,
    },
    Trying(TransferId),
    Landed,
}

impl JobRoute {
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

    /// Handles the end of an attempt without success. Returns the pause before the next one, or `None` if the route has
    /// landed after all; an error ends the job.
    pub(super) fn ended(&mut self, options: &Options, why: Why) -> Result<Option<Duration>, JobError> {
        let RouteReport { rank, peer_rank, attempts, .. } = self.report;
        let busy = matches!(&why, Why::Refused(refusal) if refusal.is_transient());
        match why {
            // Our commit arrived, and only its confirmation was lost.
            Why::Refused(Refusal::Consumed) if self.committed => {
                self.state = RouteState::Landed;
                return Ok(None);
            }
            Why::Refused(_) if busy => {}
            // An earlier job of this agent, which kept the leases, has made that many attempts.
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
