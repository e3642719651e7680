//! Counters of an agent, for export to a metrics system.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::error::TransferError;
use transload_layout::Side;
use transload_plan::RouteStream;
use transload_plan::ids::Direction;
use transload_wire::{BlocksOf, Flow, JobReport, LeaseEnd, Path};

/// Counters of an agent since it was bound. They never decrease, so the difference of two readings describes the time
/// between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentMetrics {
    /// Pulls by this agent.
    pub pulls: TransferMetrics,
    /// Pushes by this agent.
    pub pushes: TransferMetrics,
    /// Routes that other agents have read from blocks leased here, by pulls or by pushes at their invitation. Each
    /// attempt at each route counts.
    pub served: RouteMetrics,
    /// Routes that other agents have pushed into blocks opened here, also at the invitation of a pull. They count like
    /// [`served`](Self::served).
    pub received: RouteMetrics,
    /// Bytes that have left this agent's memory, of routes that have landed.
    pub bytes_out: PathBytes,
    /// Bytes that have arrived in this agent's memory, of routes that have landed.
    pub bytes_in: PathBytes,
    /// The time during which at least one route was moving, from its first byte to its end, including routes that peers
    /// asked for.
    pub busy: Duration,
    /// The number of runs of memory that were gathered or scattered, by length, of routes that have landed. The key is
    /// the smallest power of two that is not below the length in bytes.
    pub chunks: BTreeMap<u64, u64>,
    /// Leases of this agent's blocks, for reading or writing, except those that its own pulls have opened.
    pub leases: LeaseMetrics,
    /// The number of plans that were compiled, or could not be: one for each pull or push, and one for each lease set
    /// that others use.
    pub plans: u64,
}

/// Pulls or pushes that this agent has begun, without invited pushes. Those that are neither `succeeded` nor `failed`
/// are in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferMetrics {
    /// The number that were begun.
    pub begun: u64,
    /// The number that have landed completely.
    pub succeeded: u64,
    /// The number that have failed, by [kind](TransferError::kind).
    pub failed: BTreeMap<&'static str, u64>,
    /// The total duration of those that succeeded.
    pub took: Duration,
    /// The total time that those waited before their first byte moved: for their turn, a connection, the lease, or the
    /// prefill. It is part of `took`.
    pub queued: Duration,
}

/// Routes that other agents have asked for, each between one pair of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteMetrics {
    /// The number of attempts that were begun.
    pub begun: u64,
    /// The number that have landed.
    pub succeeded: u64,
    /// The number of attempts that failed.
    pub failed: u64,
    /// The total duration of those that succeeded, from their first byte.
    pub took: Duration,
}

/// Bytes by the path that they took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathBytes(BTreeMap<Path, u64>);

impl PathBytes {
    /// Returns the number of bytes that took a path.
    pub fn by(&self, path: Path) -> u64 {
        self.0.get(&path).copied().unwrap_or(0)
    }
}

/// Leases by how they ended. The others are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseMetrics {
    /// The number that were opened, for reading or writing.
    pub opened: u64,
    /// The number that were used as intended.
    pub completed: u64,
    /// The number that were cancelled by either side.
    pub cancelled: u64,
    /// The number that expired.
    pub expired: u64,
    /// The number that ended because their holder was lost.
    pub peer_lost: u64,
    /// The number that ended because their device was lost.
    pub device_lost: u64,
    /// The number that ended because their device did not finish its work on the blocks.
    pub device_stalled: u64,
}

/// Runs of memory by length, counted as in [`AgentMetrics::chunks`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks(BTreeMap<u64, u64>);

impl Chunks {
    /// Counts the runs of one side of a route. It takes O(places) time, like binding, for any number of chunks.
    pub(super) fn of(stream: &RouteStream) -> Self {
        let mut counts = BTreeMap::new();
        for section in &stream.sections {
            let program = section.program.program();
            let mut places = vec![0; program.nests.len()];
            for placed in &program.placed {
                places[placed.nest as usize] += 1;
            }
            for (nest, places) in program.nests.iter().zip(places) {
                let bound = nest.run.checked_next_power_of_two().unwrap_or(1 << 63);
                *counts.entry(bound).or_default() += nest.chunks() * places;
            }
        }
        Self(counts)
    }
}

