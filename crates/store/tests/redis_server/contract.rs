//! The requirements of `kv_store_v1` on a backend.

use std::sync::{Arc, Barrier};

use bytes::Bytes;
use redis::Commands;
use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::backend::redis::{RedisOptions, RedisStore};
use transload_store::backend::{MemoryStore, Tier, TierStore, Write};
use transload_store::{Backend, ChunkHash, Put, StoreError};
use transload_test_stores::redis::quick;
use transload_test_stores::{Compares, bytes, contract, hash, name, quick_folder, server};

#[test]
fn a_cluster_and_a_sentinel_are_refused_by_name() {
    for (arguments, kind, instead) in [
        (&["--cluster-enabled", "yes"][..], "a Redis Cluster", "a single server"),
        (&["--sentinel"], "a Sentinel", "get-master-addr-by-name"),
    ] {
        let Some(server) = transload_test_stores::redis::Server::start(arguments) else {
            return;
        };
        // A database is chosen only where there are databases.
        for rest in ["", "/0/prefix", "/1"] {
            let uri = server.uri(rest).parse().unwrap();
            let error = RedisStore::open(&uri, quick()).unwrap_err().to_string();
            assert!(error.contains(kind) && error.contains(instead), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}

/// The prefix precedes manifest names, with any characters. Each database is a separate store.
#[test]
fn a_prefix_is_part_of_the_names() {
    let server = server!();
    let store = server.open("/2/a prefix/slot*1");
    for other in ["", "../x", "/", "chunks", "a\nb\r\n", "ключ", "*", &"x".repeat(1024)] {
        store.put_manifest(&name(other), other.as_bytes()).unwrap();
        let again = server.open("/2/a prefix/slot*1/");
        assert_eq!(again.get_manifest(&name(other)).unwrap().unwrap(), other);
    }
    let root = server.open("/2");
    let whole = root.get_manifest(&name("a prefix/slot*1/chunks")).unwrap();
    assert_eq!(whole.unwrap(), "chunks");
    let elsewhere = server.open("/3").get_manifest(&name("chunks"));
    assert_eq!(elsewhere.unwrap(), None);
}

#[test]
fn a_large_value_passes_and_a_too_large_one_is_an_error() {
    let server = server!("--proto-max-bulk-len", "80mb");
    let store = server.open("");
    let data = bytes(1, 64 << 20);
    store.put_chunk(&hash(&data), &data).unwrap();
    store.put_manifest(&name("large"), &data).unwrap();
    assert_eq!(store.get_chunk(&hash(&data)).unwrap().unwrap(), data);
    assert!(store.get_manifest(&name("large")).unwrap().unwrap() == data);
    let data = vec![0; 80 << 20];
    for error in
        [store.put_chunk(&hash(&data), &data).unwrap_err(), store.put_manifest(&name("larger"), &data).unwrap_err()]
    {
        let most_ = (80 << 20) - 16;
        assert!(matches!(error, StoreError::TooLarge { most, .. } if most == most_), "{error}");
    }
}

#[test]
fn batches_take_one_round_trip() {
    let server = server!();
    let store = server.open("");
    let manifests: Vec<(_, Bytes)> = (0..1000_u64).map(|n| (name(&format!("m{n}")), bytes(n, 2000).into())).collect();
    let chunks: Vec<(ChunkHash, Vec<u8>)> = (0..600).map(|n| bytes(n, 5000)).map(|data| (hash(&data), data)).collect();
    for (key, data) in &chunks {
        assert_eq!(store.put_chunk(key, data).unwrap(), Put::Stored);
    }
    // So that what the thread of the handle does is not counted below.
    store.put_manifest(&name("first"), b"").unwrap();
    let before = store.round_trips();
    store.put_manifests(&manifests).unwrap();
    assert_eq!(store.round_trips() - before, 1);

    let mut names: Vec<_> = manifests.iter().map(|(name, _)| name.clone()).collect();
    names.insert(500, name("nobody"));
    let before = store.round_trips();
    let got = store.get_manifests(&names).unwrap();
    assert_eq!(store.round_trips() - before, 1);
    assert_eq!(got[500], None);
    assert_eq!(got[501].as_ref(), Some(&manifests[500].1));
    assert_eq!(got.iter().flatten().count(), 1000);

    let mut hashes: Vec<_> = chunks.iter().map(|(key, _)| *key).collect();
    hashes.push(hash(b"nobody"));
    store.get_chunk(&hashes[0]).unwrap();
    let before = store.round_trips();
    let got = store.get_chunks(&hashes).unwrap();
    assert_eq!(store.round_trips() - before, 1);
    for ((_, data), got) in chunks.iter().zip(&got) {
        assert_eq!(got.as_ref().unwrap(), data);
    }
    assert_eq!(got[600], None);
}

#[test]
fn what_was_prefetched_needs_no_round_trip() {
    let server = server!();
    let store = server.open("");
    let chunks: Vec<_> = (0..64_u64).map(|n| bytes(n, 20_000)).collect();
    let hashes: Vec<_> = chunks.iter().map(|data| hash(data)).collect();
    for (key, data) in hashes.iter().zip(&chunks) {
        store.put_chunk(key, data).unwrap();
    }
    store.put_manifest(&name("m"), b"").unwrap();
    let before = store.round_trips();
    store.prefetch_chunks(&hashes).unwrap();
    store.prefetch_chunks(&[hash(b"nobody")]).unwrap();
    for (key, data) in hashes.iter().zip(&chunks) {
        assert_eq!(store.get_chunk(key).unwrap().unwrap(), data);
    }
    let trips = store.round_trips() - before;
    assert!(trips <= 6, "{trips}");
    assert_eq!(store.get_chunk(&hash(b"nobody")).unwrap(), None);
    // Each was handed out once, and is read from the server from now on.
    let mut client = server.client();
    let _: () = client.del(format!("transload:c:{}", hashes[3])).unwrap();
    assert_eq!(store.get_chunk(&hashes[3]).unwrap(), None);
}

#[test]
fn prefetching_more_than_fits_neither_hangs_nor_loses() {
    let server = server!();
    let mut options = quick();
    options.ahead_bytes = 50_000;
    options.pending_bytes = 50_000;
    let store = RedisStore::open(&server.uri("").parse().unwrap(), options).unwrap();
    let chunks: Vec<_> = (0..200_u64).map(|n| bytes(n, 10_000)).collect();
    let hashes: Vec<_> = chunks.iter().map(|data| hash(data)).collect();
    for (key, data) in hashes.iter().zip(&chunks) {
        store.put_chunk(key, data).unwrap();
    }
    store.put_manifest(&name("m"), b"").unwrap();
    // In order, backwards, and wanted again without having been read.
    store.prefetch_chunks(&hashes).unwrap();
    for (key, data) in hashes.iter().zip(&chunks) {
        assert_eq!(store.get_chunk(key).unwrap().unwrap(), data);
    }
    store.prefetch_chunks(&hashes).unwrap();
    for (key, data) in hashes.iter().zip(&chunks).rev() {
        assert_eq!(store.get_chunk(key).unwrap().unwrap(), data);
    }
    for _ in 0..3 {
        store.prefetch_chunks(&hashes).unwrap();
    }
    let got = store.get_chunks(&hashes).unwrap();
    for (got, data) in got.iter().zip(&chunks) {
        assert_eq!(got.as_ref().unwrap(), data);
    }
}

#[test]
fn a_manifest_whose_chunk_went_is_not_published() {
    let server = server!();
    let store = server.open("");
    let mut client = server.client();
    let data: Vec<_> = (0..3000_u64).map(|n| bytes(n, 10)).collect();
    for data in &data {
        store.put_chunk(&hash(data), data).unwrap();
    }
    store.put_manifest(&name("old"), b"old").unwrap();
    for lost in [0, 999, 1000, 2999] {
        let lost = hash(&data[lost]);
        // Found and then lost; and stored anew and then lost.
        for _ in 0..2 {
            for data in &data {
                store.put_chunk(&hash(data), data).unwrap();
            }
            let key = format!("transload:c:{lost}");
            while client.del::<_, u32>(&key).unwrap() == 0 {
                std::thread::yield_now();
            }
            let error = store.put_manifest(&name("old"), b"new").unwrap_err();
            assert!(matches!(error, StoreError::Collected { hash } if hash == lost), "{error}");
            assert_eq!(store.get_manifest(&name("old")).unwrap().unwrap(), "old");
        }
        for data in &data {
            store.put_chunk(&hash(data), data).unwrap();
        }
        store.put_manifest(&name("old"), b"old").unwrap();
    }
}

#[test]
fn a_manifest_that_fails_disarms_no_other_thread() {
    let server = server!();
    let store = server.open("");
    let [mine, theirs, fine] = [1, 2, 3].map(|n| bytes(n, 1000));
    let put = |data: &[u8]| store.put_chunk(&hash(data), data).map(drop).unwrap();
    let mut client = server.client();
    let mut lose = |data: &[u8]| {
        let key = format!("transload:c:{}", hash(data));
        while client.del::<_, u32>(&key).unwrap() == 0 {
            std::thread::yield_now();
        }
    };
    let collected = |data: &[u8], result: Result<(), StoreError>| match result {
        Err(StoreError::Collected { hash: lost }) => assert_eq!(lost, hash(data)),
        other => panic!("{other:?}"),
    };
    let step = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            put(&theirs);
            put(&fine);
            step.wait();
            step.wait();
            // The error to the other thread was about both chunks. This thread has not had one yet.
            collected(&theirs, store.put_manifest(&name("theirs"), b"no hashes"));
            // After the error, a manifest that does not name the chunks succeeds, and one that names them still fails.
            store.put_manifest(&name("another"), b"save").unwrap();
            let manifest = hash(&theirs).to_string();
            for _ in 0..2 {
                let failed = store.put_manifest(&name("theirs"), manifest.as_bytes());
                collected(&theirs, failed);
            }
            put(&theirs);
            let name = name("theirs");
            store.put_manifest(&name, manifest.as_bytes()).unwrap();
        });
        put(&mine);
        step.wait();
        lose(&theirs);
        lose(&mine);
        let failed = store.put_manifest(&name("mine"), b"no hashes");
        assert!(matches!(failed, Err(StoreError::Collected { .. })));
        put(&mine);
        store.put_manifest(&name("mine"), b"no hashes").unwrap();
        step.wait();
    });
    assert_eq!(store.get_chunk(&hash(&theirs)).unwrap().unwrap(), theirs);
}

