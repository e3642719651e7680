//! `transload store ls`: lists the contents of a store and its size.

use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Value, json};
use transload::store::backend::{ChunkEntry, ManifestEntry, Usage};
use transload::store::internal::is_leftover;

use super::objects::Shown;
use super::records::Details;
use super::{Store, printable, time};
use crate::failure::Failure;
use crate::output::Output;
use crate::show::number;
use crate::show::progress::Progress;
use crate::show::table::Table;

const EXAMPLES: &str = "\
Examples:
  transload store ls file:///var/kv
  transload store ls redis://cache/0 --sort used
  transload store ls s3://bucket/kv --chunks --format json";

/// List a store's manifests and how much space it uses.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URI of the store.
    uri: String,

    /// List chunks as well.
    #[arg(long)]
    chunks: bool,

    /// Sort by name, by size (largest first) or by last use (least recently used first).
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Sort {
    #[default]
    Name,
    Size,
    Used,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let store = Store::existing(&args.uri)?;
    let inventory = store.inventory()?;
    let bar = Progress::new("listing", 1);
    let mut manifests = Vec::new();
    let walked = inventory.manifests(&mut |entry| {
        manifests.push(entry);
        Ok(())
    });
    walked.map_err(|error| store.failed(&error))?;
    let mut chunks = args.chunks.then(Vec::new);
    if let Some(chunks) = &mut chunks {
        let walked = inventory.chunks(&mut |entry| {
            chunks.push(entry);
            Ok(())
        });
        walked.map_err(|error| store.failed(&error))?;
    }
    let usage = inventory.usage().map_err(|error| store.failed(&error))?;
    let details = Details::read(inventory, store.backend.batch(), &manifests);
    let details = details.map_err(|error| store.failed(&error))?;
    drop(bar);

    sort_manifests(&mut manifests, args.sort);
    if let Some(chunks) = &mut chunks {
        sort_chunks(chunks, args.sort);
    }
    let listing = Listing { uri: &args.uri, manifests, chunks, usage, details };
    output.show(|| listing.json(), || listing.table())?;
    Ok(())
}

// Entries without a known time of use come first.
fn sort_manifests(entries: &mut [ManifestEntry], by: Sort) {
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    match by {
        Sort::Name => {}
        Sort::Size => entries.sort_by_key(|entry| std::cmp::Reverse(entry.bytes)),
        Sort::Used => entries.sort_by_key(|entry| entry.last_used),
    }
}

fn sort_chunks(entries: &mut [ChunkEntry], by: Sort) {
    entries.sort_unstable_by_key(|entry| entry.hash);
    match by {
        Sort::Name => {}
        Sort::Size => entries.sort_by_key(|entry| std::cmp::Reverse(entry.bytes)),
        Sort::Used => entries.sort_by_key(|entry| entry.last_used),
    }
}

struct Listing<'a> {
    uri: &'a str,
    manifests: Vec<ManifestEntry>,
    chunks: Option<Vec<ChunkEntry>>,
    usage: Usage,
    details: Details,
}

/// The schema `transload.store.ls/1`.
#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    uri: &'a str,
    manifests: Vec<JsonManifest<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunks: Option<Vec<JsonChunk>>,
    usage: Value,
    leftovers: JsonLeftovers,
}

/// Manifests that a collection removes once they are unused for its grace period.
#[derive(Serialize)]
struct JsonLeftovers {
    manifests: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct JsonManifest<'a> {
    name: &'a str,
    bytes: u64,
    last_used: Option<u64>,
    /// Used by saved prefixes only: the engine and its exact version.
    #[serde(skip_serializing_if = "Option::is_none")]
    computed_by: Option<&'a str>,
    /// Used by saved prefixes that are not stored exactly: the codec.
    #[serde(skip_serializing_if = "Option::is_none")]
    codec: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<&'a Shown>,
}

#[derive(Serialize)]
struct JsonChunk {
    hash: String,
    bytes: u64,
    last_used: Option<u64>,
}

