//! The tier store, which implements [`Backend`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::back::Back;
use super::names::{copy_name, hold, is_free};
use super::one::Tier;
use super::stats::TierStats;
use crate::backend::{Backend, Inventory, Put, Revision};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// The moment at which a put reaches the tiers below the first one that outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The value is copied before the put returns, which succeeds once the last tier has it.
    Through,
    /// Later, in the background, in the order of the puts. A crash loses only these copies.
    Back,
}

/// A store made of tiers, fastest first. A read of chunks asks one tier after another, and copies what it finds into
/// the tiers above. Manifests are read from the last tier.
///
/// A failing tier above the authority is skipped and counted. Errors of the authority and of the last tier are returned
/// to the caller. A chunk is put into each tier before the manifest that was put after it.
#[derive(Debug)]
pub struct TierStore {
    pub(super) tiers: Arc<Vec<Tier>>,
    pub(super) authority: usize,
    pub(super) back: Option<Back>,
}

struct Mark {
    /// Its revision in the authority, if it is pending there.
    pending: Option<Revision>,
    /// Its revision in the last tier: the one that was read, or the one that the pending manifest will replace.
    last: Option<Revision>,
}

/// The longest time that a read of a revision waits for a copy of the manifest in progress. Copies usually take less.
const COPY_TIME: Duration = Duration::from_secs(1);

impl TierStore {
    /// Combines these tiers, fastest first.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if there are none, or if one has tiers itself; [`StoreError::Io`] if the thread for
    /// write-back cannot be started.
    pub fn new(mut tiers: Vec<Tier>, write: Write) -> Result<Self, StoreError> {
        let refused = |why: &str| StoreError::Unsupported { what: "a store of tiers", why: why.into() };
        let last = tiers.len().checked_sub(1).ok_or_else(|| refused("it has none"))?;
        // Nested tiers would deadlock: one would wait for a name that the other holds.
        if tiers.iter().any(|tier| !tier.store.tiers().is_empty()) {
            return Err(refused("there are tiers in it that have tiers"));
        }
        for tier in &mut tiers[..last] {
            tier.is_cache = !tier.outlives();
        }
        let durable = tiers.iter().position(Tier::outlives);
        let authority = match write {
            Write::Through => last,
            Write::Back => durable.unwrap_or(last),
        };
        let tiers = Arc::new(tiers);
        let back = (authority < last).then(|| Back::start(tiers.clone(), authority));
        Ok(Self { tiers, authority, back: back.transpose()? })
    }

    /// Waits until all background copies were made or skipped. Dropping the handle waits for them too, except for more
    /// copies to a tier that refuses one.
    pub fn flush(&self) {
        if let Some(back) = &self.back {
            back.flush();
        }
    }

    fn owner(&self) -> &dyn Backend {
        &*self.tiers[self.authority].store
    }

    fn put_below(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        let put = self.owner().put_chunk(hash, data)?;
        if let Some(back) = &self.back {
            back.put_chunk(hash);
        }
        Ok(put)
    }

    /// Returns the tiers that only have copies, from the lowest up.
    fn above(&self) -> impl Iterator<Item = &Tier> {
        self.tiers[..self.authority].iter().rev()
    }

    /// Returns the tiers that are read for manifests: the authority, where manifests may be pending, and the last tier.
    /// The first that has a manifest is right.
    pub(super) fn true_tiers(&self) -> impl DoubleEndedIterator<Item = usize> {
        let last = self.tiers.len() - 1;
        (self.authority..=last).filter(move |at| *at == self.authority || *at == last)
    }

    fn drop_copies(&self, name: &ManifestName) {
        let Some(copy) = copy_name(name) else { return };
        let above = self.tiers[..self.tiers.len() - 1].iter();
        for tier in above.filter(|tier| !tier.is_cache) {
            tier.drop_manifest(&copy);
        }
    }
}

