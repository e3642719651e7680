//! Constants of the format of states and session files.

pub(super) const MAGIC: u32 = 0xaf14_3cd8;

/// The first number of a session file: `ggsq`.
pub(super) const SESSION_MAGIC: u32 = 0x6767_7371;

pub(super) const SESSION_VERSION: u32 = 3;

/// The bytes of a state in front of its streams.
pub(super) const HEAD: usize = 8;

/// The bytes in front of a layer's rows.
pub(super) const LAYER_HEAD: usize = 12;
