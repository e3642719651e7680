//! Limits and timeouts of a machine.

use std::time::Duration;

use transload_plan::codec::Codec;

use crate::lease::LeaseLimits;

/// Limits and timeouts of a [`Machine`](crate::Machine). Every wait ends, and every table is bounded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Limits of leases.
    pub leases: LeaseLimits,
    /// How long an ask, a notice or an invitation waits for a lease that is unknown yet. It must be longer than an
    /// engine takes from answering a request until its workers know of it, which is one step.
    pub early_wait: Duration,
    /// The most requests that wait for an unknown lease, over all agents. Each takes about 4.5 KiB, mostly for its
    /// ticket; an invitation has two tickets.
    pub early: usize,
    /// The most requests of one agent that wait for an unknown lease.
    pub early_per_agent: usize,
    /// The most requests of all agents of one service that wait for an unknown lease. By default half of
    /// [`early`](Self::early), so that one certificate cannot take all places.
    pub early_per_service: usize,
    /// The most transfers in progress that one agent has asked for. An invited push counts once for each rank, against
    /// the agent that invited it first. Further asks are refused as busy, and may be repeated.
    pub transfers_per_agent: usize,
    /// The most transfers in progress that all agents of one service have asked for. It also limits how many of their
    /// asks, invitations and notices wait for plans; all services together may have twice as many waiting.
    pub transfers_per_service: usize,
    /// The most places of routes in progress that one agent has asked for. A place is where a loop nest of a plan meets
    /// a block; it takes 24 bytes while its route is bound, and some nanoseconds to bind. The peer's layout decides how
    /// many places a route has, up to one for each token, component and layer. A further route is refused as busy,
    /// unless it is the agent's only one.
    pub places_per_agent: u64,
    /// The most places of routes in progress that all agents of one service have asked for. It is also the most places
    /// of one route, of one invited push, or of one rank in a pull or push of this agent, which are refused for good if
    /// they have more. The caller bounds how many pulls and pushes it starts at a time.
    pub places_per_service: u64,
    /// The most connections that one agent may have opened to this one. Two dials that cross need two.
    pub connections_per_agent: usize,
    /// The most connections that all agents of one service may have opened to this one. By default half of what a
    /// socket accepts.
    pub connections_per_service: usize,
    /// The most connections of one service whose agent is not known yet. They have [`hello_wait`](Self::hello_wait) to
    /// say it. The default suits a large engine that restarts, whose agents all connect at once.
    pub unnamed_per_service: usize,
    /// The most pulls and pushes at a time. Invited pushes count, one for each lease.
    pub jobs: usize,
    /// The most invited pushes at a time for agents of one service. No more than half of [`jobs`](Self::jobs) count,
    /// the default, so that one certificate leaves room for others. Further invitations are refused as busy.
    pub invited_per_service: usize,
    /// The time limit for both sides of a new connection to be welcome. Also how long a peer with too many connections
    /// is retried.
    pub hello_wait: Duration,
    /// How long an agent that does not answer is dialled, over any number of attempts, before the jobs that need it
    /// fail. If its port is known to be closed, the jobs fail after [`attempts`](Self::attempts) attempts, or after one
    /// if this agent had dialled it and was connected until then.
    pub connect_wait: Duration,
    /// How long a transfer may make no progress before it fails and is repeated.
    pub stall: Duration,
    /// How often a waiting peer is told that it should go on waiting. Must be well below the peer's `stall`, which may
    /// be as short as the 5 s of vLLM's connector.
    pub heartbeat: Duration,
    /// How long the source waits for the peer to confirm that a committed transfer has landed. Then the transfer fails
    /// as stalled.
    pub landing_wait: Duration,
    /// How often a route or a connection is tried before its job fails.
    pub attempts: u32,
    /// The pause before the second attempt. It doubles with each further attempt, up to
    /// [`backoff_most`](Self::backoff_most).
    pub backoff: Duration,
    /// The longest pause between attempts.
    pub backoff_most: Duration,
    /// How long a device may take for the work of a transfer, and to finish after the transfer was stopped. If it takes
    /// longer, the lease or the job fails, and its blocks stay held until the device is done after all. Time until an
    /// engine's marks are reached does not count.
    pub device_stall: Duration,
    /// How long done and cancel are offered to an owner that cannot be reached. Later its leases expire by themselves.
    pub notice_wait: Duration,
    /// The codecs in which this agent sends where a peer's pull asks for one, besides the exact one. They take fewer
    /// bytes on slow networks, but the received values are not exactly the computed ones.
    pub codecs: Vec<Codec>,
    /// The most notices in progress. A further one replaces the oldest.
    pub notices: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            leases: LeaseLimits::default(),
            early_wait: Duration::from_secs(10),
            early: 4096,
            early_per_agent: 1024,
            early_per_service: 2048,
            transfers_per_agent: 1024,
            transfers_per_service: 8192,
            places_per_agent: 4 << 20,
            places_per_service: 16 << 20,
            connections_per_agent: 8,
            connections_per_service: 512,
            unnamed_per_service: 64,
            jobs: 4096,
            invited_per_service: 2048,
            hello_wait: Duration::from_secs(5),
            connect_wait: Duration::from_secs(15),
            stall: Duration::from_secs(20),
            heartbeat: Duration::from_secs(1),
            landing_wait: Duration::from_secs(60),
            attempts: 3,
            backoff: Duration::from_millis(50),
            backoff_most: Duration::from_secs(2),
            device_stall: Duration::from_secs(30),
            notice_wait: Duration::from_secs(60),
            codecs: Vec::new(),
            notices: 4096,
        }
    }
}

impl Options {
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        let doubled = self.backoff.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.backoff_most)
    }
}
