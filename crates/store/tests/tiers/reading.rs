//! Reads try one tier after another, and copy what they find into the tiers above.

use std::sync::Arc;

use bytes::Bytes;
use transload_store::backend::{MemoryStore, Tier, TierStats, TierStore, Write};
use transload_store::{Backend, ManifestName, StoreError};
use transload_test_stores::{Call, Counted, Faulty, Plan, forward};

use crate::{chunk, copy, down, name, sound, two};

fn saved(store: &dyn Backend, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let (hash, data) = chunk(n);
        store.put_chunk(&hash, &data).unwrap();
        store.put_manifest(&name(&n.to_string()), hash.as_bytes()).unwrap();
    }
}

#[test]
fn what_is_found_below_is_there_above_afterwards() {
    let (above, below) = (sound(), sound());
    saved(&*below, 0..3);
    let store = two(&above, &below, Write::Through);
    let (hash, data) = chunk(1);
    assert_eq!(store.get_manifest(&name("1")).unwrap().unwrap(), hash.as_bytes());
    assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
    assert_eq!(above.get_chunk(&hash).unwrap().unwrap(), data);
    assert_eq!(above.get_manifest(&copy("1")).unwrap().unwrap(), hash.as_bytes(), "for the chunk's sake");
    assert!(above.get_chunk(&chunk(2).0).unwrap().is_none());
    below.set_plan(down());
    assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
    assert!(store.get_manifest(&name("1")).is_err());
    let stats = store.tiers();
    let [up, low] = &stats[..] else { panic!() };
    assert_eq!((up.hits, up.misses, up.promotions), (1, 1, 2));
    assert_eq!((low.hits, low.misses, low.promotions), (2, 0, 0));
    assert_eq!(low.bytes, data.len() as u64 + 32);
}

/// Two hosts, each with its own tier, share a store. Both are also restarted.
#[test]
fn what_others_replace_and_remove_is_not_read_above() {
    for kinds in ["f", "m", "fm", "mf"] {
        for write in [Write::Through, Write::Back] {
            let folder = tempfile::tempdir().unwrap();
            let file = |place: &str| -> Arc<dyn Backend> {
                let options = transload_store::backend::file::FileOptions::default();
                let place = folder.path().join(place);
                Arc::new(transload_store::backend::file::FileStore::open(place, options).unwrap())
            };
            let memory = [(); 2].map(|()| MemoryStore::new());
            let host = |n: usize| {
                let kinds = kinds.chars().map(|kind| match kind {
                    'm' => Tier::memory("memory", memory[n].clone()),
                    _ => Tier::new("local", file(&format!("host {n}"))),
                });
                let shared = Tier::new("shared", file("shared"));
                TierStore::new(kinds.chain([shared]).collect(), write).unwrap()
            };
            let [here, there] = [host(0), host(1)];
            let get = |store: &TierStore, n: u64| {
                let names = [name(&n.to_string()), name("never")];
                let found = store.get_manifests(&names).unwrap();
                let peeked = store.inventory().unwrap().peek_manifests(&names).unwrap();
                assert_eq!(found, peeked, "{kinds} {write:?}");
                found[0].clone()
            };
            saved(&here, 0..4);
            here.flush();
            assert!((0..4).all(|n| get(&there, n).is_some()));
            there.put_manifest(&name("0"), b"newer").unwrap();
            there.flush();
            there.delete_manifest(&name("1")).unwrap();
            let (_, revision) = there.manifest_revision(&name("2")).unwrap().unwrap();
            assert!(there.delete_revision(&name("2"), &revision).unwrap());
            let as_they_are = |store: &TierStore| {
                let there = [0, 1, 2, 3].map(|n| get(store, n));
                let third = Bytes::copy_from_slice(chunk(3).0.as_bytes());
                let newer = Bytes::from_static(b"newer");
                let wanted = [Some(newer), None, None, Some(third)];
                assert_eq!(there, wanted, "{kinds} {write:?}");
                let mut listed = Vec::new();
                let inventory = store.inventory().unwrap();
                let all = &mut |entry: transload_store::backend::ManifestEntry| {
                    listed.push(entry.name);
                    Ok(())
                };
                inventory.manifests(all).unwrap();
                listed.sort();
                assert_eq!(listed, [name("0"), name("3")], "{kinds} {write:?}");
            };
            as_they_are(&here);
            drop(here);
            as_they_are(&host(0));
            as_they_are(&there);
        }
    }
}

