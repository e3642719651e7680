//! The `redis` backend against a plain pipelined client of the same server, in one run.
//!
//! `cargo bench -p transload-benches --bench store_redis`: starts a `redis-server` of its own without
//! persistence, puts and gets chunks of 256 KiB through both, in turns, and prints medians and their ratio.
//! The plain client is the `redis` crate: pipelines of 32 `SET` or `GET`.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use transload_store::backend::redis::{RedisOptions, RedisStore};
use transload_store::{Backend, ChunkHash, ManifestName};

const CHUNK: usize = 256 << 10;
const CHUNKS: usize = 512;
const TOGETHER: usize = 32;
const ROUNDS: usize = 9;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let server = Command::new("redis-server")
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ])
        .stdout(Stdio::null())
        .spawn();
    let _server = match server {
        Ok(server) => Server(server),
        Err(error) => {
            println!("NOT RUN: redis-server: {error}");
            return;
        }
    };
    let uri = format!("redis://127.0.0.1:{port}/0");
    let began = Instant::now();
    let store = loop {
        match RedisStore::open(&uri.parse().unwrap(), RedisOptions::default()) {
            Ok(store) => break store,
            Err(error) if began.elapsed() > Duration::from_secs(10) => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut plain = redis::Client::open(uri).unwrap().get_connection().unwrap();
    // Different bytes, so that nothing is compressed away; the hashes are not part of what is measured.
    let chunks: Vec<Vec<u8>> = (0..CHUNKS as u64)
        .map(|n| {
            let mut data = vec![0; CHUNK];
            blake3::Hasher::new()
                .update(&n.to_le_bytes())
                .finalize_xof()
                .fill(&mut data);
            data
        })
        .collect();
    let hashes: Vec<ChunkHash> = chunks
        .iter()
        .map(|data| blake3::hash(data).into())
        .collect();
    let keys: Vec<String> = hashes.iter().map(|hash| format!("plain:{hash}")).collect();
    let name = ManifestName::new("bench").unwrap();

    let mut times: [Vec<Duration>; 7] = Default::default();
    for _ in 0..ROUNDS {
        let _: () = redis::cmd("FLUSHDB").query(&mut plain).unwrap();
        times[0].push(time(|| {
            for (keys, chunks) in keys.chunks(TOGETHER).zip(chunks.chunks(TOGETHER)) {
                let mut pipe = redis::pipe();
                for (key, data) in keys.iter().zip(chunks) {
                    pipe.set(key, data.as_slice()).ignore();
                }
                pipe.exec(&mut plain).unwrap();
            }
        }));
        times[1].push(time(|| {
            for keys in keys.chunks(TOGETHER) {
                let mut pipe = redis::pipe();
                for key in keys {
                    pipe.get(key);
                }
                let values: Vec<Vec<u8>> = pipe.query(&mut plain).unwrap();
                assert!(values.iter().all(|value| value.len() == CHUNK));
            }
        }));
        let _: () = redis::cmd("FLUSHDB").query(&mut plain).unwrap();
        let save = || {
            for (hash, data) in hashes.iter().zip(&chunks) {
                store.put_chunk(hash, data).unwrap();
            }
            store.put_manifest(&name, b"").unwrap();
        };
        times[2].push(time(save));
        times[3].push(time(|| {
            for hashes in hashes.chunks(TOGETHER) {
                let values = store.get_chunks(hashes).unwrap();
                assert!(values.iter().flatten().all(|value| value.len() == CHUNK));
            }
        }));
        times[4].push(time(|| {
            for hash in &hashes {
                assert_eq!(store.get_chunk(hash).unwrap().unwrap().len(), CHUNK);
            }
        }));
        times[5].push(time(|| {
            store.prefetch_chunks(&hashes).unwrap();
            for hash in &hashes {
                assert_eq!(store.get_chunk(hash).unwrap().unwrap().len(), CHUNK);
            }
        }));
        times[6].push(time(save));
    }
    let [put, get, our_put, batch, single, ahead, warm] = times.map(median);
    let rate = |time: Duration| (CHUNKS * CHUNK) as f64 / time.as_secs_f64() / 1e9;
    println!(
        "{CHUNKS} chunks of {} KiB, median of {ROUNDS} rounds in turns",
        CHUNK >> 10
    );
    println!("plain put  {:6.2} GB/s", rate(put));
    println!(
        "our put    {:6.2} GB/s  ratio {:.2}",
        rate(our_put),
        ratio(put, our_put)
    );
    println!("plain get  {:6.2} GB/s", rate(get));
    println!(
        "get_chunks {:6.2} GB/s  ratio {:.2}",
        rate(batch),
        ratio(get, batch)
    );
    println!(
        "get_chunk  {:6.2} GB/s  ratio {:.2}",
        rate(single),
        ratio(get, single)
    );
    println!(
        "prefetched {:6.2} GB/s  ratio {:.2}",
        rate(ahead),
        ratio(get, ahead)
    );
    println!("warm save  {:6.2} ms", warm.as_secs_f64() * 1e3);
}

fn time(what: impl FnOnce()) -> Duration {
    let began = Instant::now();
    what();
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn ratio(plain: Duration, ours: Duration) -> f64 {
    plain.as_secs_f64() / ours.as_secs_f64()
}
