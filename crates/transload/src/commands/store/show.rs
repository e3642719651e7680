//! `transload store show`: shows one manifest and the chunks that it refers to.

use std::fmt::Write;
use std::time::SystemTime;

use serde_json::{Value, json};
use transload::store::backend::{ChunkEntry, Inventory, References};
use transload::store::{ManifestName, StoreError};

use super::contents::Contents;
use super::{Store, printable, time};
use crate::failure::Failure;
use crate::output::Output;
use crate::show::number;
use crate::show::progress::Progress;
use crate::show::table::Table;

const EXAMPLES: &str = "\
Examples:
  transload store show file:///var/kv slot0
  transload store show redis://cache/0 slot0 --raw > slot0.manifest
  transload store show s3://bucket/kv slot0 --format json

A manifest refers to a chunk if its bytes contain the chunk's hash, raw or as
hex.";

/// The most chunks in a table; JSON has all of them.
const LISTED: usize = 64;

/// Show a manifest and the chunks that it refers to.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URI of the store.
    uri: String,

    /// Name of the manifest, as `transload store ls` lists it.
    name: ManifestName,

    /// Write only the manifest's bytes to stdout.
    #[arg(long, conflicts_with = "format")]
    raw: bool,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let store = Store::existing(&args.uri)?;
    let manifest = store.backend.get_manifest(&args.name);
    let manifest = manifest.map_err(|error| store.failed(&error))?;
    let Some(manifest) = manifest else {
        return Err(Failure::no(
            format!("{} has no manifest {}", args.uri, printable(&args.name)),
            store.what_it_has(),
        ));
    };
    if args.raw {
        output.bytes(&manifest)?;
        return Ok(());
    }
    let listed = match store.backend.inventory() {
        Some(inventory) => {
            let bar = Progress::new("finding its chunks", 1);
            let listed = Listed::find(inventory, &args.name, &manifest);
            drop(bar);
            Some(listed.map_err(|error| store.failed(&error))?)
        }
        None => None,
    };
    let shown = Shown { args, manifest: &manifest, contents: Contents::of(&args.name, &manifest), listed };
    output.show(|| shown.json(), || shown.table())?;
    Ok(())
}

struct Listed {
    last_used: Option<SystemTime>,
    chunks: Vec<ChunkEntry>,
}

impl Listed {
    fn find(inventory: &dyn Inventory, name: &ManifestName, manifest: &[u8]) -> Result<Self, StoreError> {
        let mut last_used = None;
        inventory.manifests(&mut |entry| {
            if entry.name == *name {
                last_used = entry.last_used;
            }
            Ok(())
        })?;
        let mut chunks = Vec::new();
        inventory.chunks(&mut |entry| {
            chunks.push(entry);
            Ok(())
        })?;
        let mut references = References::new(chunks.iter().map(|entry| entry.hash));
        references.scan(manifest);
        chunks.retain(|entry| references.contains(&entry.hash));
        chunks.sort_unstable_by_key(|entry| entry.hash);
        Ok(Self { last_used, chunks })
    }

    fn bytes(&self) -> u64 {
        self.chunks.iter().map(|entry| entry.bytes).sum()
    }
}

struct Shown<'a> {
    args: &'a Args,
    manifest: &'a [u8],
    contents: Contents,
    listed: Option<Listed>,
}

impl Shown<'_> {
    /// The schema `transload.store.show/1`; chunks are `null` if the store cannot list them.
    fn json(&self) -> Value {
        let listed = self.listed.as_ref();
        let chunks = listed.map(|listed| {
            let chunks = listed.chunks.iter();
            let chunk = |entry: &ChunkEntry| json!({"hash": entry.hash.to_string(), "bytes": entry.bytes});
            chunks.map(chunk).collect::<Vec<_>>()
        });
        json!({
            "schema": "transload.store.show/1",
            "uri": self.args.uri,
            "name": self.args.name.as_str(),
            "bytes": self.manifest.len(),
            "last_used": listed.and_then(|listed| time::unix(listed.last_used)),
            "contents": self.contents,
            "chunks": chunks,
            "chunk_bytes": listed.map(Listed::bytes),
        })
    }

    fn table(&self) -> String {
        let mut text =
            format!(" {}: {}", printable(&self.args.name), number::count(self.manifest.len() as u64, "byte"));
        let Some(listed) = &self.listed else {
            let _ = write!(
                text,
                "; the library behind this store cannot list chunks\n\n{}",
                self.contents.lines(self.manifest)
            );
            return text;
        };
        if listed.last_used.is_some() {
            let age = time::age(listed.last_used, SystemTime::now());
            let _ = write!(text, ", unused for {age}");
        }
        let _ = write!(text, "\n\n{}", self.contents.lines(self.manifest));
        if !listed.chunks.is_empty() {
            let mut table = Table::new(">bytes|chunk");
            for entry in listed.chunks.iter().take(LISTED) {
                table.row([number::grouped(entry.bytes), entry.hash.to_string()]);
            }
            let _ = write!(text, "\n{}", table.finish());
        }
        let more = listed.chunks.len().saturating_sub(LISTED);
        if more > 0 {
            let _ = writeln!(text, " … {more} more; --format json lists all");
        }
        let _ = writeln!(
            text,
            "\n it refers to {} of {}",
            number::count(listed.chunks.len() as u64, "chunk"),
            number::bytes(listed.bytes()),
        );
        text
    }
}
