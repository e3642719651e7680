//! The command line: global options and the subcommand.

use clap::{ArgAction, Parser};
use tracing_subscriber::EnvFilter;

use crate::commands::Command;
use crate::failure::Failure;
use crate::output::Format;
use crate::show::terminal;

const AFTER_HELP: &str = "\
Results go to stdout; messages and progress go to stderr.
Exit codes: 0 success, 1 a check or an operation failed, 2 bad usage or bad input.";

/// Moves the KV cache of language models between engines that lay it out differently.
#[derive(Debug, Parser)]
#[command(version, after_help = AFTER_HELP, max_term_width = 100, arg_required_else_help = true)]
#[command(propagate_version = false, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Output format of results.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", display_order = 100)]
    pub(crate) format: Format,

    /// Log to stderr what the command does; -vv logs all details. To select levels by module, set TRANSLOAD_LOG
    /// instead, for example to transload_transfer=debug.
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 101)]
    verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Starts logging to stderr: warnings by default, or what `-v` or `TRANSLOAD_LOG` selects.
    pub(crate) fn start_logging(&self) -> Result<(), Failure> {
        let filter = match (self.verbose, std::env::var("TRANSLOAD_LOG")) {
            (0, Ok(wanted)) => EnvFilter::try_new(&wanted).map_err(|error| {
                Failure::input(
                    format!("TRANSLOAD_LOG={wanted:?} is not valid: {error}"),
                    "set a level, or levels by module: warn,transload_transfer=debug",
                )
            })?,
            (0, Err(_)) => EnvFilter::new("warn"),
            (1, _) => EnvFilter::new("transload=info,warn"),
            (_, _) => EnvFilter::new("transload=trace,debug"),
        };
        // A second command in the same process keeps the logging of the first one.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Every `transload …` in a `sh` block of the README and of the book can be parsed.
    #[test]
    fn commands_of_the_book_are_commands() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (mut pages, mut folders) = (vec![root.join("README.md")], vec![root.join("docs/src")]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder of the book") {
                let path = entry.expect("an entry").path();
                match path.extension() {
                    None => folders.push(path),
                    Some(kind) if kind == "md" => pages.push(path),
                    Some(_) => {}
                }
            }
        }
        let mut found = 0;
        for page in pages {
            let text = fs::read_to_string(&page).expect("a page");
            for block in text.split("```").skip(1).step_by(2) {
                let Some(script) = block.strip_prefix("sh\n") else {
                    continue;
                };
                for line in script.replace("\\\n", " ").lines() {
                    let words = line.split([' ', '\t']).filter(|word| !word.is_empty());
                    let words = words.take_while(|word| !["#", "|", ">", "&"].contains(word));
                    // Behind variables of the environment, or cargo's own arguments.
                    let words: Vec<_> = words.skip_while(|word| word.contains('=')).collect();
                    let arguments = match &words[..] {
                        ["transload", arguments @ ..] | ["cargo", "run", "--release", "--", arguments @ ..] => {
                            arguments
                        }
                        _ => continue,
                    };
                    let line = std::iter::once(&"transload").chain(arguments);
                    let wrong = match Cli::try_parse_from(line) {
                        Err(error) => error.exit_code() != 0,
                        Ok(_) => false,
                    };
                    assert!(!wrong, "{}: {arguments:?}", page.display());
                    found += 1;
                }
            }
        }
        assert!(found > 20, "the book has {found} commands");
    }
}