/// Reading through the tiers updates or removes a tier's copy of a manifest, as the last tier has it.
#[test]
fn copies_of_manifests_become_what_the_last_tier_has() {
    let (above, below) = (sound(), sound());
    let store = two(&above, &below, Write::Through);
    saved(&store, 0..2);
    below.put_manifest(&name("0"), b"newer").unwrap();
    below.delete_manifest(&name("1")).unwrap();
    store.get_manifests(&[name("0"), name("1")]).unwrap();
    let copies = above.get_manifests(&[copy("0"), copy("1")]).unwrap();
    assert_eq!(copies, [Some(Bytes::from_static(b"newer")), None]);
}

/// A manifest is pending in the upper tier until it was copied. Then a copy under another name keeps its chunks there.
#[test]
fn what_was_copied_later_holds_its_chunks_under_another_name() {
    let (above, below) = (sound(), sound());
    let store = two(&above, &below, Write::Back);
    saved(&store, 0..1);
    store.flush();
    assert_eq!(above.get_manifest(&name("0")).unwrap(), None);
    let (copy, hash) = (copy("0"), chunk(0).0);
    assert_eq!(above.get_manifest(&copy).unwrap().unwrap(), hash.as_bytes());
    assert_eq!(below.get_manifest(&name("0")).unwrap().unwrap(), hash.as_bytes());
    for refused in [store.put_manifest(&copy, b""), store.delete_manifest(&copy), store.get_manifest(&copy).map(drop)] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("copies in a tier"), "{refused}");
    }
    store.delete_manifest(&name("0")).unwrap();
    assert_eq!(above.get_manifest(&copy).unwrap(), None);
}

/// A batch asks each tier once, and only for what is still missing.
#[test]
fn batches_go_down_with_what_is_missing() {
    let [one, two, three] = [(); 3].map(|()| MemoryStore::new());
    saved(&three, 0..6);
    saved(&two, 0..4);
    saved(&one, 0..1);
    let [one, two, three] = [one, two, three].map(|store| Arc::new(Counted::new(store)));
    let tiers = [&one, &two, &three].map(|store| Tier::new("", Arc::clone(store) as Arc<dyn Backend>));
    let store = TierStore::new(tiers.into(), Write::Through).unwrap();
    let hashes: Vec<_> = (0..7).map(|n| chunk(n).0).collect();
    let names: Vec<_> = (0..7).map(|n| name(&n.to_string())).collect();
    for _ in 0..2 {
        let chunks = store.get_chunks(&hashes).unwrap();
        let manifests = store.get_manifests(&names).unwrap();
        assert!((0..6).all(|n| chunks[n as usize].as_ref().unwrap() == &chunk(n).1));
        assert!(manifests[..6].iter().zip(&hashes).all(|(there, hash)| there.as_ref().unwrap() == hash.as_bytes()));
        assert!(chunks[6].is_none() && manifests[6].is_none());
    }
    let asked = [&one, &two, &three].map(|store| store.count(Call::GetChunk));
    // The second time only the last one is missing.
    assert_eq!(asked, [(2, 14), (2, 6 + 1), (2, 3 + 1)]);
    assert_eq!(one.count(Call::PutChunk).1, 5);
    assert_eq!(two.count(Call::PutChunk).1, 2);
}

/// Memory would not notice when other processes replace or remove manifests, so it does not keep any.
#[test]
fn memory_above_another_tier_keeps_chunks_only() {
    let (memory, below) = (MemoryStore::new(), sound());
    let tiers = vec![Tier::memory("memory", memory.clone()), Tier::new("below", below.clone() as Arc<dyn Backend>)];
    let store = TierStore::new(tiers, Write::Through).unwrap();
    saved(&store, 0..3);
    // Another process replaces one and removes one.
    below.put_manifest(&name("0"), b"newer").unwrap();
    below.delete_manifest(&name("1")).unwrap();
    assert_eq!(store.get_manifest(&name("0")).unwrap().unwrap(), "newer");
    assert_eq!(store.get_manifest(&name("1")).unwrap(), None);
    assert_eq!(memory.inventory().unwrap().usage().unwrap().manifests, 0);
    below.set_plan(down());
    assert!(store.get_manifest(&name("2")).is_err());
    assert!(store.get_chunk(&chunk(2).0).unwrap().is_some());
    assert!(store.get_chunk(&chunk(7).0).is_err());
}

/// A read does not wait for a slow put.
#[test]
fn a_manifest_that_is_being_put_is_read() {
    let (above, below) = (sound(), MemoryStore::new());
    below.put_manifest(&name("m"), b"old").unwrap();
    let (tell, put) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let gate = Gate(below, tell, std::sync::Mutex::new(may_go_on));
    let tiers = vec![Tier::new("above", above.clone() as Arc<dyn Backend>), Tier::new("below", Arc::new(gate))];
    let store = TierStore::new(tiers, Write::Through).unwrap();
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| store.put_manifest(&name("m"), b"new").unwrap());
        put.recv().unwrap();
        assert_eq!(store.get_manifest(&name("m")).unwrap().unwrap(), "old");
        go_on.send(()).unwrap();
        putting.join().unwrap();
    });
    assert_eq!(above.get_manifest(&copy("m")).unwrap().unwrap(), "new");
}

