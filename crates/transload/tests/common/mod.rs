//! Running the command as a user does.

#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a run of the command left behind.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }

    /// What it said on stderr, however its lines were broken.
    pub fn told(&self) -> String {
        let words = self.stderr.split_whitespace().filter(|word| *word != "│");
        words.collect::<Vec<_>>().join(" ")
    }

    /// The JSON on stdout.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("{e} in {:?}; stderr: {}", self.stdout, self.stderr))
    }
}

/// The command, with nothing of the caller's environment that changes what it prints.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transload"));
    for name in [
        "TRANSLOAD_LOG",
        "NO_COLOR",
        "CLICOLOR_FORCE",
        "CLICOLOR",
        "COLUMNS",
    ] {
        command.env_remove(name);
    }
    command
}

/// Runs it in `dir`.
pub fn transload_in(dir: &Path, args: &[&str]) -> Ran {
    Ran::new(
        command()
            .current_dir(dir)
            .args(args)
            .output()
            .expect("the command starts"),
    )
}

/// Runs it where it does not matter.
pub fn transload(args: &[&str]) -> Ran {
    transload_in(&std::env::temp_dir(), args)
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