#[test]
fn what_another_thread_published_is_still_needed_by_who_put_it() {
    let server = server!();
    let store = server.open("");
    let data = bytes(1, 1000);
    store.put_chunk(&hash(&data), &data).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| store.put_manifest(&name("other"), b"").unwrap());
        other.join().unwrap();
    });
    let key = format!("transload:c:{}", hash(&data));
    let _: () = server.client().del(key).unwrap();
    let error = store.put_manifest(&name("m"), b"").unwrap_err();
    assert!(matches!(error, StoreError::Collected { .. }), "{error}");
}

#[test]
fn what_was_found_damaged_is_healed_by_putting_it_again() {
    let server = server!();
    let data = bytes(1, 1000);
    let key = hash(&data);
    let store = server.open("");
    store.put_chunk(&key, &data).unwrap();
    store.put_manifest(&name("m"), b"").unwrap();
    let mut client = server.client();
    let at = format!("transload:c:{key}");
    let mut changed: Vec<u8> = client.get(&at).unwrap();
    *changed.last_mut().unwrap() ^= 1;
    let _: () = client.set(&at, changed).unwrap();
    let (first, second) = (server.open(""), server.open(""));
    for store in [&first, &second] {
        let error = store.get_chunks(&[key]).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
    assert_eq!(first.put_chunk(&key, &data).unwrap(), Put::Stored);
    first.put_manifest(&name("m"), b"").unwrap();
    assert_eq!(first.put_chunk(&key, &data).unwrap(), Put::AlreadyThere);
    // Another one that found it damaged leaves it now, though it begins as it did then.
    assert_eq!(second.put_chunk(&key, b"x").unwrap(), Put::AlreadyThere);
    second.put_manifest(&name("m"), b"").unwrap();
    assert_eq!(server.open("").get_chunk(&key).unwrap().unwrap(), data);
}

#[test]
fn a_changed_bit_is_an_error() {
    let server = server!();
    let store = server.open("");
    let data = bytes(1, 64);
    store.put_chunk(&hash(&data), &data).unwrap();
    store.put_manifest(&name("m"), &data).unwrap();
    let mut client = server.client();
    for key in [format!("transload:c:{}", hash(&data)), "transload:m:m".into()] {
        let whole: Vec<u8> = client.get(&key).unwrap();
        let read = || match key.starts_with("transload:c") {
            true => store.get_chunk(&hash(&data)),
            false => store.get_manifest(&name("m")),
        };
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let _: () = client.set(&key, changed).unwrap();
            let error = read().unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{bit}: {error}");
        }
        for len in 0..whole.len() {
            let _: () = client.set(&key, &whole[..len]).unwrap();
            assert!(matches!(read(), Err(StoreError::Damaged { .. })));
        }
        let _: () = client.del(&key).unwrap();
        let _: () = client.rpush(&key, "a list").unwrap();
        assert!(matches!(read(), Err(StoreError::Remote { .. })));
        let _: () = client.del(&key).unwrap();
        let _: () = client.set(&key, whole).unwrap();
        assert_eq!(read().unwrap().unwrap(), data);
    }
}

