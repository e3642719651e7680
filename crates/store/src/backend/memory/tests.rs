//! Tests of what a store in memory keeps and evicts.

use std::collections::HashMap;

use proptest::prelude::*;

use super::MemoryStore;
use crate::backend::{Backend, CollectOptions, Put};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

fn chunk(n: u64) -> (ChunkHash, Vec<u8>) {
    (blake3::hash(&n.to_le_bytes()).into(), vec![n as u8; 4096])
}

fn put(store: &MemoryStore, n: u64) -> Result<Put, StoreError> {
    let (hash, data) = chunk(n);
    store.put_chunk(&hash, &data)
}

fn has(store: &MemoryStore, n: u64) -> bool {
    let (hash, data) = chunk(n);
    let there = store.get_chunk(&hash).unwrap();
    assert!(there.as_deref().is_none_or(|there| there == data));
    there.is_some()
}

fn name(n: u64) -> ManifestName {
    ManifestName::new(format!("m{n}")).unwrap()
}

fn save(store: &MemoryStore, n: u64, chunks: &[u64]) -> Result<(), StoreError> {
    for n in chunks {
        put(store, *n)?;
    }
    store.put_manifest(&name(n), b"names nothing")
}

fn used(store: &MemoryStore) -> u64 {
    store.inventory().unwrap().usage().unwrap().total_bytes
}

/// The bytes of 20 saves of one chunk, but not of 21.
const CAP: u64 = 110 << 10;

#[test]
fn a_manifest_goes_with_the_chunks_that_only_it_has() {
    let store = MemoryStore::with_cap(CAP);
    save(&store, 0, &[0, 1000]).unwrap();
    save(&store, 1, &[1, 1000]).unwrap();
    for n in 2..40 {
        save(&store, n, &[n]).unwrap();
        // Manifest 1 was used, so it stays, with the chunks that it shares with manifest 0.
        assert!(store.get_manifest(&name(1)).unwrap().is_some());
        assert!(used(&store) <= CAP);
    }
    assert!(store.get_manifest(&name(0)).unwrap().is_none());
    assert!(!has(&store, 0), "went with its manifest");
    assert!(has(&store, 1) && has(&store, 1000));
    assert!(has(&store, 39) && !has(&store, 5));
}

#[test]
fn chunks_without_a_manifest_go_before_manifests() {
    let store = MemoryStore::with_cap(CAP);
    for n in 0..10 {
        save(&store, n, &[n]).unwrap();
    }
    // Nine of the ten chunks are not needed any more.
    for n in 0..9 {
        store.put_manifest(&name(n), b"").unwrap();
        assert!(has(&store, n), "replacing does not collect");
    }
    for n in 10..25 {
        save(&store, n, &[n]).unwrap();
    }
    assert!((0..25).all(|n| store.get_manifest(&name(n)).unwrap().is_some()));
    assert!(has(&store, 9) && (0..9).any(|n| !has(&store, n)));
}

#[test]
fn what_has_no_room_is_a_full_store_and_the_next_save_is_none() {
    let store = MemoryStore::with_cap(CAP);
    let too_long = store.put_chunk(&chunk(0).0, &[0; CAP as usize]);
    assert!(matches!(too_long, Err(StoreError::Full { cap: CAP, .. })));
    save(&store, 0, &[0]).unwrap();
    // Chunks without a manifest are pinned, so a save that is larger than the store fails.
    let chunks: Vec<u64> = (1..100).collect();
    let full = save(&store, 1, &chunks).unwrap_err();
    assert!(matches!(full, StoreError::Full { cap: CAP, .. }), "{full}");
    assert!(has(&store, 1), "and its chunks go when others need the room");
    for n in 100..140 {
        save(&store, n, &[n]).unwrap();
    }
    assert!(has(&store, 139) && !has(&store, 1));
    // Chunk 0 was evicted before its manifest, so that manifest fails.
    let lost = MemoryStore::with_cap(CAP);
    (0..30).find_map(|n| put(&lost, n).err()).unwrap();
    std::thread::scope(|scope| {
        let save = || (100..140).for_each(|n| put(&lost, n).map(drop).unwrap_or_default());
        scope.spawn(save).join().unwrap();
    });
    let error = lost.put_manifest(&name(0), chunk(0).0.as_bytes()).unwrap_err();
    assert!(matches!(error, StoreError::Collected { .. }), "{error}");
    save(&lost, 0, &[0]).unwrap();
}

#[test]
fn copies_of_what_another_store_has_go_one_by_one_and_before_manifests() {
    let store = MemoryStore::with_cap(CAP);
    let cache = |store: &MemoryStore, n| store.cache_chunk(&chunk(n).0, chunk(n).1.into());
    save(&store, 1000, &[1000]).unwrap();
    put(&store, 1001).unwrap();
    cache(&store, 1001).unwrap();
    for n in 0..40 {
        cache(&store, n).unwrap();
    }
    assert!(has(&store, 39) && !has(&store, 0));
    assert!(has(&store, 1000) && has(&store, 1001), "one waits for its manifest");
    assert!(used(&store) <= CAP);
    // Less than the window needs.
    let small = MemoryStore::with_cap(10_000);
    cache(&small, 0).unwrap();
    cache(&small, 1).unwrap();
    assert!(matches!(cache(&small, 2), Err(StoreError::Full { .. })));
}

