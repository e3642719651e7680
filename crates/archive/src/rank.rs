//! One rank of a deployment: its share of the pieces, and when its blocks may be touched.

#[cfg(feature = "cuda")]
use transload_cuda::Mark;
use transload_layout::{Deployment, Rank};
use transload_memory::Memory;
use transload_plan::{BlockTable, Tables, pair_groups};
use transload_store::internal::on_threads;

#[cfg(feature = "cuda")]
use crate::before::Before;
use crate::staging::RankGroup;
use crate::{Archive, ArchiveError, Cache, Permit};

/// One rank of a deployment, as the archive sees it.
#[derive(Debug)]
pub struct RankArchive {
    pub(crate) archive: Archive,
    pub(crate) permit: Permit,
    #[cfg(feature = "cuda")]
    before: Option<Before>,
    /// By group of the archive's shape: which group of the deployment's document, and what this rank holds.
    pub(crate) groups: Vec<(usize, Option<RankGroup>)>,
}

impl Archive {
    /// One rank of a deployment of the same model, whatever its TP, PP, block sizes and orders.
    ///
    /// # Errors
    /// If the deployment holds another cache, or has no such rank.
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
    /// Touches the engine's blocks only as long as `permit` stands.
    #[must_use]
    pub fn with_permit(mut self, permit: Permit) -> Self {
        self.permit = permit;
        self
    }

    /// Touches the engine's blocks only once the GPU has come to `mark`: behind what computes them, for a save, or what reads them
    /// for the last time, for a restore. A restore reads the store meanwhile. Revoking the [permit](Self::with_permit)
    /// ends the wait.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn with_mark(mut self, mark: Mark) -> Self {
        self.before = Some(Before::new(mark));
        self
    }

    /// Runs a copy from or to the engine's blocks, when it may.
    pub(crate) fn touch(&self, copy: impl FnOnce() -> Result<(), ArchiveError>) -> Result<(), ArchiveError> {
        #[cfg(feature = "cuda")]
        if let Some(before) = &self.before {
            before.wait(&self.permit)?;
        }
        self.permit.during(copy)
    }

    /// Runs `work` on the items of groups that this rank holds, each with the engine's memory and table of its group
    /// and a staging block that its thread uses again.
    pub(crate) fn on_groups<I: Sync, T: Default + Send>(
        &self,
        items: &[I],
        group: impl Fn(&I) -> usize + Sync,
        (caches, tables): (&[Cache], &Tables),
        work: impl Fn(&RankGroup, &I, (&Cache, &BlockTable), &Memory) -> Result<T, ArchiveError> + Sync,
    ) -> Result<Vec<T>, ArchiveError> {
        let begin = || Ok(vec![None; self.groups.len()]);
        on_threads(self.archive.threads, items, begin, |staging, item| {
            let group = group(item);
            let (position, held) = &self.groups[group];
            let Some(held) = held else {
                return Ok(T::default());
            };
            let block = match &mut staging[group] {
                Some(block) => block,
                none => none.insert(held.staging()?),
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
