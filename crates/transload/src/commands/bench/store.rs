//! `bench store`: the backends of this build, each compared with a plain program that moves the same bytes.

mod chunks;
mod cold;
mod file;
mod prefix;
mod redis;
mod server;
mod tiers;

use std::path::PathBuf;

use clap::ValueHint;

use super::measure::Figure;
use super::schedule::{Limits, Schedule};
use crate::failure::Failure;
use chunks::{Chunks, failed, manifest, name, refused, same};

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
