//! Listing, verifying and collecting.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Commands;
use transload_store::backend::{CollectOptions, Fault, Inventory};
use transload_store::{Backend, ChunkHash, StoreError};
use transload_test_stores::{bytes, hash, name, server};

/// Puts chunks of these lengths and a manifest that names them.
fn save(store: &impl Backend, manifest: &str, seeds: &[u64], len: usize) -> Vec<ChunkHash> {
    let chunks: Vec<_> = seeds.iter().map(|&seed| bytes(seed, len)).collect();
    let hashes: Vec<_> = chunks.iter().map(|data| hash(data)).collect();
    for (key, data) in hashes.iter().zip(&chunks) {
        store.put_chunk(key, data).unwrap();
    }
    let text: String = hashes.iter().map(|hash| format!("{hash} ")).collect();
    store.put_manifest(&name(manifest), text.as_bytes()).unwrap();
    hashes
}

fn names(inventory: &dyn Inventory) -> BTreeMap<String, u64> {
    let mut names = BTreeMap::new();
    inventory
        .manifests(&mut |entry| {
            assert!(entry.last_used.is_some());
            assert!(names.insert(entry.name.to_string(), entry.bytes).is_none());
            Ok(())
        })
        .unwrap();
    names
}

fn grace(seconds: u64) -> CollectOptions {
    CollectOptions { grace: Duration::from_secs(seconds), ..CollectOptions::default() }
}

#[test]
fn lists_and_counts() {
    let server = server!();
    let store = server.open("/0/a*");
    let mut client = server.client();
    let _: () = client.set("transload:other", "not ours").unwrap();
    let _: () = client.set("something else", "not ours").unwrap();
    let seeds: Vec<u64> = (0..3000).collect();
    let hashes = save(&store, "m", &seeds, 100);
    save(&server.open("/0/ab"), "n", &[1], 100);
    let inventory = store.inventory().unwrap();
    let mut chunks = BTreeMap::new();
    inventory
        .chunks(&mut |entry| {
            assert!(chunks.insert(entry.hash, entry.bytes).is_none(), "once");
            Ok(())
        })
        .unwrap();
    assert_eq!(chunks.len(), 3000);
    assert!(hashes.iter().all(|hash| chunks[hash] == 100));
    assert_eq!(names(inventory), BTreeMap::from([("m".into(), 3000 * 65)]));
    let root = server.open("/0");
    let whole = names(root.inventory().unwrap());
    assert_eq!(whole.keys().collect::<Vec<_>>(), ["a*/m", "ab/n"]);
    let usage = inventory.usage().unwrap();
    assert_eq!((usage.manifests, usage.manifest_bytes), (2, 3001 * 65));
    assert_eq!((usage.chunks, usage.chunk_bytes), (3000, 300_000));
    assert!(usage.total_bytes > 300_000 + 3001 * 65);
    assert_eq!(usage.cap, None);
    let error = inventory.chunks(&mut |_| Err(StoreError::HashLength { len: 0 })).unwrap_err();
    assert!(matches!(error, StoreError::HashLength { .. }), "ends the walk");
}

#[test]
fn verify_finds_what_was_changed() {
    let server = server!();
    let store = server.open("");
    let hashes = save(&store, "m", &(0..100).collect::<Vec<_>>(), 1000);
    save(&store, "n", &[0], 1000);
    let inventory = store.inventory().unwrap();
    let verify = || {
        let mut faults: Vec<Fault> = Vec::new();
        let mut last = None;
        inventory.verify(&mut |progress| last = Some(progress), &mut |fault| faults.push(fault)).unwrap();
        let last = last.unwrap();
        assert_eq!(last.done, last.total);
        faults.sort_by(|a, b| a.what.cmp(&b.what));
        faults
    };
    assert_eq!(verify(), []);
    let mut client = server.client();
    let _: () = client.setrange(format!("transload:c:{}", hashes[7]), 500, "?!").unwrap();
    let _: () = client.set("transload:m:n", "short").unwrap();
    let _: () = client.set("transload:c:XY", "none").unwrap();
    let faults = verify();
    let whats: Vec<&str> = faults.iter().map(|fault| fault.what.as_str()).collect();
    let chunk = format!("chunk {}", hashes[7]);
    assert_eq!(whats, [&chunk, "key transload:c:XY", "manifest \"n\""]);
}

