//! Tests of collections of damaged stores and on full disks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;

use super::super::disk::simulated::{SimulatedDisk, Trouble};
use super::super::disk::{Disk, How};
use super::super::{FileOptions, FileStore};
use super::script::{collect, collect_with, name, new_store, open};
use crate::backend::{Backend, CollectOptions};
use crate::hash::ChunkHash;

fn open_with_cap(disk: &SimulatedDisk, cap: u64) -> FileStore {
    let options = FileOptions { cap: Some(cap), grace: Duration::ZERO, ..FileOptions::default() };
    FileStore::on_disk(Arc::new(disk.clone()), "", options).unwrap()
}

/// Returns a chunk of this length. Its bytes are `n`, so no other chunk has the same.
fn chunk(n: u8, len: usize) -> (ChunkHash, Vec<u8>) {
    (blake3::hash(&[n]).into(), vec![n; len])
}

fn save(store: &FileStore, chunks: &[(u8, usize)], gone: &[u8]) {
    let mut batch = Vec::new();
    for &(n, len) in chunks {
        let (hash, data) = chunk(n, len);
        store.put_chunk(&hash, &data).unwrap();
        batch.push((name(n.into()), Bytes::copy_from_slice(hash.as_bytes())));
    }
    // The first manifest records all chunks, so the later ones need only those that their bytes name.
    store.put_manifest(&name(0), b"").unwrap();
    store.put_manifests(&batch).unwrap();
    store.delete_manifest(&name(0)).unwrap();
    for &n in gone {
        store.delete_manifest(&name(n.into())).unwrap();
    }
}

fn lies(disk: &SimulatedDisk, n: u8) -> (String, usize) {
    let files = disk.files().into_iter();
    let mut packs = files.filter(|(path, _)| path.ends_with(".pack"));
    let found = packs.find_map(|(path, content)| {
        let at = content.windows(64).position(|bytes| *bytes == [n; 64])?;
        Some((path, at))
    });
    found.unwrap()
}

/// The pack cannot be copied, so the collection does not count on its free space and evicts older manifests.
#[test]
fn a_damaged_chunk_in_a_half_empty_pack_keeps_nothing_from_going() {
    let disk = new_store();
    let store = open_with_cap(&disk, 120_000);
    save(&store, &[(1, 20_000), (2, 30_000)], &[2]);
    let (pack, at) = lies(&disk, 1);
    disk.tamper(&pack, |content| content[at] ^= 1);
    let (hash, data) = chunk(3, 30_000);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name(3), hash.as_bytes()).unwrap();
    let (hash, data) = chunk(4, 50_000);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name(4), hash.as_bytes()).unwrap();
    assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
    assert!(disk.most_bytes() <= 120_000);
    // The oldest manifest was evicted, and its pack removed.
    assert_eq!(store.get_manifest(&name(1)).unwrap(), None);
    assert!(store.get_manifest(&name(3)).unwrap().is_some());
}

#[test]
fn no_manifest_goes_for_what_a_dead_process_left() {
    let disk = new_store();
    let store = open(&disk).unwrap();
    let (hash, data) = chunk(1, 1000);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name(1), hash.as_bytes()).unwrap();
    let inventory = store.inventory().unwrap();
    let cap = inventory.usage().unwrap().total_bytes;
    let left = disk.open(&format!("tmp/{}.pack", "0".repeat(32)), How::Create);
    left.unwrap().write_all_at(&[1; 5000], 0).unwrap();
    let options = CollectOptions { cap: Some(cap), ..CollectOptions::default() };
    let collected = inventory.collect(&options, &mut |_| ()).unwrap();
    assert_eq!(collected.manifests, 0);
    assert_eq!(inventory.usage().unwrap().total_bytes, cap);
}

/// Otherwise readers would keep the files of removed packs open.
#[test]
fn a_collection_that_fails_has_told_of_what_went() {
    let base = new_store();
    let store = open(&base).unwrap();
    for (n, chunks) in [(1, &[1][..]), (2, &[2, 3, 4])] {
        for &chunk_number in chunks {
            let (hash, data) = chunk(chunk_number, 1000);
            store.put_chunk(&hash, &data).unwrap();
        }
        store.put_manifest(&name(n), b"").unwrap();
    }
    let (kept, data) = chunk(4, 1000);
    store.put_manifest(&name(3), kept.as_bytes()).unwrap();
    store.delete_manifest(&name(1)).unwrap();
    store.delete_manifest(&name(2)).unwrap();
    drop(store);
    let packs = |disk: &SimulatedDisk| {
        let files = disk.files().into_iter().map(|(path, _)| path);
        let packs = files.filter(|path| path.ends_with(".pack"));
        packs.collect::<std::collections::BTreeSet<_>>()
    };
    let (before, mut told) = (packs(&base), 0);
    for at in 0.. {
        let disk = base.copy();
        let (reader, collector) = (open(&disk).unwrap(), open(&disk).unwrap());
        let at = disk.counts().0 + at;
        disk.trouble(at, Trouble::Error(Errno::IO));
        let collected = collect(&collector);
        disk.no_trouble();
        if disk.counts().0 <= at {
            break;
        }
        // Some failing calls do not make the collection fail.
        let Err(error) = collected else { continue };
        let gone = !before.is_subset(&packs(&disk));
        if gone && !error.to_string().contains("write generation") {
            told += 1;
            assert!(reader.index.refresh(false).unwrap(), "call {at}: {error}");
        }
        assert_eq!(reader.get_chunk(&kept).unwrap().unwrap(), data);
    }
    assert!(told > 5, "{told}");
}

