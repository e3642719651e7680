//! `transload plan`: who sends what to whom, in chunks of which length.

mod blocks;
mod description;
mod link;
mod nixl;
pub(super) mod report;
mod sides;
mod suggest;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use clap::{ValueEnum, ValueHint};
use tracing::info;
use transload::layout::Deployment;
use transload::layout::document::json_schema;
use transload::transfer::plan::{BindError, BoundPlan, Plan, PlanError, Request, Tables};

use self::blocks::BlockList;
use self::description::Description;
use self::link::{Blocks, Estimate, Rate};
use self::report::Report;
use self::suggest::Suggestions;
use super::model::ModelArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::show::number;
use crate::show::picture::{Scene, plan_svg};

const EXAMPLES: &str = "\
Examples:
  transload plan --from prefill.toml --to decode.toml --tokens 2000
  transload plan --from prefill.toml --to decode.toml --tokens 100 --start 1900
  transload plan --from a.toml --to b.json --tokens 64 --src-blocks 3,7,8-9 --dst-blocks 5
  transload plan --from a.toml --to b.json --tokens 64 --chunks --format json
  transload plan --from prefill.toml --to decode.toml --tokens 2000 --svg plan.svg
  transload plan config.json --from-side tp=4,block=16,order=NHD --to-side tp=8,block=64,order=HND \\
      --tokens 2048 --link 100Gbit --suggest

A side in a few words has tp, pp, block, blocks, order, conv (DS or SD: which axis of convolutions is
outside), allocation (one or per_layer) and name; what is not given is as vLLM has it.

A deployment document:
  schema = \"transload.deployment/1\"
  tp = 2
  block_size = 16
  num_blocks = 512
  order = \"NHD\"
  [[group]]
  name = \"attn\"
  layers = \"0-31\"
  [[group.spec]]
  kind = \"attention\"
  heads = 8
  head_dim = 128
  dtype = \"bf16\"

Exit code 1 means that the two deployments cannot be bridged.";

/// Plan a transfer between two deployments, without any GPU or engine.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    /// The model that described sides serve: its config.json, or the folder that it is in; - for
    /// stdin. Without it, that of the other side's document.
    #[arg(value_name = "CONFIG", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    #[command(flatten)]
    model: ModelArgs,

    /// The deployment that the bytes come from: TOML or JSON; - for stdin, which can be only one of
    /// the two.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    from: Option<PathBuf>,

    /// The deployment that they go to: TOML or JSON; - for stdin, which can be only one of the two.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    to: Option<PathBuf>,

    /// The same in a few words, in place of --from: tp=4,block=16,order=NHD.
    #[arg(long, value_name = "SIDE", conflicts_with = "from")]
    from_side: Option<Description>,

    /// The same in a few words, in place of --to: tp=8,block=64,order=HND.
    #[arg(long, value_name = "SIDE", conflicts_with = "to")]
    to_side: Option<Description>,

    /// How many tokens: 2000, 128k (128,000), 128Ki (131,072).
    #[arg(
        long,
        value_name = "N",
        required_unless_present = "emit",
        allow_negative_numbers = true,
        value_parser = number::parse_tokens
    )]
    tokens: Option<u64>,

    /// Position of the first of them.
    #[arg(
        long,
        value_name = "T",
        default_value = "0",
        allow_negative_numbers = true,
        value_parser = number::parse_tokens
    )]
    start: u64,

    /// The source's blocks of tokens 0 to block_size, and so on: `3,7,8-11`, with `-` for a block
    /// that is never touched. Without a list, block i is block i. With GROUP= it is for that group
    /// alone, else for all that have none of their own.
    #[arg(long, value_name = "[GROUP=]LIST", allow_hyphen_values = true)]
    src_blocks: Vec<BlockList>,

    /// The destination's blocks, likewise.
    #[arg(long, value_name = "[GROUP=]LIST", allow_hyphen_values = true)]
    dst_blocks: Vec<BlockList>,

    /// Scatter the blocks of both sides, as in engines that have run for a while: no two of them are
    /// neighbours. Documents need num_blocks for twice the tokens.
    #[arg(long, conflicts_with_all = ["src_blocks", "dst_blocks"])]
    scattered: bool,

    /// List every chunk; only with `--format json`.
    #[arg(long)]
    chunks: bool,

    /// Draw both sides' memory and the chunks between them into this file, a shape too large to see
    /// scaled down; and who sends how much to whom.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,

    /// Tell how long it takes on a link that carries so much: 100Gbit, 2x200Gbit, 12.5GB/s. Counted with scattered
    /// blocks, as engines have them that have run for a while; or as listed, where blocks are.
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    link: Option<Rate>,

    /// Estimate as if block i were block i on both sides, so that chunks run on from block to block: as in
    /// engines that have just begun.
    #[arg(long, requires = "link", conflicts_with_all = ["scattered", "src_blocks", "dst_blocks"])]
    contiguous: bool,

    /// What each chunk costs beside its bytes: 4us. NIXL has been seen to take 3.9us for a descriptor.
    #[arg(long, value_name = "TIME", value_parser = link::parse_cost, requires = "link")]
    chunk_cost: Option<Duration>,

    /// Tell which orders and block sizes would make fewer, longer chunks.
    #[arg(long)]
    suggest: bool,

    /// Print something else in place of the plan, as JSON.
    #[arg(long, value_name = "WHAT", value_enum)]
    emit: Option<Emit>,
}