#[test]
fn what_a_manifest_was_saved_with_is_kept_and_missed() {
    let server = server!();
    let store = server.open("/0/slot");
    let data: Vec<_> = (0..3).map(|n| bytes(n, 1000)).collect();
    for data in &data {
        store.put_chunk(&hash(data), data).unwrap();
    }
    let opaque = [("a", "no"), ("b", "hashes")].map(|(n, data)| (name(n), data.into()));
    store.put_manifests(&opaque).unwrap();
    let inventory = store.inventory().unwrap();
    let listed = BTreeMap::from([("a".into(), 2), ("b".into(), 6)]);
    assert_eq!(names(inventory), listed, "without what is recorded");
    let orphan = bytes(9, 1000);
    store.put_chunk(&hash(&orphan), &orphan).unwrap();
    store.put_manifest(&name("c"), b"").unwrap();
    store.delete_manifest(&name("c")).unwrap();
    let collected = inventory.collect(&grace(0), &mut |_| {}).unwrap();
    assert_eq!(collected.chunks, 1, "the orphan");
    let verify = || {
        let mut faults = Vec::new();
        inventory.verify(&mut |_| {}, &mut |fault| faults.push(fault)).unwrap();
        faults
    };
    assert_eq!(verify(), []);
    let lost = hash(&data[1]);
    let _: () = server.client().del(format!("transload:c:{lost}")).unwrap();
    let faults = verify();
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].what, format!("chunk {lost}"));
    assert!(faults[0].how.contains("slot/a"), "{}", faults[0].how);
    store.delete_manifest(&name("a")).unwrap();
    assert_eq!(verify(), []);
    assert_eq!(inventory.collect(&grace(0), &mut |_| {}).unwrap().chunks, 2);
}

#[test]
fn a_full_server_can_be_collected() {
    let server = server!();
    let store = server.open("");
    save(&store, "old", &(0..50).collect::<Vec<_>>(), 100_000);
    let mut client = server.client();
    // A collection evicts what was not used for two seconds before it, and whatever time it took so far.
    let idle = |client: &mut redis::Connection| -> u64 {
        let mut command = redis::cmd("OBJECT");
        let command = command.arg("IDLETIME").arg("transload:m:old");
        command.query(client).unwrap()
    };
    while idle(&mut client) < 4 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut set = |command: &str, words: &[&str]| {
        let _: () = redis::cmd(command).arg(words).query(&mut client).unwrap();
    };
    set("CONFIG", &["SET", "maxmemory", "3mb"]);
    let more = bytes(1000, 100_000);
    let full = || -> Result<(), StoreError> {
        store.put_chunk(&hash(&more), &more)?;
        store.put_manifest(&name("new"), b"")
    };
    assert!(full().unwrap_err().to_string().contains("OOM"));
    let inventory = store.inventory().unwrap();
    // What it notes of chunks that have to wait needs memory, and has to be noted all the same.
    let collected = inventory.collect(&CollectOptions { cap: Some(1 << 20), ..grace(4) }, &mut |_| {}).unwrap();
    assert_eq!((collected.manifests, collected.chunks, collected.in_grace), (1, 0, 50));
    assert!(full().is_err());
    std::thread::sleep(Duration::from_millis(6100));
    // A manifest has just been removed: only what was noted lets the chunks go.
    set("CONFIG", &["SET", "maxmemory", "100mb"]);
    store.put_manifest(&name("short"), b"").unwrap();
    store.delete_manifest(&name("short")).unwrap();
    set("CONFIG", &["SET", "maxmemory", "3mb"]);
    let collected = inventory.collect(&grace(4), &mut |_| {}).unwrap();
    assert_eq!(collected.chunks, 50);
    full().unwrap();
}

/// Several saves died until the server was full. Nothing can be written, but a collection can free everything.
#[test]
fn a_server_full_of_what_dead_saves_left_is_freed() {
    let server = server!();
    let store = server.open("");
    let part = |n: u8| format!("transload.archive/2/part/{}", format!("{n:02x}").repeat(32));
    for n in 0..5 {
        save(&store, &part(n), &[u64::from(n)], 500_000);
    }
    let mut client = server.client();
    let _: () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", "3mb"]).query(&mut client).unwrap();
    let more = bytes(1000, 500_000);
    let full = || -> Result<(), StoreError> {
        store.put_chunk(&hash(&more), &more)?;
        store.put_manifest(&name("new"), b"")
    };
    assert!(full().unwrap_err().to_string().contains("OOM"));
    let inventory = store.inventory().unwrap();
    let collect = |options: &CollectOptions| {
        let collected = inventory.collect(options, &mut |_| {}).unwrap();
        (collected.leftovers, collected.manifests, collected.chunks)
    };
    // They may be of saves under way.
    assert_eq!(collect(&grace(100)), (0, 0, 0));
    std::thread::sleep(Duration::from_millis(4200));
    // Without a dry run before: that one asks for lengths, which is a use.
    assert_eq!(collect(&grace(2)), (5, 0, 5));
    full().unwrap();
}

