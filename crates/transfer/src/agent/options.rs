//! Settings of an agent.

use std::time::Duration;

use crate::data::DataOptions;
use crate::quic::QuicOptions;
use transload_wire as wire;

/// Settings of an agent. `Default` is right for most.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Sockets, lanes and timeouts of the network.
    pub quic: QuicOptions,
    /// Bounds and patience of the protocol.
    pub wire: wire::Options,
    /// Buffers and streams.
    pub data: DataOptions,
    /// How long a connection is kept that nothing needs: no transfer, no pull or push, no notice, no lease
    /// that the peer uses. It costs a place of [`QuicOptions::max_connections`] at both ends, and with it go
    /// its lanes and its rings (two of 2 MiB, or of 16 MiB between GPUs, and a thread each); to make it anew takes some
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

impl AgentOptions {
    /// Sets how long a peer may stand still: how long a transfer may make no progress, and how long a connection may be
    /// silent. 20 s and 10 s by default. A process that is gone is heard of in a second whatever this is, where its host says that the
    /// port is closed: this is for hosts that vanish or say nothing, and for processes that hang. From 2 s on any value suits peers of any other.
    ///
    /// A pull that comes before its lease waits for half as long at most, so that its peer hears that the lease is unknown
    /// before it takes the silence for a standstill.
    #[must_use]
    pub fn stall(mut self, after: Duration) -> Self {
        let often = after / 4;
        self.wire.stall = after;
        self.wire.heartbeat = self.wire.heartbeat.min(often);
        self.wire.early_wait = self.wire.early_wait.min(after / 2);
        self.quic.stall_timeout = after;
        self.quic.idle_timeout = after;
        self.quic.keep_alive = self.quic.keep_alive.min(often);
        self
    }

    /// Sets how long an agent is dialled that does not answer, at each address that its host has. 15 s by default. Nor may
    /// a connection take longer, one from elsewhere included, until both sides have accepted each other: 5 s by default.
    #[must_use]
    pub fn connect_wait(mut self, wait: Duration) -> Self {
        self.quic.handshake_timeout = self.quic.handshake_timeout.min(wait);
        self.wire.connect_wait = wait;
        self.wire.hello_wait = self.wire.hello_wait.min(wait);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_patience_makes_settings_that_can_be() {
        for millis in [100, 999, 5_000, 20_000, 86_400_000] {
            let patience = Duration::from_millis(millis);
            let options = AgentOptions::default().stall(patience).connect_wait(patience);
            let AgentOptions { wire, quic, .. } = &options;
            assert_eq!(quic.check(), Ok(()));
            assert!(4 * wire.heartbeat <= wire.stall, "{options:?}");
            assert!(2 * wire.early_wait <= wire.stall, "{options:?}");
            assert!(quic.handshake_timeout <= patience, "{options:?}");
        }
    }
}