/// What can be printed in place of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// Descriptor lists in NIXL's terms, to compare with: (address, length, device) for each chunk.
    Nixl,
    /// The JSON schema of deployment documents.
    JsonSchema,
}

impl Args {
    /// Which blocks an estimate is of.
    fn estimated_blocks(&self) -> Blocks {
        match (self.contiguous, &self.src_blocks[..], &self.dst_blocks[..]) {
            (true, ..) => Blocks::Contiguous,
            (false, [], []) => Blocks::Scattered,
            _ => Blocks::Listed,
        }
    }

    fn request(&self) -> Request {
        Request {
            start: self.start,
            ..Request::tokens(self.tokens.unwrap_or(0))
        }
    }
}

pub(crate) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    if args.emit == Some(Emit::JsonSchema) {
        return Ok(output.json(&json_schema())?);
    }
    if args.chunks && !output.is_json() {
        return Err(Failure::input(
            "--chunks lists every chunk, which no table could hold",
            "add --format json",
        ));
    }
    if args.tokens.is_none() {
        return Err(Failure::input(
            "nothing says how many tokens travel",
            "add --tokens 2000, or --tokens 128k",
        ));
    }
    let [src, dst] = sides::read(&args)?;
    for (part, file, side) in [
        ("source", &args.from, &src),
        ("destination", &args.to, &dst),
    ] {
        let (ranks, groups) = (side.ranks().count(), side.groups().len());
        info!(side = %sides::named(file, part), ranks, groups, "read");
    }
    let request = args.request();
    let begun = Instant::now();
    let plan = Plan::compile(&src, &dst, &request).map_err(|error| not_planned(error, &args))?;
    let tables = match args.scattered {
        true => blocks::scattered(&plan).ok_or_else(|| {
            Failure::input(
                "--scattered would list too many blocks",
                "take fewer tokens, or larger blocks",
            )
        })?,
        false => (
            blocks::tables(&plan, "--src-blocks", &args.src_blocks)?,
            blocks::tables(&plan, "--dst-blocks", &args.dst_blocks)?,
        ),
    };
    let bound = plan
        .bind(&tables.0, &tables.1)
        .map_err(|error| not_bound(error, &args))?;
    let first = begun.elapsed();
    info!(
        routes = bound.routes.len(),
        chunks = bound.chunks(),
        "planned"
    );
    if let Some(file) = &args.svg {
        let scene = Scene {
            src: &src,
            dst: &dst,
            plan: &plan,
            bound: &bound,
            tables: (&tables.0, &tables.1),
        };
        fs::write(file, plan_svg(&scene)).map_err(|error| not_drawn(file, &error))?;
    }
    if args.emit == Some(Emit::Nixl) {
        return Ok(output.json(&nixl::Lists::new(&src, &dst, &plan, &bound))?);
    }
    let cost = args.chunk_cost.unwrap_or_default();
    let estimate = args.link.map(|link| match args.estimated_blocks() {
        Blocks::Scattered if !args.scattered => {
            let bound = blocks::scattered_elsewhere(&src, &dst, &request);
            let bound = bound.ok_or_else(|| {
                Failure::input(
                    "with scattered blocks a side would be too large to estimate",
                    "add --contiguous, or take fewer tokens",
                )
            })?;
            Ok::<_, Failure>(Estimate::of(&bound, Blocks::Scattered, link, cost))
        }
        blocks => Ok(Estimate::of(&bound, blocks, link, cost)),
    });
    let report = Report {
        src: &src,
        dst: &dst,
        plan: &plan,
        bound: &bound,
        svg: args.svg.as_deref(),
        compile: time(&src, &dst, &request, &tables, first),
        estimate: estimate.transpose()?,
        suggestions: match args.suggest {
            true => Suggestions::of(&src, &dst, &request),
            false => None,
        },
    };
    if output.is_csv() {
        return Ok(output.text(&report.csv())?);
    }
    output.show(|| report.json(args.chunks), || report.table())?;
    Ok(())
}