/// Returns the contents and the size of a store, in bytes, as JSON.
pub(super) fn usage(usage: &Usage) -> Value {
    json!({
        "manifests": usage.manifests,
        "manifest_bytes": usage.manifest_bytes,
        "chunks": usage.chunks,
        "chunk_bytes": usage.chunk_bytes,
        "total_bytes": usage.total_bytes,
        "cap": usage.cap,
    })
}

impl Listing<'_> {
    fn json(&self) -> Json<'_> {
        let manifests = self.manifests.iter().map(|entry| JsonManifest {
            name: entry.name.as_str(),
            bytes: entry.bytes,
            last_used: time::unix(entry.last_used),
            computed_by: self.details.origin(&entry.name),
            codec: self.details.codec(&entry.name),
            object: self.details.object(&entry.name),
        });
        let chunks = self.chunks.as_ref().map(|chunks| {
            let chunks = chunks.iter().map(|entry| JsonChunk {
                hash: entry.hash.to_string(),
                bytes: entry.bytes,
                last_used: time::unix(entry.last_used),
            });
            chunks.collect()
        });
        Json {
            schema: "transload.store.ls/1",
            uri: self.uri,
            manifests: manifests.collect(),
            chunks,
            usage: usage(&self.usage),
            leftovers: self.leftovers(),
        }
    }

    fn leftovers(&self) -> JsonLeftovers {
        let leftovers = self.manifests.iter();
        let leftovers = leftovers.filter(|entry| is_leftover(entry.name.as_str()));
        leftovers.fold(JsonLeftovers { manifests: 0, bytes: 0 }, |sum, entry| JsonLeftovers {
            manifests: sum.manifests + 1,
            bytes: sum.bytes.saturating_add(entry.bytes),
        })
    }

    fn table(&self) -> String {
        let now = SystemTime::now();
        let mut text = String::new();
        if !self.manifests.is_empty() {
            let mut table = Table::new(">bytes|>unused for|manifest");
            for entry in &self.manifests {
                let object = self.details.object(&entry.name);
                let object = object.map(|object| format!("  {}", object.short()));
                table.row([
                    number::grouped(entry.bytes),
                    time::age(entry.last_used, now),
                    printable(&entry.name) + &object.unwrap_or_default(),
                ]);
            }
            text.push_str(&table.finish());
            text.push('\n');
        }
        if let Some(chunks) = self.chunks.as_ref().filter(|chunks| !chunks.is_empty()) {
            let mut table = Table::new(">bytes|>unused for|chunk");
            for entry in chunks {
                table.row([number::grouped(entry.bytes), time::age(entry.last_used, now), entry.hash.to_string()]);
            }
            text.push_str(&table.finish());
            text.push('\n');
        }
        text.push_str(&summary(&self.usage));
        text.push_str(&self.details.lines());
        let leftovers = self.leftovers();
        if leftovers.manifests > 0 {
            text.push_str(&format!(
                " of these, {} of {} belong to saves in progress, interrupted saves or earlier versions: `transload \
                 store gc` removes those that were not used within its grace period\n",
                number::count(leftovers.manifests, "manifest"),
                number::bytes(leftovers.bytes),
            ));
        }
        let listed = self.manifests.len() as u64;
        if let Some(more @ 1..) = self.usage.manifests.checked_sub(listed) {
            let more = number::count(more, "manifest");
            text.push_str(&format!(
                " not listed: {more}, damaged or not below this URI; see `transload store verify`\n"
            ));
        }
        text
    }
}

/// Formats the contents and the size of a store in two lines.
pub(super) fn summary(usage: &Usage) -> String {
    let cap = match usage.cap {
        Some(cap) => format!(" of a cap of {}", number::bytes(cap)),
        None => String::new(),
    };
    format!(
        " {} of {}, {} of {}\n {} in all{cap}\n",
        number::count(usage.manifests, "manifest"),
        number::bytes(usage.manifest_bytes),
        number::count(usage.chunks, "chunk"),
        number::bytes(usage.chunk_bytes),
        number::bytes(usage.total_bytes),
    )
}
