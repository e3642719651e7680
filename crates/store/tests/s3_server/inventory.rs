//! Listing, verifying and collecting.

use std::time::Duration;

use transload_store::backend::s3::S3Store;
use transload_store::backend::{CollectOptions, Fault};
use transload_store::{Backend, ChunkHash, StoreError};
use transload_test_stores::s3::Server;
use transload_test_stores::{bytes, hash, name};

fn save(store: &impl Backend, manifest: &str, seeds: &[u64]) -> Vec<ChunkHash> {
    let chunks: Vec<_> = seeds.iter().map(|&seed| bytes(seed, 1000)).collect();
    let hashes: Vec<_> = chunks.iter().map(|data| hash(data)).collect();
    for (key, data) in hashes.iter().zip(&chunks) {
        store.put_chunk(key, data).unwrap();
    }
    let text: String = hashes.iter().map(|hash| format!("{hash} ")).collect();
    store.put_manifest(&name(manifest), text.as_bytes()).unwrap();
    hashes
}

#[test]
fn lists_verifies_and_collects() {
    let mut servers = vec![Server::s3s()];
    servers.extend(Server::moto());
    for server in &servers {
        let store = server.open("/kv");
        let kept = save(&store, "m", &[1, 2, 3]);
        let gone = save(&server.open("/kv/slot"), "n", &[3, 4, 5]);
        let inventory = store.inventory().unwrap();
        let usage = inventory.usage().unwrap();
        assert_eq!((usage.manifests, usage.chunks, usage.chunk_bytes), (2, 5, 5000));
        assert_eq!(usage.manifest_bytes, 6 * 65);
        let mut listed = Vec::new();
        inventory
            .manifests(&mut |entry| {
                listed.push(entry.name.to_string());
                Ok(())
            })
            .unwrap();
        listed.sort();
        assert_eq!(listed, ["m", "slot/n"]);
        let mut faults = Vec::new();
        inventory.verify(&mut |_| {}, &mut |fault| faults.push(fault)).unwrap();
        assert_eq!(faults, []);
        store.delete_manifest(&name("slot/n")).unwrap();
        let collect = |grace, dry| {
            let options =
                CollectOptions { grace: Duration::from_secs(grace), dry_run: dry, ..CollectOptions::default() };
            inventory.collect(&options, &mut |_| {}).unwrap()
        };
        let young = collect(3600, false);
        assert_eq!((young.chunks, young.in_grace), (0, 2));
        let dry = collect(0, true);
        assert_eq!((dry.chunks, dry.bytes), (2, 2 * 1016));
        assert_eq!(collect(0, false), dry);
        assert_eq!(store.get_chunks(&kept).unwrap().iter().flatten().count(), 3);
        assert_eq!(store.get_chunks(&gone).unwrap().iter().flatten().count(), 1);
    }
}

#[test]
fn a_server_without_bulk_deletes_is_collected_as_any_other() {
    let mut server = Server::s3s();
    server.restart_without("DeleteObjects");
    let store = server.open("/kv");
    save(&store, "m", &[1, 2]);
    save(&store, "n", &[2, 3]);
    store.delete_manifest(&name("n")).unwrap();
    let options = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
    let collected = store.inventory().unwrap().collect(&options, &mut |_| {});
    assert_eq!(collected.unwrap().chunks, 1);
    assert_eq!(server.file("kv/c").read_dir().unwrap().count(), 2);
    assert_eq!(server.refused(), 0);
}

#[test]
fn verify_finds_what_was_changed() {
    let server = Server::s3s();
    let store = server.open("/kv");
    let hashes = save(&store, "m", &(0..10).collect::<Vec<_>>());
    std::fs::write(server.file(&format!("kv/c/{}", hashes[3])), b"short").unwrap();
    std::fs::write(server.file("kv/c/XY"), b"stray").unwrap();
    std::fs::copy(server.file("kv/m/n-m"), server.file("kv/m/n-other")).unwrap();
    let mut faults: Vec<Fault> = Vec::new();
    let inventory = store.inventory().unwrap();
    inventory.verify(&mut |_| {}, &mut |fault| faults.push(fault)).unwrap();
    let mut whats: Vec<_> = faults.iter().map(|fault| fault.what.as_str()).collect();
    whats.sort();
    let chunk = format!("chunk {}", hashes[3]);
    assert_eq!(whats, [chunk.as_str(), "object kv/c/XY", "object kv/m/n-other"]);
}

