//! `redis`, beside the client library that it is made with, used for the same bytes in one pipeline.

use std::sync::Arc;

use redis::{Connection, pipe};
use transload::store::{Backend, open};

use super::server::Server;
use super::{Chunks, failed, manifest, name, refused, same};
use crate::commands::bench::course::{Course, timed};
use crate::commands::bench::measure::Figure;
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

/// Cases of the course: put and get.
pub(super) const CASES: usize = 2;

/// 16 MiB, in chunks of 256 KiB.
const COUNT: usize = 64;
const CHUNK: usize = 256 << 10;

pub(super) fn run(course: &mut Course, server: &Server) -> Result<Vec<Figure>, Failure> {
    let put = "redis, put 256 KiB chunks";
    course.prepare(put);
    let mut chunks = Chunks::new(COUNT, CHUNK);
    let keys = chunks.keys();
    let manifest = manifest(&keys);
    let name = name("save")?;
    let mut plain = server.connect()?;
    let mut save = || -> Result<f64, Failure> {
        let store = connected(server)?;
        server.clear()?;
        let (done, time) = timed(|| {
            for (key, chunk) in keys.iter().zip(chunks.all()) {
                store.put_chunk(key, chunk)?;
            }
            store.put_manifest(&name, &manifest)
        });
        done.map_err(failed)?;
        Ok(gigabytes_per_second(chunks.len(), time))
    };
    let set = |plain: &mut Connection| -> Result<f64, Failure> {
        let (done, time) = timed(|| {
            let mut pipe = pipe();
            for (key, chunk) in keys.iter().zip(chunks.all()) {
                pipe.cmd("SET").arg(key.as_bytes()).arg(chunk).ignore();
            }
            pipe.exec(plain)
        });
        done.map_err(refused(&server.uri))?;
        Ok(gigabytes_per_second(chunks.len(), time))
    };
    let rounds = course.in_turns(put, [&mut save, &mut || set(&mut plain)])?;
    let baseline = "a plain pipelined client";
    let mut figures = vec![Figure::new(put, "GB/s", baseline, &rounds, [0, 1])];

    let get = "redis, get 256 KiB chunks";
    course.prepare(get);
    let read = || -> Result<f64, Failure> {
        let store = connected(server)?;
        let (read, time) = timed(|| store.get_chunks(&keys));
        for (read, stored) in read.map_err(failed)?.iter().zip(chunks.all()) {
            same(read.as_deref(), stored)?;
        }
        Ok(gigabytes_per_second(chunks.len(), time))
    };
    let get_plain = |plain: &mut Connection| -> Result<f64, Failure> {
        let (read, time) = timed(|| {
            let mut pipe = pipe();
            for key in &keys {
                pipe.cmd("GET").arg(key.as_bytes());
            }
            pipe.query::<Vec<Vec<u8>>>(plain)
        });
        let read = read.map_err(refused(&server.uri))?;
        for (read, stored) in read.iter().zip(chunks.all()) {
            same(Some(read), stored)?;
        }
        Ok(gigabytes_per_second(chunks.len(), time))
    };
    let rounds = course.in_turns(get, [&mut || read(), &mut || get_plain(&mut plain)])?;
    figures.push(Figure::new(get, "GB/s", baseline, &rounds, [0, 1]));
    server.clear()?;
    Ok(figures)
}

/// A handle that knows nothing of earlier rounds, and has its connection.
fn connected(server: &Server) -> Result<Arc<dyn Backend>, Failure> {
    let store = open(&server.uri).map_err(failed)?;
    store.get_manifest(&name("none")?).map_err(failed)?;
    Ok(store)
}
