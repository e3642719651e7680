//! How many round trips a look-up costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde_json::json;
use transload_archive::{Prompt, SaveRequest};
use transload_store::backend::MemoryStore;
use transload_store::{Backend, ChunkHash, ManifestName, Put, StoreError};

use crate::engines::{Engine, archive};
use crate::models::{attention, side};

/// A store that answers so many names at once, and counts how often it is asked.
#[derive(Debug)]
struct Counted {
    store: MemoryStore,
    batch: usize,
    trips: AtomicU64,
}

impl Backend for Counted {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        self.store.put_chunk(hash, data)
    }
    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        self.store.get_chunk(hash)
    }
    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        self.store.put_manifest(name, data)
    }
    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        self.store.get_manifest(name)
    }
    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        self.store.delete_manifest(name)
    }
    fn batch(&self) -> usize {
        self.batch
    }
    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        assert!(names.len() <= self.batch);
        self.trips.fetch_add(1, Ordering::Relaxed);
        names.iter().map(|name| self.get_manifest(name)).collect()
    }
}

#[test]
fn long_prompts_cost_few_round_trips() {
    let here = side(
        1,
        1,
        256,
        None,
        &[attention("attn", "0", json!({"heads": 1, "head_dim": 1}))],
    );
    let tokens: Vec<u32> = (0..128 << 10).collect();
    let prompt = Prompt::new(&tokens);
    let memory = MemoryStore::new();
    let store: Arc<dyn Backend> = Arc::new(memory.clone());
    let engine = Engine::computed(&here, 300 * 256, 1);
    engine
        .save(
            &archive(&store, &here),
            &prompt,
            &SaveRequest::tokens(300 * 256),
        )
        .unwrap();
    let trips = |batch, prompt: &Prompt<'_>, expected: u64| {
        let counted = Arc::new(Counted {
            store: memory.clone(),
            batch,
            trips: AtomicU64::new(0),
        });
        let store: Arc<dyn Backend> = counted.clone();
        let found = archive(&store, &here).find(prompt).unwrap();
        assert_eq!(found.tokens(), expected * 256);
        counted.trips.load(Ordering::Relaxed)
    };
    // All 512 names at once.
    assert_eq!(trips(1024, &prompt, 300), 1);
    // 64 at a time: two to find the end, and then the 300 that lie before it.
    assert!(trips(64, &prompt, 300) <= 8);
    // One at a time: a binary search, and every root that it has not seen.
    assert!(trips(1, &prompt, 300) <= 10 + 300);
    // What nobody saved is known at once.
    let other: Vec<u32> = tokens.iter().map(|token| token + 1).collect();
    assert!(trips(1, &Prompt::new(&other), 0) <= 10);
    assert_eq!(trips(64, &Prompt::new(&other), 0), 2);
}