impl Backend for TierStore {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        if self.authority == 0 {
            return self.put_below(hash, data);
        }
        // Copy once for all tiers, because the caller's memory may change afterwards.
        let data = Bytes::copy_from_slice(data);
        let put = self.put_below(hash, &data)?;
        for tier in self.above() {
            tier.copy_chunk(hash, &data);
        }
        Ok(put)
    }

    fn reread_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        self.above().for_each(|tier| tier.drop_chunk(hash));
        let tiers = self.tiers[self.authority..].iter();
        let mut read = tiers.map(|tier| tier.store.get_chunk(hash));
        read.find(|read| !matches!(read, Ok(None))).unwrap_or(Ok(None))
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        Ok(self.get_chunks(&[*hash])?.pop().flatten())
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        self.put_manifests(&[(name.clone(), Bytes::copy_from_slice(data))])
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        let names = std::slice::from_ref(name);
        Ok(self.get_manifests(names)?.pop().flatten())
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        is_free(name)?;
        let _held = hold(name);
        // Go from the last tier up: a pending manifest hides the one in the last tier until that is removed.
        for at in self.true_tiers().rev() {
            self.tiers[at].store.delete_manifest(name)?;
        }
        self.drop_copies(name);
        Ok(())
    }

    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let last = &self.tiers[self.tiers.len() - 1].store;
        let mut pending = None;
        if let Some(back) = &self.back {
            // If it is copied between this call and the removal, its revision changes, and it counts as put again.
            back.wait_for(name, COPY_TIME);
            pending = self.owner().manifest_revision(name)?;
        }
        let (data, pending, last) = match (pending, last.manifest_revision(name)) {
            (Some((data, pending)), last) => {
                let last = last.ok().flatten().map(|(_, revision)| revision);
                (data, Some(pending), last)
            }
            (None, last) => match last? {
                Some((data, revision)) => (data, None, Some(revision)),
                None => return Ok(None),
            },
        };
        Ok(Some((data, Revision::new(Mark { pending, last }))))
    }

    fn delete_revision(&self, name: &ManifestName, revision: &Revision) -> Result<bool, StoreError> {
        let Some(Mark { pending, last }) = revision.mark() else {
            return Ok(false);
        };
        let _held = hold(name);
        let is_last = pending.is_none();
        if is_last && self.back.is_some() && self.owner().get_manifest(name)?.is_some() {
            // It was put again, and the new one is pending.
            return Ok(false);
        }
        let mut removed = false;
        // The last tier first, as in a deletion. A newer manifest of another process stays there.
        if let Some(last) = last {
            let store = &self.tiers[self.tiers.len() - 1].store;
            removed = store.delete_revision(name, last)?;
        }
        if let Some(pending) = pending {
            removed = self.owner().delete_revision(name, pending)?;
        }
        if removed {
            self.drop_copies(name);
        }
        Ok(removed)
    }

    /// Tells each tier what it will be read for, down to the first that would have to ask a server what it has. That
    /// one fetches everything missing, so lower tiers must not fetch it too.
    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        let mut wanted = hashes.to_vec();
        for (at, tier) in self.tiers.iter().enumerate() {
            match tier.store.prefetch_chunks(&wanted) {
                Err(error) if at + 1 == self.tiers.len() => return Err(error),
                Err(_) => tier.count(|stats| &mut stats.failures, 1),
                Ok(()) => match tier.store.absent_chunks(&wanted) {
                    Some(absent) if !absent.is_empty() => wanted = absent,
                    _ => break,
                },
            }
        }
        Ok(())
    }

    fn batch(&self) -> usize {
        let batches = self.tiers.iter().map(|tier| tier.store.batch());
        batches.max().unwrap_or(1)
    }

    fn get_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.read_chunks(hashes)
    }

    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        names.iter().try_for_each(is_free)?;
        self.read_manifests(names)
    }

    fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        if manifests.is_empty() {
            return Ok(());
        }
        manifests.iter().try_for_each(|(name, _)| is_free(name))?;
        if let Some(back) = &self.back {
            back.wait_for_room();
        }
        self.owner().put_manifests(manifests)?;
        match &self.back {
            Some(back) => back.put_manifests(manifests),
            None => {
                let copies = manifests.iter();
                let copies = copies.filter_map(|(name, data)| Some((copy_name(name)?, data.clone())));
                let copies: Vec<_> = copies.collect();
                for tier in self.above().filter(|tier| !tier.is_cache) {
                    tier.copy_manifests(&copies);
                }
                Ok(())
            }
        }
    }

    fn tiers(&self) -> Vec<TierStats> {
        self.tiers.iter().map(Tier::stats).collect()
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        let mut of_manifests = self.true_tiers().map(|at| &self.tiers[at].store);
        of_manifests.all(|store| store.inventory().is_some()).then_some(self)
    }
}
