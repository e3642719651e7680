//! `transload plan`: who sends what to whom, in chunks of which length.

mod blocks;
pub(super) mod report;

use std::path::{Display, Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use clap::ValueHint;
use tracing::info;
use transload::document::{self, DocumentError};
use transload::layout::Deployment;
use transload::transfer::plan::{BindError, BoundPlan, Plan, PlanError, Request, Tables};

use self::blocks::BlockList;
use self::report::Report;
use crate::failure::Failure;
use crate::output::Output;
use crate::show::picture::{Scene, plan_svg};

const EXAMPLES: &str = "\
Examples:
  transload plan --from prefill.toml --to decode.toml --tokens 2000
  transload plan --from prefill.toml --to decode.toml --tokens 100 --start 1900
  transload plan --from a.toml --to b.json --tokens 64 --src-blocks 3,7,8-9 --dst-blocks 5
  transload plan --from a.toml --to b.json --tokens 64 --chunks --format json
  transload plan --from prefill.toml --to decode.toml --tokens 2000 --svg plan.svg

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
    /// The deployment that the bytes come from: TOML or JSON; - for stdin, which can be only one of
    /// the two.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    from: PathBuf,

    /// The deployment that they go to: TOML or JSON; - for stdin, which can be only one of the two.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    to: PathBuf,

    /// How many tokens.
    #[arg(long, value_name = "N")]
    tokens: u64,

    /// Position of the first of them.
    #[arg(long, value_name = "T", default_value_t = 0)]
    start: u64,

    /// The source's blocks of tokens 0 to block_size, and so on: `3,7,8-11`, with `-` for a block
    /// that is never touched. Without a list, block i is block i. With GROUP= it is for that group
    /// alone, else for all that have none of their own.
    #[arg(long, value_name = "[GROUP=]LIST", allow_hyphen_values = true)]
    src_blocks: Vec<BlockList>,

    /// The destination's blocks, likewise.
    #[arg(long, value_name = "[GROUP=]LIST", allow_hyphen_values = true)]
    dst_blocks: Vec<BlockList>,

    /// List every chunk; only with `--format json`.
    #[arg(long)]
    chunks: bool,

    /// Draw both sides' memory and the chunks between them into this file, a shape too large to see
    /// scaled down; and who sends how much to whom.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
}

pub(crate) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    if args.chunks && !output.is_json() {
        return Err(Failure::input(
            "--chunks lists every chunk, which no table could hold",
            "add --format json",
        ));
    }
    if is_stdin(&args.from) && is_stdin(&args.to) {
        return Err(Failure::input(
            "--from and --to are both -, but stdin is one document",
            "name a file for one of them",
        ));
    }
    let (src, dst) = (read(&args.from)?, read(&args.to)?);
    for (file, side) in [(&args.from, &src), (&args.to, &dst)] {
        let (ranks, groups) = (side.ranks().count(), side.groups().len());
        info!(file = %called(file), ranks, groups, "read");
    }
    let request = Request {
        start: args.start,
        ..Request::tokens(args.tokens)
    };
    let plan = Plan::compile(&src, &dst, &request).map_err(|error| not_planned(error, &args))?;
    let tables = (
        blocks::tables(&plan, "--src-blocks", &args.src_blocks)?,
        blocks::tables(&plan, "--dst-blocks", &args.dst_blocks)?,
    );
    let bound = plan.bind(&tables.0, &tables.1).map_err(not_bound)?;
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
    let report = Report {
        src: &src,
        dst: &dst,
        plan: &plan,
        bound: &bound,
        compile: time(&src, &dst, &request, &tables),
        svg: args.svg.as_deref(),
    };
    output.show(|| report.json(args.chunks), || report.table())?;
    Ok(())
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What messages call a document.
fn called(path: &Path) -> Display<'_> {
    match is_stdin(path) {
        true => Path::new("stdin").display(),
        false => path.display(),
    }
}

/// A deployment from a file, or from stdin where it is called `-`.
fn read(path: &Path) -> Result<Deployment, DocumentError> {
    match is_stdin(path) {
        // Not by the path that systems have for it: a socket cannot be opened.
        true => document::read_from("stdin", io::stdin().lock()),
        false => document::read(path),
    }
}

/// The median of a few runs from two checked deployments to bound routes: the first run of a
/// process mostly measures the system handing out memory.
pub(super) fn time(
    src: &Deployment,
    dst: &Deployment,
    request: &Request,
    tables: &(Tables, Tables),
) -> Duration {
    const RUNS: usize = 15;
    const PATIENCE: Duration = Duration::from_millis(100);
    let begun = Instant::now();
    let mut times = Vec::with_capacity(RUNS);
    while times.len() < RUNS && (times.is_empty() || begun.elapsed() < PATIENCE) {
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
                called(&args.from),
                called(&args.to)
            ),
            "both sides have to cache the same thing; TP, PP, block size, order, padding and \
             conv_layout may differ",
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

fn not_bound(error: BindError) -> Failure {
    let right = match &error {
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
        BindError::Repeated { .. } => "list each block once: a block holds one stretch of tokens",
        _ => "see `transload plan --help`",
    };
    Failure::input(error.to_string(), right)
}
