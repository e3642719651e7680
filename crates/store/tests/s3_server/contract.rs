//! The requirements of `kv_store_v1` on a backend.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use transload_store::backend::s3::{S3Options, S3Store};
use transload_store::{Backend, Put, StoreError};
use transload_test_stores::s3::{Impostor, Server};
use transload_test_stores::{Compares, bytes, contract, hash, name};

/// Runs a test with both servers.
fn both(test: impl Fn(&Server)) {
    test(&Server::s3s());
    if let Some(moto) = Server::moto() {
        test(&moto);
    }
}

#[test]
fn every_name_is_kept_and_listed() {
    both(|server| {
        let store = server.open("/kv");
        let long = ["x".repeat(1024), "/".repeat(1024), "ключ/".repeat(100)];
        let mut names = vec!["", "..", "../x", "/", "c", "a\nb\r\n", "ключ", "*", "%2e"];
        names.extend(long.iter().map(String::as_str));
        for other in &names {
            store.put_manifest(&name(other), other.as_bytes()).unwrap();
        }
        let names_: Vec<_> = names.iter().map(|other| name(other)).collect();
        let got = server.open("/kv").get_manifests(&names_).unwrap();
        for (name, got) in names.iter().zip(got) {
            assert_eq!(got.unwrap(), *name);
        }
        let mut listed = Vec::new();
        let inventory = store.inventory().unwrap();
        inventory
            .manifests(&mut |entry| {
                listed.push((entry.name.to_string(), entry.bytes));
                Ok(())
            })
            .unwrap();
        let mut expected: Vec<_> = names.iter().map(|name| (name.to_string(), name.len() as u64)).collect();
        expected.sort();
        listed.sort();
        assert_eq!(listed, expected);
    });
}

#[test]
fn the_nearest_ancestor_that_is_a_store_is_the_root() {
    let server = Server::s3s();
    let root = server.open("/models/kv");
    let slot = server.open("/models/kv/slot1/x");
    let data = bytes(1, 100);
    slot.put_chunk(&hash(&data), &data).unwrap();
    slot.put_manifest(&name("m"), b"1").unwrap();
    assert_eq!(root.get_manifest(&name("slot1/x/m")).unwrap().unwrap(), "1");
    assert_eq!(root.put_chunk(&hash(&data), &data).unwrap(), Put::AlreadyThere);
    // Elsewhere is another store.
    let other = server.open("/models");
    assert_eq!(other.get_chunk(&hash(&data)).unwrap(), None);
    assert_eq!(server.open("/models/kv").get_manifest(&name("slot1/x/m")).unwrap().unwrap(), "1");
}

#[test]
fn large_values_go_in_parts() {
    both(|server| {
        let mut options = server.options();
        options.part_bytes = 5 << 20;
        options.pending_bytes = 8 << 20;
        let store = S3Store::open(&"s3://bucket/kv".parse().unwrap(), options).unwrap();
        for len in [(5 << 20) - 16, (5 << 20) - 15, 10 << 20, (64 << 20) + 7] {
            let data = bytes(len as u64, len);
            assert_eq!(store.put_chunk(&hash(&data), &data).unwrap(), Put::Stored);
            store.put_manifest(&name("large"), &data[..len / 4]).unwrap();
            assert!(store.get_chunk(&hash(&data)).unwrap().unwrap() == data, "{len}");
            assert!(store.get_manifest(&name("large")).unwrap().unwrap() == data[..len / 4]);
        }
    });
}

#[test]
fn works_inside_a_runtime() {
    let server = Server::s3s();
    for threads in [1, 2] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
        runtime.block_on(async {
            // On the runtime's own threads, opening and dropping too.
            let store = server.open("/kv");
            store.put_chunk(&hash(b"x"), b"x").unwrap();
            store.put_manifest(&name("m"), b"1").unwrap();
            drop(store);
            let uri = "s3://bucket/kv".parse().unwrap();
            let options = server.options();
            let worker = tokio::spawn(async move {
                let store = S3Store::open(&uri, options).unwrap();
                store.get_chunks(&[hash(b"x"), hash(b"y")]).unwrap()
            });
            let got = worker.await.unwrap();
            assert_eq!(got, [Some("x".into()), None]);
        });
    }
}

