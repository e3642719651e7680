//! Statistics of tiers.

/// The statistics of a tier on one handle. Values are chunks and manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStats {
    /// The tier's URI.
    pub tier: String,
    /// Values that were read from it.
    pub hits: u64,
    /// Bytes of these values.
    pub bytes: u64,
    /// Reads of values that the tier did not have, or had damaged.
    pub misses: u64,
    /// Failed requests, after which the next tier was used.
    pub failures: u64,
    /// Values copied into the tier because they were read from a lower one.
    pub promotions: u64,
    /// Copies that the tier refused because it was full or broken. The put or read that they belong to succeeded.
    pub skipped: u64,
    /// Values that the tier evicted, counted over all handles; `None` if the store does not count them.
    pub evictions: Option<u64>,
}
