//! Errors of planning, and the limits of a plan.

use thiserror::Error;
use transload_layout::Side;

use crate::bridge::BridgeError;

/// The largest token position (2^40), so that sums of sizes never overflow.
pub(crate) const MAX_TOKENS: u64 = 1 << 40;

/// The maximum number of bytes that a plan moves (256 PiB), so that neither sums of chunks nor sizes of lists overflow.
pub(crate) const MAX_BYTES: u64 = 1 << 58;

/// The maximum number of slices in a plan. A slice is a component on one route, for layers that travel together.
///
/// A slice takes about half a KiB, so a plan stays below 200 MB. Two deployments of 256 tensor-parallel ranks, 8 stages
/// and 10 components have 20,000 slices.
pub const MAX_SLICES: u64 = 1 << 18;

/// Describes why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum PlanError {
    /// The two sides hold different caches.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// The range of tokens ends beyond 2^40.
    #[error("tokens {start} + {tokens} end beyond the last position there may be, {MAX_TOKENS}")]
    TooManyTokens { start: u64, tokens: u64 },
    /// The plan would move more bytes than any cluster has.
    #[error("{bytes} bytes would move, more than the most there may be, {MAX_BYTES}")]
    TooManyBytes { bytes: u128 },
    /// The plan would have too many slices.
    #[error(
        "the plan could have {slices} slices, more than the most there may be, {MAX_SLICES}: one for \
         each component on each pair of ranks that share it"
    )]
    TooManySlices { slices: u128 },
    /// The deployment has no such rank.
    #[error("{side} has no rank {rank}: its ranks are 0 to {last}")]
    NoSuchRank { side: Side, rank: u32, last: u32 },
}