/// A pack with a chunk that the disk cannot read stays unchanged. The collection continues and reports the chunk.
#[test]
fn a_chunk_that_the_disk_cannot_read_stops_no_collection() {
    for which in [1, 3] {
        let disk = new_store();
        let store = open(&disk).unwrap();
        save(&store, &[(1, 20_000), (2, 30_000)], &[2]);
        save(&store, &[(3, 20_000), (4, 30_000)], &[4]);
        let (bad, at) = lies(&disk, which);
        disk.spoil(&bad, at + 100);
        let collected = collect(&store).unwrap();
        assert_eq!((collected.chunks, collected.damaged), (1, 1), "{which}");
        assert_eq!(lies(&disk, which).0, bad);
        let (hash, data) = chunk(4 - which, 20_000);
        assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
        for store in [&store, &open(&disk).unwrap()] {
            let again = collect(store).unwrap();
            assert_eq!((again.chunks, again.bytes, again.damaged), (0, 0, 1));
        }
        let mut faults = Vec::new();
        let inventory = store.inventory().unwrap();
        let verified = inventory.verify(&mut |_| (), &mut |fault| faults.push(fault.chunk()));
        verified.unwrap();
        assert_eq!(faults, [Some(chunk(which, 0).0)]);
        // Putting the chunk again repairs it.
        let (hash, data) = chunk(which, 20_000);
        store.put_chunk(&hash, &data).unwrap();
        store.put_manifest(&name(9), hash.as_bytes()).unwrap();
        assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
        assert_eq!(collect(&store).unwrap().damaged, 0);
    }
}

/// A pack that the first plan counted on turns out to be damaged. The second plan does not use it.
#[test]
fn a_collection_that_finds_damage_reaches_its_cap_all_the_same() {
    let disk = new_store();
    let store = open(&disk).unwrap();
    save(&store, &[(1, 20_000), (2, 30_000)], &[2]);
    save(&store, &[(3, 30_000)], &[]);
    let (bad, at) = lies(&disk, 1);
    disk.tamper(&bad, |content| content[at] ^= 1);
    let inventory = store.inventory().unwrap();
    let cap = inventory.usage().unwrap().total_bytes - 25_000;
    let options = CollectOptions { cap: Some(cap), ..CollectOptions::default() };
    let before = inventory.usage().unwrap().total_bytes;
    let collected = collect_with(&store, options).unwrap();
    let after = inventory.usage().unwrap().total_bytes;
    assert!(after <= cap, "{after}, {cap}");
    assert_eq!((collected.manifests, collected.chunks), (1, 2));
    assert_eq!((collected.bytes, collected.damaged), (before - after, 0));
    assert!(store.get_manifest(&name(3)).unwrap().is_some());
}

/// The disk has no space for a copy. Packs that need no copy are removed, and to reach the cap manifests are evicted.
#[test]
fn a_full_disk_gives_back_what_needs_no_copy() {
    for errno in [Errno::NOSPC, Errno::DQUOT] {
        let disk = new_store();
        let store = open(&disk).unwrap();
        save(&store, &[(1, 20_000), (2, 30_000)], &[2]);
        save(&store, &[(3, 10_000)], &[3]);
        save(&store, &[(4, 10_000)], &[]);
        let (half_empty, _) = lies(&disk, 2);
        disk.fill(errno);
        let inventory = store.inventory().unwrap();
        let before = inventory.usage().unwrap().total_bytes;
        let collected = collect(&store).unwrap();
        let after = inventory.usage().unwrap().total_bytes;
        assert_eq!((collected.chunks, collected.bytes), (1, before - after));
        assert_eq!(lies(&disk, 2).0, half_empty);
        let options = CollectOptions { cap: Some(after - 25_000), ..CollectOptions::default() };
        let collected = collect_with(&store, options).unwrap();
        assert_eq!((collected.manifests, collected.chunks), (1, 2));
        assert!(store.get_manifest(&name(4)).unwrap().is_some());
        store.delete_manifest(&name(4)).unwrap();
        assert_eq!(collect(&store).unwrap().chunks, 1);
        assert_eq!(inventory.usage().unwrap().manifests, 0);
        let mut fault = |fault| panic!("{fault:?}");
        inventory.verify(&mut |_| (), &mut fault).unwrap();
    }
}