#[test]
fn a_full_server_refuses_clearly_and_works_again() {
    let server = server!("--maxmemory", "20mb", "--maxmemory-policy", "noeviction");
    let store = server.open("");
    let data: Vec<_> = (0..40_u64).map(|n| bytes(n, 1 << 20)).collect();
    let save = || -> Result<(), StoreError> {
        for data in &data {
            store.put_chunk(&hash(data), data)?;
        }
        store.put_manifest(&name("m"), b"all")
    };
    let error = save().unwrap_err();
    assert!(error.to_string().contains("OOM"), "{error}");
    assert_eq!(store.get_manifest(&name("m")).unwrap(), None);
    // Still refused, and still clearly.
    assert!(store.put_manifest(&name("m"), b"all").unwrap_err().to_string().contains("OOM"));
    // Room can be made, although deleting notes something too.
    store.delete_manifest(&name("m")).unwrap();
    let mut client = server.client();
    let _: () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("200mb").query(&mut client).unwrap();
    save().unwrap();
    let hashes: Vec<_> = data.iter().map(|data| hash(data)).collect();
    for (got, data) in server.open("").get_chunks(&hashes).unwrap().iter().zip(&data) {
        assert_eq!(got.as_ref().unwrap(), data);
    }
}

#[test]
fn an_evicting_server_never_gets_a_manifest_published_without_its_chunks() {
    let server = server!("--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru");
    let store = server.open("");
    let save = |n: u64| -> Result<(), StoreError> {
        for data in (0..n).map(|n| bytes(n, 1 << 20)) {
            store.put_chunk(&hash(&data), &data)?;
        }
        store.put_manifest(&name("m"), b"all")
    };
    save(4).unwrap();
    let error = save(40).unwrap_err();
    assert!(matches!(error, StoreError::Collected { .. }), "{error}");
}

