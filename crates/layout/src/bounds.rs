//! Bounds of deployments.

/// The maximum number of ranks (`tp * pp`) of a deployment.
/// It is large enough for existing machines, and small enough that a document cannot cause large allocations.
pub(crate) const MAX_RANKS: u64 = 4096;

/// The maximum number of ranks that tokens are dealt out to. Real deployments have up to about eight. The planner
/// compares each of them with each of the other side's.
pub(crate) const MAX_DCP: u64 = 64;

/// The maximum number of groups of a deployment. Real ones have up to about five.
pub(crate) const MAX_GROUPS: usize = 64;

/// The maximum number of specs of a group. Real pages have two or three. Plans keep sets of components as 64 bits, and
/// a spec has at most four components.
pub(crate) const MAX_SPECS: usize = 16;

/// The maximum number of layers of a model. Layer slots are the upper 20 bits of an address.
pub const MAX_LAYERS: u64 = 65_536;

/// The largest value of a size field (2^40). Placement checks products of sizes.
pub(crate) const MAX_SIZE: u64 = 1 << 40;

/// The maximum number of blocks of a rank: block tables have 32-bit entries.
pub(crate) const MAX_BLOCKS: u64 = u32::MAX as u64;
