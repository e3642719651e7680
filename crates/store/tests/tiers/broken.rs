//! Tiers that fail, are full or are slow.

use std::sync::Arc;
use std::time::Duration;

use transload_store::backend::{MemoryStore, Tier, TierStore, Write};
use transload_store::{Backend, ChunkHash, ManifestName, Put, StoreError};
use transload_test_stores::{Call, Effect, Faulty, Plan, forward};

use crate::{chunk, copy, down, name, sound, two};

fn save(store: &dyn Backend, n: u64) -> Result<(), StoreError> {
    let (hash, data) = chunk(n);
    store.put_chunk(&hash, &data)?;
    store.put_manifest(&name("m"), hash.as_bytes())
}

fn saved(store: &dyn Backend) -> Option<u64> {
    let there = store.get_manifest(&name("m")).unwrap()?;
    let n = (0..100).find(|n| chunk(*n).0.as_bytes() == &there[..]).unwrap();
    assert_eq!(store.get_chunk(&chunk(n).0).unwrap().unwrap(), chunk(n).1);
    Some(n)
}

#[test]
fn a_tier_above_that_is_down_is_passed_over_and_counted() {
    let (above, below) = (sound(), sound());
    let store = two(&above, &below, Write::Through);
    save(&store, 0).unwrap();
    above.set_plan(down());
    save(&store, 1).unwrap();
    assert_eq!(saved(&store), Some(1));
    let stats = store.tiers();
    assert_eq!(stats[0].skipped, 2 + 1, "a chunk and a manifest that were put, and the chunk that was read");
    assert!(stats[0].failures >= 1);
    // What it missed is not believed when it is back.
    above.set_plan(Plan::new());
    assert!(above.get_manifest(&copy("m")).unwrap().unwrap() != chunk(1).0.as_bytes());
    assert_eq!(saved(&store), Some(1));
    assert_eq!(above.get_manifest(&copy("m")).unwrap().unwrap(), chunk(1).0.as_bytes());
    store.delete_manifest(&name("m")).unwrap();
    assert_eq!(saved(&store), None);
}

#[test]
fn the_last_tier_s_errors_are_the_caller_s() {
    let (above, below) = (sound(), sound());
    let store = two(&above, &below, Write::Through);
    save(&store, 0).unwrap();
    below.set_plan(down());
    assert!(save(&store, 1).is_err());
    assert!(store.put_manifest(&name("m"), b"x").is_err());
    assert!(store.delete_manifest(&name("m")).is_err());
    assert!(store.get_manifest(&name("m")).is_err(), "what may have changed is asked below");
    below.set_plan(Plan::new());
    assert_eq!(saved(&store), Some(0));
}

#[test]
fn a_tier_above_that_is_full_skips_copies() {
    let (above, below) = (MemoryStore::with_cap(3000), sound());
    let tiers = vec![Tier::memory("memory", above), Tier::new("below", below as Arc<dyn Backend>)];
    let store = TierStore::new(tiers, Write::Through).unwrap();
    for n in 0..20 {
        save(&store, n).unwrap();
        assert_eq!(saved(&store), Some(n));
    }
    let stats = store.tiers();
    assert!(stats[0].skipped > 0, "{stats:?}");
}

#[test]
fn a_last_tier_that_is_full_says_so() {
    let tiers =
        vec![Tier::new("above", sound() as Arc<dyn Backend>), Tier::memory("memory", MemoryStore::with_cap(4000))];
    let store = TierStore::new(tiers, Write::Through).unwrap();
    let full = (0..20).find_map(|n| store.put_chunk(&chunk(n).0, &chunk(n).1).err());
    assert!(matches!(full, Some(StoreError::Full { cap: 4000, .. })), "{full:?}");
}

/// The last tier is slow, but puts are not.
#[test]
fn a_slow_tier_below_gets_its_copies_later() {
    let slow = MemoryStore::new();
    let throttled = slowed(slow.clone(), 20);
    let tiers = vec![Tier::new("above", sound() as Arc<dyn Backend>), Tier::new("slow", Arc::new(throttled))];
    let store = TierStore::new(tiers, Write::Back).unwrap();
    for n in 0..20 {
        save(&store, n).unwrap();
        assert_eq!(saved(&store), Some(n));
    }
    store.flush();
    assert_eq!(saved(&slow), Some(19));
    store.delete_manifest(&name("m")).unwrap();
    assert_eq!(saved(&store), None, "also while it is there below");
    drop(store);
    assert_eq!(slow.get_manifest(&name("m")).unwrap(), None);
}

