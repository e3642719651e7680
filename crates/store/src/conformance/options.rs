//! Options of a check.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The extent of a check. A vendor should pass it with the defaults before shipping, which takes seconds on a local
/// store and minutes on a remote one.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of threads that use the store at once, at least 2. The default is 8.
    pub threads: usize,
    /// The number of times that a manifest is replaced under its readers, and of values that each thread puts, at least
    /// 2. The default is 200.
    pub rounds: usize,
    /// The number of steps in the random comparison with a model. The default is 500.
    pub steps: usize,
    /// The length of the largest values in bytes. The default is 64 MiB.
    pub large: usize,
    /// The seed of random choices. It is random by default, and printed, so that a failure can be repeated.
    pub seed: u64,
    /// Whether violations of what only our backends promise are failures and not notes.
    pub strict: bool,
    /// Whether the store is used for this check only. Then two more things are tried: hashes of 1 to 3 bytes, whose
    /// chunks would stay in a store in use, because every manifest seems to refer to them; and names that other
    /// programs may use, such as `chunks`, `..` and the empty one.
    pub scratch: bool,
    /// Whether there is a library whose [C border](super::Item::border) is examined. The default is true.
    pub border: bool,
    /// Runs only the items whose names contain one of these texts, or all if the list is empty.
    pub only: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 8,
            rounds: 200,
            steps: 500,
            large: 64 << 20,
            seed: random_seed(),
            strict: false,
            scratch: false,
            border: true,
            only: Vec::new(),
        }
    }
}

impl Options {
    /// Returns options that run every item at a tenth of the effort, for tests that run often.
    pub fn quick() -> Self {
        Self { threads: 4, rounds: 40, steps: 200, large: 3 << 20, ..Self::default() }
    }
}

/// Returns a random number, from the random keys of `RandomState`.
pub(super) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