#[test]
fn batches_and_prefetched_chunks_come_in_order() {
    let server = Server::s3s();
    let mut options = server.options();
    options.ahead_bytes = 300_000;
    let store = S3Store::open(&"s3://bucket".parse().unwrap(), options).unwrap();
    let chunks: Vec<_> = (0..100_u64).map(|n| bytes(n, 10_000)).collect();
    let hashes: Vec<_> = chunks.iter().map(|data| hash(data)).collect();
    for (key, data) in hashes.iter().zip(&chunks) {
        store.put_chunk(key, data).unwrap();
    }
    store.put_manifest(&name("m"), b"").unwrap();
    store.prefetch_chunks(&hashes).unwrap();
    store.prefetch_chunks(&[hash(b"nobody")]).unwrap();
    for (key, data) in hashes.iter().zip(&chunks) {
        assert_eq!(store.get_chunk(key).unwrap().unwrap(), data);
    }
    assert_eq!(store.get_chunk(&hash(b"nobody")).unwrap(), None);
    for (got, data) in store.get_chunks(&hashes).unwrap().iter().zip(&chunks) {
        assert_eq!(got.as_ref().unwrap(), data);
    }
}

#[test]
fn a_changed_byte_is_an_error() {
    let server = Server::s3s();
    let store = server.open("/kv");
    let data = bytes(1, 50);
    store.put_chunk(&hash(&data), &data).unwrap();
    store.put_manifest(&name("m"), &data).unwrap();
    let chunk = server.file(&format!("kv/c/{}", hash(&data)));
    for (file, is_chunk) in [(chunk, true), (server.file("kv/m/n-m"), false)] {
        let whole = std::fs::read(&file).unwrap();
        let read = || {
            if is_chunk { store.get_chunk(&hash(&data)) } else { store.get_manifest(&name("m")) }
        };
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            std::fs::write(&file, changed).unwrap();
            assert!(matches!(read(), Err(StoreError::Damaged { .. })), "byte {at}");
        }
        std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        assert!(read().is_err());
        std::fs::write(&file, &whole).unwrap();
        assert_eq!(read().unwrap().unwrap(), data);
    }
}

#[test]
fn an_old_chunk_that_is_found_becomes_young_with_the_bytes_it_had() {
    let server = Server::s3s();
    let mut options = server.options();
    options.refresh = Duration::ZERO;
    let store = S3Store::open(&"s3://bucket/kv".parse().unwrap(), options).unwrap();
    let data = bytes(1, 100);
    let key = hash(&data);
    store.put_chunk(&key, &data).unwrap();
    store.put_manifest(&name("m"), b"").unwrap();
    let modified = || std::fs::metadata(server.file(&format!("kv/c/{key}"))).unwrap().modified().unwrap();
    let before = modified();
    assert_eq!(store.put_chunk(&key, b"other bytes").unwrap(), Put::AlreadyThere);
    store.put_manifest(&name("m"), b"").unwrap();
    assert!(modified() > before);
    assert_eq!(store.get_chunk(&key).unwrap().unwrap(), data);
    // One that was found and then collected is noticed.
    let other = server.open("/kv");
    assert_eq!(other.put_chunk(&key, &data).unwrap(), Put::AlreadyThere);
    let mut options = server.options();
    options.refresh = Duration::ZERO;
    let saver = S3Store::open(&"s3://bucket/kv".parse().unwrap(), options).unwrap();
    saver.put_chunk(&key, &data).unwrap();
    // From another thread: everything is acknowledged, and this thread's manifest is still to come.
    std::thread::scope(|scope| {
        let first = scope.spawn(|| saver.put_manifest(&name("first"), b"").unwrap());
        first.join().unwrap();
    });
    std::fs::remove_file(server.file(&format!("kv/c/{key}"))).unwrap();
    let error = saver.put_manifest(&name("second"), b"").unwrap_err();
    assert!(matches!(error, StoreError::Collected { hash } if hash == key), "{error}");
    assert_eq!(saver.get_manifest(&name("second")).unwrap(), None);
}