#[test]
fn copies_that_a_tier_below_refuses_are_skipped() {
    let (above, below) = (sound(), sound());
    let store = two(&above, &below, Write::Back);
    below.set_plan(down());
    for n in 0..5 {
        save(&store, n).unwrap();
    }
    store.flush();
    assert!(store.tiers()[1].skipped >= 1);
    below.set_plan(Plan::new());
    save(&store, 5).unwrap();
    store.flush();
    assert_eq!(saved(&*below), Some(5));
}

/// If chunks could not be copied, no older manifest may stay below: it would be read once the tier above lost its own.
#[test]
fn a_manifest_whose_copy_is_refused_is_not_read_below_in_an_older_form() {
    let (above, below) = (sound(), sound());
    let store = two(&above, &below, Write::Back);
    save(&store, 0).unwrap();
    store.flush();
    below.set_plan(Plan::new().with(Call::PutChunk, 1, Effect::FailBefore));
    save(&store, 1).unwrap();
    store.flush();
    assert_eq!(store.tiers()[1].skipped, 2, "the chunk and the manifest");
    above.delete_manifest(&name("m")).unwrap();
    assert_eq!(saved(&store), None);
}

/// A manifest is removed while its copy is queued behind another one. The tier below still has the previous manifest.
#[test]
fn a_revision_that_goes_before_it_was_copied_brings_nothing_back() {
    let (above, below) = (MemoryStore::new(), MemoryStore::new());
    let slow = slowed(below.clone(), 30);
    let tiers = vec![Tier::new("above", Arc::new(above)), Tier::new("below", Arc::new(slow))];
    let store = TierStore::new(tiers, Write::Back).unwrap();
    save(&store, 0).unwrap();
    store.flush();
    store.put_manifest(&name("other"), b"").unwrap();
    save(&store, 1).unwrap();
    let (data, revision) = store.manifest_revision(&name("m")).unwrap().unwrap();
    assert_eq!(data, chunk(1).0.as_bytes());
    assert!(store.delete_revision(&name("m"), &revision).unwrap());
    assert_eq!(saved(&store), None);
    store.flush();
    assert_eq!(saved(&store), None);
    assert_eq!(saved(&below), None);
}

/// While a manifest was pending here, another host replaced it below. Only this host's version is removed.
#[test]
fn a_pending_revision_goes_without_what_others_have_put() {
    let (above, below) = (sound(), sound());
    let store = two(&above, &below, Write::Back);
    store.put_manifest(&name("m"), b"old").unwrap();
    store.flush();
    below.set_plan(down());
    store.put_manifest(&name("m"), b"broken").unwrap();
    store.flush();
    below.set_plan(Plan::new());
    let (data, revision) = store.manifest_revision(&name("m")).unwrap().unwrap();
    assert_eq!(data, "broken");
    below.put_manifest(&name("m"), b"theirs").unwrap();
    assert!(store.delete_revision(&name("m"), &revision).unwrap());
    assert_eq!(store.get_manifest(&name("m")).unwrap().unwrap(), "theirs");
}

/// Closing gives up on an unreachable tier. Manifests that the other tiers have must not count as copied everywhere.
#[test]
fn what_was_given_up_at_closing_is_pending_still() {
    let [first, second] = [(); 2].map(|()| MemoryStore::new());
    let last = sound();
    let open = |last: Arc<dyn Backend>| {
        let slow = slowed(second.clone(), 5);
        let tiers = vec![
            Tier::new("first", Arc::new(first.clone())),
            Tier::new("second", Arc::new(slow)),
            Tier::new("last", last),
        ];
        TierStore::new(tiers, Write::Back).unwrap()
    };
    let store = open(Arc::new(Faulty::new(MemoryStore::new(), down())));
    for n in 0..20 {
        store.put_manifest(&name(&n.to_string()), b"put").unwrap();
    }
    drop(store);
    let store = open(last);
    for n in 0..20 {
        assert_eq!(store.get_manifest(&name(&n.to_string())).unwrap().unwrap(), "put");
    }
}

/// A manifest is put again while the chunks of its first put are copied. It must never be below without its chunks.
#[test]
fn a_manifest_that_is_put_again_meanwhile_goes_with_its_own_chunks() {
    #[derive(Debug)]
    struct Whole(MemoryStore, std::sync::Mutex<std::sync::mpsc::Receiver<()>>);
    impl Backend for Whole {
        fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
            self.1.lock().unwrap().recv().unwrap();
            self.0.put_chunk(hash, data)
        }
        fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
            let chunk = ChunkHash::new(data).unwrap();
            assert!(self.0.get_chunk(&chunk)?.is_some(), "without its chunk");
            self.0.put_manifest(name, data)
        }

        forward!(0: get_chunk, get_manifest, delete_manifest);
    }
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let below = MemoryStore::new();
    let whole = Whole(below.clone(), std::sync::Mutex::new(may_go_on));
    let tiers = vec![Tier::new("above", sound() as Arc<dyn Backend>), Tier::new("below", Arc::new(whole))];
    let store = TierStore::new(tiers, Write::Back).unwrap();
    save(&store, 0).unwrap();
    // Its copy is under way, or about to be: the chunk waits below.
    save(&store, 1).unwrap();
    go_on.send(()).unwrap();
    go_on.send(()).unwrap();
    store.flush();
    assert_eq!(saved(&below), Some(1));
    assert_eq!(saved(&store), Some(1));
}