/// The metrics, and the state of routes in progress that will change them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) metrics: AgentMetrics,
    moving: usize,
    /// The time since when something moves.
    busy_since: Option<Instant>,
}

/// The state of a route in progress that the counters need.
#[derive(Debug)]
pub(super) struct RouteUnderWay {
    /// Whether it belongs to a lease of this agent, and not to its own job.
    of_lease: bool,
    side: Side,
    moving_since: Option<Instant>,
}

impl Counters {
    pub(super) fn read(&self) -> AgentMetrics {
        let mut metrics = self.metrics.clone();
        metrics.busy += self.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        metrics
    }

    pub(super) fn job_done(&mut self, direction: Direction, result: &Result<JobReport, TransferError>) {
        let of = self.transfers(direction);
        match result {
            Ok(report) => {
                of.succeeded += 1;
                of.took += report.took;
                of.queued += report.queued;
            }
            Err(error) => *of.failed.entry(error.kind()).or_default() += 1,
        }
    }

    pub(super) fn transfers(&mut self, direction: Direction) -> &mut TransferMetrics {
        match direction {
            Direction::Pull => &mut self.metrics.pulls,
            Direction::Push => &mut self.metrics.pushes,
        }
    }

    pub(super) fn lease_ended(&mut self, end: LeaseEnd) {
        let leases = &mut self.metrics.leases;
        *match end {
            LeaseEnd::Completed => &mut leases.completed,
            LeaseEnd::Cancelled => &mut leases.cancelled,
            LeaseEnd::Expired => &mut leases.expired,
            LeaseEnd::PeerLost => &mut leases.peer_lost,
            LeaseEnd::DeviceLost => &mut leases.device_lost,
            LeaseEnd::DeviceStalled => &mut leases.device_stalled,
        } += 1;
    }

    /// Counts a route that is to be read or received. It ends with [`route_landed`](Self::route_landed) or
    /// [`route_failed`](Self::route_failed).
    pub(super) fn route_begun(&mut self, flow: &Flow, side: Side) -> RouteUnderWay {
        let mut route = RouteUnderWay { of_lease: matches!(flow.blocks, BlocksOf::Lease(_)), side, moving_since: None };
        if let Some(of) = self.of_others(&route) {
            of.begun += 1;
        }
        if side == Side::Source {
            self.moves(&mut route);
        }
        route
    }

    /// Returns the counters of a route that a peer has asked for. `None` for routes of this agent's jobs.
    fn of_others(&mut self, route: &RouteUnderWay) -> Option<&mut RouteMetrics> {
        let metrics = &mut self.metrics;
        let of = match route.side {
            Side::Source => &mut metrics.served,
            Side::Destination => &mut metrics.received,
        };
        route.of_lease.then_some(of)
    }

    /// Counts a byte of a route that moves; only the first one matters.
    pub(super) fn moves(&mut self, route: &mut RouteUnderWay) {
        if route.moving_since.is_none() {
            let now = Instant::now();
            route.moving_since = Some(now);
            self.moving += 1;
            self.busy_since.get_or_insert(now);
        }
    }

    pub(super) fn route_landed(&mut self, route: &RouteUnderWay, travelled: Option<(Path, u64, &Chunks)>) {
        self.end(route);
        if let Some(of) = self.of_others(route) {
            let took = route.moving_since.map(|since| since.elapsed());
            of.succeeded += 1;
            of.took += took.unwrap_or_default();
        }
        let Some((path, bytes, chunks)) = travelled else {
            return;
        };
        let by_path = match route.side {
            Side::Source => &mut self.metrics.bytes_out,
            Side::Destination => &mut self.metrics.bytes_in,
        };
        *by_path.0.entry(path).or_default() += bytes;
        for (bound, chunks) in &chunks.0 {
            *self.metrics.chunks.entry(*bound).or_default() += chunks;
        }
    }

    pub(super) fn route_failed(&mut self, route: &RouteUnderWay) {
        self.end(route);
        if let Some(of) = self.of_others(route) {
            of.failed += 1;
        }
    }

    fn end(&mut self, route: &RouteUnderWay) {
        if route.moving_since.is_some() {
            self.moving -= 1;
            if self.moving == 0
                && let Some(since) = self.busy_since.take()
            {
                self.metrics.busy += since.elapsed();
            }
        }
    }
}
