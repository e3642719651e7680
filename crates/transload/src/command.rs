//! The `transload` command, for whoever starts it: its own program, or `python -m transload`.

use std::ffi::OsString;
use std::io;
use std::process;
use std::sync::OnceLock;

use clap::Parser;

use crate::cli::Cli;
use crate::commands;
use crate::output::Output;

/// How this process was started, if not as the program itself.
static STARTED_AS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Reads what is asked, does it, and returns the exit code: 0 done, 1 the answer is no, 2 bad usage or input.
///
/// `arguments` are those behind the program's name. Some commands start others of themselves; `started_as` says
/// how, as `["/usr/bin/python3", "-m", "transload"]`. Empty is this process's own program.
pub fn run(started_as: Vec<OsString>, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    if !started_as.is_empty() {
        // A second call in one process is started as the first.
        let _ = STARTED_AS.set(started_as);
    }
    let name = OsString::from(env!("CARGO_PKG_NAME"));
    let cli = match Cli::try_parse_from(std::iter::once(name).chain(arguments)) {
        Ok(cli) => cli,
        Err(said) => {
            // Help and faults of usage. Where they cannot be printed, nobody can be told.
            let _ = said.print();
            return u8::try_from(said.exit_code()).unwrap_or(2);
        }
    };
    let mut output = Output::new(cli.format);
    let done = cli.start_logging();
    match done.and_then(|()| commands::run(cli.command, &mut output)) {
        Ok(()) => 0,
        Err(failure) => failure.report(),
    }
}

/// How to start this program once more.
pub(crate) struct Itself {
    program: OsString,
    arguments: &'static [OsString],
}

impl Itself {
    pub(crate) fn find() -> io::Result<Self> {
        let started_as = STARTED_AS.get().map(Vec::as_slice);
        Ok(match started_as {
            Some([program, arguments @ ..]) => Self { program: program.clone(), arguments },
            _ => Self { program: std::env::current_exe()?.into(), arguments: &[] },
        })
    }

    /// A further process of it, without arguments of its own yet.
    pub(crate) fn another(&self) -> process::Command {
        let mut command = process::Command::new(&self.program);
        command.args(self.arguments);
        command
    }
}