#[test]
fn a_cap_evicts_what_was_put_longest_ago() {
    let mut servers = vec![Server::s3s()];
    servers.extend(Server::moto());
    for server in &servers {
        let store = server.open("");
        for n in 0..3 {
            save(&store, &format!("m{n}"), &(n * 10..n * 10 + 10).collect::<Vec<_>>());
            std::thread::sleep(Duration::from_millis(1100));
        }
        let inventory = store.inventory().unwrap();
        let total = inventory.usage().unwrap().total_bytes;
        let options = CollectOptions { grace: Duration::ZERO, cap: Some(total * 3 / 4), ..CollectOptions::default() };
        let collected = inventory.collect(&options, &mut |_| {}).unwrap();
        assert_eq!((collected.manifests, collected.chunks), (1, 10));
        assert_eq!(store.get_manifest(&name("m0")).unwrap(), None);
        assert!(inventory.usage().unwrap().total_bytes <= total * 3 / 4);
    }
}

#[test]
fn a_manifest_that_is_put_meanwhile_is_not_evicted() {
    let server = Server::s3s();
    let store = server.open("");
    let saved: Vec<_> = (0..4)
        .map(|n| {
            let hashes = save(&store, &format!("m{n}"), &[n]);
            std::thread::sleep(Duration::from_millis(1100));
            hashes
        })
        .collect();
    let inventory = store.inventory().unwrap();
    // Room for the newest one. The next two are put again when that has been read, one of them as it was.
    let options = CollectOptions { grace: Duration::ZERO, cap: Some(1500), ..CollectOptions::default() };
    let other = server.open("");
    let collected = inventory
        .collect(&options, &mut |progress| {
            if (progress.step, progress.done) == ("reading manifests", 1) {
                let same = store.get_manifest(&name("m2")).unwrap().unwrap();
                other.put_manifest(&name("m2"), &same).unwrap();
                other.put_manifest(&name("m1"), saved[0][0].as_bytes()).unwrap();
            }
        })
        .unwrap();
    assert_eq!(collected.manifests, 1);
    assert_eq!(store.get_manifest(&name("m0")).unwrap(), None);
    let left = |n: usize| store.get_chunk(&saved[n][0]).unwrap().is_some();
    assert_eq!([0, 1, 2, 3].map(left), [true, false, true, true]);
}

#[test]
fn what_a_manifest_was_saved_with_is_kept_and_missed() {
    let server = Server::s3s();
    let store = server.open("/kv");
    let slot = server.open("/kv/slot");
    let data: Vec<_> = (0..3).map(|n| bytes(n, 1000)).collect();
    for data in &data {
        slot.put_chunk(&hash(data), data).unwrap();
    }
    let long = "x".repeat(1000);
    slot.put_manifest(&name(&long), b"no hashes").unwrap();
    let orphan = bytes(9, 1000);
    store.put_chunk(&hash(&orphan), &orphan).unwrap();
    store.put_manifest(&name("m"), b"").unwrap();
    store.delete_manifest(&name("m")).unwrap();
    let inventory = store.inventory().unwrap();
    assert_eq!(inventory.usage().unwrap().manifest_bytes, 9);
    let collect = || {
        let options = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
        inventory.collect(&options, &mut |_| {}).unwrap().chunks
    };
    assert_eq!(collect(), 1, "the orphan");
    let verify = || {
        let mut faults = Vec::new();
        inventory.verify(&mut |_| {}, &mut |fault| faults.push(fault)).unwrap();
        faults
    };
    assert_eq!(verify(), []);
    slot.put_chunk(&hash(&orphan), &orphan).unwrap();
    slot.put_manifest(&name("n"), b"no hashes either").unwrap();
    std::fs::remove_file(server.file(&format!("kv/c/{}", hash(&data[1])))).unwrap();
    let faults = verify();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].what, format!("chunk {}", hash(&data[1])));
    assert!(faults[0].how.contains("slot/xxx"), "{}", faults[0].how);
    slot.delete_manifest(&name(&long)).unwrap();
    assert_eq!(verify(), []);
    assert_eq!(collect(), 2);
}

