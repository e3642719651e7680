//! Settings of the data plane.

use std::time::Duration;

/// Settings of the data plane. The default suits most programs; each field states its unit and what it limits.
#[derive(Clone, Debug, PartialEq)]
pub struct DataOptions {
    /// The number of send buffers of a lane. A buffer is in use until the peer has acknowledged it, so this limits the
    /// bytes in flight on a lane, and should exceed bandwidth times round trip time. Times
    /// [`buffer_bytes`](Self::buffer_bytes), it limits the memory of a lane (4 MiB); buffers are allocated when they
    /// are needed.
    ///
    /// On loopback, 2 buffers are as fast as 32.
    pub buffers: usize,

    /// The size of such a buffer in bytes. On loopback, 64 KiB is 10 to 20 % slower than 128 KiB, and more is not
    /// faster.
    pub buffer_bytes: usize,

    /// The time limit for a stream's header, from its first byte.
    pub header_timeout: Duration,

    /// The most incoming streams of this process at a time, over all peers. Further streams are stopped. Each costs a
    /// task of 6 KiB.
    pub streams: usize,

    /// The most incoming streams of one peer, over all its lanes. Keep it low enough that a single peer cannot take the
    /// places of all others. An agent raises it to what its lanes allow, if that is more.
    pub streams_of_peer: usize,

    /// The most incoming streams of all agents of one service. It is needed because an agent chooses its instance name
    /// itself.
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
