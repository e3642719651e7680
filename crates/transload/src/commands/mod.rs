//! The commands, one module each: what it takes from the command line, and what it does.

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Output;

mod plan;

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Plan(plan::Args),
}

/// Does it.
pub(crate) fn run(command: Command, output: &mut Output) -> Result<(), Failure> {
    match command {
        Command::Plan(args) => plan::run(args, output),
    }
}
