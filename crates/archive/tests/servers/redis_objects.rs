//! Objects on a server.

use std::sync::Arc;

use redis::Commands;
use transload_archive::objects::{Objects, PIECE, Target};
use transload_store::{Backend, Put};
use transload_test_stores::server;

use crate::model::{content, get, live, put, steps};

#[test]
fn they_are_a_map() {
    let server = server!();
    live(&|| Arc::new(server.open("/0/slot")), steps(1000), 3);
}

/// The maximum number of round trips for reading 128 small objects.
const MOST_ROUND_TRIPS: u64 = 12;

#[test]
fn a_look_up_and_a_load_are_few_round_trips() {
    let server = server!();
    let keys: Vec<[u8; 4]> = (0..128_u32).map(u32::to_le_bytes).collect();
    let writer = Objects::new(Arc::new(server.open("")), b"ns").unwrap();
    for key in &keys {
        put(&writer, key, b"", key);
    }
    let store = Arc::new(server.open(""));
    let shared: Arc<dyn Backend> = store.clone();
    let objects = Objects::new(shared, b"ns").unwrap();
    let before = store.round_trips();
    let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    assert!(objects.has(&asked).unwrap().iter().all(Option::is_some));
    assert_eq!(store.round_trips() - before, 1);

    let mut memory = vec![[0; 4]; keys.len()];
    let mut parts: Vec<_> = memory.iter_mut().map(|bytes| [bytes.into()]).collect();
    let targets = asked.iter().zip(&mut parts);
    let mut targets: Vec<_> = targets.map(|(key, parts)| Target { key, parts }).collect();
    let before = store.round_trips();
    assert!(objects.get(&mut targets).unwrap().iter().all(Option::is_some));
    let trips = store.round_trips() - before;
    assert!(trips <= MOST_ROUND_TRIPS, "{trips}");
    assert_eq!(memory, keys);
}

/// The server evicts a piece, or a bit of it flips. One handle finds that out, and another one puts it again.
#[test]
fn whoever_puts_it_heals_it() {
    let server = server!();
    let bytes = content(1, PIECE + 100);
    for is_lost in [true, false] {
        let open = || Objects::new(Arc::new(server.open("")), b"ns").unwrap();
        let (writer, reader) = (open(), open());
        put(&writer, b"one", b"", &bytes);
        let key = format!("transload:c:{}", blake3::hash(&bytes[PIECE..]).to_hex());
        let mut client = server.client();
        match is_lost {
            true => client.del::<_, ()>(&key).unwrap(),
            false => client.setrange::<_, _, ()>(&key, 50, "?!").unwrap(),
        }
        assert_eq!(get(&reader, b"one", bytes.len()), None);
        assert_eq!(put(&writer, b"one", b"", &bytes), Put::Stored);
        for objects in [reader, writer, open()] {
            assert!(get(&objects, b"one", bytes.len()) == Some((vec![], bytes.clone())));
        }
    }
}
