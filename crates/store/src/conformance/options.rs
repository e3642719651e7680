//! How much the kit tries.

use std::hash::{BuildHasher, Hasher, RandomState};

/// How much to try. The default is what a vendor should pass before shipping; it takes seconds on a local store
/// and minutes on a remote one.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads that use the store at once, at least 2. 8 unless set.
    pub threads: usize,
    /// How often a manifest is replaced under its readers, and how many values each thread puts, at least 2. 200 unless set.
    pub rounds: usize,
    /// Steps of the random comparison with a model. 500 unless set.
    pub steps: usize,
    /// Length in bytes of the largest values. 64 MiB unless set.
    pub large: usize,
    /// Where random choices begin. Random unless set, and printed, so that a failure can be tried again.
    pub seed: u64,
    /// Whether what only our backends promise is a failure too, and not a note.
    pub strict: bool,
    /// Whether the store is there for this check alone. Then hashes of 1 to 3 bytes are tried, too, whose
    /// chunks would stay in a store in use, since every manifest seems to refer to them; and names that
    /// everybody may use: `chunks`, `..`, the empty one.
    pub scratch: bool,
    /// Whether there is a library, whose [C border](super::Item::border) is looked at. It is unless set.
    pub border: bool,
    /// Only the items whose names contain one of these; all of them unless there is one.
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
    /// Everything, at a tenth of the effort: for tests that run often.
    pub fn quick() -> Self {
        Self { threads: 4, rounds: 40, steps: 200, large: 3 << 20, ..Self::default() }
    }
}

/// Random, since every `RandomState` is.
pub(super) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
