//! Objects in a bucket.

use std::sync::Arc;

use transload_archive::objects::{Objects, PIECE};
use transload_store::Put;
use transload_test_stores::s3::Server;

use crate::model::{content, get, live, put, steps};

#[test]
fn they_are_a_map() {
    for server in std::iter::once(Server::s3s()).chain(Server::moto()) {
        live(&|| Arc::new(server.open("/kv/slot")), steps(200), 4);
    }
}

/// A piece is lost or has other bytes. One handle finds that out, and another one puts it again.
#[test]
fn whoever_puts_it_heals_it() {
    let server = Server::s3s();
    let open = || Objects::new(Arc::new(server.open("/kv")), b"ns").unwrap();
    let bytes = content(1, PIECE + 100);
    let key = format!("kv/c/{}", blake3::hash(&bytes[PIECE..]).to_hex());
    for is_lost in [true, false] {
        let (writer, reader) = (open(), open());
        put(&writer, b"one", b"", &bytes);
        match is_lost {
            true => std::fs::remove_file(server.file(&key)).unwrap(),
            false => server.put(&key, b"damaged"),
        }
        assert_eq!(get(&reader, b"one", bytes.len()), None);
        assert_eq!(put(&writer, b"one", b"", &bytes), Put::Stored);
        for objects in [reader, writer, open()] {
            assert!(get(&objects, b"one", bytes.len()) == Some((vec![], bytes.clone())));
        }
    }
}
