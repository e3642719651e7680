//! The chunks and manifests of a store in memory, and their eviction.

use std::collections::HashMap;
use std::time::SystemTime;

use bytes::Bytes;

use super::policy::{Policy, RECENCY_WINDOW};
use crate::backend::Put;
use crate::backend::references::References;
use crate::backend::sealed::Seal;
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// The bytes counted against the cap for each value's entries in three maps and two trees.
const OVERHEAD: u64 = 512;

/// A manifest is evicted together with the chunks that only it refers to. A chunk with references is never evicted
/// alone.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    cap: u64,
    pub(super) used: u64,
    puts: u64,
    pub(super) evictions: u64,
    pub(super) chunks: HashMap<ChunkHash, Chunk>,
    pub(super) manifests: HashMap<ManifestName, Manifest>,
    /// Finds the stored chunks that a manifest names.
    named: References,
    /// The order of what can be evicted on its own: manifests, and chunks without references.
    policy: Policy<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Chunk(ChunkHash),
    Manifest(ManifestName),
}

/// A value and its checksum at the time of the put: other code of the process could overwrite the memory.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) data: Bytes,
    sum: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) value: Value,
    /// The bytes are not those that were put. Reads fail, and the next put replaces them.
    pub(super) damaged: bool,
    pub(super) references: u64,
    /// It waits for its manifest, so it may not be evicted.
    pub(super) pending: bool,
    pub(super) used: SystemTime,
}

#[derive(Clone, Debug)]
pub(super) struct Manifest {
    pub(super) value: Value,
    /// The number of the put, which serves as the revision.
    pub(super) put: u64,
    pub(super) used: SystemTime,
    refers: Vec<ChunkHash>,
    cost: u64,
}

impl Value {
    pub(super) fn new(seal: Seal<'_>, data: Bytes) -> Self {
        let sum = seal.sum(&data);
        Self { data, sum }
    }

    /// # Errors
    /// [`StoreError::Damaged`] if the bytes changed since the put.
    pub(super) fn read(self, seal: Seal<'_>) -> Result<Bytes, StoreError> {
        match seal.sum(&self.data) {
            found if found == self.sum => Ok(self.data),
            found => Err(StoreError::Damaged {
                what: seal.to_string(),
                how: format!("its checksum should be {:08x} and is {found:08x}", self.sum),
            }),
        }
    }
}

impl Default for Contents {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl Contents {
    pub(super) fn new(cap: u64) -> Self {
        Self {
            cap,
            used: 0,
            puts: 0,
            evictions: 0,
            chunks: HashMap::new(),
            manifests: HashMap::new(),
            named: References::default(),
            policy: Policy::new(RECENCY_WINDOW),
        }
    }

    pub(super) fn cap(&self) -> u64 {
        self.cap
    }

    /// Puts a chunk. With `pending` it cannot be evicted before its manifest is put.
    pub(super) fn put_chunk(&mut self, hash: &ChunkHash, value: Value, pending: bool) -> Result<Put, StoreError> {
        let key = Key::Chunk(*hash);
        let mut put = Put::AlreadyThere;
        if let Some(chunk) = self.chunks.get_mut(hash) {
            chunk.used = SystemTime::now();
            chunk.pending |= pending;
            if std::mem::take(&mut chunk.damaged) {
                self.used = self.used - cost(&chunk.value.data) + cost(&value.data);
                chunk.value = value;
                put = Put::Stored;
            }
            if chunk.references == 0 {
                self.policy.put(key.clone(), 0.0);
                self.policy.pin(&key, chunk.pending);
            }
            return Ok(put);
        }
        self.make_room(cost(&value.data), None)?;
        self.used += cost(&value.data);
        self.named.insert(hash);
        let chunk = Chunk { value, damaged: false, references: 0, pending, used: SystemTime::now() };
        self.chunks.insert(*hash, chunk);
        self.policy.put(key.clone(), 0.0);
        self.policy.pin(&key, pending);
        Ok(Put::Stored)
    }

    /// Publishes a manifest that refers to the `needed` chunks and to those that it names. If needed chunks are
    /// missing, it returns them and publishes nothing.
    pub(super) fn put_manifest(
        &mut self,
        name: &ManifestName,
        value: Value,
        needed: &[ChunkHash],
    ) -> Result<Vec<ChunkHash>, StoreError> {
        let gone = needed.iter().filter(|hash| !self.chunks.contains_key(*hash));
        let gone: Vec<ChunkHash> = gone.copied().collect();
        if !gone.is_empty() {
            return Ok(gone);
        }
        let mut refers = needed.to_vec();
        self.named.find(&value.data, &mut |hash| refers.push(*hash));
        refers.sort_unstable();
        refers.dedup();
        let list = refers.len().saturating_mul(size_of::<ChunkHash>());
        let cost = cost(&value.data).saturating_add((name.as_str().len() + list) as u64);
        // Refer to its chunks first, so that they are not evicted to make room for it.
        refers.iter().for_each(|hash| self.refer(hash));
        if let Err(full) = self.make_room(cost, Some(name)) {
            refers.iter().for_each(|hash| self.release(hash, false));
            self.unpin(needed);
            return Err(full);
        }
        self.puts += 1;
        self.used += cost;
        let manifest = Manifest { value, put: self.puts, used: SystemTime::now(), refers, cost };
        if let Some(old) = self.manifests.insert(name.clone(), manifest) {
            self.used -= old.cost;
            old.refers.iter().for_each(|hash| self.release(hash, false));
        }
        self.policy.put(Key::Manifest(name.clone()), 1.0);
        self.unpin(needed);
        Ok(Vec::new())
    }

