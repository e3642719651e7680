//! Why there is no plan, and the limits that it has.

use thiserror::Error;
use transload_layout::Side;

use crate::bridge::BridgeError;

/// The largest token position there may be (2^40), so that sums of sizes never overflow.
pub(crate) const MAX_TOKENS: u64 = 1 << 40;

/// The most bytes that a plan moves (256 PiB), so that neither sums of chunks nor the sizes of lists of them
/// overflow.
pub(crate) const MAX_BYTES: u64 = 1 << 58;

/// The most slices of a plan: a component on one route, for layers that travel alike.
///
/// Each takes half a KiB or so, so a plan stays below 200 MB. Between two deployments of 256 ranks of
/// tensor parallelism, 8 stages and 10 components there are 20,000.
pub const MAX_SLICES: u64 = 1 << 18;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum PlanError {
    /// The two sides do not hold the same cache.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// A range of tokens that ends beyond 2^40.
    #[error("tokens {start} + {tokens} end beyond the last position there may be, {MAX_TOKENS}")]
    TooManyTokens { start: u64, tokens: u64 },
    /// More bytes than any cluster has.
    #[error("{bytes} bytes would move, more than the most there may be, {MAX_BYTES}")]
    TooManyBytes { bytes: u128 },
    /// More slices than a plan may have.
    #[error(
        "the plan could have {slices} slices, more than the most there may be, {MAX_SLICES}: one for \
         each component on each pair of ranks that share it"
    )]
    TooManySlices { slices: u128 },
    /// A rank that a deployment does not have.
    #[error("{side} has no rank {rank}: its ranks are 0 to {last}")]
    NoSuchRank { side: Side, rank: u32, last: u32 },
}
