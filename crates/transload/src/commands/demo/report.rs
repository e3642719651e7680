//! What the demo did, as printed: `transload.demo/1` and its table.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use transload::layout::Deployment;
use transload::transfer::plan::{BoundPlan, Plan};

use crate::commands::engines::{Checked, Pulled};
use crate::commands::plan::report::{Json as PlanJson, Report as PlanReport};
use crate::show::number;
use crate::show::table::{Lean, Table};

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

/// The schema `transload.demo/1`.
#[derive(Serialize)]
pub(super) struct Json<'a> {
    schema: &'static str,
    tokens: u64,
    seed: u64,
    plan: PlanJson<'a>,
    transfers: &'a [Transfer],
    verified: bool,
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
    pub(super) fn json(&self) -> Json<'_> {
        Json {
            schema: "transload.demo/1",
            tokens: self.tokens,
            seed: self.seed,
            plan: self.plan().json(false),
            transfers: &self.transfers,
            // There is no report of a transfer that went wrong.
            verified: true,
        }
    }

    pub(super) fn table(&self) -> String {
        let mut table = Table::new(&[
            ("path", Lean::Left),
            ("bytes", Lean::Right),
            ("time", Lean::Right),
            ("rate", Lean::Right),
            ("leases", Lean::Left),
        ]);
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
        let _ = write!(
            text,
            "\n{}\n \
             quic is the way between hosts: encrypted, with both sides authenticated. On one host, as here,\n \
             bytes go through a staging ring, or are copied once out of memory that the source shares.\n \
             Each of the three was asked for; left alone, these two processes take the last. The first copy\n \
             out of shared memory includes mapping it.\n\n",
            table.finish(),
        );
        if let Some(last) = self.transfers.last() {
            let _ = writeln!(
                text,
                " verified: every byte of {} tokens, and {} canary bytes around them",
                number::grouped(self.tokens),
                number::grouped(last.canary_bytes),
            );
        }
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
