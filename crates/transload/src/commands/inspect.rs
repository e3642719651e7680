//! `transload inspect`: shows what a model caches and how much memory that takes.

mod report;

use std::fmt::Write;
use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};
use transload::layout::catalog::{Engine, Serving};
use transload::layout::document::Value;
use transload::store::internal::size;

use self::report::Report;
use super::model::ModelArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::show::number;

const EXAMPLES: &str = "\
Examples:
  transload inspect config.json
  transload inspect Llama-3.1-70B/ --tp 4 --tokens 8192 --memory 40GiB
  transload inspect config.json --dtype fp8 --format json
  transload inspect granite-4.0-h-small/ --engine vllm --tp 2 --tokens 128k
  transload inspect config.json --tp 4 --block-size 16 --order NHD --deployment > prefill.toml
  transload inspect --spec mine.toml --tokens 100000

Sizes of the model count each byte once over all ranks, even if tensor parallelism replicates it.
Sizes of a rank are what its memory has to hold.";

/// Show what a model caches and how much memory that takes, from its config.json.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    /// The model's config.json, or the folder that contains it; - reads stdin.
    #[arg(value_name = "CONFIG", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    #[command(flatten)]
    model: ModelArgs,

    /// Tensor-parallel size: the number of ranks in each pipeline stage.
    #[arg(long, value_name = "N", default_value_t = 1)]
    tp: u64,

    /// Pipeline-parallel size: the number of stages.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pp: u64,

    /// Apply this engine's rules for the block size and padding of hybrid models.
    #[arg(long, value_name = "ENGINE", value_enum)]
    engine: Option<EngineName>,

    /// Tokens per block. Default: 16, or more where a state covers several tokens.
    #[arg(long, value_name = "N")]
    block_size: Option<u64>,

    /// Order of keys and values in memory: NHD, HND, LBSHC, …
    #[arg(long, value_name = "ORDER", value_parser = super::model::order)]
    order: Option<String>,

    /// Sequence length in tokens: 2000, 128k (128,000), 128Ki (131,072).
    #[arg(
        long,
        value_name = "N",
        default_value = "2000",
        allow_negative_numbers = true,
        value_parser = number::parse_tokens
    )]
    tokens: u64,

    /// Memory for caches on each rank, for example 40GiB; shows how many sequences fit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,

    /// Print a deployment document to start from: TOML, or JSON with --format json.
    #[arg(long)]
    deployment: bool,
}

/// An engine whose rules are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EngineName {
    Vllm,
}

pub(crate) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    let (model, called) = args.model.read(args.config.as_deref())?;
    let serving = Serving {
        tp: args.tp,
        pp: args.pp,
        engine: args.engine.map(|EngineName::Vllm| Engine::Vllm),
        block_size: args.block_size,
        order: args.order.clone(),
        ..Serving::default()
    };
    if model.groups.is_empty() && !args.deployment {
        output.show(|| report::without_caches(&model, args.tokens), || report::ownerless(&model, &called))?;
        return Ok(());
    }
    let deployment = super::model::served(&model, &called, &serving, args.tokens)?;
    if args.deployment {
        super::model::check_plannable(&model, &called)?;
        let document = deployment.document().to_value();
        let text = || toml(&document, &args, &called);
        output.show(|| &document, text)?;
        return Ok(());
    }
    let report = Report::new(&model, &called, &serving, &deployment, args.tokens, args.memory)?;
    output.show(|| report.json(), || report.table())?;
    Ok(())
}

/// Formats a deployment document as TOML, with a comment on its origin.
fn toml(document: &Value, args: &Args, called: &str) -> String {
    let mut text = format!("# From {called}. Check that your engine uses the same values:\n");
    if args.order.is_none() {
        text.push_str("# order: LBSHC (NHD) unless stated otherwise\n");
    }
    let _ = writeln!(text, "# num_blocks: enough for one sequence of {}", number::count(args.tokens, "token"));
    // Every value of a document can be written as TOML.
    text.push_str(&toml::to_string(document).unwrap_or_default());
    text
}
