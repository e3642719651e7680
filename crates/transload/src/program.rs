//! This program, for commands that start it again.

use std::ffi::OsString;
use std::io;
use std::process;
use std::sync::OnceLock;

/// The command that started this process, if it is not the program itself.
static STARTED_AS: OnceLock<Vec<OsString>> = OnceLock::new();

pub(crate) fn set(started_as: Vec<OsString>) {
    if !started_as.is_empty() {
        // A second call in the same process keeps the first value.
        let _ = STARTED_AS.set(started_as);
    }
}

pub(crate) struct ThisProgram {
    program: OsString,
    arguments: &'static [OsString],
}

impl ThisProgram {
    pub(crate) fn find() -> io::Result<Self> {
        let started_as = STARTED_AS.get().map(Vec::as_slice);
        Ok(match started_as {
            Some([program, arguments @ ..]) => Self { program: program.clone(), arguments },
            _ => Self { program: std::env::current_exe()?.into(), arguments: &[] },
        })
    }

    /// Returns a command for another process, without arguments yet.
    pub(crate) fn command(&self) -> process::Command {
        let mut command = process::Command::new(&self.program);
        command.args(self.arguments);
        command
    }
}