    /// Removes a manifest but not its chunks. Returns whether it existed.
    pub(super) fn delete_manifest(&mut self, name: &ManifestName) -> bool {
        self.remove_manifest(name, false)
    }

    pub(super) fn hit(&mut self, key: &Key) {
        self.policy.hit(key);
        let used = match key {
            Key::Chunk(hash) => self.chunks.get_mut(hash).map(|chunk| &mut chunk.used),
            Key::Manifest(name) => self.manifests.get_mut(name).map(|there| &mut there.used),
        };
        if let Some(used) = used {
            *used = SystemTime::now();
        }
    }

    /// Allows the eviction of chunks that no longer wait for a manifest.
    pub(super) fn unpin(&mut self, hashes: &[ChunkHash]) {
        for hash in hashes {
            if let Some(chunk) = self.chunks.get_mut(hash) {
                chunk.pending = false;
                self.policy.pin(&Key::Chunk(*hash), false);
            }
        }
    }

    pub(super) fn evict(&mut self) -> bool {
        match self.policy.evict() {
            None => return false,
            Some(Key::Chunk(hash)) => self.remove_chunk(&hash),
            Some(Key::Manifest(name)) => drop(self.remove_manifest(&name, true)),
        }
        self.evictions += 1;
        true
    }

    /// Removes a chunk whose bytes are wrong. If a manifest refers to it or is awaited, it stays, marked as damaged,
    /// until it is put again.
    pub(super) fn mark_damaged(&mut self, hash: &ChunkHash) {
        match self.chunks.get_mut(hash) {
            Some(chunk) if chunk.references > 0 || chunk.pending => chunk.damaged = true,
            _ => self.remove_chunk(hash),
        }
    }

    pub(super) fn remove_chunk(&mut self, hash: &ChunkHash) {
        if let Some(chunk) = self.chunks.remove(hash) {
            self.used -= cost(&chunk.value.data);
            self.named.remove(hash);
            self.policy.remove(&Key::Chunk(*hash));
        }
    }

    pub(super) fn remove_manifest(&mut self, name: &ManifestName, with_chunks: bool) -> bool {
        let Some(manifest) = self.manifests.remove(name) else {
            return false;
        };
        self.used -= manifest.cost;
        self.policy.remove(&Key::Manifest(name.clone()));
        for hash in &manifest.refers {
            self.release(hash, with_chunks);
        }
        true
    }

    /// Evicts until the bytes fit, in place of manifest `of` if there is one. A value above the cap evicts nothing.
    fn make_room(&mut self, bytes: u64, of: Option<&ManifestName>) -> Result<(), StoreError> {
        loop {
            let old = of.and_then(|name| self.manifests.get(name));
            let rest = self.used - old.map_or(0, |old| old.cost);
            if rest.checked_add(bytes).is_some_and(|sum| sum <= self.cap) {
                return Ok(());
            }
            if bytes > self.cap || !self.evict() {
                return Err(StoreError::Full { needed: bytes, cap: self.cap });
            }
        }
    }

    fn refer(&mut self, hash: &ChunkHash) {
        if let Some(chunk) = self.chunks.get_mut(hash) {
            chunk.references += 1;
            self.policy.remove(&Key::Chunk(*hash));
        }
    }

    /// Takes one reference from a chunk. Without references the chunk is removed (`with_chunks`) or can be evicted.
    fn release(&mut self, hash: &ChunkHash, with_chunks: bool) {
        let Some(chunk) = self.chunks.get_mut(hash) else {
            return;
        };
        chunk.references -= 1;
        if chunk.references > 0 {
            return;
        }
        let pending = chunk.pending;
        if with_chunks && !pending {
            return self.remove_chunk(hash);
        }
        chunk.used = SystemTime::now();
        let key = Key::Chunk(*hash);
        self.policy.put(key.clone(), 0.0);
        self.policy.pin(&key, pending);
    }
}

fn cost(data: &Bytes) -> u64 {
    data.len() as u64 + OVERHEAD
}
