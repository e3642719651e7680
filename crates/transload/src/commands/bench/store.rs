//! `bench store`: the backends of this build, each compared with a plain program that moves the same bytes.

mod cold;
mod file;
mod prefix;
mod redis;
mod server;
mod tiers;

use std::path::PathBuf;

use clap::ValueHint;
use transload::store::{ChunkHash, ManifestName, StoreError};

use super::measure::Figure;
use super::schedule::{Limits, Schedule};
use crate::commands::random::Random;
use crate::failure::{Failure, chain};

/// Where to measure.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder on the disk on which to measure `file`; needs 500 MB of space and is left unchanged. Default: the folder
    /// for temporary files.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,

    /// Redis server to measure: redis://host/15. Its database must be empty; the bench empties it again. Default: the
    /// bench starts a redis-server from PATH, without persistence.
    #[arg(long, value_name = "URI")]
    redis: Option<String>,
}

/// The figures, and notes on what was not measured and why.
pub(super) struct Measured {
    pub(super) figures: Vec<Figure>,
    pub(super) notes: Vec<String>,
}

pub(super) fn run(args: &Args, limits: Limits) -> Result<Measured, Failure> {
    let mut schedule = Schedule::new(limits, file::CASES + tiers::CASES + redis::CASES + prefix::CASES);
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let (mut figures, mut notes) = file::run(&mut schedule, &dir)?;
    figures.extend(tiers::run(&mut schedule, &dir)?);
    let server = match &args.redis {
        Some(uri) => Ok(server::Server::named(uri)?),
        None => server::Server::started()?,
    };
    match server {
        Ok(server) => {
            notes.push(server.description());
            figures.extend(redis::run(&mut schedule, &server)?);
            let (figure, note) = prefix::run(&mut schedule, &server)?;
            figures.extend(figure);
            notes.push(note);
        }
        Err(why) => notes.push(format!("NOT RUN: redis: {why}")),
    }
    Ok(Measured { figures, notes })
}

/// Incompressible bytes with new keys.
struct Chunks {
    bytes: Vec<u8>,
    chunk: usize,
    random: Random,
}

impl Chunks {
    fn new(count: usize, chunk: usize) -> Self {
        let mut random = Random::new(std::process::id().into());
        let mut bytes = Vec::with_capacity(count * chunk);
        while bytes.len() < count * chunk {
            bytes.extend_from_slice(&random.next().to_le_bytes());
        }
        Self { bytes, chunk, random }
    }

    fn all(&self) -> std::slice::ChunksExact<'_, u8> {
        self.bytes.chunks_exact(self.chunk)
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns a random key for each chunk. Keys are not hashes of the chunks: hashing is the consumer's work, and no
    /// store does it.
    fn keys(&mut self) -> Vec<ChunkHash> {
        let count = self.bytes.len() / self.chunk;
        let key = |random: &mut Random| {
            let mut key = [0; 32];
            for part in key.chunks_exact_mut(8) {
                part.copy_from_slice(&random.next().to_le_bytes());
            }
            ChunkHash::from(key)
        };
        (0..count).map(|_| key(&mut self.random)).collect()
    }
}

fn manifest(keys: &[ChunkHash]) -> Vec<u8> {
    keys.iter().flat_map(ChunkHash::as_bytes).copied().collect()
}

fn name(text: &str) -> Result<ManifestName, Failure> {
    ManifestName::new(text).map_err(failed)
}

fn failed(error: StoreError) -> Failure {
    Failure::no(
        format!("the store could not be measured: {}", chain(&error)),
        "does `transload store verify` find faults there?",
    )
}

fn refused<E: std::fmt::Display>(what: impl std::fmt::Display) -> impl FnOnce(E) -> Failure {
    let what = what.to_string();
    move |error| Failure::no(format!("{what}: {error}"), "check the free space and your permission to write there")
}

fn same(read: Option<&[u8]>, stored: &[u8]) -> Result<(), Failure> {
    match read == Some(stored) {
        true => Ok(()),
        false => Err(crate::commands::engines::broken("a chunk was read back with other bytes than were stored")),
    }
}
