//! One attempt to move one route, at either end.

use std::sync::Arc;

use super::destination::{Destination, StreamRefusal};
use super::source::Source;
use crate::action::Flow;
use crate::deployments::KnownDeployments;
use crate::event::{Side, Why};
use crate::path::PathSet;
use crate::path::negotiation::Way;
use crate::plans::Planned;
use crate::refusal::Failure;
use crate::stream::StreamHeader;
use crate::waiting::Awaited;

/// A transfer, and the lease or job that it belongs to. Memory: about 500 bytes, and the streams of [`Destination`].
#[derive(Debug)]
pub(crate) struct Transfer<D: KnownDeployments> {
    /// The description of the transfer for the agent. The transfer ends with the connection that it names.
    pub(crate) flow: Flow,
    /// The plan of the transfer, until the agent takes it.
    pub(crate) plan: Option<Arc<Planned<D::Plan>>>,
    pub(crate) side: Side,
    pub(super) role: Role,
    pub(super) phase: Phase,
    pub(super) is_fence_late: bool,
    /// Whether memory did not finish its work in time.
    pub(crate) stalled: bool,
    pub(super) paths: PathSet,
    /// The most places that binding takes, if a peer asked. Those of an invited push are counted together elsewhere.
    pub(crate) places: u64,
    /// The event that the peer waits for, as it last said.
    pub(super) waiting: Option<Awaited>,
    /// The number of bytes that had moved at the last report.
    pub(super) moved: u64,
}

#[derive(Debug)]
pub(super) enum Role {
    Source(Source),
    Destination(Destination),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The peer has not accepted yet.
    Asking,
    /// A source may not read yet, because the prefill is not over.
    Waiting,
    /// A source reads, or a destination receives.
    Moving,
    Committed,
    Fencing(Why),
}

impl<D: KnownDeployments> Transfer<D> {
    /// Makes an attempt that is asked for or granted. For a source, `prefilled` says whether everything may be read.
    pub(crate) fn new(
        flow: Flow,
        plan: Arc<Planned<D::Plan>>,
        side: Side,
        (way, prefilled): (Way, bool),
        paths: PathSet,
    ) -> Self {
        let role = match way {
            Way::Out => Role::Source(Source { prefilled, ..Source::default() }),
            Way::In => Role::Destination(Destination::new(flow.bytes)),
        };
        let mut transfer = Self {
            flow,
            plan: Some(plan),
            side,
            role,
            phase: Phase::Asking,
            is_fence_late: false,
            stalled: false,
            paths,
            places: 0,
            waiting: None,
            moved: 0,
        };
        if matches!(side, Side::Lease(_)) {
            transfer.accept();
        }
        transfer
    }

    pub(crate) fn why(&self) -> Option<&Why> {
        match &self.phase {
            Phase::Fencing(why) => Some(why),
            _ => None,
        }
    }

    pub(crate) fn is_fencing(&self) -> bool {
        self.why().is_some()
    }

    /// Fails the transfer. The first failure stays.
    pub(super) fn fence(&mut self, why: Why) {
        if !self.is_fencing() {
            self.phase = Phase::Fencing(why);
        }
    }

    /// Returns whether the agent was told to read or to receive, so that a fence is needed.
    pub(super) fn is_under_way(&self) -> bool {
        let begun = matches!(self.phase, Phase::Moving | Phase::Committed);
        begun || self.way() == Way::In
    }

    pub(super) fn is_reading(&self) -> bool {
        self.phase == Phase::Moving && self.way() == Way::Out
    }

    /// Returns whether nothing is left to read, so that only the lease decides about the commit. Before the end of the
    /// prefill that is never so, since a state may have been read half computed.
    pub(crate) fn is_read(&self) -> bool {
        match &self.role {
            Role::Source(source) if self.phase == Phase::Moving => source.prefilled && source.sent == self.flow.bytes,
            _ => false,
        }
    }

    pub(crate) fn way(&self) -> Way {
        match &self.role {
            Role::Source(_) => Way::Out,
            Role::Destination(_) => Way::In,
        }
    }

    /// Records that the peer accepts. Returns whether it had not accepted before.
    pub(super) fn accept(&mut self) -> bool {
        let is_first = self.phase == Phase::Asking;
        if is_first {
            self.phase = match self.way() {
                Way::Out => Phase::Waiting,
                Way::In => Phase::Moving,
            };
        }
        is_first
    }

    /// Begins reading as a source, if that is allowed and has not begun. Returns whether it begins now.
    pub(super) fn begin_reading(&mut self) -> bool {
        let by_layer = self.flow.request.by_layer;
        let may = matches!(&self.role, Role::Source(source) if source.prefilled || by_layer);
        let begins = self.phase == Phase::Waiting && may;
        if begins {
            self.phase = Phase::Moving;
        }
        begins
    }

    pub(super) fn waits_for_prefill(&self) -> bool {
        let may_end = matches!(self.phase, Phase::Waiting | Phase::Moving);
        may_end && matches!(&self.role, Role::Source(source) if !source.prefilled)
    }

    /// Commits as a source. Returns the number of streams and bytes for the commit.
    pub(super) fn commit(&mut self) -> Option<(u32, u64)> {
        let Role::Source(source) = &self.role else {
            return None;
        };
        self.phase = Phase::Committed;
        Some((source.streams, source.sent))
    }

