//! `tier://[CAP=]URI,…`: several stores as one, the fastest first.
//!
//! | file | what |
//! |---|---|
//! | `parts` | the grammar of its URI |
//! | `one` | a tier: its store and its counts |
//! | `read` | going down from tier to tier, and carrying up what was found |
//! | `back` | copies that are made later |
//! | `names` | one change of a manifest at a time |
//! | `inventory` | listing, verifying and collecting all of them |
//!
//! The **authority** is the tier that has everything: the last one, or, where copies below it are made later, the first
//! that outlives the process. A put is made there first, and has succeeded with it; the tiers above only have copies, of
//! which any may be missing.

mod back;
mod inventory;
mod names;
mod one;
pub(crate) mod parts;
mod read;

use std::sync::Arc;

use bytes::Bytes;

pub use self::one::{Tier, TierStats};

use self::back::Back;
use self::names::change;
use super::{Backend, Inventory, Put, Revision};
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

/// A store made of tiers, the fastest first. Each read goes down until one has the value, and carries it up.
///
/// A tier above the authority that fails is passed over and counted; the authority's errors are the caller's. Manifests are
/// put and removed in the authority first, and a chunk is put into each tier before the manifest that came after it.
#[derive(Debug)]
pub struct TierStore {
    tiers: Arc<Vec<Tier>>,
    authority: usize,
    back: Option<Back>,
}

/// Which put of a manifest each tier has, of those that have these bytes.
struct Mark {
    data: Bytes,
    puts: Vec<(usize, Revision)>,
}

impl TierStore {
    /// Of these tiers, the fastest first.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] without any, or if one has tiers; [`StoreError::Io`] if no thread can be started for later
    /// copies.
    pub fn new(mut tiers: Vec<Tier>, write: Write) -> Result<Self, StoreError> {
        let refused = |why: &str| StoreError::Unsupported {
            what: "a store of tiers",
            why: why.into(),
        };
        let last = tiers
            .len()
            .checked_sub(1)
            .ok_or_else(|| refused("it has none"))?;
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
        Ok(Self {
            tiers,
            authority,
            back: back.transpose()?,
        })
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

    /// Removes copies of a manifest from tiers that may have one.
    fn drop_copies<'a>(&self, tiers: impl IntoIterator<Item = &'a Tier>, name: &ManifestName) {
        let tiers = tiers.into_iter().filter(|tier| !tier.is_cache);
        tiers.for_each(|tier| tier.drop_manifest(name));
    }

    /// Whether the tiers below the authority have not heard of a manifest's last change.
    fn is_late(&self, name: &ManifestName) -> bool {
        self.back.as_ref().is_some_and(|back| back.is_late(name))
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
        read.find(|read| !matches!(read, Ok(None)))
            .unwrap_or(Ok(None))
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
        let _held = change([name].into_iter());
        self.owner().delete_manifest(name)?;
        let (above, below) = self.tiers.split_at(self.authority);
        self.drop_copies(below[1..].iter().chain(above), name);
        Ok(())
    }

    fn manifest_revision(
        &self,
        name: &ManifestName,
    ) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let mut found: Option<Bytes> = None;
        let mut puts = Vec::new();
        for at in self.of_manifests() {
            if !self.may_ask(at, name) {
                continue;
            }
            match self.tiers[at].store.manifest_revision(name) {
                // What the fastest tier says is what was read, and what goes.
                Ok(Some((data, _))) if found.as_ref().is_some_and(|above| *above != data) => break,
                Ok(Some((data, revision))) => {
                    found = Some(data);
                    puts.push((at, revision));
                }
                Ok(None) => {}
                Err(error) if self.must_answer(at, name) => return Err(error),
                Err(_) => self.tiers[at].count(|stats| &mut stats.failures, 1),
            }
        }
        Ok(found.map(|data| {
            let mark = Mark {
                data: data.clone(),
                puts,
            };
            (data, Revision::new(mark))
        }))
    }

    fn delete_revision(
        &self,
        name: &ManifestName,
        revision: &Revision,
    ) -> Result<bool, StoreError> {
        let Some(Mark { data, puts }) = revision.mark() else {
            return Ok(false);
        };
        let owner = puts.iter().find(|(at, _)| *at == self.authority);
        let Some((owner, revision)) = owner.or(puts.last()) else {
            return Ok(false);
        };
        let _held = change([name].into_iter());
        let is_late = self.is_late(name);
        if !self.tiers[*owner].store.delete_revision(name, revision)? {
            return Ok(false);
        }
        self.drop_copies(&self.tiers[..*owner], name);
        for tier in &self.tiers[owner + 1..] {
            // There may be a copy by now, or what others have put; or an older one, where this one is still to be copied.
            let removed = match tier.store.manifest_revision(name) {
                Ok(Some(_)) if is_late => tier.store.delete_manifest(name).map(|()| true),
                Ok(Some((there, copy))) if there == *data => {
                    tier.store.delete_revision(name, &copy)
                }
                other => other.map(|_| false),
            };
            if removed.is_err() {
                tier.drop_manifest(name);
            }
        }
        Ok(true)
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
        self.read_manifests(names)
    }

    fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        if manifests.is_empty() {
            return Ok(());
        }
        if let Some(back) = &self.back {
            back.wait_for_room();
        }
        let names = manifests.iter().map(|(name, _)| name);
        let _held = change(names.clone());
        if let Err(error) = self.owner().put_manifests(manifests) {
            // Some may have been put: then copies of what was there before are wrong.
            names.for_each(|name| self.drop_copies(self.above(), name));
            return Err(error);
        }
        for tier in self.above().filter(|tier| !tier.is_cache) {
            tier.copy_manifests(manifests);
        }
        match &self.back {
            Some(back) => back.put_manifests(manifests),
            None => Ok(()),
        }
    }

    fn tiers(&self) -> Vec<TierStats> {
        self.tiers.iter().map(Tier::stats).collect()
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }
}
