//! The manifests that a collection keeps, and the chunks that they refer to.

use std::collections::{HashMap, HashSet};

use super::recorded::Recorded;
use super::references::References;
use crate::hash::ChunkHash;

#[derive(Debug)]
pub(super) struct Kept {
    sizes: HashMap<ChunkHash, u64>,
    named: References,
    cap: u64,
    held: u64,
    referred: HashSet<ChunkHash>,
}

impl Kept {
    pub(super) fn new(chunks: impl Iterator<Item = (ChunkHash, u64)>, cap: Option<u64>) -> Self {
        let sizes: HashMap<ChunkHash, u64> = chunks.collect();
        Self {
            named: References::new(sizes.keys().copied()),
            sizes,
            cap: cap.unwrap_or(u64::MAX),
            held: 0,
            referred: HashSet::new(),
        }
    }

    /// Keeps a manifest with the chunks that it refers to if both fit under the cap, or if `forced`.
    pub(super) fn keep(&mut self, manifest: &Recorded, bytes: u64, forced: bool) -> bool {
        let mut new = HashSet::new();
        let mut refer = |hash: &ChunkHash| {
            if self.sizes.contains_key(hash) && !self.referred.contains(hash) {
                new.insert(*hash);
            }
        };
        manifest.references().for_each(|hash| refer(&hash));
        self.named.find(&manifest.data, &mut refer);
        let chunks = new.iter().filter_map(|hash| self.sizes.get(hash));
        let after = chunks.fold(self.held.saturating_add(bytes), |sum, chunk| sum.saturating_add(*chunk));
        if after > self.cap && !forced {
            return false;
        }
        self.held = after;
        self.referred.extend(new);
        true
    }

    pub(super) fn refers(&self, hash: &ChunkHash) -> bool {
        self.referred.contains(hash)
    }
}
