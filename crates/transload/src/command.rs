//! The `transload` command, for its own program and for `python -m transload`.

use std::ffi::OsString;

use clap::Parser;

use crate::cli::Cli;
use crate::commands;
use crate::output::Output;
use crate::program;

/// Parses the arguments, runs the command, and returns the exit code: 0 done, 1 the answer is no, 2 bad usage or input.
///
/// `arguments` exclude the program's name. Some commands start further processes of this program; `started_as` is the
/// command for that, for example `["/usr/bin/python3", "-m", "transload"]`. If it is empty, this process's own
/// executable is used.
pub fn run(started_as: Vec<OsString>, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    program::set(started_as);
    let name = OsString::from(env!("CARGO_PKG_NAME"));
    let cli = match Cli::try_parse_from(std::iter::once(name).chain(arguments)) {
        Ok(cli) => cli,
        Err(usage) => {
            // Help and usage errors. If printing fails there is no other way to report them.
            let _ = usage.print();
            return u8::try_from(usage.exit_code()).unwrap_or(2);
        }
    };
    let mut output = Output::new(cli.format);
    let done = cli.start_logging();
    match done.and_then(|()| commands::run(cli.command, &mut output)) {
        Ok(()) => 0,
        Err(failure) => failure.report(),
    }
}
