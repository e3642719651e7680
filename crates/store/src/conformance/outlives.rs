//! An item about values that outlive the process that wrote them.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout};
use std::time::Duration;

use super::context::Context;
use super::item::{Item, in_processes, must};
use super::ledger;
use super::outcome::{Outcome, Stop, broken};
use crate::hash::ChunkHash;
use crate::name::ManifestName;

pub(super) const ITEMS: &[Item] = &[in_processes(must(
    "outlives-process",
    "another process can read what put_manifest has published, even if the writing process was killed",
    outlives,
))];

/// The last line of the writing process, when it has written.
const WRITTEN: &str = "\u{1e}kv-store written";

fn outlives(context: &Context<'_>) -> Outcome {
    if let Some(task) = ledger::writers_task() {
        return write(context, &task);
    }
    let (hash, name) = (context.hash(32)?, context.name("/outlives")?);
    let Some(writer) = ledger::start_writer(&format!("{hash} {name}")) else {
        return Err(Stop::Skip("it needs a process of its own".into()));
    };
    let failed = |error| Stop::Skip(format!("no further process could be started: {error}"));
    let mut writer = writer.map_err(failed)?;
    let written = writer.stdout.take().is_some_and(has_written);
    end(&mut writer);
    if !written {
        broken!("another process could not put a chunk and a manifest; its own words are on stderr");
    }
    let store = context.open()?;
    let when = "when the process that wrote it was killed";
    store.expect(&hash, &data(&hash), when)?;
    store.expect_manifest(&name, hash.as_bytes(), when)?;
    Ok("a chunk and a manifest are there when the process that wrote them was killed".into())
}

fn has_written(stdout: ChildStdout) -> bool {
    let lines = BufReader::new(stdout).lines().map_while(Result::ok);
    // A library may have printed to the same line before.
    lines.into_iter().any(|line| line.ends_with(WRITTEN))
}

fn end(writer: &mut Child) {
    // It may have ended already.
    let _ = writer.kill();
    let _ = writer.wait();
}

/// Writes, in the writing process. It then waits to be killed, with its handle open.
fn write(context: &Context<'_>, task: &str) -> Outcome {
    let nonsense = || Stop::Broken("this process was told nothing to write".into());
    let (hash, name) = task.split_once(' ').ok_or_else(nonsense)?;
    let (hash, name): (ChunkHash, ManifestName) = (hash.parse()?, name.parse()?);
    let store = context.open()?;
    store.put(&hash, &data(&hash))?;
    store.put_manifest(&name, hash.as_bytes())?;
    println!("{WRITTEN}");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Returns the chunk's bytes, which both processes can compute.
fn data(hash: &ChunkHash) -> Vec<u8> {
    let mut data = vec![0; 10_000];
    let mut stream = blake3::Hasher::new().update(hash.as_bytes()).finalize_xof();
    stream.fill(&mut data);
    data
}
