//! Tests of a store that can be read but not written.

use std::sync::Arc;

use rustix::io::Errno;

use super::super::disk::simulated::Trouble;
use super::super::disk::simulated::{Mistake, Random, SimulatedDisk};
use super::super::index::Index;
use super::super::{FileOptions, FileStore, root};
use super::script::{Expected, chunk, live, name, new_store, open};
use crate::backend::{Backend, CollectOptions};

/// Returns a disk with a used store, in which a process died during a save.
fn used() -> (SimulatedDisk, Expected) {
    let disk = new_store();
    let mut expected = Expected::default();
    let store = open(&disk).unwrap();
    live(&store, &mut expected, &mut Random(3), 6).unwrap();
    let (hash, data) = chunk(303);
    store.put_chunk(&hash, &data).unwrap();
    let changes = disk.counts().1;
    disk.stop_at(changes + 1);
    store.put_manifest(&name(77), b"").unwrap_err();
    let disk = disk.copy().with_mistake(Mistake::None);
    assert!(disk.files().iter().any(|(path, _)| path.starts_with("tmp/")));
    disk.unsettle();
    (disk, expected)
}

#[test]
fn it_is_opened_read_listed_and_verified() {
    for errno in [Errno::ROFS, Errno::ACCESS, Errno::PERM] {
        for options in [FileOptions::default(), FileOptions { cap: Some(1 << 20), ..FileOptions::default() }] {
            let (disk, expected) = used();
            disk.write_protect(errno);
            let before = disk.files();
            let store = FileStore::on_disk(Arc::new(disk.clone()), "", options).unwrap();
            expected.check(&store).unwrap();
            let inventory = store.inventory().unwrap();
            let usage = inventory.usage().unwrap();
            let (mut manifests, mut chunks) = (0, 0);
            let mut count = |_| {
                manifests += 1;
                Ok(())
            };
            inventory.manifests(&mut count).unwrap();
            let mut count = |_| {
                chunks += 1;
                Ok(())
            };
            inventory.chunks(&mut count).unwrap();
            assert_eq!((usage.manifests, usage.chunks), (manifests, chunks));
            assert!(manifests > 0 && chunks > 0);
            let dry = CollectOptions { dry_run: true, ..CollectOptions::default() };
            inventory.collect(&dry, &mut |_| ()).unwrap();
            assert_eq!(disk.files(), before);
        }
    }
}

#[test]
fn a_write_says_which_file_it_could_not_make() {
    let (disk, expected) = used();
    disk.write_protect(Errno::ROFS);
    let store = open(&disk).unwrap();
    let (hash, data) = chunk(500);
    for error in [
        store.put_chunk(&hash, &data).unwrap_err(),
        store.put_manifest(&name(500), b"").unwrap_err(),
        store.delete_manifest(&name(0)).unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.starts_with("cannot make tmp/") && text.contains("Read-only file system"), "{text}");
    }
    expected.check(&store).unwrap();
}

/// If anything fails while opening completes unfinished work, the store can still be read.
#[test]
fn what_cannot_be_tidied_up_is_no_hindrance() {
    let (disk, expected) = used();
    let begun = {
        let disk = disk.copy();
        root::check_marker(&disk).unwrap();
        Index::open(Arc::new(disk.clone())).unwrap();
        disk.counts().0
    };
    let all = {
        let disk = disk.copy();
        open(&disk).unwrap();
        disk.counts().0
    };
    assert!(all > begun + 50, "{begun}, {all}");
    for at in begun..all {
        let disk = disk.copy();
        disk.trouble(at, Trouble::Error(Errno::IO));
        let store = open(&disk).unwrap_or_else(|error| panic!("call {at}: {error}"));
        disk.no_trouble();
        expected.check(&store).unwrap();
    }
}

#[test]
fn packs_of_another_user_are_left_unsettled() {
    let (disk, expected) = used();
    disk.give_away();
    let store = open(&disk).unwrap();
    store.tidy().unwrap();
    expected.check(&store).unwrap();
}

#[test]
fn a_generation_that_was_cut_off_is_none() {
    for protected in [false, true] {
        let (disk, _) = used();
        disk.tamper("generation", |content| content.truncate(5));
        if protected {
            disk.write_protect(Errno::ROFS);
        }
        let store = open(&disk).unwrap();
        assert_eq!(store.index.generation_is_whole(), !protected);
        let usage = store.inventory().unwrap().usage().unwrap();
        assert!(usage.manifests > 0 && usage.chunks > 0);
        assert_eq!(store.get_chunk(&chunk(999).0).unwrap(), None);
    }
}
