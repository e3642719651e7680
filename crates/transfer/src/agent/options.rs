//! Settings of an agent.

use std::time::Duration;

use crate::data::DataOptions;
use crate::quic::QuicOptions;
use transload_wire as wire;

/// Settings of an agent. The default suits most programs.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Sockets, lanes and timeouts of the network.
    pub quic: QuicOptions,
    /// Limits and timeouts of the protocol.
    pub wire: wire::Options,
    /// Limits of buffers and streams.
    pub data: DataOptions,
    /// How long a connection is kept that nothing needs: no transfer, pull, push or notice, and no lease that the peer
    /// uses. A connection takes a place of [`QuicOptions::max_connections`] at both ends, its lanes, and its rings (two
    /// of 2 MiB, or of 16 MiB between GPUs, with a thread each). Making it again takes some milliseconds. The effective
    /// value is at least twice [`wire::Options::early_wait`].
    pub keep_idle: Duration,
    /// How often the files of the agent's certificate are checked, if it was read from a folder: three files of a
    /// kilobyte each. New connections use changed files.
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
    /// Sets how long a peer may make no progress: a transfer (20 s by default), and a silent connection (10 s by
    /// default). It matters for hosts that vanish or stay silent, and for processes that hang. A process that has
    /// exited is noticed within a second anyway, if its host reports the closed port. Any value from 2 s on works with
    /// any value of the peer.
    ///
    /// A pull that comes before its lease waits for half of this time at most, so that its peer is told that the lease
    /// is unknown before it treats the silence as a stall.
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

    /// Sets how long an agent that does not answer is dialled, at each address of its host: 15 s by default. It also
    /// limits how long both sides of any connection may take to accept each other: 5 s by default.
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
