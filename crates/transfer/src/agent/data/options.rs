//! Settings of the data plane.

use std::time::Duration;

/// Settings of the data plane. `Default` is right; each field says its unit and what it bounds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DataOptions {
    /// Buffers of one lane, to gather into. They are on their way until the peer has acknowledged
    /// them, so this bounds what a lane can have under way of memory that is not lent: it should
    /// exceed bandwidth times round trip. Times [`buffer_bytes`](Self::buffer_bytes), it bounds the
    /// memory of a lane (4 MiB); buffers are made when they are needed.
    ///
    /// On loopback, 2 of them are as fast as 32.
    pub buffers: usize,

    /// Bytes of one such buffer. On loopback, 64 KiB are 10 to 20 % slower than 128 KiB, and more are
    /// not faster.
    pub buffer_bytes: usize,

    /// Runs of at least so many bytes are lent to the network as they lie in memory, where that is
    /// allowed ([`RouteBytes::lendable`](super::RouteBytes::lendable)); shorter ones are gathered.
    ///
    /// Lending runs of 1.25 MiB instead of gathering them saves 2 % of the processor's time; lending
    /// runs of 8 KiB costs 30 %, since QUIC looks through all that is on its way for each packet.
    pub lend_least: u64,

    /// So many of the last bytes of a stream are gathered whatever their runs, so that packets follow
    /// those that carry lent memory: the peer acknowledges at once what others follow, but may think
    /// about the very last for 25 ms (`max_ack_delay`), and a commit waits for lent memory.
    pub gathered_tail: u64,

    /// How long a stream may take from its first byte until its header is there.
    pub header_timeout: Duration,

    /// Most streams under way to this process at a time, over all peers; a further one is stopped.
    /// Each costs a task of 6 KiB.
    pub streams: usize,

    /// Most of them from one peer, over all its lanes: so few that one peer cannot take the places of all
    /// others. An agent raises it to what its lanes allow, where that is more.
    pub streams_of_peer: usize,

    /// Most of them from all agents of one service: an agent's name below its service is its own choice.
    pub streams_of_service: usize,
}

impl Default for DataOptions {
    fn default() -> Self {
        Self {
            buffers: 32,
            buffer_bytes: 128 << 10,
            lend_least: 64 << 10,
            gathered_tail: 128 << 10,
            header_timeout: Duration::from_secs(5),
            streams: 16_384,
            streams_of_peer: 2048,
            streams_of_service: 8192,
        }
    }
}
