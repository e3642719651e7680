//! What the demo did, as printed: `transload.demo/1` and its table.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use transload::layout::Deployment;
use transload::transfer::Plan;
use transload::transfer::plan::BoundPlan;

use crate::commands::engines::{Archived, Checked, Pulled};
use crate::commands::plan::report::Report as PlanReport;
use crate::show::number;
use crate::show::table::Table;

/// Everything there is to tell.
pub(super) struct Report {
    pub(super) src: Deployment,
    pub(super) dst: Deployment,
    pub(super) plan: Plan,
    pub(super) bound: BoundPlan,
    pub(super) compile: Duration,
    pub(super) tokens: u64,
    pub(super) seed: u64,
    pub(super) transfers: Vec<Transfer>,
    /// The store that it was saved into, and what came of it.
    pub(super) kept: Option<(String, Archived)>,
    /// Where the caches were, if not in memory of the host.
    pub(super) gpu: Option<On>,
    /// Why they were not on the GPU that is there.
    pub(super) unused: Option<String>,
}

/// A GPU that caches were on.
#[derive(Clone, Debug, Serialize)]
pub(super) struct On {
    pub(super) ordinal: u32,
    pub(super) name: String,
}

/// One transfer of the request that went well.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Transfer {
    /// The paths that its routes took: one, as a rule.
    paths: Vec<String>,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
    /// How the source's leases ended, one for each of its ranks.
    leases: Vec<String>,
    verified_bytes: u64,
    canary_bytes: u64,
}

impl Transfer {
    pub(super) fn new(pulled: Pulled, checked: Checked) -> Self {
        let Pulled { report, leases } = pulled;
        let paths: BTreeSet<_> = report.routes.iter().map(|route| route.path).collect();
        Self {
            paths: paths.iter().map(ToString::to_string).collect(),
            bytes: report.bytes,
            seconds: report.took.as_secs_f64(),
            gb_per_s: number::gigabytes_per_second(report.bytes, report.took),
            leases,
            verified_bytes: checked.request,
            canary_bytes: checked.canaries,
        }
    }
}

impl Report {
    /// The schema `transload.demo/1`.
    pub(super) fn json(&self) -> Value {
        let kept = self.kept.as_ref().map(|(store, kept)| {
            json!({
                "store": store,
                "tokens": kept.tokens,
                "saved_bytes": kept.saved,
                "save_seconds": kept.save.as_secs_f64(),
                "pieces": kept.pieces,
                "restored_bytes": kept.restored,
                "restore_seconds": kept.restore.as_secs_f64(),
                "verified_bytes": kept.checked.request,
                "canary_bytes": kept.checked.canaries,
            })
        });
        json!({
            "schema": "transload.demo/1",
            "tokens": self.tokens,
            "seed": self.seed,
            "plan": self.plan().json(false),
            "gpu": self.gpu,
            "transfers": self.transfers,
            "kept": kept,
            // There is no report of a transfer that went wrong.
            "verified": true,
        })
    }

    pub(super) fn table(&self) -> String {
        let mut table = Table::new("path|>bytes|>time|>rate|leases");
        for transfer in &self.transfers {
            let took = Duration::from_secs_f64(transfer.seconds);
            table.row([
                transfer.paths.join(" and "),
                number::grouped(transfer.bytes),
                number::time(took),
                number::rate(transfer.bytes, took),
                transfer.leases.join(", "),
            ]);
        }
        let mut text = self.plan().table();
        let by_default = match self.gpu {
            Some(_) => "keep the bytes on the GPU",
            None => "use the ring",
        };
        let _ = write!(
            text,
            "\n{}\n \
             quic is the path between hosts: encrypted, with both sides authenticated. ring is a staging ring in\n \
             memory that the two processes share. The demo runs both; by default, these two {by_default}.\n\n",
            table.finish(),
        );
        if let Some(On { ordinal, name }) = &self.gpu {
            let _ = writeln!(text, " All caches were in the memory of GPU {ordinal}, {name}.\n");
        }
        if let Some(why) = &self.unused {
            let _ = writeln!(text, " {why}\n");
        }
        let Some(last) = self.transfers.last() else {
            return text;
        };
        let tokens = number::grouped(self.tokens);
        let mut canaries = last.canary_bytes;
        let mut restored = String::new();
        if let Some((store, kept)) = &self.kept {
            text.push_str(&kept_table(store, kept));
            if kept.tokens > 0 {
                canaries += kept.checked.canaries;
                restored = format!(", of {} restored ones,", number::grouped(kept.tokens));
            }
        }
        let canaries = number::grouped(canaries);
        let _ = writeln!(
            text,
            " verified: every byte of {tokens} tokens{restored} and {canaries} canary bytes around them",
        );
        text
    }

    fn plan(&self) -> PlanReport<'_> {
        PlanReport {
            src: &self.src,
            dst: &self.dst,
            plan: &self.plan,
            bound: &self.bound,
            compile: self.compile,
            svg: None,
            estimate: None,
            suggestions: None,
        }
    }
}

/// What was saved and restored, as a table and a line about it.
fn kept_table(store: &str, kept: &Archived) -> String {
    if kept.tokens == 0 {
        return " nothing was saved: a store keeps whole chunks of 256 tokens\n\n".to_owned();
    }
    let mut table = Table::new("store|>tokens|>bytes|>time|>rate");
    for (what, bytes, took) in [("saved", kept.saved, kept.save), ("restored", kept.restored, kept.restore)] {
        table.row([
            what.to_owned(),
            number::grouped(kept.tokens),
            number::grouped(bytes),
            number::time(took),
            number::rate(bytes, took),
        ]);
    }
    let group = &kept.deployment.groups()[0];
    format!(
        "{}\n \
         into {store}: {} pieces, a piece being 256 tokens of a head.\n \
         Restored into a third layout: TP {}, blocks of {}, {}.\n\n",
        table.finish(),
        number::grouped(kept.pieces),
        kept.deployment.tp(),
        group.block_size(),
        group.physical_order(),
    )
}