/// A tier that works again gets the copies that it refused, once something else was copied.
#[test]
fn what_was_refused_is_copied_later() {
    let (above, below) = (sound(), sound());
    let store = two(&above, &below, Write::Back);
    below.set_plan(down());
    save(&store, 0).unwrap();
    store.flush();
    below.set_plan(Plan::new());
    store.put_manifest(&name("other"), b"").unwrap();
    store.flush();
    assert_eq!(saved(&*below), Some(0));
}

#[test]
fn closing_does_not_wait_for_what_is_away() {
    let slow = down().with_time(Duration::from_millis(5));
    let (above, below) = (sound(), Arc::new(Faulty::new(MemoryStore::new(), slow)));
    let tiers =
        vec![Tier::new("above", above as Arc<dyn Backend>), Tier::new("below", below.clone() as Arc<dyn Backend>)];
    let store = TierStore::new(tiers, Write::Back).unwrap();
    for n in 0..500 {
        store.put_manifest(&name(&n.to_string()), b"").unwrap();
    }
    drop(store);
    let tried = below.calls(Call::PutManifest);
    assert!((1..500).contains(&tried), "{tried}");
}

fn slowed(store: MemoryStore, millis: u64) -> Faulty<MemoryStore> {
    Faulty::new(store, Plan::new().with_time(Duration::from_millis(millis)))
}

#[test]
fn tiers_in_tiers_are_refused() {
    let inner = two(&sound(), &sound(), Write::Through);
    let error = TierStore::new(vec![Tier::new("", Arc::new(inner))], Write::Through).unwrap_err();
    assert!(error.to_string().contains("tiers in it that have tiers"), "{error}");
}

/// The process ends at each call of the tier below. Acknowledged values are in the tier above, and below there is no
/// manifest without its chunks.
#[test]
fn a_crash_at_each_call_of_a_later_copy_loses_only_the_copy() {
    for kind in [Call::PutChunk, Call::PutManifest, Call::DeleteManifest] {
        for nth in 1..12 {
            for effect in [Effect::FailBefore, Effect::FailAfter] {
                let (above, below) = (MemoryStore::new(), MemoryStore::new());
                // The call and all later ones.
                let calls = [Call::PutChunk, Call::PutManifest, Call::DeleteManifest];
                let plan = calls.into_iter().fold(Plan::new(), |plan, call| {
                    plan.with_all_from(call, if call == kind { nth } else { nth + 3 }, effect)
                });
                let dying = Faulty::new(below.clone(), plan);
                let tiers = vec![Tier::new("above", Arc::new(above.clone())), Tier::new("below", Arc::new(dying))];
                let store = TierStore::new(tiers, Write::Back).unwrap();
                let mut removed = false;
                for n in 0..4 {
                    for part in 0..3 {
                        store.put_chunk(&chunk(10 * n + part).0, &chunk(10 * n + part).1).unwrap();
                    }
                    let names = (0..3).map(|part| chunk(10 * n + part).0);
                    let manifest: Vec<u8> = names.flat_map(|hash| hash.as_bytes().to_vec()).collect();
                    store.put_manifest(&name(&n.to_string()), &manifest).unwrap();
                    if n == 2 {
                        removed = store.delete_manifest(&name("0")).is_ok();
                    }
                }
                drop(store);
                let tiers = [&above, &below].map(|tier| Tier::new("", Arc::new(tier.clone())));
                let again = TierStore::new(tiers.into(), Write::Back).unwrap();
                for n in 0..4_u64 {
                    let name = name(&n.to_string());
                    // One that could not be removed below is there still, and its caller was told.
                    let there = again.get_manifest(&name).unwrap().is_some();
                    assert!(there == (n != 0) || n == 0 && !removed, "{kind:?} {nth}");
                    let copied = below.get_manifest(&name).unwrap().is_some();
                    for part in 0..3 {
                        let (hash, data) = chunk(10 * n + part);
                        assert_eq!(above.get_chunk(&hash).unwrap().unwrap(), data);
                        assert!(!copied || below.get_chunk(&hash).unwrap().is_some(), "{kind:?} {nth}");
                    }
                }
            }
        }
    }
}
