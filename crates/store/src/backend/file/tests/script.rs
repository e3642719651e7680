//! A random run of store operations, and a model of the values that may be read at any moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::super::disk::simulated::{Random, SimulatedDisk};
use super::super::{FileOptions, FileStore, paths};
use crate::backend::{Backend, CollectOptions, Collected};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

pub(super) fn name(n: u64) -> ManifestName {
    ManifestName::new(format!("manifest {n}")).unwrap()
}

/// Chunk number `n`. Some are longer than a sector, one is empty.
pub(super) fn chunk(n: u32) -> (ChunkHash, Vec<u8>) {
    let len = [0, 1, 40, 511, 700, 1500][n as usize % 6];
    let data: Vec<u8> = (0..len).map(|at| (n * 31 + at * 7) as u8).collect();
    (blake3::hash(&n.to_le_bytes()).into(), data)
}

/// Returns a manifest's bytes: a version that makes it unique, and the numbers of its chunks. The store finds no hashes
/// in it, so it keeps only the chunks that were put before it.
fn manifest(version: u64, chunks: &[u32]) -> Bytes {
    let mut data = version.to_le_bytes().to_vec();
    data.extend(chunks.iter().flat_map(|n| n.to_le_bytes()));
    data.into()
}

fn chunks_of(manifest: &[u8]) -> Vec<u32> {
    let numbers = manifest[8..].chunks_exact(4);
    numbers.map(|n| u32::from_le_bytes(n.try_into().unwrap())).collect()
}

pub(super) fn new_store() -> SimulatedDisk {
    SimulatedDisk::with_store()
}

pub(super) fn open(disk: &SimulatedDisk) -> Result<FileStore, StoreError> {
    disk.open_store()
}

/// All chunks of the script together exceed this cap. Those of one save fit.
pub(super) const CAP: u64 = 4500;

pub(super) fn open_capped(disk: &SimulatedDisk) -> Result<FileStore, StoreError> {
    let options = FileOptions { cap: Some(CAP), ..FileOptions::default() };
    FileStore::on_disk(Arc::new(disk.clone()), "", options)
}

/// The values that each manifest may have; `None` if it may be missing.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected(BTreeMap<ManifestName, Vec<Option<Bytes>>>);

impl Expected {
    fn begin(&mut self, name: &ManifestName, value: Option<&Bytes>) {
        let values = self.0.entry(name.clone()).or_insert_with(|| vec![None]);
        values.push(value.cloned());
    }

    fn end(&mut self, name: &ManifestName) {
        let values = self.0.get_mut(name).unwrap();
        let newest = values.pop().unwrap();
        *values = vec![newest];
    }

    pub(super) fn put(
        &mut self,
        store: &dyn Backend,
        name: &ManifestName,
        version: u64,
        chunks: &[u32],
    ) -> Result<(), StoreError> {
        let data = manifest(version, chunks);
        self.begin(name, Some(&data));
        store.put_manifest(name, &data)?;
        self.end(name);
        Ok(())
    }

    pub(super) fn delete(&mut self, store: &dyn Backend, name: &ManifestName) -> Result<(), StoreError> {
        self.begin(name, None);
        store.delete_manifest(name)?;
        self.end(name);
        Ok(())
    }

    /// Allows every manifest to be missing, because everything is about to be evicted.
    pub(super) fn may_go(&mut self) {
        self.0.values_mut().for_each(|values| values.push(None));
    }

    /// Allows manifests to be missing whose files are gone from this disk, because they were evicted. Also those that
    /// were being replaced, because the old one may have been evicted to make space for the new one. Returns whether
    /// anything was evicted.
    pub(super) fn evicted(&mut self, disk: &SimulatedDisk) -> bool {
        let mut files = disk.files();
        files.retain(|(_, content)| !content.is_empty());
        let mut any = false;
        for (name, values) in &mut self.0 {
            let path = paths::manifest(name.as_str());
            let gone = !values.contains(&None) && !files.iter().any(|(file, _)| *file == path);
            if gone || values.len() > 1 {
                values.push(None);
            }
            any |= gone;
        }
        any
    }