#[test]
fn a_database_that_was_emptied_is_not_verified() {
    let server = server!();
    let store = server.open("");
    let faults = || {
        let mut faults = Vec::new();
        let inventory = store.inventory().unwrap();
        inventory.verify(&mut |_| {}, &mut |fault| faults.push(fault)).unwrap();
        faults
    };
    save(&store, "m", &[1], 100);
    assert_eq!(faults(), []);
    // The server may evict the count of saves alone.
    let count = redis::cmd("DEL").arg("transload:generation").clone();
    assert_eq!(count.query::<u64>(&mut server.client()).unwrap(), 1);
    assert_eq!(faults(), []);
    save(&store, "m", &[2], 100);
    // A manifest that was removed leaves a store.
    store.delete_manifest(&name("m")).unwrap();
    assert_eq!(faults(), []);
    let _: () = redis::cmd("FLUSHALL").query(&mut server.client()).unwrap();
    let [fault] = &faults()[..] else {
        panic!("{:?}", faults());
    };
    assert!(fault.how.contains("emptied"), "{fault:?}");
}

#[test]
fn what_a_manifest_needs_again_has_its_grace_once_more() {
    let server = server!();
    let store = server.open("");
    save(&store, "m", &[1, 2, 3], 1000);
    store.delete_manifest(&name("m")).unwrap();
    let inventory = store.inventory().unwrap();
    let collected = inventory.collect(&grace(3600), &mut |_| {}).unwrap();
    assert_eq!((collected.chunks, collected.in_grace), (0, 3));
    let mut client = server.client();
    let mut noted = || client.zcard::<_, u64>("transload:marks").unwrap();
    assert_eq!(noted(), 3);
    // If that manifest comes and goes before another collection, what was noted before it must not count.
    save(&store, "n", &[2, 3], 1000);
    assert_eq!(noted(), 1);
}

#[test]
fn collects_what_nothing_refers_to_after_its_grace() {
    let server = server!();
    let store = server.open("");
    let kept = save(&store, "m", &[1, 2, 3], 1000);
    let gone = save(&store, "n", &[3, 4, 5], 1000);
    store.delete_manifest(&name("n")).unwrap();
    let inventory = store.inventory().unwrap();
    let collect = |options: &CollectOptions| inventory.collect(options, &mut |_| {}).unwrap();
    let collected = collect(&grace(3600));
    assert_eq!((collected.chunks, collected.in_grace), (0, 2));
    let dry = collect(&CollectOptions { dry_run: true, ..grace(0) });
    assert_eq!((dry.chunks, dry.bytes), (2, 2 * 1016));
    assert_eq!(store.get_chunks(&gone).unwrap().iter().flatten().count(), 3);
    assert_eq!(collect(&grace(0)), dry);
    assert_eq!(store.get_chunks(&kept).unwrap().iter().flatten().count(), 3);
    assert_eq!(store.get_chunks(&gone).unwrap().iter().flatten().count(), 1);
}

#[test]
fn a_grace_period_passes_and_begins_anew() {
    let server = server!();
    let store = server.open("");
    let [orphan, used] = [bytes(1, 100), bytes(2, 100)];
    store.put_chunk(&hash(&orphan), &orphan).unwrap();
    store.put_chunk(&hash(&used), &used).unwrap();
    store.put_manifest(&name("flush"), b"").unwrap();
    store.delete_manifest(&name("flush")).unwrap();
    let inventory = store.inventory().unwrap();
    let collect = || inventory.collect(&grace(4), &mut |_| {}).unwrap();
    assert_eq!(collect().in_grace, 2);
    // Idle times have whole seconds.
    std::thread::sleep(Duration::from_secs(6));
    assert!(store.get_chunk(&hash(&used)).unwrap().is_some());
    let collected = collect();
    assert_eq!((collected.chunks, collected.in_grace), (1, 1));
    assert_eq!(store.get_chunk(&hash(&orphan)).unwrap(), None);
    // A removed manifest keeps what it referred to for the same time, unused or not; what an earlier
    // collection saw unreferred to goes.
    let hashes = save(&store, "m", &[7], 100);
    std::thread::sleep(Duration::from_secs(6));
    store.delete_manifest(&name("m")).unwrap();
    let collected = collect();
    assert_eq!((collected.chunks, collected.in_grace), (1, 1));
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(collect().chunks, 1);
    assert_eq!(store.get_chunk(&hashes[0]).unwrap(), None);
}

#[test]
fn looking_at_manifests_is_no_use() {
    let server = server!();
    let store = server.open("/0/a");
    let mut client = server.client();
    let inventory = store.inventory().unwrap();
    let names = ["m", "none"].map(name);
    store.put_manifest(&names[0], b"data").unwrap();
    std::thread::sleep(Duration::from_millis(2100));
    let peeked = inventory.peek_manifests(&names).unwrap();
    assert_eq!(peeked[0].as_deref(), Some(&b"data"[..]));
    assert_eq!(peeked[1], None);
    let idle: u64 = redis::cmd("OBJECT").arg("IDLETIME").arg("transload:m:a/m").query(&mut client).unwrap();
    // Servers before 7.2 cannot tell looking from using.
    let mut no_touch = redis::cmd("CLIENT");
    no_touch.arg("NO-TOUCH").arg("ON");
    assert!(idle > 0 || no_touch.query::<()>(&mut client).is_err());
}

