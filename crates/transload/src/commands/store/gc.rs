//! `transload store gc`: removes what no manifest needs, and with a cap what was not used for longest.

use std::time::Duration;

use serde::Serialize;
use transload::store::backend::{CollectOptions, Collected, Usage};
use transload::store::{period, size};

use super::ls::{JsonUsage, summary};
use super::{Store, follow, time};
use crate::failure::Failure;
use crate::output::Output;
use crate::show::number;
use crate::show::progress::Progress;

const EXAMPLES: &str = "\
Examples:
  transload store gc file:///var/kv --dry-run
  transload store gc file:///var/kv --grace 2h
  transload store gc s3://bucket/kv --cap 500GiB

What saves left that died goes, and chunks that no manifest refers to, unless
they were put or read within the grace period. With a cap, manifests go first,
those that were not used for longest, until what is left fits. It is safe
while others read and save, as long as no save takes longer than the grace
period. Exit code 1 means that the store is still larger than the cap.";

/// Remove chunks that no manifest needs; with --cap, also manifests that were not used for longest.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The store.
    uri: String,

    /// How long chunks stay that nothing refers to: longer than any save takes.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = period::parse)]
    grace: Duration,

    /// Remove manifests, those first that were not used for longest, until the store is not larger.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cap: Option<u64>,

    /// Only tell what would go.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let store = Store::existing(&args.uri)?;
    let inventory = store.inventory()?;
    let mut options = CollectOptions::new()
        .with_grace(args.grace)
        .with_dry_run(args.dry_run);
    if let Some(cap) = args.cap {
        options = options.with_cap(cap);
    }
    let bar = Progress::new("collecting", 1);
    let collected = inventory.collect(&options, &mut follow(&bar));
    let collected = collected.map_err(|error| store.failed(&error))?;
    drop(bar);
    let usage = inventory.usage().map_err(|error| store.failed(&error))?;
    let report = Report {
        args,
        collected,
        usage,
    };
    output.show(|| report.json(), || report.table())?;
    match report.over_cap() {
        None | Some(0) => Ok(()),
        Some(over) => Err(Failure::no(
            format!("{} is {} over the cap", args.uri, number::bytes(over)),
            report.why_over(),
        )),
    }
}

struct Report<'a> {
    args: &'a Args,
    collected: Collected,
    usage: Usage,
}

/// The schema `transload.store.gc/1`.
#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    uri: &'a str,
    dry_run: bool,
    grace_seconds: f64,
    cap: Option<u64>,
    removed: Removed,
    in_grace: u64,
    damaged: u64,
    /// By how much the cap was missed, or would be; `null` without one.
    over_cap_bytes: Option<u64>,
    usage: JsonUsage,
}

#[derive(Serialize)]
struct Removed {
    manifests: u64,
    /// Parts of saves that were never published, and what earlier versions of the archive left.
    leftovers: u64,
    chunks: u64,
    bytes: u64,
}

impl Report<'_> {
    fn over_cap(&self) -> Option<u64> {
        let gone = match self.args.dry_run {
            true => self.collected.bytes,
            false => 0,
        };
        let total = self.usage.total_bytes.saturating_sub(gone);
        Some(total.saturating_sub(self.args.cap?))
    }

    fn why_over(&self) -> String {
        match (self.collected.in_grace, self.usage.manifests) {
            (0, 0) => "what is left are the store's own records".to_owned(),
            (0, _) => {
                "manifests that were used meanwhile stay, with what they need; try again".to_owned()
            }
            (n, _) => format!(
                "{} that nothing refers to may go when the grace period of {} is over; collect again then",
                number::count(n, "chunk"),
                time::period(self.args.grace),
            ),
        }
    }

    fn json(&self) -> Json<'_> {
        Json {
            schema: "transload.store.gc/1",
            uri: &self.args.uri,
            dry_run: self.args.dry_run,
            grace_seconds: self.args.grace.as_secs_f64(),
            cap: self.args.cap,
            removed: Removed {
                manifests: self.collected.manifests,
                leftovers: self.collected.leftovers,
                chunks: self.collected.chunks,
                bytes: self.collected.bytes,
            },
            in_grace: self.collected.in_grace,
            damaged: self.collected.damaged,
            over_cap_bytes: self.over_cap(),
            usage: (&self.usage).into(),
        }
    }

    fn table(&self) -> String {
        let removed = match self.args.dry_run {
            true => "would remove",
            false => "removed",
        };
        let Collected {
            manifests,
            leftovers,
            chunks,
            bytes,
            in_grace,
            damaged,
            ..
        } = self.collected;
        let kept = match in_grace {
            0 => String::new(),
            n => format!(
                " kept {} that nothing refers to, used in the last {}\n",
                number::count(n, "chunk"),
                time::period(self.args.grace),
            ),
        };
        let leftovers = match leftovers {
            0 => String::new(),
            n => format!(
                " and {} left by saves that did not end, or by earlier versions\n",
                number::count(n, "manifest"),
            ),
        };
        let damaged = match damaged {
            0 => String::new(),
            n => format!(
                " kept {} that the store knows to be damaged: `transload store verify` tells which\n",
                number::count(n, "chunk"),
            ),
        };
        let over = match (self.over_cap(), self.args.cap) {
            (Some(over @ 1..), Some(cap)) => format!(
                " {} over the cap of {}: {}\n",
                number::bytes(over),
                number::bytes(cap),
                self.why_over(),
            ),
            _ => String::new(),
        };
        format!(
            " {removed} {} and {}, {}\n{leftovers}{kept}{damaged}{over}\n{}",
            number::count(manifests, "manifest"),
            number::count(chunks, "chunk"),
            number::bytes(bytes),
            summary(&self.usage),
        )
    }
}
