//! `transload store gc`: removes chunks that no manifest needs and, with a cap, the least recently used manifests.

use std::time::Duration;

use serde_json::{Value, json};
use transload::store::StoreError;
use transload::store::backend::{CollectOptions, Collected, Inventory, Usage};
use transload::store::internal::{period, size};

use super::ls::{summary, usage};
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

gc removes what interrupted saves left behind, and chunks that no manifest
refers to, unless they were put or read within the grace period. With a cap,
it first removes the least recently used manifests until the rest fits. It
removes nothing if more than the cap was put or read within the grace period.
Other processes may read and save meanwhile, as long as no save takes longer
than the grace period. Exit code 1 means that the store is still larger than
the cap.";

/// Remove chunks that no manifest needs; with --cap, also the least recently used manifests.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URI of the store.
    uri: String,

    /// Grace period: how long chunks stay after their last use although no manifest refers to them. Must be longer than
    /// any save takes.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = period::parse)]
    grace: Duration,

    /// Maximum size: remove the least recently used manifests until the store fits. With tiers, the size of the last
    /// tier.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cap: Option<u64>,

    /// Show what would be removed, and remove nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let store = Store::existing(&args.uri)?;
    let inventory = store.inventory()?;
    let options = CollectOptions { grace: args.grace, cap: args.cap, dry_run: args.dry_run };
    let bar = Progress::new("collecting", 1);
    let report = Report::of(args, inventory, &options, &bar);
    let report = report.map_err(|error| store.failed(&error))?;
    drop(bar);
    output.show(|| report.json(), || report.table())?;
    match report.over_cap() {
        None | Some(0) => Ok(()),
        Some(over) => {
            Err(Failure::no(format!("{} is {} over the cap", args.uri, number::bytes(over)), report.why_over()))
        }
    }
}

struct Report<'a> {
    args: &'a Args,
    collected: Collected,
    usage: Usage,
    capped: Option<Capped>,
}

/// The bytes that a cap applies to: those of the store, or of the last of its tiers.
struct Capped {
    cap: u64,
    /// The bytes that were put or read within the grace period.
    in_use: u64,
    /// The bytes after the collection, or after it would have run.
    left: u64,
}

impl Capped {
    /// Returns whether the cap is below what is in use, so that nothing may be removed.
    fn is_too_small(&self) -> bool {
        self.in_use > self.cap
    }
}

impl<'a> Report<'a> {
    /// Collects, unless more is in use than the cap allows.
    fn of(
        args: &'a Args,
        inventory: &dyn Inventory,
        options: &CollectOptions,
        bar: &Progress,
    ) -> Result<Self, StoreError> {
        let last = inventory.capped();
        let mut capped = match args.cap {
            None => None,
            Some(cap) => Some(Capped { cap, in_use: last.unwrap_or(inventory).in_use(args.grace)?, left: 0 }),
        };
        let goes = !capped.as_ref().is_some_and(Capped::is_too_small);
        let collected = match goes {
            true => inventory.collect(options, &mut follow(bar))?,
            false => Collected::default(),
        };
        let usage = inventory.usage()?;
        if let Some(capped) = &mut capped {
            let left = last.map_or(Ok(usage), |last| last.usage())?.total_bytes;
            let would_go = match last {
                _ if !args.dry_run => 0,
                // `collected` counts all tiers, so the last tier is asked separately; a dry run changes nothing.
                Some(last) if goes => last.collect(options, &mut follow(bar))?.bytes,
                _ => collected.bytes,
            };
            capped.left = left.saturating_sub(would_go);
        }
        Ok(Self { args, collected, usage, capped })
    }

    fn over_cap(&self) -> Option<u64> {
        let capped = self.capped.as_ref()?;
        Some(capped.left.saturating_sub(capped.cap))
    }

    fn why_over(&self) -> String {
        if let Some(capped) = self.capped.as_ref().filter(|capped| capped.is_too_small()) {
            return format!(
                "nothing was removed, since {} were put or read within the grace period of {}; use a larger cap or a \
                 shorter --grace (0 if no process uses the store)",
                number::bytes(capped.in_use),
                time::period(self.args.grace),
            );
        }
        match (self.collected.in_grace, self.usage.manifests) {
            (0, 0) => "only the store's own records are left".to_owned(),
            (0, _) => "manifests that were used meanwhile stay, with their chunks; try again".to_owned(),
            (n, _) => format!(
                "{} can be removed once the grace period of {} is over; run gc again then",
                number::count(n, "unreferenced chunk"),
                time::period(self.args.grace),
            ),
        }
    }

    /// The schema `transload.store.gc/1`.
    fn json(&self) -> Value {
        let Collected { manifests, leftovers, chunks, bytes, in_grace, damaged, .. } = self.collected;
        json!({
            "schema": "transload.store.gc/1",
            "uri": self.args.uri,
            "dry_run": self.args.dry_run,
            "grace_seconds": self.args.grace.as_secs_f64(),
            "cap": self.args.cap,
            "removed": {"manifests": manifests, "leftovers": leftovers, "chunks": chunks, "bytes": bytes},
            "in_grace": in_grace,
            "damaged": damaged,
            "in_use_bytes": self.capped.as_ref().map(|capped| capped.in_use),
            "over_cap_bytes": self.over_cap(),
            "usage": usage(&self.usage),
        })
    }

    fn table(&self) -> String {
        let removed = match self.args.dry_run {
            true => "would remove",
            false => "removed",
        };
        let Collected { manifests, leftovers, chunks, bytes, in_grace, damaged, .. } = self.collected;
        let kept = match in_grace {
            0 => String::new(),
            n => format!(
                " kept {}, used in the last {}\n",
                number::count(n, "unreferenced chunk"),
                time::period(self.args.grace),
            ),
        };
        let leftovers = match leftovers {
            0 => String::new(),
            n => format!(" and {} of interrupted saves or earlier versions\n", number::count(n, "manifest"),),
        };
        let damaged = match damaged {
            0 => String::new(),
            n => format!(
                " kept {} known to be damaged: `transload store verify` lists them\n",
                number::count(n, "chunk"),
            ),
        };
        let over = match (self.over_cap(), self.args.cap) {
            (Some(over @ 1..), Some(cap)) => {
                format!(" {} over the cap of {}: {}\n", number::bytes(over), number::bytes(cap), self.why_over(),)
            }
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
