//! `transload store llama`: shows the contents of llama.cpp's session files.

use std::fmt::Write;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueHint};
use serde::Serialize;
use transload::archive::kvc::open_file;
use transload::archive::llama::{Layers, LlamaError, Session};

use super::kvc::listed;
use crate::failure::Failure;
use crate::output::Output;
use crate::show::number;

/// The most bytes of a file, since all of it is held in memory.
const MOST: u64 = 16 << 30;

const EXAMPLES: &str = "\
Examples:
  transload store llama inspect slot0.bin
  transload store llama inspect slot0.bin --format json";

const INSPECT: &str = "\
Examples:
  transload store llama inspect slot0.bin
  transload store llama inspect slot0.bin --format json

Exit code 1 means that the file is not a session file of a sequence, has an
unknown version, or is damaged. Files of purely recurrent models (Mamba, RWKV)
cannot be read. The whole file is loaded into memory; the maximum is 16 GiB.";

/// Read session files of llama.cpp.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show which tokens and layers a file contains.
    #[command(after_help = INSPECT)]
    Inspect {
        /// File that `llama_state_seq_save_file` or a slot of llama-server has saved.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let Action::Inspect { file: path } = &args.action;
    let file = read(path).map_err(|error| {
        Failure::input(
            format!("{} cannot be read: {error}", path.display()),
            "name an existing, readable file of at most 16 GiB, not a pipe or a device",
        )
    })?;
    match Session::read(&file) {
        Ok(session) => {
            let bytes = file.len();
            let contents = Contents { session, bytes };
            output.show(|| Json::new(Ok(&contents)), || contents.table())?;
            Ok(())
        }
        Err(error) => {
            let text = format!(" {error}\n");
            output.show(|| Json::new(Err(error.to_string())), || text)?;
            Err(Failure::no(
                format!("{}: {error}", path.display()),
                match error {
                    LlamaError::Session { .. } => {
                        "name a file that `llama_state_seq_save_file` or a slot of llama-server has saved; \
                         `llama_state_save_file` saves a whole context, which begins with 0x6767736e and cannot be \
                         read"
                    }
                    _ => "save the file again; files of purely recurrent models (Mamba, RWKV) cannot be read",
                },
            ))
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = open_file(path)?;
    if file.metadata()?.len() > MOST {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<&'a Contents>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl<'a> Json<'a> {
    fn new(info: Result<&'a Contents, String>) -> Self {
        Self {
            schema: "transload.store.llama/1",
            ok: info.is_ok(),
            info: info.as_ref().ok().copied(),
            error: info.err(),
        }
    }
}

#[derive(Serialize)]
struct Contents {
    #[serde(flatten)]
    session: Session,
    bytes: usize,
}

impl Contents {
    fn table(&self) -> String {
        let session = &self.session;
        let (first, last) = session.positions;
        let cells = number::count(session.cells as u64, "cell");
        let how = match session.transposed {
            true => ", transposed",
            false => "",
        };
        let mut lines = vec![
            ("tokens", listed(&session.tokens)),
            ("cells", format!("{cells}, positions {first} to {last}")),
            ("layers", number::grouped(session.layers as u64)),
            ("keys", shown(&session.keys, "")),
            ("values", shown(&session.values, how)),
            ("bytes", number::grouped(self.bytes as u64)),
        ];
        if session.rest > 0 {
            let rest = number::count(session.rest as u64, "byte");
            lines.push(("other caches", format!("{rest}, of windows or recurrent layers")));
        }
        let mut text = String::new();
        for (name, value) in lines {
            let _ = writeln!(text, " {name:<12}  {value}");
        }
        text
    }
}

/// Formats the rows of layers: `30 × f16, 2,048 bytes a cell; 2 × q8_0, 1,088 bytes a cell`.
fn shown(rows: &[Layers], how: &str) -> String {
    if rows.is_empty() {
        return "none: the keys are latents".to_owned();
    }
    let runs = rows.iter().map(|rows| {
        let bytes = number::count(rows.row, "byte");
        format!("{} × {}, {bytes} a cell", rows.layers, rows.dtype)
    });
    format!("{}{how}", runs.collect::<Vec<_>>().join("; "))
}
