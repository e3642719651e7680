//! `transload bench`: measures on the user's machine, the limit beside each figure.

mod measure;
mod plan;

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  transload bench plan
  transload bench plan --rounds 101 --format json

Each figure stands beside a limit that was measured in turns with it, so that the ratio holds even
where the machine is busy or slows down. Ratios are medians over the rounds.";

/// Measure on this machine, the limit beside the figure in the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,

    /// How often each figure and its limit are measured.
    #[arg(long, global = true, value_name = "N", default_value_t = 15, display_order = 50,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Plan the canonical case: Llama-3-70B, 2,048 tokens, TP 4 to TP 8.
    #[command(after_help = EXAMPLES)]
    Plan,
}

pub(crate) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    let rounds = args.rounds as usize;
    let report = match args.bench {
        Bench::Plan => measure::Report::new("plan", plan::run(rounds)?),
    };
    output.show(|| &report, || report.table())?;
    Ok(())
}
