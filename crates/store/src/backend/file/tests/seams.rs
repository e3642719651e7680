//! Tests of two handles, where one sees the other's work half done.

use std::sync::Arc;

use rustix::io::Errno;

use super::super::disk::File;
use super::super::disk::simulated::{SimulatedDisk, Trouble};
use super::super::disk::{Disk, How};
use super::super::paths;
use super::script::{chunk, collect, name, new_store, open};
use crate::backend::{Backend, ManifestEntry};

fn one_chunk(n: u32) -> (SimulatedDisk, String) {
    let disk = new_store();
    let store = open(&disk).unwrap();
    let (hash, data) = chunk(n);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name(1), hash.as_bytes()).unwrap();
    let files = disk.files();
    let pack = files.iter().find(|(path, _)| path.ends_with(".pack"));
    let folder = pack.unwrap().0.rsplit_once('/').unwrap().0.to_owned();
    (disk, folder)
}

/// While one handle lists the folders, another one renames a pack, so that the listing does not contain it.
#[test]
fn a_pack_that_gets_another_name_is_always_found() {
    let (hash, data) = chunk(5);
    let mut listed_between = 0;
    for round in 0..200 {
        let (disk, folder) = one_chunk(5);
        let owner = open(&disk).unwrap();
        disk.unsettle();
        let act = {
            let disk = disk.clone();
            // In every other round the owner fails at its first flush, so it gets no further.
            move || {
                if round % 2 == 0 {
                    disk.trouble(0, Trouble::Flushes(1, Errno::IO));
                }
                assert_eq!(owner.tidy().is_err(), round % 2 == 0);
            }
        };
        let before = |disk: &SimulatedDisk| {
            let packs = disk.files().into_iter().map(|(path, _)| path);
            packs.filter(|path| path.ends_with(".pack")).collect::<Vec<_>>()
        };
        let old = before(&disk);
        disk.before(&folder, act);
        let reader = super::super::index::Index::open(Arc::new(disk.clone())).unwrap();
        let new = before(&disk);
        listed_between += u32::from(new.iter().any(|path| !old.contains(path) && **path < *folder));
        let read = reader.get(&hash).unwrap();
        assert_eq!(read.as_deref(), Some(&data[..]), "round {round}");
    }
    assert!(listed_between > 20, "{listed_between}");
}

/// A handle keeps a pack's file open. Once the pack was removed, the handle's next call closes it and so frees space.
#[test]
fn packs_that_are_gone_do_not_stay_open() {
    for which in 0..3 {
        let (disk, _) = one_chunk(5);
        let (reader, other) = (open(&disk).unwrap(), open(&disk).unwrap());
        let (hash, data) = chunk(5);
        assert_eq!(reader.get_chunk(&hash).unwrap().unwrap(), data);
        other.delete_manifest(&name(1)).unwrap();
        collect(&other).unwrap();
        assert_eq!(disk.pinned(), 1);
        match which {
            0 => assert_eq!(reader.get_manifest(&name(1)).unwrap(), None),
            1 => assert_eq!(reader.get_chunk(&chunk(7).0).unwrap(), None),
            _ => drop(reader.put_chunk(&chunk(7).0, &chunk(7).1).unwrap()),
        }
        assert_eq!(disk.pinned(), 0, "{which}");
    }
}

#[test]
fn no_more_is_allocated_than_a_file_holds() {
    let disk = new_store();
    let file: Box<dyn File> = disk.open("tmp/x", How::Create).unwrap();
    file.write_all_at(b"0123456789", 0).unwrap();
    assert_eq!(file.read_vec_at(4, 6).unwrap(), b"6789");
    for (len, offset) in [(5, 6), (u64::MAX, 0), (u64::MAX, 1), (1 << 62, 0), (0, 11)] {
        let error = file.read_vec_at(len, offset).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{len}");
    }
}

/// To make a manifest's entry durable, a process moves the manifest away and back. It may die in between.
#[test]
fn a_manifest_that_is_away_or_on_its_way_is_found_and_listed_once() {
    let (disk, _) = one_chunk(5);
    let store = open(&disk).unwrap();
    let data = store.get_manifest(&name(1)).unwrap().unwrap();
    let place = paths::manifest(name(1).as_str());
    let away = paths::away(&place);
    let there_and_back = {
        let (disk, place, away) = (disk.clone(), place.clone(), away.clone());
        move || {
            disk.rename(&place, &away).unwrap();
            let (other, from, to) = (disk.clone(), away.clone(), place);
            disk.before(&away, move || other.rename(&from, &to).unwrap());
        }
    };
    disk.before(&place, there_and_back);
    assert_eq!(store.get_manifest(&name(1)).unwrap(), Some(data.clone()));

    let inventory = store.inventory().unwrap();
    let listed = || {
        let mut names = Vec::new();
        let mut list = |entry: ManifestEntry| {
            names.push(entry.name);
            Ok(())
        };
        inventory.manifests(&mut list).unwrap();
        assert_eq!(inventory.usage().unwrap().manifests, names.len() as u64);
        names
    };
    disk.rename(&place, &away).unwrap();
    assert_eq!(store.get_manifest(&name(1)).unwrap(), Some(data.clone()));
    assert_eq!(listed(), [name(1)]);
    // The manifest exists, so a collection keeps its chunk.
    assert_eq!(collect(&store).unwrap().chunks, 0);
    // A crash of the system may leave both names of one file. Then the file in place counts, and a deletion removes
    // both.
    disk.rename(&place, &away).unwrap();
    for delete in [true, false] {
        disk.link(&away, &place).unwrap();
        assert_eq!(listed(), [name(1)]);
        let other = disk.copy();
        let store = open(&other).unwrap();
        match delete {
            true => store.delete_manifest(&name(1)).unwrap(),
            false => drop(collect(&store).unwrap()),
        }
        assert_eq!(store.get_manifest(&name(1)).unwrap().is_some(), !delete);
        let files = other.files();
        let left = files.iter().filter(|(path, _)| path.starts_with(&place));
        assert_eq!(left.count(), usize::from(!delete));
        disk.unlink(&place).unwrap();
    }
    disk.link(&away, &place).unwrap();
    store.put_manifest(&name(1), b"new").unwrap();
    assert_eq!(store.get_manifest(&name(1)).unwrap().unwrap(), "new");
    store.delete_manifest(&name(1)).unwrap();
    assert_eq!(store.get_manifest(&name(1)).unwrap(), None);
    assert!(listed().is_empty());
    // No manifest name leads to the path of the file that was moved away.
    disk.open(&away, How::Create).unwrap().write_all_at(b"x", 0).unwrap();
    for text in [&*away, "manifest 1.away", &away["manifests/00/".len()..]] {
        let name = crate::name::ManifestName::new(text).unwrap();
        assert_eq!(store.get_manifest(&name).unwrap(), None, "{text}");
    }
}