#[test]
fn options_come_from_the_environment() {
    // Read in a process of its own: setting variables here would be seen by other tests.
    if std::env::var_os("TRANSLOAD_REDIS_PASSWORD").is_none() {
        let options = RedisOptions::from_env();
        assert_eq!((options.password, options.ca_file), (None, None));
    }
}

#[test]
fn keeps_the_contract() {
    let server = server!();
    contract("redis", Compares::InOneStep, &|| Arc::new(server.open("/0/some/prefix")));
}

/// Uses a server as the tier below a folder, above one, and below memory and a folder.
#[test]
fn keeps_the_contract_as_a_tier() {
    let server = server!();
    let folder = quick_folder();
    for (n, kinds) in ["fr", "rf", "mfr"].into_iter().enumerate() {
        for write in [Write::Through, Write::Back] {
            let place = format!("{n}{write:?}");
            let memory = MemoryStore::new();
            let tier = |kind| match kind {
                'm' => Tier::memory("memory", memory.clone()),
                'r' => Tier::new("redis", Arc::new(server.open(&format!("/0/{place}")))),
                _ => {
                    let path = folder.path().join(&place);
                    let store = FileStore::open(path, FileOptions::default()).unwrap();
                    Tier::new("file", Arc::new(store))
                }
            };
            contract(&format!("{kinds} {write:?}"), Compares::InOneStep, &|| {
                Arc::new(TierStore::new(kinds.chars().map(tier).collect(), write).unwrap())
            });
        }
    }
}
