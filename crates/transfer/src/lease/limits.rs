//! What bounds the leases of an agent.

use std::time::Duration;

#[cfg(doc)]
use super::LeaseEnd;

/// Bounds of an agent's leases.
#[derive(Clone, Debug)]
pub struct LeaseLimits {
    /// Most leases that are open at a time. A lease takes about 500 bytes and 150 more for each
    /// rank of its holder.
    pub leases: usize,
    /// Of how many ended leases the table remembers how they ended, the latest ones: 72 bytes each.
    /// A pull that comes later is told that the lease is unknown.
    pub ended: usize,
    /// How long a holder may be away in the midst of its use before the lease ends as
    /// [`PeerLost`](LeaseEnd::PeerLost).
    pub peer_grace: Duration,
}

impl Default for LeaseLimits {
    fn default() -> Self {
        Self {
            leases: 65_536,
            ended: 16_384,
            peer_grace: Duration::from_secs(10),
        }
    }
}