#[test]
fn what_a_save_finds_while_a_long_collection_runs_stays() {
    let server = Server::s3s();
    let mut options = server.options();
    options.refresh = Duration::from_secs(3);
    let store = S3Store::open(&"s3://bucket/kv".parse().unwrap(), options).unwrap();
    save(&store, "other", &[1]);
    let found = save(&store, "m", &[2])[0];
    store.delete_manifest(&name("m")).unwrap();
    let options = CollectOptions { grace: Duration::from_secs(6), ..CollectOptions::default() };
    let inventory = store.inventory().unwrap();
    let collected = inventory
        .collect(&options, &mut |progress| {
            if progress.step == "reading manifests" {
                assert_eq!(save(&store, "m", &[2]), [found]);
                // By now it would be old enough.
                std::thread::sleep(Duration::from_millis(6500));
            }
        })
        .unwrap();
    assert_eq!((collected.chunks, collected.in_grace), (0, 1));
    assert!(store.get_chunk(&found).unwrap().is_some());
}

#[test]
fn a_grace_period_that_saves_cannot_rely_on_is_refused() {
    let server = Server::s3s();
    let mut options = server.options();
    options.refresh = Duration::from_secs(600);
    let store = S3Store::open(&"s3://bucket/kv".parse().unwrap(), options).unwrap();
    let inventory = store.inventory().unwrap();
    let collect = |seconds| {
        let options = CollectOptions { grace: Duration::from_secs(seconds), ..CollectOptions::default() };
        inventory.collect(&options, &mut |_| {})
    };
    let error = collect(1199).unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("20 minutes"), "{error}");
    collect(1200).unwrap();
    collect(0).unwrap();
}

#[test]
fn a_collection_removes_what_dead_saves_left() {
    let server = Server::s3s();
    let store = server.open("/kv");
    let digest = "ab".repeat(32);
    let part = format!("transload.archive/2/part/{digest}");
    let root = format!("transload.archive/2/{digest}");
    let gone = save(&store, &part, &[1]);
    let kept = save(&store, &root, &[2]);
    let collect = |grace| {
        let options = CollectOptions { grace: Duration::from_secs(grace), ..CollectOptions::default() };
        let inventory = store.inventory().unwrap();
        let collected = inventory.collect(&options, &mut |_| {}).unwrap();
        (collected.leftovers, collected.manifests, collected.chunks)
    };
    // How many objects the bucket has for manifests, and how many of them are empty.
    let objects = || {
        let listed = std::fs::read_dir(server.file("kv/m")).unwrap();
        let lens = listed.map(|object| object.unwrap().metadata().unwrap().len());
        let lens: Vec<u64> = lens.collect();
        (lens.len(), lens.iter().filter(|len| **len == 0).count())
    };
    assert_eq!(collect(3600), (0, 0, 0));
    assert_eq!(objects(), (2, 0));
    assert_eq!(collect(0), (1, 0, 1));
    // What took the part's place is gone as well.
    assert_eq!(objects(), (1, 0));
    assert!(store.get_manifest(&name(&part)).unwrap().is_none());
    assert!(store.get_manifest(&name(&root)).unwrap().is_some());
    assert!(store.get_chunk(&gone[0]).unwrap().is_none());
    assert!(store.get_chunk(&kept[0]).unwrap().is_some());
    assert_eq!(collect(0), (0, 0, 0));
    assert_eq!(store.inventory().unwrap().usage().unwrap().manifests, 1);
    // What a reader removed stays empty for the grace period.
    save(&store, "useless", &[3]);
    let (_, read) = store.manifest_revision(&name("useless")).unwrap().unwrap();
    assert!(store.delete_revision(&name("useless"), &read).unwrap());
    assert_eq!(collect(3600), (0, 0, 0));
    assert_eq!(objects(), (2, 1));
    assert_eq!(collect(0), (0, 0, 1));
    assert_eq!(objects(), (1, 0));
}
