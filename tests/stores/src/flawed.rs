//! A store in memory that loses and damages values, and other clients that use it at the same time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use transload_store::backend::{Backend, MemoryStore, Put, Revision};
use transload_store::{ChunkHash, ManifestName, StoreError};

use crate::forward;

/// The fault of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    Lost,
    /// The chunk reads as these bytes.
    Other(Bytes),
    /// The store finds that it is damaged.
    Refused,
    /// The store cannot be asked for it.
    Silent,
}

/// A step in the removal of a manifest that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    LookUp,
    Delete,
}

/// The action of another client just before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    /// Puts the same manifest again.
    Puts,
    /// Repairs all chunks.
    Mends,
    /// Takes the store of the chunks offline.
    Silences,
}

/// A store in memory whose chunks and manifests a test damages. A put repairs a damaged chunk only after the chunk was
/// read, as in our backends.
#[derive(Debug, Default)]
pub struct Flawed {
    pub store: MemoryStore,
    never_heals: bool,
    without_revisions: Option<Step>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    chunks: Vec<ChunkHash>,
    /// The fault of each chunk, and whether the chunk was read since.
    flaws: HashMap<ChunkHash, (Flaw, bool)>,
    refused: Option<ManifestName>,
    meanwhile: Option<(Step, Meanwhile)>,
    collections: u32,
}

impl Flawed {
    /// Makes a store in which damaged chunks stay damaged, even if they are put again.
    pub fn never_healing() -> Self {
        Self { never_heals: true, ..Self::default() }
    }

    /// Makes a store that cannot tell two puts apart and refuses this step. With `LookUp` it behaves like a store behind
    /// `kv_store_v1`, with `Delete` like S3 without conditional puts.
    pub fn without_revisions(step: Step) -> Self {
        Self { without_revisions: Some(step), ..Self::default() }
    }

    pub fn spoil(&self, hash: ChunkHash, flaw: Flaw) {
        self.state().flaws.insert(hash, (flaw, false));
    }

    /// Repairs all chunks.
    pub fn mend(&self) {
        self.state().flaws.clear();
    }

    /// Returns the chunks that were stored, in order.
    pub fn chunks(&self) -> Vec<ChunkHash> {
        self.state().chunks.clone()
    }

    /// Reports this manifest as damaged from now on.
    pub fn refuse(&self, name: ManifestName) {
        self.state().refused = Some(name);
    }

    /// Makes another client act before the next such step.
    pub fn meanwhile(&self, meanwhile: Option<(Step, Meanwhile)>) {
        self.state().meanwhile = meanwhile;
    }

    /// Makes this many of the next manifests find that a collection came in between.
    pub fn collect(&self, collections: u32) {
        self.state().collections = collections;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn step(&self, step: Step, name: &ManifestName) -> Result<(), StoreError> {
        let mut state = self.state();
        match state.meanwhile.take_if(|(at, _)| *at == step) {
            None => {}
            Some((_, Meanwhile::Puts)) => {
                let there = self.store.get_manifest(name)?.unwrap();
                self.store.put_manifest(name, &there)?;
            }
            Some((_, Meanwhile::Mends)) => state.flaws.clear(),
            Some((_, Meanwhile::Silences)) => state.flaws.values_mut().for_each(|flaw| flaw.0 = Flaw::Silent),
        }
        if self.without_revisions == Some(Step::LookUp) || self.without_revisions == Some(step) {
            let what = "telling two puts of a manifest apart";
            return Err(StoreError::Unsupported { what, why: "a test says so".to_owned() });
        }
        Ok(())
    }
}

fn damaged(what: String) -> StoreError {
    StoreError::Damaged { what, how: "a test says so".to_owned() }
}

impl Backend for Flawed {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        let mut state = self.state();
        let is_mended = match state.flaws.get(hash) {
            None => {
                let put = self.store.put_chunk(hash, data)?;
                if put == Put::Stored {
                    state.chunks.push(*hash);
                }
                return Ok(put);
            }
            Some((flaw, was_read)) => !self.never_heals && (*was_read || *flaw == Flaw::Lost),
        };
        if is_mended {
            state.flaws.remove(hash);
            return Ok(Put::Stored);
        }
        Ok(Put::AlreadyThere)
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let mut state = self.state();
        let Some((flaw, was_read)) = state.flaws.get_mut(hash) else {
            return self.store.get_chunk(hash);
        };
        *was_read = true;
        match flaw {
            Flaw::Lost => Ok(None),
            Flaw::Other(bytes) => Ok(Some(bytes.clone())),
            Flaw::Refused => Err(damaged(format!("chunk {hash}"))),
            Flaw::Silent => Err(StoreError::remote("get a chunk", "nobody answers")),
        }
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        let collections = &mut self.state().collections;
        if *collections > 0 {
            *collections -= 1;
            return Err(StoreError::Collected { hash: ChunkHash::from([0; 32]) });
        }
        self.store.put_manifest(name, data)
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        if self.state().refused.as_ref() == Some(name) {
            return Err(damaged(format!("manifest {name}")));
        }
        self.store.get_manifest(name)
    }

    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        self.step(Step::LookUp, name)?;
        self.store.manifest_revision(name)
    }

    fn delete_revision(&self, name: &ManifestName, read: &Revision) -> Result<bool, StoreError> {
        self.step(Step::Delete, name)?;
        self.store.delete_revision(name, read)
    }

    forward!(store: delete_manifest);
}
