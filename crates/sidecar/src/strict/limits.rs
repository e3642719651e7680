//! Limits of what a client may send.

pub(crate) const MAX_HEAD: usize = 128 << 10;
pub(crate) const MAX_REQUEST_LINE: usize = 32 << 10;
pub(crate) const MAX_HEADERS: usize = 256;
/// The most bytes of a header's name. hyper's own limit is far above this one.
pub(crate) const MAX_NAME: usize = 256;
pub(crate) const MAX_CHUNK_LINE: usize = 256;
/// The most bytes of all chunk extensions of a body, and of all its trailers. hyper gives up at twice as much.
pub(crate) const MAX_CHUNK_EXTRAS: usize = 8 << 10;
pub(crate) const MAX_TRAILERS: usize = 64;