#[test]
fn what_was_found_damaged_is_healed_by_putting_it_again() {
    let server = Server::s3s();
    let store = server.open("/kv");
    let data = bytes(1, 1000);
    let key = hash(&data);
    store.put_chunk(&key, &data).unwrap();
    store.put_manifest(&name("m"), b"").unwrap();
    server.put(&format!("kv/c/{key}"), b"damaged");
    let (first, second) = (server.open("/kv"), server.open("/kv"));
    for store in [&first, &second] {
        let error = store.get_chunks(&[key]).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
    assert_eq!(first.put_chunk(&key, &data).unwrap(), Put::Stored);
    first.put_manifest(&name("m"), b"").unwrap();
    assert_eq!(first.put_chunk(&key, &data).unwrap(), Put::AlreadyThere);
    // Another one that found it damaged leaves it now.
    second.put_chunk(&key, b"other").unwrap();
    second.put_manifest(&name("m"), b"").unwrap();
    assert_eq!(server.open("/kv").get_chunk(&key).unwrap().unwrap(), data);
}

#[test]
fn what_could_not_be_made_young_is_made_so_by_the_next_attempt() {
    let mut server = Server::s3s();
    let uri = "s3://bucket/kv".parse().unwrap();
    let store = S3Store::open(&uri, server.options()).unwrap();
    // Takes a while, and goes in one part.
    let data = bytes(1, 15 << 20);
    let key = hash(&data);
    store.put_chunk(&key, &data).unwrap();
    store.put_manifest(&name("m"), b"").unwrap();
    let file = server.file(&format!("kv/c/{key}"));
    let modified = || std::fs::metadata(&file).unwrap().modified().unwrap();
    let hour = Duration::from_secs(3600);
    let old = modified() - hour;
    let options = std::fs::File::options().write(true).open(&file);
    options.unwrap().set_modified(old).unwrap();
    assert_eq!(store.put_chunk(&key, &data).unwrap(), Put::AlreadyThere);
    server.kill();
    // The first attempt ends after the server did.
    store.put_manifest(&name("m"), b"").unwrap_err();
    assert_eq!(modified(), old);
    server.start();
    store.put_manifest(&name("m"), b"").unwrap();
    assert!(modified() > old + hour / 2);
}

#[test]
fn a_manifest_that_fails_disarms_no_other_thread() {
    let mut server = Server::s3s();
    let mut options = server.options();
    // So that everything is asked for again.
    options.refresh = Duration::ZERO;
    let store = S3Store::open(&"s3://bucket/kv".parse().unwrap(), options).unwrap();
    let [mine, theirs] = [1, 2].map(|n| bytes(n, 1000));
    let put = |data: &[u8]| store.put_chunk(&hash(data), data).map(drop).unwrap();
    let collected = |data: &[u8], result: Result<(), StoreError>| match result {
        Err(StoreError::Collected { hash: lost }) => assert_eq!(lost, hash(data)),
        other => panic!("{other:?}"),
    };
    let step = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            put(&theirs);
            step.wait();
            step.wait();
            // While the server is gone nothing can be said, and nothing is forgotten.
            let error = store.put_manifest(&name("theirs"), b"no hashes");
            assert!(!matches!(error, Ok(()) | Err(StoreError::Collected { .. })));
            step.wait();
            step.wait();
            // Other manifests have been published and have failed since.
            collected(&theirs, store.put_manifest(&name("theirs"), b"no hashes"));
            store.put_manifest(&name("another"), b"save").unwrap();
            let manifest = hash(&theirs).to_string();
            let failed = store.put_manifest(&name("theirs"), manifest.as_bytes());
            collected(&theirs, failed);
            put(&theirs);
            let name = name("theirs");
            store.put_manifest(&name, manifest.as_bytes()).unwrap();
        });
        step.wait();
        put(&mine);
        // All of it has been acknowledged.
        store.put_manifest(&name("first"), b"").unwrap();
        put(&mine);
        store.put_manifest(&name("second"), b"").unwrap();
        server.kill();
        step.wait();
        step.wait();
        std::fs::remove_file(server.file(&format!("kv/c/{}", hash(&theirs)))).unwrap();
        server.start();
        put(&mine);
        std::thread::scope(|scope| {
            let third = scope.spawn(|| store.put_manifest(&name("third"), b"").unwrap());
            third.join().unwrap();
        });
        std::fs::remove_file(server.file(&format!("kv/c/{}", hash(&mine)))).unwrap();
        collected(&mine, store.put_manifest(&name("mine"), b"no hashes"));
        put(&mine);
        store.put_manifest(&name("mine"), b"no hashes").unwrap();
        step.wait();
    });
    assert_eq!(store.get_chunk(&hash(&theirs)).unwrap().unwrap(), theirs);
}

#[test]
fn opening_what_is_there_makes_nothing() {
    let server = Server::s3s();
    let open = |uri: &str| S3Store::open_existing(&uri.parse().unwrap(), server.options());
    for uri in ["s3://bucket", "s3://bucket/kv", "s3://bucket/kv/slot"] {
        let error = open(uri).unwrap_err();
        assert!(matches!(error, StoreError::NotThere { .. }), "{error}");
        assert!(error.to_string().contains(uri), "{error}");
    }
    assert_eq!(server.file("").read_dir().unwrap().count(), 0);
    server.open("/kv").put_manifest(&name("slot/m"), b"1").unwrap();
    let slot = open("s3://bucket/kv/slot").unwrap();
    assert_eq!(slot.get_manifest(&name("m")).unwrap().unwrap(), "1");
    assert!(open("s3://bucket/other").is_err());
}