/// The median of a few runs from two checked deployments to bound routes, where they are short: the first
/// one mostly measures the system handing out memory.
pub(super) fn time(
    src: &Deployment,
    dst: &Deployment,
    request: &Request,
    tables: &(Tables, Tables),
    first: Duration,
) -> Duration {
    const RUNS: usize = 15;
    const PATIENCE: Duration = Duration::from_millis(5);
    let begun = Instant::now();
    let mut times = vec![first];
    while times.len() < RUNS && first + begun.elapsed() < PATIENCE {
        let started = Instant::now();
        let bound: Option<BoundPlan> = Plan::compile(src, dst, request)
            .ok()
            .and_then(|plan| plan.bind(&tables.0, &tables.1).ok());
        times.push(started.elapsed());
        drop(bound);
    }
    times.sort_unstable();
    times[times.len() / 2]
}

fn not_planned(error: PlanError, args: &Args) -> Failure {
    match error {
        PlanError::Bridge(bridge) => Failure::no(
            format!(
                "{} and {} cannot be bridged: {bridge}",
                sides::named(&args.from, "the described source"),
                sides::named(&args.to, "the described destination")
            ),
            "both sides have to cache the same thing; TP, PP, block size, order, padding and \
             conv_layout may differ",
        ),
        PlanError::TooManySlices { .. } => Failure::input(
            error.to_string(),
            "take fewer ranks or fewer groups; docs/src/reference/limits.md says what a plan may have",
        ),
        other => Failure::input(
            other.to_string(),
            "ask for tokens that a model can have read",
        ),
    }
}

fn not_drawn(file: &Path, error: &io::Error) -> Failure {
    Failure::input(
        format!(
            "the picture could not be written to {}: {error}",
            file.display()
        ),
        "name a file in a folder that exists and may be written to",
    )
}

fn not_bound(error: BindError, args: &Args) -> Failure {
    let right = match &error {
        BindError::NoSuchBlock { .. } if args.scattered => {
            "scattered blocks take twice the room: raise num_blocks in the document"
        }
        BindError::TooShort { .. } => {
            "list a block for every block_size tokens from position 0 on, - for those before \
             --start; or give no list and more num_blocks"
        }
        BindError::NoBlock { .. } => {
            "only blocks before --start, or before what a window still needs, may be -"
        }
        BindError::NoSuchBlock { .. } => {
            "name blocks below num_blocks, or raise it in the document"
        }
        BindError::TooManyPlaces => "take fewer tokens, or larger blocks",
        BindError::Repeated { .. } => "list each block once: a block holds one stretch of tokens",
        _ => "see `transload plan --help`",
    };
    Failure::input(error.to_string(), right)
}