/// Two processes use the same folders, one with later copies. A pending manifest must not be taken for a copy.
#[test]
fn what_is_pending_for_one_is_no_copy_of_another() {
    let (above, below) = (sound(), sound());
    let back = two(&above, &below, Write::Back);
    below.set_plan(down());
    saved(&back, 0..1);
    back.flush();
    below.set_plan(Plan::new());
    let through = two(&above, &below, Write::Through);
    assert_eq!(through.get_manifest(&name("0")).unwrap(), None);
    assert!(back.get_manifest(&name("0")).unwrap().is_some());
    // The other way round: what is removed below is not brought back by a copy.
    saved(&through, 1..2);
    below.delete_manifest(&name("1")).unwrap();
    assert_eq!(back.get_manifest(&name("1")).unwrap(), None);
}

/// Reports that a manifest is about to be put, and waits for permission.
#[derive(Debug)]
struct Gate(MemoryStore, std::sync::mpsc::Sender<()>, std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl Backend for Gate {
    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        self.1.send(()).unwrap();
        self.2.lock().unwrap().recv().unwrap();
        self.0.put_manifest(name, data)
    }

    forward!(0: put_chunk, get_chunk, get_manifest, delete_manifest);
}

#[test]
fn a_chunk_that_is_damaged_above_is_read_below_and_healed() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("above");
    let open = || -> Arc<dyn Backend> {
        let options = transload_store::backend::file::FileOptions::default();
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
    assert!(matches!(open().get_chunk(&hash), Err(StoreError::Damaged { .. })));
    let store = new(open());
    assert_eq!(store.get_chunks(&[hash, chunk(1).0]).unwrap()[0].as_ref().unwrap(), &data);
    assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
    // With the next manifest it is there for all.
    saved(&store, 1..2);
    assert_eq!(open().get_chunk(&hash).unwrap().unwrap(), data);
    let TierStats { hits, promotions, .. } = store.tiers()[0].clone();
    assert_eq!((hits, promotions), (1, 1));
}

/// Flips a byte in the file of the folder that contains these bytes.
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
            let at = content.windows(bytes.len()).position(|there| there == bytes);
            if let Some(at) = at {
                content[at] ^= 1;
                std::fs::write(path, content).unwrap();
                return;
            }
        }
    }
    panic!("it is nowhere");
}

/// A prefetch reaches the tiers that a read would use, as far as that is known without asking a server.
#[test]
fn a_prefetch_goes_as_far_as_a_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = || {
        let options = transload_store::backend::file::FileOptions::default();
        Arc::new(Counted::new(transload_store::backend::file::FileStore::open(folder.path(), options).unwrap()))
    };
    let memory = MemoryStore::new();
    let [server, last] = [(); 2].map(|()| Arc::new(server()));
    saved(&memory, 0..1);
    saved(&*file(), 1..2);
    let file = file();
    let tiers = vec![
        Tier::memory("", memory),
        Tier::new("", file.clone() as Arc<dyn Backend>),
        Tier::new("", server.clone() as Arc<dyn Backend>),
        Tier::new("", last.clone() as Arc<dyn Backend>),
    ];
    let store = TierStore::new(tiers, Write::Through).unwrap();
    let hashes: Vec<_> = (0..4).map(|n| chunk(n).0).collect();
    store.prefetch_chunks(&hashes).unwrap();
    let told = [file.count(Call::PrefetchChunks), server.count(Call::PrefetchChunks), last.count(Call::PrefetchChunks)];
    assert_eq!(told.map(|(_, values)| values), [3, 2, 0]);
    store.prefetch_chunks(&hashes[..2]).unwrap();
    assert_eq!(server.count(Call::PrefetchChunks).0, 1, "nothing is left");
}

#[test]
fn a_batch_is_as_wide_as_the_widest_tier() {
    let narrow: Arc<dyn Backend> = Arc::new(Faulty::new(MemoryStore::new(), Plan::new()));
    let tiers = vec![Tier::new("", narrow), Tier::new("", Arc::new(server()))];
    assert_eq!(TierStore::new(tiers, Write::Through).unwrap().batch(), 64);
}

fn server() -> Counted<MemoryStore> {
    Counted::server(MemoryStore::new(), 64)
}
