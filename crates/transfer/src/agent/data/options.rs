//! Settings of the data plane.

use std::time::Duration;

/// Settings of the data plane. `Default` is right; each field says its unit and what it bounds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DataOptions {
    /// Buffers of one lane, to gather into. They are on their way until the peer has acknowledged
    /// them, so this bounds what a lane can have under way of memory that is not lent: it should
    /// exceed bandwidth times round trip. Times [`buffer_bytes`](Self::buffer_bytes), it bounds the
    /// memory of a lane; buffers are made when they are needed.
    pub buffers: usize,

    /// Bytes of one such buffer.
    pub buffer_bytes: usize,

    /// Runs of at least so many bytes are lent to the network as they lie in memory, where that is
    /// allowed ([`RouteBytes::lendable`](super::RouteBytes::lendable)); shorter ones are gathered.
    pub lend_least: u64,

    /// How long a stream may take from its first byte until its header is there.
    pub header_timeout: Duration,

    /// Most streams under way to this process at a time, over all peers; a further one is stopped.
    /// Each costs a task of about 4 KiB.
    pub streams: usize,
}

impl Default for DataOptions {
    fn default() -> Self {
        Self {
            buffers: 32,
            buffer_bytes: 128 << 10,
            lend_least: 64 << 10,
            header_timeout: Duration::from_secs(5),
            streams: 16_384,
        }
    }
}