    /// Checks that each manifest has an allowed value, with all its chunks intact. So acknowledged values must exist.
    pub(super) fn check(&self, store: &dyn Backend) -> Result<(), String> {
        for (name, values) in &self.0 {
            let value = store.get_manifest(name).map_err(|error| format!("{name}: {error}"))?;
            if !values.contains(&value) {
                return Err(format!("{name} is {value:?}, not one of {values:?}"));
            }
            for n in value.iter().flat_map(|value| chunks_of(value)) {
                let (hash, data) = chunk(n);
                let there = store.get_chunk(&hash);
                let there = there.map_err(|error| format!("chunk {n} of {name}: {error}"))?;
                if there.as_deref() != Some(&data[..]) {
                    return Err(format!("chunk {n} of {name} is {there:?}"));
                }
            }
        }
        let mut fault = None;
        store
            .inventory()
            .unwrap()
            .verify(&mut |_| (), &mut |found| fault = Some(found))
            .map_err(|error| format!("verify: {error}"))?;
        match fault {
            Some(fault) => Err(format!("verify found {fault:?}")),
            None => Ok(()),
        }
    }
}

/// Saves, replaces, deletes and collects at random. Ends at the first error.
pub(super) fn live(
    store: &dyn Backend,
    expected: &mut Expected,
    random: &mut Random,
    steps: u32,
) -> Result<(), StoreError> {
    for _ in 0..steps {
        step(store, expected, random)?;
    }
    Ok(())
}

pub(super) fn step(store: &dyn Backend, expected: &mut Expected, random: &mut Random) -> Result<(), StoreError> {
    let name_of = |random: &mut Random| name(random.below(4));
    match random.below(8) {
        0 => {
            let name = name_of(random);
            expected.delete(store, &name)?;
        }
        1 => drop(collect(store)?),
        2 => {
            let chunks = put_some(store, random)?;
            let version = random.draw();
            let mut batch: Vec<_> = (0..3).map(|n| (name(n), manifest(version + n, &[]))).collect();
            // All chunks belong to the first manifest.
            batch[0].1 = manifest(version, &chunks);
            for (name, data) in &batch {
                expected.begin(name, Some(data));
            }
            store.put_manifests(&batch)?;
            for (name, _) in &batch {
                expected.end(name);
            }
        }
        _ => {
            let chunks = put_some(store, random)?;
            let name = name_of(random);
            expected.put(store, &name, random.draw(), &chunks)?;
        }
    }
    Ok(())
}

/// Saves and reads at random in a store with a cap. Errors because of a full store are allowed.
pub(super) fn live_capped(
    store: &dyn Backend,
    expected: &mut Expected,
    random: &mut Random,
    steps: u32,
) -> Result<(), StoreError> {
    for _ in 0..steps {
        match step_capped(store, expected, random) {
            Err(StoreError::Full { .. } | StoreError::Collected { .. }) => {}
            other => other?,
        }
    }
    Ok(())
}

fn step_capped(store: &dyn Backend, expected: &mut Expected, random: &mut Random) -> Result<(), StoreError> {
    let name = name(random.below(6));
    if random.below(6) == 0 {
        store.get_manifest(&name)?;
    }
    let mut chunks = Vec::new();
    for _ in 0..random.below(4) {
        let n = random.below(18) as u32;
        let (hash, data) = chunk(n);
        store.put_chunk(&hash, &data)?;
        chunks.push(n);
    }
    expected.put(store, &name, random.draw(), &chunks)
}

pub(super) fn collect(store: &dyn Backend) -> Result<Collected, StoreError> {
    collect_with(store, CollectOptions::default())
}

pub(super) fn collect_with(store: &dyn Backend, options: CollectOptions) -> Result<Collected, StoreError> {
    let now = CollectOptions { grace: Duration::ZERO, ..options };
    store.inventory().unwrap().collect(&now, &mut |_| ())
}

fn put_some(store: &dyn Backend, random: &mut Random) -> Result<Vec<u32>, StoreError> {
    let mut chunks = Vec::new();
    for _ in 0..random.below(5) {
        let n = random.below(12) as u32;
        let (hash, data) = chunk(n);
        store.put_chunk(&hash, &data)?;
        chunks.push(n);
    }
    Ok(chunks)
}
