//! The demo's report: `transload.demo/1` and its table.

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

pub(super) struct Report {
    pub(super) src: Deployment,
    pub(super) dst: Deployment,
    pub(super) plan: Plan,
    pub(super) bound: BoundPlan,
    pub(super) compile: Duration,
    pub(super) tokens: u64,
    pub(super) seed: u64,
    pub(super) transfers: Vec<Transfer>,
    /// The store's URI, and the result of saving and restoring.
    pub(super) archived: Option<(String, Archived)>,
    /// The GPU with the caches; `None` if they were in host memory.
    pub(super) gpu: Option<GpuName>,
    /// The reason why an existing GPU was not used.
    pub(super) unused: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct GpuName {
    pub(super) ordinal: u32,
    pub(super) name: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Transfer {
    /// The paths of its routes; usually one.
    paths: Vec<String>,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
    /// The ends of the source's leases, one for each of its ranks.
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
        let archived = self.archived.as_ref().map(|(store, archived)| {
            json!({
                "store": store,
                "tokens": archived.tokens,
                "saved_bytes": archived.saved,
                "save_seconds": archived.save.as_secs_f64(),
                "pieces": archived.pieces,
                "restored_bytes": archived.restored,
                "restore_seconds": archived.restore.as_secs_f64(),
                "verified_bytes": archived.checked.request,
                "canary_bytes": archived.checked.canaries,
            })
        });
        json!({
            "schema": "transload.demo/1",
            "tokens": self.tokens,
            "seed": self.seed,
            "plan": self.plan().json(false),
            "gpu": self.gpu,
            "transfers": self.transfers,
            "kept": archived,
            // A failed transfer yields no report.
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
        if let Some(GpuName { ordinal, name }) = &self.gpu {
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
        if let Some((store, archived)) = &self.archived {
            text.push_str(&kept_table(store, archived));
            if archived.tokens > 0 {
                canaries += archived.checked.canaries;
                restored = format!(", of {} restored ones,", number::grouped(archived.tokens));
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

fn kept_table(store: &str, archived: &Archived) -> String {
    if archived.tokens == 0 {
        return " nothing was saved: a store holds only whole chunks of 256 tokens\n\n".to_owned();
    }
    let mut table = Table::new("store|>tokens|>bytes|>time|>rate");
    for (what, bytes, took) in
        [("saved", archived.saved, archived.save), ("restored", archived.restored, archived.restore)]
    {
        table.row([
            what.to_owned(),
            number::grouped(archived.tokens),
            number::grouped(bytes),
            number::time(took),
            number::rate(bytes, took),
        ]);
    }
    let group = &archived.deployment.groups()[0];
    format!(
        "{}\n \
         into {store}: {} pieces, a piece being 256 tokens of a head.\n \
         Restored into a third layout: TP {}, blocks of {}, {}.\n\n",
        table.finish(),
        number::grouped(archived.pieces),
        archived.deployment.tp(),
        group.block_size(),
        group.physical_order(),
    )
}
