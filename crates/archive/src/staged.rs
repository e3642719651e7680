//! Saving in two steps: a copy out of the engine's blocks at once, and a save into the store that may take longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use transload_plan::Tables;
use transload_store::internal::on_threads;

use crate::save::{Item, Raw};
use crate::{Archive, ArchiveError, Cache, Missing, Part, RankArchive};

/// A budget of memory for data that waits to be saved. All saves that use it share it.
///
/// Clones share the budget. Each thread of a save may exceed it by one token chunk until that is refused.
#[derive(Clone, Debug)]
pub struct Staging(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    bytes: u64,
    used: AtomicU64,
}

impl Staging {
    /// Returns a budget of this many bytes. They are allocated when needed.
    pub fn new(bytes: u64) -> Self {
        let used = AtomicU64::new(0);
        Self(Arc::new(Budget { bytes, used }))
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> Result<Taken, ArchiveError> {
        let taken = Taken { budget: self.0.clone(), bytes };
        let before = self.0.used.fetch_add(bytes, Ordering::Relaxed);
        // If this is over the limit, dropping `taken` gives it back.
        if before.saturating_add(bytes) > self.0.bytes {
            return Err(ArchiveError::StagingFull { bytes: self.0.bytes });
        }
        Ok(taken)
    }
}

/// A reservation in a [`Staging`], given back when dropped.
#[derive(Debug)]
struct Taken {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The pieces that one rank has copied and not saved yet. The engine's blocks may be used again.
#[derive(Debug)]
pub struct Staged {
    save: [u8; 32],
    groups: usize,
    items: Vec<Item>,
    pieces: Vec<Vec<(Raw, Taken)>>,
}

impl Staged {
    /// Returns the bytes of all its pieces.
    pub fn bytes(&self) -> u64 {
        let pieces = self.pieces.iter().flatten();
        pieces.map(|(_, taken)| taken.bytes).sum()
    }
}

impl RankArchive {
    /// Copies this rank's share of what is missing out of its blocks, for [`Archive::put`]. It does not wait for the
    /// store.
    ///
    /// The arguments are those of [`save`](Self::save).
    ///
    /// # Errors
    /// [`ArchiveError::StagingFull`]; [`ArchiveError::Revoked`]; or an error if a table or memory does not fit the
    /// deployment.
    pub fn stage(
        &self,
        missing: &Missing,
        caches: &[impl Clone + Into<Cache>],
        tables: &Tables,
        staging: &Staging,
    ) -> Result<Staged, ArchiveError> {
        let caches = &Cache::all(caches);
        let items = self.items(missing, caches, tables)?;
        let group = |item: &Item| item.group;
        let pieces = self.on_groups(&items, group, (caches, tables), |held, item, cache, block| {
            let pieces = self.gather(held, item, cache, block)?.into_iter();
            let taken = pieces.map(|raw| {
                let taken = staging.take(raw.bytes.len() as u64)?;
                Ok((raw, taken))
            });
            taken.collect::<Result<Vec<_>, ArchiveError>>()
        })?;
        Ok(Staged { save: missing.save, groups: self.groups.len(), items, pieces })
    }
}

impl Archive {
    /// Saves what was staged, and publishes a part manifest.
    ///
    /// # Errors
    /// Returns an error if the store fails; see [`RankArchive::save`].
    pub fn put(&self, staged: &Staged) -> Result<Part, ArchiveError> {
        let save = |(): &mut (), pieces: &Vec<(Raw, Taken)>| {
            let pieces = pieces.iter().map(|(raw, _)| self.put_piece(raw));
            pieces.collect::<Result<Vec<_>, ArchiveError>>()
        };
        let saved = on_threads(self.threads, &staged.pieces, || Ok(()), save)?;
        self.put_part(staged.save, staged.groups, &staged.items, saved)
    }
}
