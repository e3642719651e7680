//! What can be asked on the command line.

use clap::{ArgAction, Parser};
use tracing_subscriber::EnvFilter;

use crate::commands::Command;
use crate::failure::Failure;
use crate::output::Format;
use crate::show::terminal;

const AFTER_HELP: &str = "\
Results go to stdout, everything else to stderr.
Exit codes: 0 done, 1 the answer is no, 2 bad usage or bad input.";

/// Moves the KV cache of language models between engines that lay it out differently.
#[derive(Debug, Parser)]
#[command(version, after_help = AFTER_HELP, max_term_width = 100, arg_required_else_help = true)]
#[command(propagate_version = false, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// How results are printed.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        display_order = 100
    )]
    pub(crate) format: Format,

    /// Tell on stderr what is being done; twice for every detail. For a choice, leave it out and set
    /// TRANSLOAD_LOG, for instance to transload_transfer=debug.
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 101)]
    verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Sends what the libraries log to stderr: warnings, or what `-v` or `TRANSLOAD_LOG` asks for.
    pub(crate) fn start_logging(&self) -> Result<(), Failure> {
        let filter = match (self.verbose, std::env::var("TRANSLOAD_LOG")) {
            (0, Ok(wanted)) => EnvFilter::try_new(&wanted).map_err(|error| {
                Failure::input(
                    format!("TRANSLOAD_LOG is {wanted:?}: {error}"),
                    "give a level, or levels of modules: warn,transload_transfer=debug",
                )
            })?,
            (0, Err(_)) => EnvFilter::new("warn"),
            (1, _) => EnvFilter::new("transload=info,warn"),
            (_, _) => EnvFilter::new("transload=trace,debug"),
        };
        // A second command in one process logs as the first asked.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(terminal::colours_on_stderr())
            .with_target(false)
            .without_time()
            .try_init();
        Ok(())
    }
}
