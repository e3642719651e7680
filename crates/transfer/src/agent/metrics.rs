//! What an agent has done so far: plain counters, for whoever exports them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::error::TransferError;
use transload_layout::Side;
use transload_plan::RouteStream;
use transload_plan::ids::Direction;
use transload_wire::{BlocksOf, Flow, JobReport, LeaseEnd, Path};

/// What an agent has done since it was bound. Nothing in it ever goes down, so that differences of two
/// readings tell what came to pass between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentMetrics {
    /// Own pulls.
    pub pulls: TransferMetrics,
    /// Own pushes.
    pub pushes: TransferMetrics,
    /// What others have had out of blocks that were leased here, pulled by them or pushed at their invitation: one
    /// for each route, and for each attempt at it.
    pub served: RouteMetrics,
    /// What others have pushed into blocks that were opened here, also by a pull for its owner to push, counted like
    /// [`served`](Self::served).
    pub received: RouteMetrics,
    /// Bytes that have left the memory here, of routes that have landed.
    pub bytes_out: PathBytes,
    /// Bytes that have come into the memory here, of routes that have landed.
    pub bytes_in: PathBytes,
    /// The time in which at least one route was moving, from its first byte to its end, whoever asked for it.
    pub busy: Duration,
    /// How many runs of memory of which length were gathered or scattered here, of routes that have landed: the key is
    /// the smallest power of two that is not below the length in bytes.
    pub chunks: BTreeMap<u64, u64>,
    /// Leases of own blocks, to be read or to be written, but for what pulls have opened.
    pub leases: LeaseMetrics,
    /// Plans that were compiled, or could not be: one for each pull or push, and one for each lease set that others use.
    pub plans: u64,
}

/// Pulls or pushes that this agent has begun, not those that peers have invited it to. Those that are neither
/// `succeeded` nor `failed` are under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferMetrics {
    /// How many were begun.
    pub begun: u64,
    /// How many have landed whole.
    pub succeeded: u64,
    /// How many have failed, by [kind](TransferError::kind).
    pub failed: BTreeMap<&'static str, u64>,
    /// How long those that succeeded took, added up.
    pub took: Duration,
    /// How long those waited until their first byte moved, added up: for their turn, a connection, the lease, the
    /// prefill. It is part of `took`.
    pub queued: Duration,
}

/// Routes that others have asked for: what one rank sends to one other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteMetrics {
    /// How many were begun.
    pub begun: u64,
    /// How many have landed.
    pub succeeded: u64,
    /// How many attempts came to nothing.
    pub failed: u64,
    /// How long those that succeeded took, from their first byte, added up.
    pub took: Duration,
}

/// Bytes by the path they took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathBytes(BTreeMap<Path, u64>);

impl PathBytes {
    /// How many have taken a path.
    pub fn by(&self, path: Path) -> u64 {
        self.0.get(&path).copied().unwrap_or(0)
    }
}

/// Leases by how they ended. Those that have not are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseMetrics {
    /// How many were opened, to be read or to be written.
    pub opened: u64,
    /// How many were used up, as meant.
    pub completed: u64,
    /// How many were given up, by either side.
    pub cancelled: u64,
    /// How many ran out of time.
    pub expired: u64,
    /// How many ended since their holder was lost.
    pub peer_lost: u64,
    /// How many ended since their device was lost.
    pub device_lost: u64,
    /// How many ended since their device did not end what it did with their blocks.
    pub device_stalled: u64,
}

/// Runs of memory by length, as [`AgentMetrics::chunks`] counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks(BTreeMap<u64, u64>);

impl Chunks {
    /// Counts the runs of one side of a route. Costs O(places), as binding it did, however many chunks they have.
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

/// The metrics, and what is under way that will change them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) metrics: AgentMetrics,
    moving: usize,
    /// While something moves: since when.
    busy_since: Option<Instant>,
}

/// The counters keep this of each route, to count it right when it ends.
#[derive(Debug)]
pub(super) struct RouteUnderWay {
    /// Whether a lease here is behind it, and not a job of our own.
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

    /// A route is to be read here, or received. It ends with [`route_landed`](Self::route_landed) or
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

    /// Finds the counters of a route that a peer has asked for; none for those of our own jobs.
    fn of_others(&mut self, route: &RouteUnderWay) -> Option<&mut RouteMetrics> {
        let metrics = &mut self.metrics;
        let of = match route.side {
            Side::Source => &mut metrics.served,
            Side::Destination => &mut metrics.received,
        };
        route.of_lease.then_some(of)
    }

    /// The first byte of a route moves, or a further one.
    pub(super) fn moves(&mut self, route: &mut RouteUnderWay) {
        if route.moving_since.is_none() {
            let now = Instant::now();
            route.moving_since = Some(now);
            self.moving += 1;
            self.busy_since.get_or_insert(now);
        }
    }

    /// A route has landed: by which path, how many bytes, in which chunks.
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
