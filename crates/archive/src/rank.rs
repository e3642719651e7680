//! A rank of a deployment: its share of the pieces, and the conditions for accessing its blocks.

#[cfg(feature = "cuda")]
use transload_cuda::Mark;
use transload_layout::{Deployment, Rank};
use transload_memory::Memory;
use transload_plan::{BlockTable, Tables, pair_groups};
use transload_store::internal::on_threads;

#[cfg(feature = "cuda")]
use crate::before::Before;
use crate::convert::RankGroup;
use crate::{Archive, ArchiveError, Cache, Permit};

/// A rank of a deployment, which saves and restores its share.
#[derive(Debug)]
pub struct RankArchive {
    pub(crate) archive: Archive,
    pub(crate) permit: Permit,
    #[cfg(feature = "cuda")]
    before: Option<Before>,
    /// For each group of the archive's shape: its index in the deployment's document, and this rank's share.
    pub(crate) groups: Vec<(usize, Option<RankGroup>)>,
}

impl Archive {
    /// Returns a rank of a deployment of the same model. TP, PP, block sizes and orders may differ from other
    /// deployments.
    ///
    /// # Errors
    /// Returns an error if the deployment has another cache, or no such rank.
    pub fn rank(&self, deployment: &Deployment, rank: Rank) -> Result<RankArchive, ArchiveError> {
        pair_groups(&self.reference, deployment)?;
        let last = deployment.tp() * deployment.pp() - 1;
        if rank.0 > last {
            return Err(ArchiveError::NoSuchRank { rank: rank.0, last });
        }
        let groups = self.shape.groups.iter().map(|shape| {
            let position = deployment.group(&shape.name).map(|(position, _)| position);
            let position = position.ok_or_else(|| ArchiveError::NoGroup { group: shape.name.clone() })?;
            Ok((position, RankGroup::new(shape, deployment, rank)?))
        });
        Ok(RankArchive {
            archive: self.clone(),
            permit: Permit::new(),
            #[cfg(feature = "cuda")]
            before: None,
            groups: groups.collect::<Result<_, ArchiveError>>()?,
        })
    }
}

impl RankArchive {
    /// Accesses the engine's blocks only while `permit` is valid.
    #[must_use]
    pub fn with_permit(mut self, permit: Permit) -> Self {
        self.permit = permit;
        self
    }

    /// Accesses the engine's blocks only after the GPU has reached `mark`. For a save, the mark follows the work that
    /// computes the blocks; for a restore, it follows the last work that reads them. A restore reads the store
    /// meanwhile. Revoking the [permit](Self::with_permit) ends the wait.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn with_mark(mut self, mark: Mark) -> Self {
        self.before = Some(Before::new(mark));
        self
    }

    pub(crate) fn touch(&self, copy: impl FnOnce() -> Result<(), ArchiveError>) -> Result<(), ArchiveError> {
        #[cfg(feature = "cuda")]
        if let Some(before) = &self.before {
            before.wait(&self.permit)?;
        }
        self.permit.during(copy)
    }

    /// Runs `work` on the items whose groups this rank holds. Each call gets the engine's memory and block table of the
    /// item's group, and an archive block that its thread reuses.
    pub(crate) fn on_groups<I: Sync, T: Default + Send>(
        &self,
        items: &[I],
        group: impl Fn(&I) -> usize + Sync,
        (caches, tables): (&[Cache], &Tables),
        work: impl Fn(&RankGroup, &I, (&Cache, &BlockTable), &Memory) -> Result<T, ArchiveError> + Sync,
    ) -> Result<Vec<T>, ArchiveError> {
        let begin = || Ok(vec![None; self.groups.len()]);
        on_threads(self.archive.threads, items, begin, |blocks, item| {
            let group = group(item);
            let (position, held) = &self.groups[group];
            let Some(held) = held else {
                return Ok(T::default());
            };
            let block = match &mut blocks[group] {
                Some(block) => block,
                none => none.insert(held.block()?),
            };
            work(held, item, (&caches[*position], &tables.0[*position]), block)
        })
    }

    pub(crate) fn count(&self, what: &'static str, given: usize) -> Result<(), ArchiveError> {
        let groups = self.groups.len();
        if given == groups {
            return Ok(());
        }
        Err(ArchiveError::Count { what, given, groups })
    }
}
