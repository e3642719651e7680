//! Reads go down as far as they must, and carry up what they find.

use std::sync::Arc;

use transload_store::backend::tier::Write;
use transload_store::backend::wrap::{Faulty, Metered, Plan};
use transload_store::backend::{MemoryStore, Tier, TierStats, TierStore};
use transload_store::{Backend, StoreError};

use crate::{chunk, down, name, sound, two};

fn saved(store: &dyn Backend, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let (hash, data) = chunk(n);
        store.put_chunk(&hash, &data).unwrap();
        store
            .put_manifest(&name(&n.to_string()), hash.as_bytes())
            .unwrap();
    }
}

#[test]
fn what_is_found_below_is_there_above_afterwards() {
    let (above, below) = (sound(), sound());
    saved(&*below, 0..3);
    let store = two(&above, &below, Write::Through);
    let (hash, data) = chunk(1);
    assert_eq!(
        store.get_manifest(&name("1")).unwrap().unwrap(),
        hash.as_bytes()
    );
    assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
    assert_eq!(above.get_chunk(&hash).unwrap().unwrap(), data);
    assert_eq!(
        above.get_manifest(&name("1")).unwrap().unwrap(),
        hash.as_bytes()
    );
    assert!(above.get_chunk(&chunk(2).0).unwrap().is_none());
    // It answers alone.
    below.set_plan(down());
    assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
    assert!(store.get_manifest(&name("1")).unwrap().is_some());
    let stats = store.tiers();
    let [up, low] = &stats[..] else { panic!() };
    assert_eq!((up.hits, up.misses, up.promotions), (2, 2, 2));
    assert_eq!((low.hits, low.misses, low.promotions), (2, 0, 0));
    assert_eq!(low.bytes, data.len() as u64 + 32);
}

/// A batch asks each tier once, for what is still missing.
#[test]
fn batches_go_down_with_what_is_missing() {
    let [one, two, three] = [(); 3].map(|()| Arc::new(Metered::new(MemoryStore::new())));
    saved(three.inner(), 0..6);
    saved(two.inner(), 0..4);
    saved(one.inner(), 0..1);
    let tiers =
        [&one, &two, &three].map(|store| Tier::new("", Arc::clone(store) as Arc<dyn Backend>));
    let store = TierStore::new(tiers.into(), Write::Through).unwrap();
    let hashes: Vec<_> = (0..7).map(|n| chunk(n).0).collect();
    let names: Vec<_> = (0..7).map(|n| name(&n.to_string())).collect();
    for _ in 0..2 {
        let chunks = store.get_chunks(&hashes).unwrap();
        let manifests = store.get_manifests(&names).unwrap();
        assert!((0..6).all(|n| chunks[n as usize].as_ref().unwrap() == &chunk(n).1));
        assert!(
            manifests[..6]
                .iter()
                .zip(&hashes)
                .all(|(there, hash)| there.as_ref().unwrap() == hash.as_bytes())
        );
        assert!(chunks[6].is_none() && manifests[6].is_none());
    }
    let asked = [&one, &two, &three].map(|store| {
        let stats = store.snapshot();
        (stats.get_chunk.calls, stats.get_chunk.values)
    });
    // The second time only the last one is missing.
    assert_eq!(asked, [(2, 14), (2, 6 + 1), (2, 3 + 1)]);
    assert_eq!(one.snapshot().put_chunk.values, 5);
    assert_eq!(two.snapshot().put_chunk.values, 2);
}

#[test]
fn memory_answers_for_manifests_only_while_nobody_else_does() {
    let (memory, below) = (MemoryStore::new(), sound());
    let tiers = vec![
        Tier::memory("memory", memory.clone()),
        Tier::new("below", below.clone() as Arc<dyn Backend>),
    ];
    let store = TierStore::new(tiers, Write::Through).unwrap();
    saved(&store, 0..3);
    // Another process replaces one and removes one.
    below.put_manifest(&name("0"), b"newer").unwrap();
    below.delete_manifest(&name("1")).unwrap();
    assert_eq!(store.get_manifest(&name("0")).unwrap().unwrap(), "newer");
    assert_eq!(store.get_manifest(&name("1")).unwrap(), None);
    below.set_plan(down());
    assert_eq!(store.get_manifest(&name("0")).unwrap().unwrap(), "newer");
    assert!(store.get_manifest(&name("2")).unwrap().is_some());
    assert!(store.get_manifest(&name("3")).is_err());
    assert!(store.get_chunk(&chunk(2).0).unwrap().is_some());
    assert!(store.get_chunk(&chunk(7).0).is_err());
}

