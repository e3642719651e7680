//! Benchmarks of `redis`, compared with pipelines of the client library that it is built on.

use redis::{Connection, pipe};
use transload::store::backend::redis::RedisStore;
use transload::store::{Backend, StoreError};

use super::server::Server;
use super::{Chunks, failed, manifest, name, refused, same};
use crate::commands::bench::measure::Figure;
use crate::commands::bench::schedule::{Schedule, timed};
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

/// The number of cases: put and get.
pub(super) const CASES: usize = 2;

/// 16 MiB, in chunks of 256 KiB.
const COUNT: usize = 64;
const CHUNK: usize = 256 << 10;

/// The commands of one pipeline of the plain client: 8 MiB, as for a client that has to bound its memory.
const PIPELINE: usize = 32;

pub(super) fn run(schedule: &mut Schedule, server: &Server) -> Result<Vec<Figure>, Failure> {
    let put = "redis, put 256 KiB chunks";
    schedule.prepare(put);
    let mut chunks = Chunks::new(COUNT, CHUNK);
    let keys = chunks.keys();
    let manifest = manifest(&keys);
    let name = name("save")?;
    let save = |store: &RedisStore| -> Result<(), StoreError> {
        for (key, chunk) in keys.iter().zip(chunks.all()) {
            store.put_chunk(key, chunk)?;
        }
        store.put_manifest(&name, &manifest)
    };
    let set = |plain: &mut Connection| {
        let all: Vec<_> = keys.iter().zip(chunks.all()).collect();
        all.chunks(PIPELINE).try_for_each(|some| {
            let mut pipe = pipe();
            for (key, chunk) in some {
                pipe.cmd("SET").arg(key.as_bytes()).arg(chunk).ignore();
            }
            pipe.exec(plain)
        })
    };
    let mut plain = server.connect()?;
    let rounds = schedule.in_turns::<Failure, 2>(
        put,
        [
            &mut || {
                let store = connected(server)?;
                server.clear()?;
                let (done, time) = timed(|| save(&store));
                done.map_err(failed)?;
                Ok(gigabytes_per_second(chunks.len(), time))
            },
            &mut || {
                server.clear()?;
                let (done, time) = timed(|| set(&mut plain));
                done.map_err(refused(&server.uri))?;
                Ok(gigabytes_per_second(chunks.len(), time))
            },
        ],
    )?;
    let baseline = "a plain client's pipelines of 32";
    let mut figures = vec![Figure::new(put, "GB/s", baseline, &rounds, [0, 1])];

    let get = "redis, get 256 KiB chunks";
    schedule.prepare(get);
    server.clear()?;
    save(&connected(server)?).map_err(failed)?;
    set(&mut plain).map_err(refused(&server.uri))?;
    let get_plain = |plain: &mut Connection| {
        let mut values: Vec<Vec<u8>> = Vec::with_capacity(COUNT);
        for keys in keys.chunks(PIPELINE) {
            let mut pipe = pipe();
            for key in keys {
                pipe.cmd("GET").arg(key.as_bytes());
            }
            values.extend(pipe.query::<Vec<Vec<u8>>>(plain)?);
        }
        redis::RedisResult::Ok(values)
    };
    // One connection each for all rounds, since the TCP windows of a new one are small.
    let store = connected(server)?;
    let rounds = schedule.in_turns::<Failure, 2>(
        get,
        [
            &mut || {
                let (read, time) = timed(|| store.get_chunks(&keys));
                for (read, stored) in read.map_err(failed)?.iter().zip(chunks.all()) {
                    same(read.as_deref(), stored)?;
                }
                Ok(gigabytes_per_second(chunks.len(), time))
            },
            &mut || {
                let (read, time) = timed(|| get_plain(&mut plain));
                let read = read.map_err(refused(&server.uri))?;
                for (read, stored) in read.iter().zip(chunks.all()) {
                    same(Some(read), stored)?;
                }
                Ok(gigabytes_per_second(chunks.len(), time))
            },
        ],
    )?;
    figures.push(Figure::new(get, "GB/s", baseline, &rounds, [0, 1]));
    server.clear()?;
    Ok(figures)
}

/// Opens a connected handle without any state of earlier rounds.
fn connected(server: &Server) -> Result<RedisStore, Failure> {
    let store = server.open()?;
    store.get_manifest(&name("none")?).map_err(failed)?;
    Ok(store)
}
