//! `transload store verify`: reads everything, and tells what is damaged or missing.

use serde::Serialize;
use transload::store::backend::{Fault, Usage};

use super::ls::{JsonUsage, summary};
use super::{Store, archive, follow};
use crate::failure::Failure;
use crate::output::Output;
use crate::show::number;
use crate::show::progress::Progress;
use crate::show::table::{Lean, Table};

const EXAMPLES: &str = "\
Examples:
  transload store verify file:///var/kv
  transload store verify s3://bucket/kv --format json

Exit code 1 means that something is damaged or missing.";

/// Read everything in a store, and tell what is damaged or missing.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The store.
    uri: String,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let store = Store::existing(&args.uri)?;
    let inventory = store.inventory()?;
    let bar = Progress::new("verifying", 1);
    let mut faults = Vec::new();
    let verified = inventory.verify(&mut follow(&bar), &mut |fault| faults.push(fault));
    verified.map_err(|error| store.failed(&error))?;
    // A manifest that could not be read was told of already; here it would be so once more.
    if faults.is_empty() {
        let verified = archive::verify(&*store.backend, inventory, &mut |fault| faults.push(fault));
        verified.map_err(|error| store.failed(&error))?;
    }
    drop(bar);
    let usage = inventory.usage().map_err(|error| store.failed(&error))?;
    let report = Report {
        uri: &args.uri,
        faults,
        usage,
    };
    output.show(|| report.json(), || report.table())?;
    match report.faults.len() as u64 {
        0 => Ok(()),
        n => Err(Failure::no(
            format!("{} has {}", args.uri, number::count(n, "fault")),
            "delete the manifests that need what is damaged, or put it again; \
             nothing damaged is ever given to a reader",
        )),
    }
}

struct Report<'a> {
    uri: &'a str,
    faults: Vec<Fault>,
    usage: Usage,
}

/// The schema `transload.store.verify/1`.
#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    uri: &'a str,
    ok: bool,
    faults: Vec<JsonFault<'a>>,
    usage: JsonUsage,
}

#[derive(Serialize)]
struct JsonFault<'a> {
    what: &'a str,
    how: &'a str,
}

impl Report<'_> {
    fn json(&self) -> Json<'_> {
        let faults = self.faults.iter().map(|fault| JsonFault {
            what: &fault.what,
            how: &fault.how,
        });
        Json {
            schema: "transload.store.verify/1",
            uri: self.uri,
            ok: self.faults.is_empty(),
            faults: faults.collect(),
            usage: (&self.usage).into(),
        }
    }

    fn table(&self) -> String {
        if self.faults.is_empty() {
            return format!(
                "{} verified: everything is there and whole\n",
                summary(&self.usage)
            );
        }
        let mut table = Table::new(&[("what", Lean::Left), ("how", Lean::Left)]);
        for fault in &self.faults {
            table.row([&fault.what, &fault.how]);
        }
        format!("{}\n{}", table.finish(), summary(&self.usage))
    }
}
