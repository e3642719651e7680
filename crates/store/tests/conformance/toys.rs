//! Stores with one fault each. Without a fault, a toy is a correct store that buffers chunks until put_manifest, as the
//! contract allows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use transload_store::{Backend, ChunkHash, ManifestName, Put, StoreError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// put_chunk returns 0 for an existing chunk.
    SecondPutStored,
    FirstPutThere,
    LastWriterWins,
    TornManifest,
    DeleteThenWrite,
    /// A shorter manifest leaves the end of the longer one.
    StaleTail,
    /// A manifest becomes visible some time after put_manifest has returned.
    LateManifest,
    /// Each handle remembers the manifests it has read.
    CachedManifest,
    /// Names are cleaned as paths are.
    NameAsPath,
    NameCut,
    NameFolded,
    /// `/` in names becomes `_`.
    NameReplaced,
    /// The empty name, `.` and `..` are refused.
    NameRefused,
    /// Chunks are published by the manifest after the next.
    LateChunks,
    ManifestFirst,
    /// Chunks are never published to other handles.
    NeverPublished,
    BlindToOwn,
    /// put_chunk returns 1 for a chunk that another handle has buffered, and does not publish it.
    OthersBuffer,
    HashCut,
    HashUntilNul,
    HashOnly32,
    ValueUntilNul,
    /// Values of more than 64 KiB lose their end.
    LongValueCut,
    LongValueRefused,
    EmptyIsMissing,
    EmptyForMissing,
    ErrorForMissing,
    DeleteMissingFails,
    DeleteNothing,
    DeleteTakesChunks,
    OneNamespace,
    /// A buffer is shared by all threads and not locked while it is filled.
    NotThreadSafe,
    /// All data is lost when the last handle is closed.
    NotKept,
    /// prefetch_chunks makes missing chunks.
    PrefetchMakes,
    Panics,
    PanicsPutting,
    PrefetchFails,
}

#[derive(Debug, Default)]
struct Contents {
    chunks: HashMap<Vec<u8>, Vec<u8>>,
    manifests: HashMap<Vec<u8>, Vec<u8>>,
    buffered: HashMap<Vec<u8>, usize>,
    late: Vec<(Vec<u8>, Vec<u8>)>,
    late_manifests: HashMap<Vec<u8>, (u32, Option<Vec<u8>>)>,
    handles: usize,
    /// For the fault `NotThreadSafe`: the number of threads that are filling the buffer.
    filling: usize,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Contents>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap()
    }

    pub(crate) fn manifests(&self) -> usize {
        self.lock().manifests.len()
    }
}

#[derive(Debug)]
pub(crate) struct Toy {
    store: Shared,
    fault: Fault,
    pending: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    seen: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
}

impl Toy {
    pub(crate) fn new(store: &Shared, fault: Fault) -> Self {
        store.lock().handles += 1;
        Self { store: store.clone(), fault, pending: Mutex::default(), seen: Mutex::default() }
    }

    fn key(&self, hash: &ChunkHash) -> Result<Vec<u8>, StoreError> {
        let bytes = hash.as_bytes();
        Ok(match self.fault {
            Fault::HashCut => bytes[..bytes.len().min(32)].to_vec(),
            Fault::HashUntilNul => bytes.split(|&byte| byte == 0).next().unwrap().to_vec(),
            Fault::HashOnly32 if bytes.len() != 32 => {
                return Err(StoreError::HashLength { len: bytes.len() });
            }
            Fault::OneNamespace => hash.to_string().into_bytes(),
            _ => bytes.to_vec(),
        })
    }