#[test]
fn a_chunk_that_is_damaged_above_is_read_below_and_healed() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("above");
    let open = || -> Arc<dyn Backend> {
        let options = transload_store::backend::file::FileOptions::new();
        Arc::new(transload_store::backend::file::FileStore::open(&place, options).unwrap())
    };
    let below: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let new = |above: Arc<dyn Backend>| {
        let tiers = vec![Tier::new("above", above), Tier::new("below", below.clone())];
        TierStore::new(tiers, Write::Through).unwrap()
    };
    let (hash, data) = chunk(0);
    saved(&new(open()), 0..1);
    flip_a_byte(&place, &data);
    assert!(matches!(
        open().get_chunk(&hash),
        Err(StoreError::Damaged { .. })
    ));
    let store = new(open());
    assert_eq!(
        store.get_chunks(&[hash, chunk(1).0]).unwrap()[0]
            .as_ref()
            .unwrap(),
        &data
    );
    assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
    // With the next manifest it is there for all.
    saved(&store, 1..2);
    assert_eq!(open().get_chunk(&hash).unwrap().unwrap(), data);
    let TierStats {
        hits, promotions, ..
    } = store.tiers()[0].clone();
    assert_eq!((hits, promotions), (1, 1));
}

/// In the file of the folder that has these bytes.
fn flip_a_byte(folder: &std::path::Path, bytes: &[u8]) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let mut content = std::fs::read(&path).unwrap();
            let at = content
                .windows(bytes.len())
                .position(|there| there == bytes);
            if let Some(at) = at {
                content[at] ^= 1;
                std::fs::write(path, content).unwrap();
                return;
            }
        }
    }
    panic!("it is nowhere");
}

/// A prefetch goes to the first tier that has to fetch anything, without what memory has.
#[test]
fn a_prefetch_tells_who_has_to_fetch() {
    let (memory, below) = (
        MemoryStore::new(),
        Arc::new(Metered::new(MemoryStore::new())),
    );
    saved(below.inner(), 0..3);
    saved(&memory, 0..1);
    let tiers = vec![
        Tier::memory("", memory),
        Tier::new("", below.clone() as Arc<dyn Backend>),
    ];
    let store = TierStore::new(tiers, Write::Through).unwrap();
    store
        .prefetch_chunks(&[chunk(0).0, chunk(1).0, chunk(2).0])
        .unwrap();
    assert_eq!(below.snapshot().prefetch_chunks.values, 2);
}

#[test]
fn a_batch_is_as_wide_as_the_widest_tier() {
    #[derive(Debug)]
    struct Wide(MemoryStore);
    impl Backend for Wide {
        fn put_chunk(
            &self,
            hash: &transload_store::ChunkHash,
            data: &[u8],
        ) -> Result<transload_store::Put, StoreError> {
            self.0.put_chunk(hash, data)
        }
        fn get_chunk(
            &self,
            hash: &transload_store::ChunkHash,
        ) -> Result<Option<bytes::Bytes>, StoreError> {
            self.0.get_chunk(hash)
        }
        fn put_manifest(
            &self,
            name: &transload_store::ManifestName,
            data: &[u8],
        ) -> Result<(), StoreError> {
            self.0.put_manifest(name, data)
        }
        fn get_manifest(
            &self,
            name: &transload_store::ManifestName,
        ) -> Result<Option<bytes::Bytes>, StoreError> {
            self.0.get_manifest(name)
        }
        fn delete_manifest(&self, name: &transload_store::ManifestName) -> Result<(), StoreError> {
            self.0.delete_manifest(name)
        }
        fn batch(&self) -> usize {
            64
        }
    }
    let narrow: Arc<dyn Backend> = Arc::new(Faulty::new(MemoryStore::new(), Plan::new()));
    let tiers = vec![
        Tier::new("", narrow),
        Tier::new("", Arc::new(Wide(MemoryStore::new()))),
    ];
    assert_eq!(TierStore::new(tiers, Write::Through).unwrap().batch(), 64);
}
