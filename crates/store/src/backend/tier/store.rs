//! Several stores as one backend.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::back::Back;
use super::names::{copy_name, hold, is_free};
use super::one::{Tier, TierStats};
use crate::backend::{Backend, Inventory, Put, Revision};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// When a put reaches the tiers below the first one that outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Before it returns: it has succeeded when the last tier has it.
    Through,
    /// Later, in the order of the puts. A crash loses only these copies.
    Back,
}

/// A store made of tiers, the fastest first. Each read of chunks goes down until one has the value, and carries it up;
/// manifests are those of the last tier.
///
/// A tier above the authority that fails is passed over and counted; the errors of the authority and of the last tier are
/// the caller's. A chunk is put into each tier before the manifest that came after it.
#[derive(Debug)]
pub struct TierStore {
    pub(super) tiers: Arc<Vec<Tier>>,
    pub(super) authority: usize,
    pub(super) back: Option<Back>,
}

/// Which put of a manifest was read.
struct Mark {
    /// In the authority, where it is pending.
    pending: Option<Revision>,
    /// In the last tier: of the one that was read, or of the one that the pending one will replace there.
    last: Option<Revision>,
}

/// How long a reader of a revision waits for the copy of a manifest that is under way: as long as a copy usually takes.
const A_COPY: Duration = Duration::from_secs(1);

impl TierStore {
    /// Of these tiers, the fastest first.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] without any, or if one has tiers; [`StoreError::Io`] if no thread can be started for later
    /// copies.
    pub fn new(mut tiers: Vec<Tier>, write: Write) -> Result<Self, StoreError> {
        let refused = |why: &str| StoreError::Unsupported { what: "a store of tiers", why: why.into() };
        let last = tiers.len().checked_sub(1).ok_or_else(|| refused("it has none"))?;
        // The names that one holds, the other would wait for.
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

    /// Waits until all copies that are made later have been made, or skipped. Dropping the handle waits for them, too, but
    /// not for further ones of a tier that refuses one.
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

    /// The tiers that only have copies of what is put, from the lowest up.
    fn above(&self) -> impl Iterator<Item = &Tier> {
        self.tiers[..self.authority].iter().rev()
    }

    /// Lists the tiers that are asked for manifests: the authority, if some may be pending there, and the last one. The
    /// first that has a manifest is right.
    pub(super) fn true_tiers(&self) -> impl DoubleEndedIterator<Item = usize> {
        let last = self.tiers.len() - 1;
        (self.authority..=last).filter(move |at| *at == self.authority || *at == last)
    }

    /// Removes the copies of a manifest from the tiers that keep them.
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
        // All tiers get one copy: the caller's memory may change meanwhile.
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
        // From the last tier up: a pending manifest hides what is below it until that is gone.
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
            // One that is copied before its revision is used has another one then, and counts as put again.
            back.wait_for(name, A_COPY);
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
            // It was put again, and that is pending.
            return Ok(false);
        }
        let mut removed = false;
        // The last tier first, as when a manifest is removed. What others have put there meanwhile stays.
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

    /// Tells the tiers what each of them will be read for, down to the first that would have to ask a server what it has:
    /// if those below were told too, they would fetch what it fetches.
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
