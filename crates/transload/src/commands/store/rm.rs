//! `transload store rm`: removes manifests by name.

use std::collections::HashSet;
use std::fmt::Write;

use serde_json::{Value, json};
use transload::store::{ManifestName, StoreError};

use super::{Store, printable};
use crate::failure::{Failure, chain};
use crate::output::Output;
use crate::show::number;
use crate::show::table::Table;

const EXAMPLES: &str = "\
Examples:
  transload store rm file:///var/kv slot0
  transload store rm redis://cache/0 slot0 slot1 --dry-run
  transload store rm s3://bucket/kv -- -a-name-with-a-dash

Chunks stay until a later `gc` removes those that no other manifest needs and
whose grace period is over. Exit code 1 means that some of the names do not
exist; the others are removed nevertheless.";

/// Remove manifests. A later gc removes their chunks.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URI of the store.
    uri: String,

    /// Names of the manifests, as `transload store ls` lists them.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<ManifestName>,

    /// Show what would be removed, and remove nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let store = Store::existing(&args.uri)?;
    let mut seen = HashSet::new();
    let mut report = Report { args, removed: Vec::new(), missing: Vec::new() };
    for name in args.names.iter().filter(|name| seen.insert(*name)) {
        let removed = remove(&store, name, args.dry_run);
        match removed.map_err(|error| report.failed(name, &error))? {
            Found::There(bytes) => report.removed.push(Removed { name, bytes }),
            Found::Missing => report.missing.push(name),
        }
    }
    output.show(|| report.json(), || report.table())?;
    match report.missing.as_slice() {
        [] => Ok(()),
        missing => {
            let names: Vec<String> = missing.iter().map(|name| printable(name)).collect();
            Err(Failure::no(format!("{} has no manifest {}", args.uri, names.join(", nor ")), store.what_it_has()))
        }
    }
}

enum Found {
    /// A manifest with its size in bytes, or `None` if it cannot be read.
    There(Option<u64>),
    Missing,
}

fn remove(store: &Store, name: &ManifestName, dry_run: bool) -> Result<Found, StoreError> {
    // Peeking does not count as a use, if the store supports it.
    let manifest = match store.backend.inventory() {
        Some(inventory) => inventory.peek_manifests(std::slice::from_ref(name)).map(|mut found| found.pop().flatten()),
        None => store.backend.get_manifest(name),
    };
    let found = match manifest {
        Ok(Some(manifest)) => Found::There(Some(manifest.len() as u64)),
        Ok(None) => Found::Missing,
        // Removing a damaged manifest is a usual reason for this command.
        Err(StoreError::Damaged { .. }) => Found::There(None),
        Err(error) => return Err(error),
    };
    // Missing manifests are deleted as well: a library may report one as missing that it failed to read.
    if !dry_run {
        store.backend.delete_manifest(name)?;
    }
    Ok(found)
}

struct Report<'a> {
    args: &'a Args,
    removed: Vec<Removed<'a>>,
    missing: Vec<&'a ManifestName>,
}

struct Removed<'a> {
    name: &'a ManifestName,
    /// The size; `None` if the manifest cannot be read.
    bytes: Option<u64>,
}

impl Report<'_> {
    /// Returns the failure for an error after some manifests were removed.
    fn failed(&self, name: &ManifestName, error: &StoreError) -> Failure {
        let before = match (self.args.dry_run, self.removed.len() as u64) {
            (true, _) | (_, 0) => "nothing was removed".to_owned(),
            (_, n) => format!("{} before it were removed", number::count(n, "manifest")),
        };
        Failure::input(
            format!("{}: manifest {} cannot be removed: {}; {before}", self.args.uri, printable(name), chain(error)),
            "check that the store still exists and that you may write to it",
        )
    }

    /// The schema `transload.store.rm/1`.
    fn json(&self) -> Value {
        let removed = self.removed.iter();
        let removed = removed.map(|it| json!({"name": it.name.as_str(), "bytes": it.bytes}));
        let missing: Vec<&str> = self.missing.iter().map(|name| name.as_str()).collect();
        json!({
            "schema": "transload.store.rm/1",
            "uri": self.args.uri,
            "dry_run": self.args.dry_run,
            "removed": removed.collect::<Vec<_>>(),
            "missing": missing,
        })
    }

    fn table(&self) -> String {
        let mut text = String::new();
        if !self.removed.is_empty() {
            let mut table = Table::new(">bytes|manifest");
            for removed in &self.removed {
                let bytes = removed.bytes;
                table.row([bytes.map_or_else(|| "damaged".to_owned(), number::grouped), printable(removed.name)]);
            }
            let _ = writeln!(text, "{}", table.finish());
        }
        let removed = match self.args.dry_run {
            true => "would remove",
            false => "removed",
        };
        let count = number::count(self.removed.len() as u64, "manifest");
        let _ = writeln!(text, " {removed} {count}");
        if !self.removed.is_empty() {
            text.push_str(" a later gc removes the chunks that only they needed\n");
        }
        text
    }
}
