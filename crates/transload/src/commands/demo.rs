//! `transload demo`: moves one request's cache between two processes and checks every byte.

mod moves;
mod report;

use std::hash::{BuildHasher, RandomState};

use clap::Parser;

use super::engines::runtime;
use crate::failure::Failure;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  transload demo
  transload demo --tokens 100 --format json

Moves a request with the shape of Llama-3.1-8B from a prefill process (TP 2, blocks of 16 tokens,
NHD) to a decode process (TP 4, blocks of 64 tokens, HND). Their caches are in the memory of the
first GPU if there is one. The result is then saved into a store and restored into a third layout
(TP 1, blocks of 32 tokens, BLSHC).

Exit code 1 means that a byte differed or a process died.";

/// Move a request's cache between two processes, save and restore it, and check every byte.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of tokens in the request. 2,000 tokens need 900 MB of memory and 240 MB of disk, each further token 0.4
    /// MB and 0.13 MB.
    #[arg(long, value_name = "N", default_value_t = 2000,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    tokens: u64,

    /// Seed for contents and block tables, to repeat a run. Default: random.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Keep the caches in host memory even if there is a GPU.
    #[arg(long)]
    host: bool,

    /// Store to save the moved cache in; the saved cache stays there. Default: a temporary folder, deleted at the end.
    #[arg(long, value_name = "URI")]
    store: Option<String>,
}

pub(crate) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    // 32 bits are easy to type and exact in every JSON reader.
    let seed = args.seed.unwrap_or_else(|| u64::from(RandomState::new().hash_one(0) as u32));
    let report = runtime()?.block_on(moves::run(args.tokens, seed, args.host, args.store))?;
    output.show(|| report.json(), || report.table())?;
    Ok(())
}
