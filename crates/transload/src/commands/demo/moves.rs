//! What the demo does: the same request by each path, then saved and restored, and every byte checked.

use std::time::Instant;

use transload::transfer::{Path, Plan, Request};

use super::report::{On, Report, Transfer};
use super::{Args, decode_shape, prefill_shape, third_shape};
use crate::commands::engines::{Archived, Pair, broken, find_gpu};
use crate::commands::plan::planned::Planned;
use crate::commands::store;
use crate::failure::Failure;
use crate::show::progress::Progress;

/// Each is one transfer of the request, by this path and no other.
const PATHS: [Path; 2] = [Path::QUIC, Path::RING];

pub(super) async fn run(args: &Args, seed: u64) -> Result<Report, Failure> {
    let tokens = args.tokens;
    let shapes = [prefill_shape(tokens), decode_shape(tokens)];
    let (gpu, unused) = match args.host {
        true => (None, None),
        false => match find_gpu() {
            Ok(gpu) => (gpu, None),
            Err(why) => (None, Some(format!("the GPU is not used: {why}"))),
        },
    };
    let on = gpu.as_ref().map(|gpu| On { ordinal: gpu.ordinal(), name: gpu.name().to_owned() });
    let preparing = Progress::new("computing a request", 1);
    let mut pair = Pair::start(shapes, tokens, seed, gpu).await?;
    drop(preparing);
    let mut report = plan(&pair, tokens, seed)?;
    (report.gpu, report.unused) = (on, unused);
    // Canaries, the request once, and checking all of it, for each transfer.
    let work = PATHS.len() as u64 * (2 * pair.bytes() + report.bound.bytes());
    let progress = Progress::new("moving and checking", work);
    for path in PATHS {
        pair.clear(|bytes| progress.advance(bytes))?;
        let pulled = pair.pull(path).await?;
        progress.advance(pulled.report.bytes);
        let checked = pair.verify(|bytes| progress.advance(bytes))?;
        report.transfers.push(Transfer::new(pulled, checked));
    }
    report.kept = Some(save_and_restore(&pair, args)?);
    pair.finish().await?;
    Ok(report)
}

/// Saves what arrived last, and restores it into the third layout.
fn save_and_restore(pair: &Pair, args: &Args) -> Result<(String, Archived), Failure> {
    // Deleted when this ends.
    let mut temporary = None;
    let uri = match &args.store {
        Some(uri) => uri.clone(),
        None => {
            let folder = temporary.insert(tempfile::tempdir().map_err(|error| {
                let next = "`--store file:///some/folder` takes another; so does TMPDIR";
                Failure::no(format!("no temporary folder: {error}"), next)
            })?);
            format!("file://{}", folder.path().display())
        }
    };
    let store = store::open(&uri)?;
    let progress = Progress::new("saving and restoring", 3 * pair.bytes());
    let kept = pair.save_and_restore(store, third_shape(args.tokens), |bytes| progress.advance(bytes))?;
    Ok((uri, kept))
}

/// What is going to happen, as `transload plan` would print it. The agents each make the plan on
/// their own; this one is for the eye.
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
        kept: None,
        gpu: None,
        unused: None,
    })
}
