//! The search for the longest saved prefix of a prompt.

use serde::{Deserialize, Serialize};
use transload_store::ManifestName;
use transload_store::internal::readable;

use crate::key::{PrefixKey, Prompt, TOKEN_CHUNK};
use crate::record::{Root, Unreadable};
use crate::{Archive, ArchiveError, Codec};

/// A complete saved prefix and the location of its pieces. One process finds it, and every rank can use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    cache: [u8; 32],
    codec: Codec,
    /// The roots of 1 to n token chunks. At the last one, every group can continue.
    pub(crate) roots: Vec<Root>,
}

impl Found {
    /// Returns how many tokens can be restored; 0 if nothing is saved.
    pub fn tokens(&self) -> u64 {
        self.roots.len() as u64 * TOKEN_CHUNK
    }

    /// Returns the codec of its keys and values. If it is not [exact](Codec::Exact), save the blocks that it is
    /// restored into, and what is computed from them, only in archives of that codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Shortens the prefix to at most this many tokens, and further to a position where every group can continue.
    #[must_use]
    pub fn shorten(mut self, tokens: u64) -> Self {
        let most = (tokens / TOKEN_CHUNK).min(self.roots.len() as u64) as usize;
        self.roots.truncate(most);
        Self::of(self.cache, self.codec, self.roots)
    }

    fn of(cache: [u8; 32], codec: Codec, mut roots: Vec<Root>) -> Self {
        let whole = |root: &Root| root.groups.iter().all(Option::is_some);
        let chunks = roots.iter().rposition(whole).map_or(0, |last| last + 1);
        roots.truncate(chunks);
        Self { cache, codec, roots }
    }

    /// Checks that it belongs to this archive's cache, since it may come from another process.
    pub(crate) fn check(&self, archive: &Archive) -> Result<(), ArchiveError> {
        let unusable = |why| ArchiveError::unusable("a found prefix", why);
        if (self.cache, self.codec) != (archive.cache, archive.codec) {
            return Err(unusable(Unreadable("it is of another model or cache")));
        }
        let mut parent = self.roots.first().map(|root| root.parent);
        let mut chunks = 0;
        let mut right = self.roots.iter().map(|root| {
            chunks += 1;
            let expected = parent.replace(root.key).unwrap_or(root.parent);
            root.check(&archive.shape, chunks, root.key, expected)
        });
        right.try_for_each(|root| root).map_err(unusable)?;
        let last = self.last();
        if !last.is_none_or(|root| root.groups.iter().all(Option::is_some)) {
            return Err(unusable(Unreadable("it ends where not every group can go on")));
        }
        Ok(())
    }

    pub(crate) fn last(&self) -> Option<&Root> {
        self.roots.last()
    }
}

impl Archive {
    /// Finds the longest prefix of a prompt that can be restored.
    ///
    /// A store that answers n names at once ([`Backend::batch`](transload_store::Backend::batch)) takes one round trip
    /// for every n token chunks. A store that answers one at a time takes a binary search, and then a read of every
    /// root that was found, since an eviction may have left a gap.
    ///
    /// # Errors
    /// Returns an error if the store fails. A missing or unreadable root counts as not saved.
    pub fn find(&self, prompt: &Prompt<'_>) -> Result<Found, ArchiveError> {
        let roots = self.contiguous(&self.keys(prompt))?;
        Ok(Found::of(self.cache, self.codec, roots))
    }

    /// Returns the roots of 1, 2, ... token chunks, up to the first that is missing.
    pub(crate) fn contiguous(&self, keys: &[PrefixKey]) -> Result<Vec<Root>, ArchiveError> {
        let width = self.store.batch().max(1);
        let mut roots: Vec<Option<Root>> = vec![None; keys.len()];
        // Invariant: the root of `present` chunks exists (or is the empty prefix), and that of `absent` does not.
        let (mut present, mut absent) = (0, keys.len());
        while absent - present > 1 {
            let probes = spread(present, absent, width);
            let seen = self.roots(keys, &probes)?;
            for (probe, root) in probes.into_iter().zip(seen) {
                if root.is_none() {
                    absent = probe;
                    break;
                }
                roots[probe] = root;
                present = probe;
            }
        }
        // Read those that the search skipped.
        let unseen = (1..=present).filter(|&index| roots[index].is_none());
        let unseen: Vec<usize> = unseen.collect();
        for probes in unseen.rchunks(width) {
            for (probe, root) in probes.iter().zip(self.roots(keys, probes)?) {
                roots[*probe] = root;
            }
        }
        Ok(roots.into_iter().skip(1).map_while(|root| root).collect())
    }

    /// Returns the roots of these numbers of token chunks (ascending), in one round trip if the store can. An
    /// unreadable root counts as missing.
    /// The longest is requested first: stores evict what was unused for longest, and a prefix without its beginning is
    /// useless.
    pub(crate) fn roots(&self, keys: &[PrefixKey], chunks: &[usize]) -> Result<Vec<Option<Root>>, ArchiveError> {
        let names = chunks.iter().rev().map(|&n| keys[n].root_name());
        let names: Vec<ManifestName> = names.collect();
        let manifests = readable(&names, |names| self.store.get_manifests(names))?;
        let roots = manifests.into_iter().rev().zip(chunks);
        let roots = roots.map(|(manifest, &n)| {
            let root = Root::decode(self.codec, &manifest?).ok()?;
            let right = root.check(&self.shape, n as u64, keys[n], keys[n - 1]);
            right.is_ok().then_some(root)
        });
        Ok(roots.collect())
    }
}

/// Returns at most `width` positions strictly between two bounds, evenly spread, in ascending order.
fn spread(present: usize, absent: usize, width: usize) -> Vec<usize> {
    let between = absent - present - 1;
    let count = between.min(width);
    (1..=count).map(|i| present + (i * (between + 1)).div_ceil(count + 1).min(between)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_between_and_all_where_there_is_room() {
        assert_eq!(spread(0, 9, 100), (1..9).collect::<Vec<_>>());
        assert_eq!(spread(3, 5, 1), [4]);
        for absent in 2..60 {
            for width in 1..70 {
                let probes = spread(0, absent, width);
                assert_eq!(probes.len(), width.min(absent - 1));
                assert!(probes.windows(2).all(|pair| pair[0] < pair[1]), "{absent} {width}: {probes:?}");
                assert!(probes[0] > 0 && probes[probes.len() - 1] < absent);
            }
        }
        assert_eq!(spread(0, 513, 1), [257]);
    }
}
