//! The `transload` command: reads what is asked, does it, and turns what came of it into an exit
//! code.

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::output::Output;

mod cli;
mod commands;
mod failure;
mod output;
mod show;

fn main() -> ExitCode {
    // Prints help and faults of usage by itself, with exit codes 0 and 2.
    let cli = Cli::parse();
    let mut output = Output::new(cli.format);
    let done = cli.start_logging();
    match done.and_then(|()| commands::run(cli.command, &mut output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