#[test]
fn collecting_takes_what_nothing_refers_to() {
    let store = MemoryStore::new();
    let collect = |options: &CollectOptions| {
        let inventory = store.inventory().unwrap();
        inventory.collect(options, &mut |_| ()).unwrap()
    };
    save(&store, 0, &[0, 1]).unwrap();
    let hashes = [chunk(2).0.to_string(), chunk(1).0.to_string()].concat();
    save(&store, 1, &[2]).unwrap();
    // Named in its bytes, but not put with it.
    store.put_manifest(&name(1), hashes.as_bytes()).unwrap();
    store.delete_manifest(&name(0)).unwrap();
    put(&store, 3).unwrap();
    let grace = collect(&CollectOptions::default());
    assert_eq!((grace.chunks, grace.in_grace), (0, 1));
    let now = CollectOptions { grace: std::time::Duration::ZERO, ..CollectOptions::default() };
    let dry = collect(&CollectOptions { dry_run: true, ..now.clone() });
    assert!(has(&store, 0));
    assert_eq!(collect(&now), dry);
    assert_eq!((dry.chunks, dry.manifests), (1, 0));
    assert!(!has(&store, 0) && has(&store, 1) && has(&store, 2));
    assert!(has(&store, 3), "it waits for its manifest");
}

proptest! {
    /// A manifest in the store always has all its chunks, and the cap holds.
    #[test]
    fn a_manifest_never_loses_a_chunk(
        steps in prop::collection::vec((0..30_u64, prop::collection::vec(0..40_u64, 0..4), 0..8_u8), 1..120),
    ) {
        let store = MemoryStore::with_cap(140_000);
        let mut saved: HashMap<ManifestName, Vec<u64>> = HashMap::new();
        for (n, chunks, what) in steps {
            match what {
                0 => {
                    store.delete_manifest(&name(n)).unwrap();
                    saved.remove(&name(n));
                }
                1 => drop(store.get_manifest(&name(n)).unwrap()),
                _ => {
                    save(&store, n, &chunks).unwrap();
                    saved.insert(name(n), chunks);
                }
            }
            prop_assert!(used(&store) <= 140_000);
            let mut named = 0;
            let list = &mut |entry: crate::backend::ManifestEntry| {
                named += 1;
                assert!(saved[&entry.name].iter().all(|n| store.absent_chunks(&[chunk(*n).0]).unwrap().is_empty()));
                Ok(())
            };
            store.inventory().unwrap().manifests(list).unwrap();
            prop_assert!(named <= saved.len());
        }
    }
}

fn spoil(store: &MemoryStore, hash: &ChunkHash) {
    let mut contents = store.contents();
    let value = &mut contents.chunks.get_mut(hash).unwrap().value;
    let mut data = value.data.to_vec();
    data[7] ^= 1;
    value.data = data.into();
}

#[test]
fn a_wrong_byte_is_damage_until_it_is_put_again() {
    let store = MemoryStore::new();
    save(&store, 0, &[0]).unwrap();
    let before = used(&store);
    let (hash, data) = chunk(0);
    spoil(&store, &hash);
    let mut faults = Vec::new();
    let inventory = store.inventory().unwrap();
    inventory.verify(&mut |_| (), &mut |fault| faults.push(fault.chunk())).unwrap();
    assert_eq!(faults, [Some(hash)]);
    let read = store.get_chunk(&hash);
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
    assert_eq!(store.absent_chunks(&[hash]).unwrap(), [hash]);
    assert_eq!(store.put_chunk(&hash, &data).unwrap(), Put::Stored);
    assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
    assert_eq!(used(&store), before);
}

/// Another user may have opened this store directly, and its manifests may need the chunk.
#[test]
fn a_chunk_that_a_manifest_needs_is_not_dropped() {
    let store = MemoryStore::new();
    save(&store, 0, &[0]).unwrap();
    let (hash, data) = chunk(0);
    store.drop_chunk(&hash);
    let read = store.get_chunk(&hash);
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
    assert_eq!(store.absent_chunks(&[hash]).unwrap(), [hash]);
    assert_eq!(store.put_chunk(&hash, &data).unwrap(), Put::Stored);
    save(&store, 1, &[0]).unwrap();
    assert_eq!(store.contents().chunks[&hash].references, 2);
}

/// Memory may change after a copy was made, or the copy may be wrong from the start. In both cases a reread takes the
/// chunk from the tier below and keeps it.
#[test]
fn a_wrong_byte_in_memory_costs_the_tier_below_nothing() {
    use crate::backend::tier::{Tier, TierStore, Write};
    use std::sync::Arc;

    let bytes = vec![5; 9000];
    let hash = ChunkHash::from(blake3::hash(&bytes));
    for torn in [false, true] {
        let (memory, below) = (MemoryStore::new(), MemoryStore::new());
        let tiers = vec![Tier::memory("memory", memory.clone()), Tier::new("below", Arc::new(below.clone()))];
        let store = TierStore::new(tiers, Write::Through).unwrap();
        for n in 0..2 {
            store.put_chunk(&hash, &bytes).unwrap();
            store.put_manifest(&name(n), b"names nothing").unwrap();
            match torn {
                false => spoil(&memory, &hash),
                true => {
                    memory.drop_chunk(&hash);
                    memory.cache_chunk(&hash, vec![6; 9000].into()).unwrap();
                }
            }
            let reread = store.reread_chunk(&hash).unwrap();
            assert_eq!(reread.as_deref(), Some(&bytes[..]), "torn {torn}");
            let read = store.get_chunk(&hash).unwrap();
            assert_eq!(read.as_deref(), Some(&bytes[..]), "torn {torn}");
        }
        assert_eq!(below.contents().manifests.len(), 2);
    }
}