#[test]
fn without_credentials_it_says_which_variables_to_set() {
    let credentials = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SKIP_SIGNATURE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_METADATA_ENDPOINT",
    ];
    if let Some(set) = credentials.iter().find(|name| std::env::var_os(name).is_some()) {
        println!("NOT RUN: the environment has credentials, or where to get them: {set}");
        return;
    }
    // Endpoints of the service that gives instances their credentials: one where nothing listens, and one that never
    // answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let keys = ["aws_access_key_id", "aws_secret_access_key"];
    let one = keys.map(|key| S3Options::default().with_config(key, "hunter2"));
    let none = ["http://127.0.0.1:1", &silent].map(|endpoint| {
        let mut options = S3Options::default().with_config("aws_metadata_endpoint", endpoint);
        options.timeout = Duration::from_secs(1);
        options
    });
    for options in one.into_iter().chain(none) {
        let error = S3Store::open(&"s3://bucket/kv".parse().unwrap(), options);
        let error = error.unwrap_err().to_string();
        for variable in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"] {
            assert!(error.contains(variable), "{error}");
        }
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn an_object_that_is_too_short_is_damaged() {
    both(|server| {
        let store = server.open("/kv");
        let key = hash(b"a chunk");
        for content in [&b""[..], b"short"] {
            server.put(&format!("kv/c/{key}"), content);
            let error = store.get_chunk(&key).unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        }
    });
}

#[test]
fn what_a_server_does_not_know_is_asked_once() {
    type Ask = fn(&S3Store) -> Result<(), StoreError>;
    let cases: [(&str, Ask); 5] = [
        ("HeadObject", |store| store.put_chunk(&hash(b"x"), b"x").map(drop)),
        ("GetObject", |store| store.get_chunk(&hash(b"x")).map(drop)),
        ("PutObject", |store| store.put_manifest(&name("m"), b"m")),
        ("DeleteObject", |store| store.delete_manifest(&name("m"))),
        ("ListObjectsV2", |store| store.inventory().unwrap().usage().map(drop)),
    ];
    for (operation, ask) in cases {
        let mut server = Server::s3s();
        let store = server.open("/kv");
        server.restart_without(operation);
        let error = ask(&store).unwrap_err().to_string();
        assert!(error.contains("501 Not Implemented"), "{error}");
        assert_eq!(server.refused(), 1, "{operation}: {error}");
    }
}

#[test]
fn no_length_of_an_object_is_believed() {
    let server = Impostor::start(|path| match path.ends_with("/kv_store_format") {
        true => (b"transload kv_store s3 1\n".to_vec(), 24),
        false => (vec![7; 16 << 20], 1 << 40),
    });
    let store = S3Store::open(&"s3://bucket/kv".parse().unwrap(), server.options()).unwrap();
    let error = store.get_chunk(&hash(b"a chunk")).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn says_what_is_wrong() {
    both(|server| {
        let error = server.try_open("s3://nobody/kv").unwrap_err().to_string();
        assert!(error.contains("nobody") && error.contains("no such bucket"), "{error}");
        // It was not made either.
        assert!(server.try_open("s3://nobody/kv").is_err());
        assert!(server.try_open("s3://bucket/../kv").is_err());
    });
    let server = Server::s3s();
    let open = |uri: &str, options| S3Store::open(&uri.parse().unwrap(), options);
    let wrong = server.options().with_config("aws_secret_access_key", "hunter2");
    let error = open("s3://bucket/kv", wrong).unwrap_err().to_string();
    assert!(!error.contains("hunter2"), "{error}");
    let gone = server.options().with_config("aws_endpoint_url", "http://127.0.0.1:1");
    assert!(open("s3://bucket/kv", gone).is_err());
    assert!(!format!("{:?}", server.options()).contains("secret\""));
}

#[test]
fn a_store_of_another_version_is_not_touched() {
    let server = Server::s3s();
    drop(server.open("/kv"));
    std::fs::write(server.file("kv/kv_store_format"), "transload kv_store s3 2\n").unwrap();
    for uri in ["s3://bucket/kv", "s3://bucket/kv/slot"] {
        let error = server.try_open(uri).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
}

#[test]
fn keeps_the_contract() {
    both(|server| contract("s3", Compares::InTwo, &|| Arc::new(server.open("/kv"))));
}
