//! `transload plan`: shows which rank sends what to which rank, and in chunks of which length.

mod blocks;
mod description;
mod link;
mod nixl;
pub(super) mod planned;
pub(super) mod report;
mod sides;
mod suggest;

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{ValueEnum, ValueHint};
use transload::layout::document::json_schema;
use transload::transfer::Request;

use self::blocks::BlockArgs;
use self::link::LinkArgs;
use self::planned::Planned;
use self::report::Report;
use self::sides::SideArgs;
use self::suggest::Suggestions;
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

The keys of SIDE are tp, pp, block, blocks, order, conv (DS or SD: the order of the axes of
convolutions), allocation (one or per_layer) and name. Keys that are left out default to vLLM's
choices.

Example of a deployment document:
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

/// Plan a transfer between two deployments. Needs no GPU and no engine.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    sides: SideArgs,

    /// Number of tokens to transfer: 2000, 128k (128,000), 128Ki (131,072).
    #[arg(
        long,
        value_name = "N",
        required_unless_present = "emit",
        allow_negative_numbers = true,
        value_parser = number::parse_tokens
    )]
    tokens: Option<u64>,

    /// Position of the first token.
    #[arg(
        long,
        value_name = "T",
        default_value = "0",
        allow_negative_numbers = true,
        value_parser = number::parse_tokens
    )]
    start: u64,

    #[command(flatten)]
    blocks: BlockArgs,

    /// List every chunk; requires `--format json`.
    #[arg(long)]
    chunks: bool,

    /// SVG file to write: how a rank's memory begins, where its first chunks lie on the other side, and how many bytes
    /// each rank sends to each other.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,

    #[command(flatten)]
    link: LinkArgs,

    /// Suggest orders and block sizes that give fewer, longer chunks.
    #[arg(long)]
    suggest: bool,

    /// Print other data in place of the plan, as JSON.
    #[arg(long, value_name = "WHAT", value_enum)]
    emit: Option<Emit>,
}

/// What can be printed in place of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// NIXL descriptor lists to compare with: (address, length, device) for each chunk.
    Nixl,
    /// The JSON schema of deployment documents.
    JsonSchema,
}

pub(crate) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    if args.emit == Some(Emit::JsonSchema) {
        return Ok(output.json(&json_schema())?);
    }
    if args.chunks && !output.is_json() {
        return Err(Failure::input("--chunks needs JSON: a table cannot hold every chunk", "add --format json"));
    }
    let Some(tokens) = args.tokens else {
        return Err(Failure::input(
            "the number of tokens is missing",
            "add --tokens, for example --tokens 2000 or \
                                                                      --tokens 128k",
        ));
    };
    let start = args.start;
    let request = Request { start, ..Request::tokens(tokens) };
    let [src, dst] = args.sides.read(args.blocks.room(start.saturating_add(tokens)))?;
    let planned = Planned::of(&src, &dst, &request, &args.sides, &args.blocks)?;
    let Planned { plan, bound, .. } = &planned;
    if let Some(file) = &args.svg {
        let scene = Scene { sides: [&src, &dst], plan, bound, tables: [&planned.tables.0, &planned.tables.1] };
        fs::write(file, plan_svg(&scene)).map_err(|error| not_drawn(file, &error))?;
    }
    if args.emit == Some(Emit::Nixl) {
        return Ok(output.json(&nixl::Lists::new(&src, &dst, plan, bound))?);
    }
    let report = Report {
        src: &src,
        dst: &dst,
        plan,
        bound,
        svg: args.svg.as_deref(),
        compile: planned.time(&src, &dst),
        estimate: args.link.estimate(&planned, &src, &dst, &args.blocks)?,
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

fn not_drawn(file: &Path, error: &io::Error) -> Failure {
    Failure::input(
        format!("cannot write the picture to {}: {error}", file.display()),
        "name a file in an existing, writable folder",
    )
}
