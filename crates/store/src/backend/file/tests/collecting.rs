//! Collections of stores in which something is wrong.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;

use super::super::disk::simulated::{SimulatedDisk, Trouble};
use super::super::disk::{Disk, How};
use super::super::{FileOptions, FileStore};
use super::script::{collect, name, new_store, open};
use crate::backend::{Backend, CollectOptions};
use crate::hash::ChunkHash;

fn open_with_cap(disk: &SimulatedDisk, cap: u64) -> FileStore {
    let options = FileOptions::new().with_cap(cap).with_grace(Duration::ZERO);
    FileStore::on_disk(Arc::new(disk.clone()), "", options).unwrap()
}

/// A chunk of this length that nothing else is like.
fn chunk(n: u8, len: usize) -> (ChunkHash, Vec<u8>) {
    (blake3::hash(&[n]).into(), vec![n; len])
}

/// The pack cannot be copied, so what it would give back is not counted on: older manifests go instead.
#[test]
fn a_damaged_chunk_in_a_half_empty_pack_keeps_nothing_from_going() {
    let disk = new_store();
    let store = open_with_cap(&disk, 120_000);
    let (damaged, deleted) = (chunk(1, 20_000), chunk(2, 30_000));
    let batch: Vec<_> = [(1, &damaged), (2, &deleted)]
        .map(|(n, (hash, data))| {
            store.put_chunk(hash, data).unwrap();
            (name(n), Bytes::copy_from_slice(hash.as_bytes()))
        })
        .into();
    // References go into the first manifest: here the data alone says who needs what.
    store.put_manifest(&name(0), b"").unwrap();
    store.put_manifests(&batch).unwrap();
    store.delete_manifest(&name(0)).unwrap();
    store.delete_manifest(&name(2)).unwrap();
    for (path, content) in disk.files() {
        if path.ends_with(".pack") {
            let at = content.iter().position(|&byte| byte == 1).unwrap();
            disk.tamper(&path, |content| content[at] ^= 1);
        }
    }
    let (hash, data) = chunk(3, 30_000);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name(3), hash.as_bytes()).unwrap();
    let (hash, data) = chunk(4, 50_000);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name(4), hash.as_bytes()).unwrap();
    assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
    assert!(disk.most_bytes() <= 120_000);
    // The oldest one went, and the pack with it.
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
    let options = CollectOptions::new().with_cap(cap);
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
        // Not every call that fails makes it fail.
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
