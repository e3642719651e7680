//! The demo's work: it moves the same request over each path, saves and restores it, and checks every byte.

use std::time::Instant;

use transload::transfer::{Path, Plan, Request};

use super::report::{GpuName, Report, Transfer};
use crate::commands::engines::{Archived, Pair, broken, find_gpu};
use crate::commands::plan::planned::Planned;
use crate::commands::shapes::Llama;
use crate::commands::store;
use crate::failure::Failure;
use crate::show::progress::Progress;

/// The paths; the request is transferred once over each.
const PATHS: [Path; 2] = [Path::QUIC, Path::RING];

pub(super) async fn run(tokens: u64, seed: u64, host: bool, store: Option<String>) -> Result<Report, Failure> {
    let shapes = [prefill_shape(tokens), decode_shape(tokens)];
    let (gpu, unused) = match host {
        true => (None, None),
        false => match find_gpu() {
            Ok(gpu) => (gpu, None),
            Err(why) => (None, Some(format!("the GPU is not used: {why}"))),
        },
    };
    let on = gpu.as_ref().map(|gpu| GpuName { ordinal: gpu.ordinal(), name: gpu.name().to_owned() });
    let preparing = Progress::new("computing a request", 1);
    let mut pair = Pair::start(shapes, tokens, seed, gpu).await?;
    drop(preparing);
    let mut report = plan(&pair, tokens, seed)?;
    (report.gpu, report.unused) = (on, unused);
    // Each transfer writes canaries, moves the request once, and checks everything.
    let work = PATHS.len() as u64 * (2 * pair.bytes() + report.bound.bytes());
    let progress = Progress::new("moving and checking", work);
    for path in PATHS {
        pair.clear(|bytes| progress.advance(bytes))?;
        let pulled = pair.pull(path).await?;
        progress.advance(pulled.report.bytes);
        let checked = pair.verify(|bytes| progress.advance(bytes))?;
        report.transfers.push(Transfer::new(pulled, checked));
    }
    report.archived = Some(save_and_restore(&pair, tokens, store)?);
    pair.finish().await?;
    Ok(report)
}

/// Saves the last transfer's result and restores it into the third layout.
fn save_and_restore(pair: &Pair, tokens: u64, store: Option<String>) -> Result<(String, Archived), Failure> {
    // Declared here, so that the folder is deleted at the end of the function.
    let mut temporary = None;
    let uri = match store {
        Some(uri) => uri,
        None => {
            let folder = temporary.insert(tempfile::tempdir().map_err(|error| {
                let next = "name another folder with `--store file:///some/folder` or TMPDIR";
                Failure::no(format!("cannot create a temporary folder: {error}"), next)
            })?);
            format!("file://{}", folder.path().display())
        }
    };
    let store = store::open(&uri)?;
    let progress = Progress::new("saving and restoring", 3 * pair.bytes());
    let kept = pair.save_and_restore(store, third_shape(tokens), |bytes| progress.advance(bytes))?;
    Ok((uri, kept))
}

/// Returns the report as of the planning, like that of `transload plan`. The agents compile the plan on their own; this
/// one is only printed.
fn plan(pair: &Pair, tokens: u64, seed: u64) -> Result<Report, Failure> {
    let [src, dst] = pair.deployments();
    let tables = pair.tables();
    let request = Request::tokens(tokens);
    let begun = Instant::now();
    let plan = Plan::compile(src, dst, &request).map_err(broken)?;
    let planned = Planned::bound(plan, tables, begun).map_err(broken)?;
    Ok(Report {
        compile: planned.time(src, dst),
        src: src.clone(),
        dst: dst.clone(),
        plan: planned.plan,
        bound: planned.bound,
        tokens,
        seed,
        transfers: Vec::new(),
        archived: None,
        gpu: None,
        unused: None,
    })
}

/// The prefill side: Llama-3.1-8B, with a pool slightly larger than the request needs.
fn prefill_shape(tokens: u64) -> Llama {
    Llama {
        name: "prefill",
        model: "llama-3.1-8b",
        layers: 32,
        heads: 8,
        tp: 2,
        block_size: 16,
        num_blocks: pool(tokens, 16),
        order: "NHD",
    }
}

fn decode_shape(tokens: u64) -> Llama {
    Llama { name: "decode", tp: 4, block_size: 64, num_blocks: pool(tokens, 64), order: "HND", ..prefill_shape(tokens) }
}

/// The third layout, into which saved blocks are restored.
fn third_shape(tokens: u64) -> Llama {
    Llama {
        name: "third",
        tp: 1,
        block_size: 32,
        num_blocks: pool(tokens, 32),
        order: "BLSHC",
        ..prefill_shape(tokens)
    }
}

/// Returns the blocks that the request needs, an eighth more, and two.
fn pool(tokens: u64, block_size: u64) -> u32 {
    let needed = tokens.div_ceil(block_size);
    (needed + needed / 8 + 2) as u32
}
