//! Running the command as a user does.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The result of a run of the command.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }

    /// Returns stderr with line breaks joined.
    pub(crate) fn told(&self) -> String {
        let words = self.stderr.split_whitespace().filter(|word| *word != "│");
        words.collect::<Vec<_>>().join(" ")
    }

    /// Checks that the command refused the request, and gave this reason.
    #[track_caller]
    pub(crate) fn refused(&self, why: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(2), ""), "{}", self.stderr);
        assert!(self.told().contains(why), "{why}: {}", self.stderr);
    }

    /// Checks that the command did not find or do what was requested, and gave this reason.
    #[track_caller]
    pub(crate) fn fails(&self, why: &str) {
        assert_eq!(self.code, Some(1), "{}{}", self.stdout, self.stderr);
        assert!(self.told().contains(why), "{why}: {}", self.stderr);
    }

    /// Checks that all was well, without a word on stderr.
    #[track_caller]
    pub(crate) fn is_good(&self) {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""));
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("{e} in {:?}; stderr: {}", self.stdout, self.stderr))
    }
}

/// Returns the command, without variables of the caller's environment that change its output.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transload"));
    for name in ["TRANSLOAD_LOG", "NO_COLOR", "CLICOLOR_FORCE", "CLICOLOR", "COLUMNS"] {
        command.env_remove(name);
    }
    command
}

pub(crate) fn transload_in(dir: &Path, args: &[&str]) -> Ran {
    Ran::new(command().current_dir(dir).args(args).output().expect("the command starts"))
}

/// Runs a line as it is typed after the command's name, whose words are parted by spaces, in `dir`.
pub(crate) fn typed(dir: &Path, line: &str) -> Ran {
    transload_in(dir, &line.split_whitespace().collect::<Vec<_>>())
}

/// Runs a line where it does not matter, with one variable of the environment more.
pub(crate) fn typed_with(variable: &str, value: impl AsRef<OsStr>, line: &str) -> Ran {
    let mut command = command();
    command.env_remove("KV_STORE_LIBRARY_PATH").env(variable, value).args(line.split_whitespace());
    Ran::new(command.output().expect("the command starts"))
}

/// Runs the command in an arbitrary directory.
pub(crate) fn transload(args: &[&str]) -> Ran {
    transload_in(&std::env::temp_dir(), args)
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a document of Llama's shape with `lines` before its group and `group` in it.
pub(crate) fn document(lines: &str, group: &str) -> String {
    let spec = "kind = \"attention\"\nheads = 8\nhead_dim = 16\ndtype = \"bf16\"";
    format!(
        "schema = \"transload.deployment/1\"\n{lines}\n[[group]]\nname = \"attn\"\n\
         layers = \"0-3\"\n{group}\n[[group.spec]]\n{spec}\n"
    )
}

/// Creates a folder with a source in `a.toml` and a destination in `b.toml`.
pub(crate) fn pair(a: &str, b: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("a.toml"), a).expect("a file");
    fs::write(dir.path().join("b.toml"), b).expect("a file");
    dir
}

/// The lines of a source and of a destination for [`document`].
pub(crate) const SRC: &str = "tp = 1\nblock_size = 16\nnum_blocks = 8";
pub(crate) const DST: &str = "tp = 2\nblock_size = 32\nnum_blocks = 8";