    /// Decides whether a stream may place its bytes. Must be called before its first byte is placed.
    pub(super) fn admit(&mut self, header: &StreamHeader) -> Result<(), StreamRefusal> {
        let known = !self.is_fencing() && header.nonce == self.flow.nonce;
        match &mut self.role {
            Role::Destination(destination) if known => destination.admit(header),
            _ => Err(StreamRefusal::Unknown),
        }
    }

    pub(super) fn outcome(&self) -> Option<Result<(), Failure>> {
        match &self.role {
            Role::Destination(destination) if self.phase == Phase::Moving => destination.outcome(),
            _ => None,
        }
    }

    pub(crate) fn awaits(&self) -> Awaited {
        let asked = self.waiting.unwrap_or(Awaited::Answer);
        let (moved, planned) = (self.moved, self.flow.bytes);
        match (&self.phase, self.way()) {
            (Phase::Asking, _) => asked,
            (Phase::Waiting, _) => Awaited::Prefill,
            (Phase::Committed, _) => Awaited::Landing,
            (Phase::Fencing(_), _) => Awaited::Fence,
            (Phase::Moving, Way::In) if moved >= planned => Awaited::Commit,
            (Phase::Moving, Way::In) if asked == Awaited::Prefill => asked,
            (Phase::Moving, _) => Awaited::Bytes { moved, planned },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::action::BlocksOf;
    use crate::ids::{ConnId, JobId};
    use crate::simulation::plan::SimPlanner;
    use transload_plan::Request;
    use transload_plan::codec::Codec;
    use transload_plan::ids::{AgentId, Nonce, Rank, TransferId};

    const NONCE: Nonce = Nonce([1; 16]);

    fn accepted(bytes: u64, way: Way, by_layer: bool, prefilled: bool) -> Transfer<SimPlanner<()>> {
        let job = JobId(1);
        let flow = Flow {
            transfer: TransferId([0; 16]),
            nonce: NONCE,
            conn: ConnId(1),
            agent: AgentId::new("a").unwrap(),
            rank: Rank(0),
            peer_rank: Rank(0),
            request: Request { by_layer, codec: Codec::Exact, ..Request::tokens(1) },
            bytes,
            lanes: 1,
            path: None,
            blocks: BlocksOf::Job(job),
            all_readable: true,
            ready: Vec::new(),
        };
        let plan = Planned { routes: BTreeMap::new(), slices: 0, plan: () };
        let side = Side::Job { job, route: 0 };
        let way = (way, prefilled);
        let mut transfer = Transfer::new(flow, Arc::new(plan), side, way, PathSet::ANY);
        assert!(transfer.accept() && !transfer.accept());
        transfer
    }

    fn reading(bytes: u64) -> Transfer<SimPlanner<()>> {
        let mut source = accepted(bytes, Way::Out, false, true);
        assert!(source.begin_reading() && !source.begin_reading());
        source
    }

    fn source_of(t: &mut Transfer<SimPlanner<()>>) -> &mut Source {
        match &mut t.role {
            Role::Source(source) => source,
            Role::Destination(_) => unreachable!(),
        }
    }

    fn sent(t: &mut Transfer<SimPlanner<()>>, bytes: u64) -> Result<(), Failure> {
        let planned = t.flow.bytes;
        source_of(t).stream_sent(bytes, planned)
    }

    #[test]
    fn a_source_has_read_after_the_last_byte() {
        let mut source = reading(100);
        sent(&mut source, 60).unwrap();
        assert!(!source.is_read());
        sent(&mut source, 40).unwrap();
        assert!(source.is_read());
        assert_eq!(source.commit(), Some((2, 100)));
        assert!(!source.is_read(), "once");
        let why = "101 bytes were sent of 100".into();
        assert_eq!(sent(&mut source, 1), Err(Failure::Local { why }));
    }

    #[test]
    fn a_source_waits_for_the_prefill_unless_by_layer() {
        let mut source = accepted(10, Way::Out, false, false);
        assert!(!source.begin_reading() && source.waits_for_prefill());
        source_of(&mut source).prefilled = true;
        assert!(source.begin_reading() && !source.waits_for_prefill());

        let mut source = accepted(10, Way::Out, true, false);
        assert!(source.begin_reading() && source.waits_for_prefill());
        sent(&mut source, 10).unwrap();
        assert!(!source.is_read(), "what was read may have been half computed");
        source_of(&mut source).prefilled = true;
        assert!(source.is_read());
    }

    #[test]
    fn the_first_failure_stays() {
        let mut source = reading(100);
        source.fence(Why::Failed(Failure::Streams));
        source.fence(Why::Failed(Failure::Cancelled));
        assert_eq!(source.why(), Some(&Why::Failed(Failure::Streams)));
        source.accept();
        assert!(!source.begin_reading() && !source.is_read());
    }

    #[test]
    fn only_the_right_nonce_lets_in_and_nothing_after_a_failure() {
        let mut to = accepted(100, Way::In, false, true);
        let header = |nonce| StreamHeader { transfer: TransferId([0; 16]), nonce, stream: 0, offset: 0, length: 100 };
        let unknown = Err(StreamRefusal::Unknown);
        assert_eq!(to.admit(&header(Nonce([2; 16]))), unknown);
        to.fence(Why::Failed(Failure::Streams));
        assert_eq!(to.admit(&header(NONCE)), unknown);
        let mut source = reading(100);
        assert_eq!(source.admit(&header(NONCE)), unknown, "it receives nothing");
    }
}
