//! Numbers of the form that states and session files have.

/// The first four bytes of a state, which change with its format.
pub(super) const MAGIC: u32 = 0xaf14_3cd8;

/// The first four bytes of a session file: `ggsq`.
pub(super) const SESSION_MAGIC: u32 = 0x6767_7371;

/// The version of session files.
pub(super) const SESSION_VERSION: u32 = 3;

/// Bytes of a state in front of its streams.
pub(super) const HEAD: usize = 8;

/// Bytes in front of the rows of a layer.
pub(super) const LAYER_HEAD: usize = 12;
