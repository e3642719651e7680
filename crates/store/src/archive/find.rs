//! The longest saved prefix of a prompt.

use serde::{Deserialize, Serialize};

use super::key::{PrefixKey, Prompt, TOKEN_CHUNK};
use super::record::{Root, Unreadable};
use super::shape::Shape;
use super::{Archive, ArchiveError};
use crate::name::ManifestName;

/// A prefix that is saved whole, and where its pieces are. Made by one process, it serves every rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The roots of 1 to n token chunks.
    pub(super) roots: Vec<Root>,
    /// The root to go on from, counted in token chunks: the last at which every group can.
    chunks: u64,
}

impl Found {
    /// How many tokens can be restored; 0 if nothing is saved.
    pub fn tokens(&self) -> u64 {
        self.chunks * TOKEN_CHUNK
    }

    /// The same prefix, at most so many tokens long: as long as every group can go on there.
    #[must_use]
    pub fn shorten(mut self, tokens: u64) -> Self {
        let most = (tokens / TOKEN_CHUNK).min(self.chunks) as usize;
        self.roots.truncate(most);
        Self::of(self.roots)
    }

    pub(super) fn of(mut roots: Vec<Root>) -> Self {
        let whole = |root: &Root| root.groups.iter().all(Option::is_some);
        let chunks = roots.iter().rposition(whole).map_or(0, |last| last + 1);
        roots.truncate(chunks);
        Self {
            roots,
            chunks: chunks as u64,
        }
    }

    /// Whether it is of this cache: it may come from another process.
    pub(super) fn check(&self, shape: &Shape) -> Result<(), ArchiveError> {
        let mut parent = self.roots.first().map(|root| root.parent);
        let mut chunks = 0;
        let mut right = self.roots.iter().map(|root| {
            chunks += 1;
            let expected = parent.replace(root.key).unwrap_or(root.parent);
            root.check(shape, chunks, root.key, expected)
        });
        right
            .try_for_each(|root| root)
            .map_err(|why| ArchiveError::unusable("a found prefix", why))?;
        let last = self
            .last()
            .is_none_or(|root| root.groups.iter().all(Option::is_some));
        if self.chunks != self.roots.len() as u64 || !last {
            let why = Unreadable("it ends where not every group can go on");
            return Err(ArchiveError::unusable("a found prefix", why));
        }
        Ok(())
    }

    /// The root that it ends with.
    pub(super) fn last(&self) -> Option<&Root> {
        self.roots.last()
    }
}

impl Archive {
    /// Finds the longest prefix of a prompt that can be restored.
    ///
    /// Round trips: with a store that answers n names at once ([`Backend::batch`](crate::Backend::batch)), as
    /// many as whole token chunks / n; with one that answers one at a time, a binary search, and then every
    /// root of what was found, since an eviction may have left a hole before it.
    ///
    /// # Errors
    /// If the store fails. What is not there, or cannot be read, is not saved.
    pub fn find(&self, prompt: &Prompt<'_>) -> Result<Found, ArchiveError> {
        Ok(Found::of(self.contiguous(&self.keys(prompt))?))
    }

    /// The roots of 1, 2, ... token chunks, up to the first that is not there.
    pub(super) fn contiguous(&self, keys: &[PrefixKey]) -> Result<Vec<Root>, ArchiveError> {
        let width = self.store.batch().max(1);
        let mut roots: Vec<Option<Root>> = vec![None; keys.len()];
        // The root of `there` chunks was seen (the empty prefix needs none), that of `gone` was not.
        let (mut there, mut gone) = (0, keys.len());
        while gone - there > 1 {
            let probes = spread(there, gone, width);
            let seen = self.roots(keys, &probes)?;
            for (probe, root) in probes.into_iter().zip(seen) {
                if root.is_none() {
                    gone = probe;
                    break;
                }
                roots[probe] = root;
                there = probe;
            }
        }
        // Those that the search skipped.
        let unseen: Vec<usize> = (1..=there)
            .filter(|&index| roots[index].is_none())
            .collect();
        for probes in unseen.chunks(width) {
            let seen = self.roots(keys, probes)?;
            let whole = seen.iter().all(Option::is_some);
            for (probe, root) in probes.iter().zip(seen) {
                roots[*probe] = root;
            }
            if !whole {
                break;
            }
        }
        Ok(roots.into_iter().skip(1).map_while(|root| root).collect())
    }

    /// The roots of so many token chunks, in one round trip if the store can.
    fn roots(
        &self,
        keys: &[PrefixKey],
        chunks: &[usize],
    ) -> Result<Vec<Option<Root>>, ArchiveError> {
        let names: Vec<ManifestName> = chunks.iter().map(|&n| keys[n].root_name()).collect();
        let manifests = self.store.get_manifests(&names)?;
        let roots = manifests.into_iter().zip(chunks).map(|(manifest, &n)| {
            let root = Root::decode(&manifest?).ok()?;
            let right = root.check(&self.shape, n as u64, keys[n], keys[n - 1]);
            right.is_ok().then_some(root)
        });
        Ok(roots.collect())
    }
}

/// At most `width` places strictly between two, evenly spread, ascending.
fn spread(there: usize, gone: usize, width: usize) -> Vec<usize> {
    let between = gone - there - 1;
    let count = between.min(width);
    (1..=count)
        .map(|i| there + (i * (between + 1)).div_ceil(count + 1).min(between))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_between_and_all_where_there_is_room() {
        assert_eq!(spread(0, 9, 100), (1..9).collect::<Vec<_>>());
        assert_eq!(spread(3, 5, 1), [4]);
        for gone in 2..60 {
            for width in 1..70 {
                let probes = spread(0, gone, width);
                assert_eq!(probes.len(), width.min(gone - 1));
                assert!(
                    probes.windows(2).all(|pair| pair[0] < pair[1]),
                    "{gone} {width}: {probes:?}"
                );
                assert!(probes[0] > 0 && probes[probes.len() - 1] < gone);
            }
        }
        assert_eq!(spread(0, 513, 1), [257]);
    }
}
