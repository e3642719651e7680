//! `transload bench`: measurements on the user's machine, each with a baseline.

mod baseline;
mod case;
mod copy;
#[cfg(feature = "cuda")]
mod gpu;
mod measure;
mod memcpy;
mod network;
mod paths;
mod plan;
mod schedule;
mod store;

use std::time::Duration;

use clap::Subcommand;

use self::network::Network;
use crate::failure::Failure;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  transload bench plan
  transload bench plan --rounds 101 --format json
  transload bench copy --seconds 5
  transload bench quic
  transload bench local
  transload bench store --dir /mnt/nvme
  transload bench gpu

Each figure is measured in alternation with a baseline, so that their ratio
holds even if the machine is busy or slows down. Ratios are medians over the
rounds.";

const PLAN: &str = "Examples:\n  transload bench plan --rounds 101";
const COPY: &str = "Examples:\n  transload bench copy --seconds 5 --format json";
const QUIC: &str = "Examples:\n  transload bench quic --rounds 7\n  transload bench quic --mtu 1500";
const STORE: &str = "\
Examples:
  transload bench store --rounds 7
  transload bench store --dir /mnt/nvme --redis redis://cache:6379/15";
#[cfg(feature = "cuda")]
const GPU: &str = "\
Examples:
  transload bench gpu
  transload bench gpu --device 1 --rounds 7 --format json

Exit code 1 means that the GPU cannot be measured; the message says why, for
example \"no CUDA here: ...\".";
const LOCAL: &str = "Examples:\n  transload bench local --rounds 7";

/// Measure performance on this machine, each figure against a baseline from the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,

    /// Number of times that each figure and its baseline are measured.
    #[arg(long, global = true, value_name = "N", default_value_t = 15, display_order = 50,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,

    /// Approximate time limit for each case in seconds, without its preparation; at least one round is measured.
    #[arg(long, global = true, value_name = "S", default_value_t = 20, display_order = 51,
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Measure planning of the canonical case: Llama-3-70B, 2,048 tokens, TP 4 to TP 8.
    #[command(after_help = PLAN)]
    Plan,

    /// Measure copies between two layouts in one process, with one thread. Needs 3 GB of memory.
    #[command(after_help = COPY)]
    Copy,

    /// Measure pulls over QUIC between two processes on loopback, encrypted and checked. Needs 1 GB of memory.
    #[command(after_help = QUIC)]
    Quic(Network),

    /// Measure pulls between two processes on one host, through a staging ring. Needs 3 GB of memory.
    #[command(after_help = LOCAL)]
    Local,

    /// Measure stores with 96 MiB in a folder and 16 MiB in a Redis server, against plain programs that move the same
    /// bytes.
    #[command(after_help = STORE)]
    Store(store::Args),

    /// Measure copies of a GPU, against one plain copy and against one descriptor per chunk. Needs 2 GB of GPU memory
    /// and 3.5 GB of host memory.
    #[cfg(feature = "cuda")]
    #[command(after_help = GPU)]
    Gpu(gpu::Args),
}

pub(crate) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    let limits = schedule::Limits { rounds: args.rounds as usize, most: Duration::from_secs(args.seconds.into()) };
    let mut notes = Vec::new();
    let (name, results) = match args.bench {
        Bench::Plan => ("plan", plan::run(limits)?),
        Bench::Copy => ("copy", copy::run(limits)?),
        Bench::Quic(network) => {
            network.enter(&mut notes)?;
            ("quic", paths::quic(limits)?)
        }
        Bench::Local => ("local", paths::local(limits)?),
        Bench::Store(args) => {
            let measured = store::run(&args, limits)?;
            notes = measured.notes;
            ("store", measured.figures)
        }
        #[cfg(feature = "cuda")]
        Bench::Gpu(args) => {
            args.network.enter(&mut notes)?;
            let (figures, told) = gpu::run(&args, limits)?;
            notes.extend(told);
            ("gpu", figures)
        }
    };
    let report = measure::Report::new(name, results, notes);
    output.show(|| &report, || report.table())?;
    match report.errors().next() {
        None => Ok(()),
        Some((name, error)) => Err(Failure::no(
            format!("some figures could not be measured; {name}: {error}"),
            "the other figures are \
                                                                                             above",
        )),
    }
}
