//! Settings of an agent.

use std::time::Duration;

use crate::data::DataOptions;
use crate::quic::QuicOptions;
use crate::wire;

/// Settings of an agent. `Default` is right for most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AgentOptions {
    /// Sockets, lanes and timeouts of the network.
    pub quic: QuicOptions,
    /// Bounds and patience of the protocol.
    pub wire: wire::Options,
    /// Buffers and streams.
    pub data: DataOptions,
    /// How long a connection is kept that nothing needs: no transfer, no pull or push, no notice, no lease
    /// that the peer uses. It costs a place of [`QuicOptions::max_connections`] at both ends, and with it go
    /// its lanes and its rings (two of 2 MiB, and a thread each); to make it anew takes some
    /// milliseconds. In effect at least twice [`wire::Options::early_wait`].
    pub keep_idle: Duration,
    /// How often the files of the agent's certificate are looked at, where it was read from a folder: three files
    /// of a kilobyte each. New connections use what has changed.
    pub renew_every: Duration,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            quic: QuicOptions::default(),
            wire: wire::Options::default(),
            data: DataOptions::default(),
            keep_idle: Duration::from_secs(60),
            renew_every: Duration::from_secs(60),
        }
    }
}
