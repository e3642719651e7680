//! `transload store kvc`: shows and verifies cache files of erllama.

use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueHint};
use serde_json::{Value, json};
use transload::archive::kvc::{CacheKey, Head, Info, KvcError, open_file};

use crate::failure::Failure;
use crate::output::Output;
use crate::show::number;
use crate::show::progress::Progress;
use crate::show::text::printable;
use crate::show::time::utc;

const EXAMPLES: &str = "\
Examples:
  transload store kvc inspect 60c36f2f.kvc
  transload store kvc inspect 60c36f2f.kvc --format json
  transload store kvc verify 60c36f2f.kvc --key 60c36f2f…";

const INSPECT: &str = "\
Examples:
  transload store kvc inspect 60c36f2f.kvc
  transload store kvc inspect 60c36f2f.kvc --format json

Exit code 1 means that the file is not a KVC file or is damaged. The payload
is not read.";

const VERIFY: &str = "\
Examples:
  transload store kvc verify 60c36f2f.kvc
  transload store kvc verify 60c36f2f.kvc \\
      --key 60c36f2f3dc02bf1d2aeacf7ca3db6e465d2d4a31ed55fea9560ad8f7960498f

Exit code 1 means that the file is damaged or belongs to another key. The key
is the SHA-256 of fingerprint, quant type, context parameters and tokens;
erllama uses it as the file's name.";

/// Read cache files of erllama.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show a file's header.
    #[command(after_help = INSPECT)]
    Inspect {
        /// File to read.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Show a file's header, and check its CRC and its key.
    #[command(after_help = VERIFY)]
    Verify {
        /// File to read.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Expected key: 64 hex digits. Default: the key is not checked.
        #[arg(long, value_name = "HEX")]
        key: Option<CacheKey>,
    },
}

pub(super) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    let (path, read) = match &args.action {
        Action::Inspect { file } => (file, read(file, |_, _| Ok(Ok(())))),
        Action::Verify { file, key } => (
            file,
            read(file, |open, info| {
                let bar = Progress::new("reading the payload", info.payload_length);
                let sum = info.sum_payload(open, |bytes| bar.reach(bytes))?;
                let key = |()| key.as_ref().map_or(Ok(()), |key| info.check_key(key));
                Ok(info.check_payload(&sum).and_then(key))
            }),
        ),
    };
    let (head, checked) = read.map_err(|error| {
        Failure::input(
            format!("{} cannot be read: {error}", path.display()),
            "name an existing, readable file, not a pipe or a device",
        )
    })?;
    let verified = matches!(args.action, Action::Verify { .. });
    match head.info().and_then(|info| checked.map(|()| info)) {
        Ok(info) => {
            output.show(|| json(&info), || table(&info, verified))?;
            Ok(())
        }
        Err(error) => {
            let wrong = || json!({"ok": false, "error": error.code()});
            output.show(wrong, || format!(" {}: {error}\n", error.code()))?;
            Err(Failure::no(
                format!("{}: {error}", path.display()),
                match error {
                    KvcError::KeyMismatch { .. } => "the file may be intact, but it belongs to another key",
                    _ => "erllama deletes such a file and computes it again",
                },
            ))
        }
    }
}

/// Reads the head of a file. If it is valid, `check` is called to check the rest.
fn read(
    path: &Path,
    check: impl FnOnce(&mut File, &Info<'_>) -> std::io::Result<Result<(), KvcError>>,
) -> std::io::Result<(Head, Result<(), KvcError>)> {
    let mut file = open_file(path)?;
    let head = Head::read(&mut file)?;
    let checked = match head.info() {
        Ok(info) => check(&mut file, &info)?,
        Err(_) => Ok(()),
    };
    Ok((head, checked))
}

/// Returns the JSON in erllama's terms: binaries in lower-case hex, modes and reasons by name.
fn json(info: &Info<'_>) -> Value {
    let mut told = json!({
        "magic": hex(b"KVC"),
        "version": info.version,
        "quant_bits": info.quant_bits,
        "save_reason": info.save_reason.name(),
        "cached_token_count": info.cached_token_count,
        "hit_count": info.hit_count,
        "context_size": info.context_size,
        "creation_time": info.creation_time,
        "last_used_time": info.last_used_time,
        "payload_byte_count": info.payload_byte_count,
        "payload_offset": info.payload_offset,
        "payload_length": info.payload_length,
        "payload_crc32c": info.payload_crc32c,
        "prompt_text": hex(info.prompt_text),
        "fingerprint": hex(&info.fingerprint),
        "fingerprint_mode": info.fingerprint_mode.name(),
        "quant_type": info.quant_type.name(),
        "ctx_params_hash": hex(&info.ctx_params_hash),
        "tokens": info.tokens.iter().collect::<Vec<u32>>(),
    });
    for (field, value) in [
        ("hostname", info.hostname),
        ("erllama_version", info.erllama_version),
        ("save_reason_detail", info.save_reason_detail),
    ] {
        if let Some(value) = value {
            told[field] = hex(value).into();
        }
    }
    json!({"ok": true, "info": told})
}

/// The most tokens, and characters of a prompt, in a table.
const TOKENS: usize = 12;
const PROMPT: usize = 200;

fn table(info: &Info<'_>, verified: bool) -> String {
    let mut rows: Vec<(&str, String)> = vec![
        ("key", info.key().to_string()),
        ("tokens", listed(&info.tokens.iter().collect::<Vec<u32>>())),
        ("context", format!("{} tokens", number::grouped(info.context_size.into()))),
        ("prompt", shown(info.prompt_text, PROMPT)),
        ("quant type", format!("{}, {} bits", info.quant_type.name(), info.quant_bits)),
        ("fingerprint", format!("{} ({})", hex(&info.fingerprint), info.fingerprint_mode.name())),
        ("context parameters", hex(&info.ctx_params_hash)),
        ("saved", info.save_reason.name().to_owned()),
    ];
    let optional = [("because", info.save_reason_detail), ("on", info.hostname), ("by erllama", info.erllama_version)];
    for (name, value) in optional {
        rows.extend(value.map(|value| (name, shown(value, PROMPT))));
    }
    rows.extend([
        ("made", utc(info.creation_time)),
        ("last used", utc(info.last_used_time)),
        ("hits", number::grouped(info.hit_count.into())),
        (
            "payload",
            format!(
                "{} at byte {}, CRC32C {:08x}",
                number::count(info.payload_length, "byte"),
                number::grouped(info.payload_offset),
                info.payload_crc32c
            ),
        ),
    ]);
    let mut text = String::new();
    for (name, value) in rows {
        let _ = writeln!(text, " {name:<18}  {value}");
    }
    text.push_str(match verified {
        true => "\n verified: the file is complete, and its payload is intact\n",
        false => "\n the payload was not checked: `transload store kvc verify` does that\n",
    });
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats a list of tokens with its length: `5: 1, 2, 3, 4, 5`.
pub(super) fn listed(tokens: &[u32]) -> String {
    let first: Vec<String> = tokens.iter().take(TOKENS).map(ToString::to_string).collect();
    let more = if tokens.len() > TOKENS { ", …" } else { "" };
    match tokens.len() {
        0 => "0".to_owned(),
        n => format!("{}: {}{more}", number::grouped(n as u64), first.join(", ")),
    }
}

/// Decodes bytes that are mostly text and escapes control characters.
fn shown(bytes: &[u8], most: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut chars = text.chars();
    let first: String = chars.by_ref().take(most).collect();
    let more = if chars.next().is_some() { "…" } else { "" };
    format!("{}{more}", printable(&first))
}