    fn name(&self, name: &ManifestName) -> Result<Vec<u8>, StoreError> {
        let name = name.as_str();
        Ok(match self.fault {
            Fault::NameAsPath => {
                let mut parts: Vec<&str> = Vec::new();
                for part in name.split('/') {
                    match part {
                        "" | "." => {}
                        ".." => {
                            parts.pop();
                        }
                        part => parts.push(part),
                    }
                }
                parts.join("/").into_bytes()
            }
            Fault::NameCut => name.as_bytes()[..name.len().min(255)].to_vec(),
            Fault::NameFolded => name.to_lowercase().into_bytes(),
            Fault::NameReplaced => name.replace('/', "_").into_bytes(),
            Fault::NameRefused if ["", ".", ".."].contains(&name) => {
                return Err(StoreError::Name { name: name.into(), why: "it is a path" });
            }
            _ => name.as_bytes().to_vec(),
        })
    }

    fn value(&self, data: &[u8]) -> Result<Vec<u8>, StoreError> {
        Ok(match self.fault {
            Fault::ValueUntilNul => data.split(|&byte| byte == 0).next().unwrap().to_vec(),
            Fault::LongValueCut => data[..data.len().min(1 << 16)].to_vec(),
            Fault::LongValueRefused if data.len() > 1 << 19 => {
                return Err(StoreError::TooLarge { bytes: data.len() as u64, most: 1 << 19 });
            }
            _ => data.to_vec(),
        })
    }

    fn found(&self, value: Option<Vec<u8>>) -> Result<Option<Bytes>, StoreError> {
        match (self.fault, value) {
            (Fault::EmptyIsMissing, Some(value)) if value.is_empty() => Ok(None),
            (Fault::EmptyForMissing, None) => Ok(Some(Bytes::new())),
            (Fault::ErrorForMissing, None) => Err(StoreError::remote("get", "there is nothing")),
            (_, value) => Ok(value.map(Bytes::from)),
        }
    }

    fn manifest(&self, name: &[u8], data: Vec<u8>) {
        let set = |value: Option<Vec<u8>>| {
            let mut store = self.store.lock();
            match value {
                Some(value) => store.manifests.insert(name.to_vec(), value),
                None => store.manifests.remove(name),
            };
        };
        let other_threads = || thread::sleep(Duration::from_micros(200));
        match self.fault {
            Fault::TornManifest => {
                set(Some(data[..data.len() / 2].to_vec()));
                other_threads();
            }
            Fault::DeleteThenWrite => {
                set(None);
                other_threads();
            }
            Fault::StaleTail => {
                let mut old = self.store.lock().manifests.get(name).cloned().unwrap_or_default();
                if old.len() > data.len() {
                    old[..data.len()].copy_from_slice(&data);
                    return set(Some(old));
                }
            }
            Fault::LateManifest => {
                // The next readers get what was there before: more than can come before the put has returned.
                let mut store = self.store.lock();
                let old = store.manifests.get(name).cloned();
                if old.is_some() {
                    store.late_manifests.insert(name.to_vec(), (50, old));
                }
            }
            Fault::OneNamespace => {
                let mut store = self.store.lock();
                store.chunks.insert(name.to_vec(), data.clone());
            }
            _ => {}
        }
        set(Some(data));
    }
}

