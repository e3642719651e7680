//! Benchmarks of restoring a prompt: from memory, from files in the page cache, and from the second of two tiers.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use transload::archive::{Archive, Model, Prompt};
use transload::layout::Rank;
use transload::store::Backend;
use transload::store::backend::file::{FileOptions, FileStore};
use transload::store::backend::{MemoryStore, Tier, TierStore, Write};
use transload::transfer::{BlockTable, Memory, Tables};

use super::prefix::{save, unkept};
use super::{Chunks, failed, refused};
use crate::commands::bench::measure::Figure;
use crate::commands::bench::schedule::{Schedule, timed};
use crate::commands::engines::broken;
use crate::commands::shapes::Llama;
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

/// The number of cases: memory, files, the second tier.
pub(super) const CASES: usize = 3;

const TOKENS: u32 = 1024;

/// A small model, whose cache takes 128 MiB for these tokens.
const MODEL: Llama = Llama {
    name: "restorer",
    model: "restored",
    layers: 32,
    heads: 8,
    tp: 1,
    block_size: 16,
    num_blocks: TOKENS / 16,
    order: "NHD",
};

pub(super) fn run(schedule: &mut Schedule, dir: &Path) -> Result<Vec<Figure>, Failure> {
    let here = tempfile::Builder::new()
        .prefix("transload-bench-")
        .tempdir_in(dir)
        .map_err(refused(format!("a folder in {}", dir.display())))?;
    let file = || -> Result<Arc<dyn Backend>, Failure> {
        let store = FileStore::open(here.path().join("store"), FileOptions::default());
        Ok(Arc::new(store.map_err(failed)?))
    };
    let prompt = Prompted::new()?;

    let memory = "memory, restore 1,024 tokens";
    schedule.prepare(memory);
    let stored: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    prompt.save(&stored)?;
    let (source, mut copied) = (&prompt.content, vec![0; prompt.content.len()]);
    let bytes = source.len() as u64;
    let mut copy = || {
        let ((), time) = timed(|| copied.copy_from_slice(black_box(source)));
        black_box(&copied);
        Ok(gigabytes_per_second(bytes, time))
    };
    let rounds = schedule.in_turns(memory, [&mut || prompt.restore(&stored), &mut copy])?;
    let mut figures = vec![Figure::new(memory, "GB/s", "one copy of the bytes", &rounds, [0, 1])];

    let warm = "file, restore 1,024 tokens, page cache";
    schedule.prepare(warm);
    prompt.save(&file()?)?;
    let plain = here.path().join("plain");
    std::fs::write(&plain, source).map_err(refused(plain.display()))?;
    let mut read = || {
        let (read, time) = timed(|| File::open(&plain)?.read_exact(&mut copied));
        read.map_err(refused(plain.display()))?;
        Ok(gigabytes_per_second(bytes, time))
    };
    // Each round opens the store again, so that a handle has nothing cached.
    let rounds = schedule.in_turns(warm, [&mut || prompt.restore(&file()?), &mut read])?;
    figures.push(Figure::new(warm, "GB/s", "one file, one read", &rounds, [0, 1]));

    let second = "tiers, restore from the second, file";
    schedule.prepare(second);
    let mut tiered = || {
        let tiers = vec![Tier::memory("memory", MemoryStore::new()), Tier::new("file", file()?)];
        let store = TierStore::new(tiers, Write::Through).map_err(failed)?;
        prompt.restore(&(Arc::new(store) as Arc<dyn Backend>))
    };
    let rounds = schedule.in_turns(second, [&mut tiered, &mut || prompt.restore(&file()?)])?;
    figures.push(Figure::new(second, "GB/s", "that store alone", &rounds, [0, 1]));
    Ok(figures)
}

struct Prompted {
    deployment: transload::layout::Deployment,
    tokens: Vec<u32>,
    /// The cache's contents, in which nothing occurs twice.
    content: Vec<u8>,
    caches: [Memory; 1],
}

impl Prompted {
    fn new() -> Result<Self, Failure> {
        let deployment = MODEL.deployment()?;
        let bytes = deployment.groups()[0].placement(0).allocation_bytes as usize;
        let content = Chunks::new(1, bytes).bytes;
        let memory = Memory::allocate(&[bytes]).map_err(|error| unkept(error.into()))?;
        memory.write(0, &content).map_err(refused("filling a cache"))?;
        Ok(Self { deployment, tokens: (0..TOKENS).collect(), content, caches: [memory] })
    }

    fn archive(&self, store: &Arc<dyn Backend>) -> Result<Archive, Failure> {
        let model = Model::new(MODEL.model, "");
        Archive::new(store.clone(), model, &self.deployment).map_err(unkept)
    }

    fn save(&self, store: &Arc<dyn Backend>) -> Result<(), Failure> {
        save(&self.archive(store)?, &self.tokens, &self.deployment, &self.caches)
    }

    /// Finds the prompt and restores all of it. Returns GB/s.
    fn restore(&self, store: &Arc<dyn Backend>) -> Result<f64, Failure> {
        let archive = self.archive(store)?;
        let rank = archive.rank(&self.deployment, Rank(0)).map_err(unkept)?;
        let (restored, time) = timed(|| {
            let found = archive.find(&Prompt::new(&self.tokens))?;
            rank.restore(&found, 0, &self.caches, &Tables(vec![BlockTable::Identity]))
        });
        let restored = restored.map_err(unkept)?;
        match restored.tokens == u64::from(TOKENS) {
            true => Ok(gigabytes_per_second(restored.bytes, time)),
            false => Err(broken(format!("{} of {TOKENS} tokens were restored", restored.tokens))),
        }
    }
}