#[test]
fn a_cap_evicts_the_least_recently_used() {
    let server = server!();
    let store = server.open("");
    for n in 0..3 {
        save(&store, &format!("m{n}"), &(n * 10..n * 10 + 10).collect::<Vec<_>>(), 20_000);
    }
    let inventory = store.inventory().unwrap();
    let total = inventory.usage().unwrap().total_bytes;
    // The oldest is used last. Idle times have whole seconds.
    let use_all = || {
        for (at, n) in [1, 2, 0].into_iter().enumerate() {
            std::thread::sleep(Duration::from_millis(2100 * u64::from(at > 0)));
            let name = name(&format!("m{n}"));
            store.get_manifest(&name).unwrap().unwrap();
        }
    };
    use_all();
    let options = CollectOptions { cap: Some(total * 3 / 4), ..grace(0) };
    let dry = inventory.collect(&CollectOptions { dry_run: true, ..options.clone() }, &mut |_| {}).unwrap();
    assert_eq!(dry.manifests, 1);
    // Asking for the lengths was a use on this server if it is an old one; put the order back.
    use_all();
    let collected = inventory.collect(&options, &mut |_| {}).unwrap();
    assert_eq!((collected.manifests, collected.chunks), (1, 10));
    assert_eq!(names(inventory).keys().collect::<Vec<_>>(), ["m0", "m2"]);
    assert!(inventory.usage().unwrap().total_bytes <= total * 3 / 4);
}

#[test]
fn a_manifest_that_is_put_meanwhile_is_not_evicted() {
    let server = server!();
    let store = server.open("");
    let saved: Vec<_> = (0..4)
        .map(|n| {
            let hashes = save(&store, &format!("m{n}"), &[n], 20_000);
            std::thread::sleep(Duration::from_millis(2100));
            hashes
        })
        .collect();
    let inventory = store.inventory().unwrap();
    // Room for the newest one. The next two are put again when that has been read, one of them as it was.
    let options = CollectOptions { cap: Some(40_000), ..grace(0) };
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
    assert_eq!(names(inventory).keys().collect::<Vec<_>>(), ["m1", "m2", "m3"]);
    let left = |n: usize| store.get_chunk(&saved[n][0]).unwrap().is_some();
    assert_eq!([0, 1, 2, 3].map(left), [true, false, true, true]);
}

#[test]
fn an_lfu_server_says_no_times_and_is_collected_without_grace() {
    let server = server!("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lfu");
    let store = server.open("");
    save(&store, "m", &[1, 2], 100);
    store.delete_manifest(&name("m")).unwrap();
    let inventory = store.inventory().unwrap();
    assert_eq!(inventory.usage().unwrap().cap, Some(100 << 20));
    let error = inventory.collect(&grace(5), &mut |_| {}).unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
    assert_eq!(inventory.collect(&grace(0), &mut |_| {}).unwrap().chunks, 2);
}

#[test]
fn collecting_while_others_save_takes_nothing_from_them() {
    let server = server!();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let savers: Vec<_> = (0..3_u64)
            .map(|thread| {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || {
                    let store = server.open("");
                    for round in 0..60 {
                        let own = thread * 1000 + round;
                        let hashes = loop {
                            // Chunks that others dropped come back, found or not.
                            let seeds = [round % 7, round % 5 + 100, own + 10_000];
                            let chunks: Vec<_> = seeds.iter().map(|&n| bytes(n, 500)).collect();
                            let hashes: Vec<_> = chunks.iter().map(|data| hash(data)).collect();
                            for (key, data) in hashes.iter().zip(&chunks) {
                                store.put_chunk(key, data).unwrap();
                            }
                            let text: String = hashes.iter().map(|h| h.to_string()).collect();
                            let manifest = name(&format!("{thread}"));
                            match store.put_manifest(&manifest, text.as_bytes()) {
                                Ok(()) => break hashes,
                                Err(StoreError::Collected { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        };
                        let got = store.get_chunks(&hashes).unwrap();
                        assert!(got.iter().all(Option::is_some), "{thread} {round}");
                        store.delete_manifest(&name(&format!("{thread}"))).unwrap();
                    }
                    stop.store(true, std::sync::atomic::Ordering::Relaxed);
                })
            })
            .collect();
        let store = server.open("");
        let inventory = store.inventory().unwrap();
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            inventory.collect(&grace(5), &mut |_| {}).unwrap();
        }
        for saver in savers {
            saver.join().unwrap();
        }
    });
}
