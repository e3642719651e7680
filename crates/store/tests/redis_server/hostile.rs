//! Servers that hang, close connections early or send nonsense. The result must be an error, in bounded time.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use transload_store::backend::redis::{RedisOptions, RedisStore};
use transload_store::{Backend, StoreError};
use transload_test_stores::{hash, name};

/// A duration that no call exceeds unless it hangs, even on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// Starts a fake server, which sets up each connection as Redis does and answers everything after that with `answer`.
fn fake(answer: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            std::thread::spawn(move || {
                let mut request = [0; 64 << 10];
                while let Ok(read @ 1..) = stream.read(&mut request) {
                    let request = String::from_utf8_lossy(&request[..read]).into_owned();
                    if request.contains("PING") {
                        // As a server does that is older than the first of these.
                        let opening = b"-ERR unknown command 'HELLO'\r\n+PONG\r\n+OK\r\n";
                        let _ = stream.write_all(opening);
                    } else if request.contains("CONFIG") {
                        let _ = stream.write_all(b"*0\r\n");
                    } else {
                        answer(&mut stream);
                    }
                }
            });
        }
    });
    format!("redis://127.0.0.1:{port}")
}

fn options() -> RedisOptions {
    let timeout = Duration::from_secs(1);
    RedisOptions { connect_timeout: timeout, timeout, ..RedisOptions::default() }
}

fn all_fail(uri: &str) -> Vec<String> {
    let began = Instant::now();
    let store = RedisStore::open(&uri.parse().unwrap(), options()).unwrap();
    let key = hash(b"x");
    let errors: Vec<StoreError> = vec![
        store.get_chunk(&key).unwrap_err(),
        store.put_chunk(&key, b"x").map(drop).unwrap_err(),
        store.get_chunks(&[key; 20]).map(drop).unwrap_err(),
        store.get_manifest(&name("m")).unwrap_err(),
        store.put_manifest(&name("m"), b"m").unwrap_err(),
        store.delete_manifest(&name("m")).unwrap_err(),
        store.inventory().unwrap().usage().map(drop).unwrap_err(),
    ];
    store.prefetch_chunks(&[key; 20]).unwrap();
    drop(store);
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    errors.iter().map(|error| error.to_string()).collect()
}

#[test]
fn a_server_that_hangs() {
    for error in all_fail(&fake(|_| {})) {
        assert!(error.contains("did not answer within 1s"), "{error}");
    }
    // Already when opening.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("redis://{}", listener.local_addr().unwrap());
    let error = RedisStore::open(&uri.parse().unwrap(), options()).unwrap_err();
    assert!(error.to_string().contains("did not answer"), "{error}");
}

#[test]
fn a_server_that_is_not_there() {
    let port = transload_test_stores::redis::free_port();
    let uri = format!("redis://127.0.0.1:{port}").parse().unwrap();
    let error = RedisStore::open(&uri, options()).unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
}

#[test]
fn a_server_that_breaks_off_in_the_middle_of_a_value() {
    let stop = |stream: &mut TcpStream| {
        let _ = stream.write_all(b"$262160\r\nTLv1 and no more");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    };
    all_fail(&fake(stop));
}

#[test]
fn a_server_that_talks_nonsense() {
    let cases = [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"+OK\r\n",
        b"*100000\r\n",
        b"$99999999999999\r\n",
        b"-ERR this server wants nothing\r\n",
        b"*2\r\n+a\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        &[0xff; 100_000],
    ];
    // Most of it is waiting, so all at once.
    std::thread::scope(|scope| {
        for nonsense in cases {
            scope.spawn(move || {
                all_fail(&fake(move |stream| {
                    for _ in 0..30 {
                        let _ = stream.write_all(nonsense);
                    }
                }))
            });
        }
    });
}

#[test]
fn a_value_with_a_header_that_lies() {
    let mut value = b"TLv1\0\0\0\0".to_vec();
    value.extend(u64::MAX.to_le_bytes());
    let reply = [format!("${}\r\n", value.len()).into_bytes(), value, b"\r\n".to_vec()].concat();
    let store =
        RedisStore::open(&fake(move |stream| drop(stream.write_all(&reply))).parse().unwrap(), options()).unwrap();
    let error = store.get_chunk(&hash(b"x")).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}
