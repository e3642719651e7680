//! Settings of the data plane.

use std::time::Duration;

/// Settings of the data plane. `Default` is right; each field says its unit and what it bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct DataOptions {
    /// Buffers of one lane, to gather into. They are on their way until the peer has acknowledged
    /// them, so this bounds what a lane can have under way: it should exceed bandwidth times round
    /// trip. Times [`buffer_bytes`](Self::buffer_bytes), it bounds the
    /// memory of a lane (4 MiB); buffers are made when they are needed.
    ///
    /// On loopback, 2 of them are as fast as 32.
    pub buffers: usize,

    /// Bytes of one such buffer. On loopback, 64 KiB are 10 to 20 % slower than 128 KiB, and more are
    /// not faster.
    pub buffer_bytes: usize,

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
            header_timeout: Duration::from_secs(5),
            streams: 16_384,
            streams_of_peer: 2048,
            streams_of_service: 8192,
        }
    }
}