impl Backend for Toy {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        let (key, value) = (self.key(hash)?, self.value(data)?);
        let mut store = self.store.lock();
        let mut pending = self.pending.lock().unwrap();
        if self.fault == Fault::NotThreadSafe {
            // As a static buffer that a second thread fills at the same time.
            store.filling += 1;
            drop((store, pending));
            thread::sleep(Duration::from_micros(50));
            store = self.store.lock();
            pending = self.pending.lock().unwrap();
            let alone = store.filling == 1;
            store.filling -= 1;
            if !alone && !value.is_empty() {
                let mut mixed = value.clone();
                mixed[0] ^= 1;
                pending.insert(key, mixed);
                return Ok(Put::Stored);
            }
        }
        let there = store.chunks.contains_key(&key) || pending.contains_key(&key);
        if self.fault == Fault::OthersBuffer && !there && store.buffered.contains_key(&key) {
            return Ok(Put::AlreadyThere);
        }
        if there {
            if self.fault == Fault::LastWriterWins {
                match pending.get_mut(&key) {
                    Some(buffered) => *buffered = value,
                    None => drop(store.chunks.insert(key, value)),
                }
            }
            return Ok(match self.fault {
                Fault::SecondPutStored => Put::Stored,
                _ => Put::AlreadyThere,
            });
        }
        *store.buffered.entry(key.clone()).or_default() += 1;
        pending.insert(key, value);
        Ok(match self.fault {
            Fault::FirstPutThere => Put::AlreadyThere,
            _ => Put::Stored,
        })
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let key = self.key(hash)?;
        let store = self.store.lock();
        let mut value = store.chunks.get(&key).cloned();
        if value.is_none() && self.fault != Fault::BlindToOwn {
            value = self.pending.lock().unwrap().get(&key).cloned();
        }
        drop(store);
        self.found(value)
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        let (name, data) = (self.name(name)?, self.value(data)?);
        if self.fault == Fault::PanicsPutting && data.len() > 64 {
            panic!("no manifest can be put");
        }
        if self.fault == Fault::ManifestFirst {
            self.manifest(&name, data.clone());
            thread::sleep(Duration::from_millis(1));
        }
        {
            let mut store = self.store.lock();
            let mut pending = self.pending.lock().unwrap();
            match self.fault {
                Fault::NeverPublished => {}
                Fault::LateChunks => {
                    let late = std::mem::take(&mut store.late);
                    store.chunks.extend(late);
                    store.late.extend(pending.clone());
                }
                _ => {
                    for (key, value) in pending.drain() {
                        store.buffered.remove(&key);
                        store.chunks.entry(key).or_insert(value);
                    }
                }
            }
        }
        if self.fault != Fault::ManifestFirst {
            self.manifest(&name, data);
        }
        Ok(())
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        assert!(self.fault != Fault::Panics, "no manifest can be read");
        let name = self.name(name)?;
        let mut seen = self.seen.lock().unwrap();
        if self.fault == Fault::CachedManifest
            && let Some(value) = seen.get(&name)
        {
            return self.found(Some(value.clone()));
        }
        let mut store = self.store.lock();
        let mut value = store.manifests.get(&name).cloned();
        if let Some((reads, old)) = store.late_manifests.get_mut(&name)
            && *reads > 0
        {
            *reads -= 1;
            value = old.clone();
        }
        drop(store);
        if let Some(value) = &value {
            seen.insert(name, value.clone());
        }
        self.found(value)
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        let name = self.name(name)?;
        let mut store = self.store.lock();
        if self.fault == Fault::DeleteNothing {
            return Ok(());
        }
        store.late_manifests.remove(&name);
        let gone = store.manifests.remove(&name);
        if self.fault == Fault::DeleteMissingFails && gone.is_none() {
            return Err(StoreError::remote("delete", "there is nothing"));
        }
        if self.fault == Fault::DeleteTakesChunks {
            store.chunks.retain(|hash, _| {
                !gone.as_ref().is_some_and(|manifest| manifest.windows(hash.len()).any(|w| w == hash))
            });
        }
        if self.fault == Fault::OneNamespace {
            store.chunks.remove(&name);
        }
        Ok(())
    }

    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        match self.fault {
            Fault::PrefetchFails => Err(StoreError::remote("prefetch", "not today")),
            Fault::PrefetchMakes => {
                for hash in hashes {
                    let key = self.key(hash)?;
                    self.store.lock().chunks.entry(key).or_default();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        let mut store = self.store.lock();
        // A handle's buffer goes with it.
        for key in self.pending.lock().unwrap().keys() {
            store.buffered.remove(key);
        }
        store.handles -= 1;
        if store.handles == 0 && self.fault == Fault::NotKept {
            store.chunks.clear();
            store.manifests.clear();
        }
    }
}
