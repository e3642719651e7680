//! Benchmark: finding the longest saved prefix of a long prompt, compared with getting as many values by one command.

use std::sync::Arc;

use redis::cmd;
use transload::archive::{Archive, ArchiveError, Model, Prompt, SaveRequest, TOKEN_CHUNK};
use transload::layout::{Deployment, Rank};
use transload::store::Backend;
use transload::transfer::{BlockTable, Memory, Tables};

use super::server::Server;
use super::{failed, refused};
use crate::commands::bench::measure::Figure;
use crate::commands::bench::schedule::{Schedule, timed};
use crate::commands::engines::broken;
use crate::commands::shapes::Llama;
use crate::failure::{Failure, chain};

pub(super) const CASES: usize = 1;

/// The prompt's length: 512 token chunks.
const TOKENS: u32 = 128 << 10;

/// A model with a small cache, since only names are looked up: 8 heads on two layers.
const MODEL: Llama = Llama {
    name: "saver",
    model: "small",
    layers: 2,
    heads: 8,
    tp: 1,
    block_size: TOKENS,
    num_blocks: 1,
    order: "NHD",
};

pub(super) fn run(schedule: &mut Schedule, server: &Server) -> Result<(Vec<Figure>, String), Failure> {
    let name = "redis, longest prefix, 128 K tokens";
    schedule.prepare(name);
    let store = Arc::new(server.open()?);
    let deployment = MODEL.deployment()?;
    let model = Model::new(MODEL.model, "");
    let archive = Archive::new(store.clone(), model, &deployment).map_err(unkept)?;
    let tokens: Vec<u32> = (0..TOKENS).collect();
    let prompt = Prompt::new(&tokens);
    let bytes = deployment.groups()[0].placement(0).allocation_bytes as usize;
    let caches = [Memory::allocate(&[bytes]).map_err(|error| unkept(error.into()))?];
    save(&archive, &tokens, &deployment, &caches)?;

    let mut trips = 0;
    let mut find = || -> Result<f64, Failure> {
        let before = store.round_trips();
        let (found, time) = timed(|| archive.find(&prompt));
        trips = store.round_trips() - before;
        let found = found.map_err(unkept)?.tokens();
        match found == u64::from(TOKENS) {
            true => Ok(time.as_secs_f64() * 1e3),
            false => Err(broken(format!("{found} of {TOKENS} tokens were found"))),
        }
    };
    let mut plain = server.connect()?;
    // As many plain values, each as long as a root's manifest.
    let values: Vec<String> = (0..TOKENS / TOKEN_CHUNK as u32).map(|n| format!("plain:{n}")).collect();
    let root = archive.keys(&prompt)[1].root_name();
    let root = store.get_manifest(&root).map_err(failed)?.unwrap_or_default();
    let mut set = redis::pipe();
    for key in &values {
        set.cmd("SET").arg(key).arg(&root[..]).ignore();
    }
    set.exec(&mut plain).map_err(refused(&server.uri))?;
    let mut get = || -> Result<f64, Failure> {
        let (read, time) = timed(|| cmd("MGET").arg(&values).query::<Vec<Vec<u8>>>(&mut plain));
        read.map_err(refused(&server.uri))?;
        Ok(time.as_secs_f64() * 1e3)
    };
    let rounds = schedule.in_turns(name, [&mut find, &mut get])?;
    server.clear()?;
    let figure = Figure::new(name, "ms", "one MGET of 512 such values", &rounds, [0, 1]);
    let note = format!("redis: the longest of 512 saved prefixes was found in {trips} round trips");
    Ok((vec![figure], note))
}

/// Saves this prompt out of blocks that lie in the order of its tokens.
pub(super) fn save(
    archive: &Archive,
    tokens: &[u32],
    deployment: &Deployment,
    caches: &[Memory],
) -> Result<(), Failure> {
    let save = || {
        let missing = archive.missing(&Prompt::new(tokens), &SaveRequest::tokens(tokens.len() as u64))?;
        let tables = Tables(vec![BlockTable::Identity]);
        let part = archive.rank(deployment, Rank(0))?.save(&missing, caches, &tables)?;
        archive.publish(&missing, &[part])
    };
    save().map(drop).map_err(unkept)
}

pub(super) fn unkept(error: ArchiveError) -> Failure {
    Failure::no(format!("the archive could not be measured: {}", chain(&error)), "check the free space")
}
