//! Bounds and patience of a machine.

use std::time::Duration;

use transload_plan::codec::Codec;

use crate::lease::LeaseLimits;

/// Bounds and patience of a [`Machine`](crate::Machine). Every wait has an end and every table a
/// size.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of leases.
    pub leases: LeaseLimits,
    /// How long an ask, a notice or an invitation waits for a lease that is not known yet. Longer than an engine
    /// takes from answering a request until its workers know: one step.
    pub early_wait: Duration,
    /// Most of them that wait so, in all: about 4.5 KiB each, the most of it the ticket; an invitation has two.
    pub early: usize,
    /// The same, of one agent.
    pub early_per_agent: usize,
    /// The same, of all agents of one service: half of all, so that one certificate does not take every place.
    pub early_per_service: usize,
    /// Most transfers that one agent has under way here by its own asking; the push of a rank's lease
    /// that it was first to invite counts as one. One more is refused as busy, and its asker tries again.
    pub transfers_per_agent: usize,
    /// The same, of all agents of one service together. As many of their asks, invitations and notices may wait for plans,
    /// and twice as many in all.
    pub transfers_per_service: usize,
    /// Most places of routes that one agent has under way here by its own asking: 24 bytes each while they are bound, and
    /// some nanoseconds to bind. The layout of the peer decides how many a route has, up to one for each token, component
    /// and layer. One more route is refused as busy, unless it is the only one.
    pub places_per_agent: u64,
    /// The same, of all agents of one service together; and the most of one route, of all those of one invited push, or of
    /// one rank in a pull or push of our own, which is refused as beyond planning otherwise. How many of our own there are
    /// at a time is for whoever starts them.
    pub places_per_service: u64,
    /// Most connections that one agent may have opened to us. Two dials that cross need two.
    pub connections_per_agent: usize,
    /// The same, of all agents of one service together: half of what a socket takes.
    pub connections_per_service: usize,
    /// Most of them that have not said which agent they are of, for which they have
    /// [`hello_wait`](Self::hello_wait): as many as connect at once where a large engine restarts.
    pub unnamed_per_service: usize,
    /// Most pulls and pushes at a time: our own, and pushes that were invited here, one for each lease.
    pub jobs: usize,
    /// Most of them that agents of one service have invited: half of all, so that one certificate leaves room for our own
    /// and for others. One more is refused as busy.
    pub invited_per_service: usize,
    /// How long a new connection has until both sides are welcome, and how long a peer that has too many is tried again.
    pub hello_wait: Duration,
    /// How long an agent that does not answer is dialled, however many attempts that takes, before the jobs that need it fail.
    /// One that is known not to be there, since its port is closed, has failed after [`attempts`](Self::attempts),
    /// or after one, where we had dialled it and were connected until then.
    pub connect_wait: Duration,
    /// How long a transfer may stand still before it is failed and tried again.
    pub stall: Duration,
    /// How often a peer that has to wait for us hears that it is worth it; well below its `stall`, which may be as short as
    /// the 5 s of vLLM's connector.
    pub heartbeat: Duration,
    /// How long the source keeps a committed transfer in mind if the peer does not say that it has landed.
    pub landing_wait: Duration,
    /// How often a route or a connection is tried before its job fails.
    pub attempts: u32,
    /// Pause before the second attempt; doubles up to [`backoff_most`](Self::backoff_most).
    pub backoff: Duration,
    /// Longest pause between attempts.
    pub backoff_most: Duration,
    /// How long a device may take for what it was asked to do, and to be done with a transfer that was stopped. Where it takes
    /// longer, the lease or the job fails, and its blocks stay held until it is done after all. What an engine marks to be
    /// done first is not counted.
    pub device_stall: Duration,
    /// How long done and cancel are offered to an owner that cannot be reached. Its leases expire
    /// by themselves after that.
    pub notice_wait: Duration,
    /// The codecs in which what is pulled here may be sent, besides exactly: whoever pulls chooses. They take fewer bytes on
    /// slow networks, and what comes of them is not quite what was computed.
    pub codecs: Vec<Codec>,
    /// Most notices under way at a time; a further one takes the place of the oldest.
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
    /// The pause after so many failures in a row.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        let doubled = self.backoff.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.backoff_most)
    }
}
