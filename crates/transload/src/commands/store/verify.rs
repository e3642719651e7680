//! `transload store verify`: reads everything and reports what is damaged or missing.

use std::collections::HashMap;

use serde_json::{Value, json};
use transload::store::ManifestName;
use transload::store::backend::{Fault, Usage};

use super::ls::{summary, usage};
use super::needed::needed_by;
use super::{Store, follow, printable, records};
use crate::failure::{Failure, chain};
use crate::output::Output;
use crate::show::number;
use crate::show::progress::Progress;
use crate::show::table::Table;
use crate::show::text;

const EXAMPLES: &str = "Examples:
  transload store verify file:///var/kv
  transload store verify s3://bucket/kv --format json

Exit code 1 means that data is damaged or missing.";

/// Read everything in a store and report what is damaged or missing.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URI of the store.
    uri: String,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let store = Store::existing(&args.uri)?;
    let inventory = store.inventory()?;
    let bar = Progress::new("verifying", 1);
    let mut faults = Vec::new();
    let mut verified = inventory.verify(&mut follow(&bar), &mut |fault| faults.push(fault));
    let mut found = Vec::new();
    // With faults already found, unreadable manifests would be reported a second time here.
    if faults.is_empty() && verified.is_ok() {
        verified = records::verify(&*store.backend, inventory, &mut |name, fault| {
            found.push(Found { needed_by: Some(vec![name.clone()]), fault });
        });
    }
    // Findings are reported even after an error, together with the fact that they are incomplete.
    let complete = verified.is_ok();
    let mut failed = match verified {
        Err(error) if faults.is_empty() && found.is_empty() => return Err(store.failed(&error)),
        verified => verified.err(),
    };
    bar.say("finding the manifests that need damaged chunks".to_owned());
    let chunks: Vec<_> = faults.iter().filter_map(Fault::chunk).collect();
    let needed = needed_by(&*store.backend, inventory, &chunks);
    let needed = needed.unwrap_or_else(|error| {
        failed.get_or_insert(error);
        HashMap::new()
    });
    found.extend(
        faults
            .into_iter()
            .map(|fault| Found { needed_by: fault.chunk().and_then(|hash| needed.get(&hash).cloned()), fault }),
    );
    drop(bar);
    let usage = inventory.usage().map_err(|error| {
        failed.get_or_insert(error);
    });
    let report = Report { uri: &args.uri, found, complete, usage: usage.ok() };
    output.show(|| report.json(), || report.table())?;
    match (report.found.len() as u64, failed) {
        (0, None) => Ok(()),
        (0, Some(error)) => Err(store.failed(&error)),
        (n, failed) => Err(Failure::no(
            format!(
                "{} has {}{}",
                args.uri,
                number::count(n, "fault"),
                failed.map_or_else(String::new, |error| format!(
                    ", and {}: {}",
                    match complete {
                        true => "some details could not be determined",
                        false => "the rest could not be verified",
                    },
                    chain(&error)
                )),
            ),
            "remove the manifests that need damaged data with `transload store rm`, or put the data again. Readers \
             never receive damaged data",
        )),
    }
}

struct Found {
    fault: Fault,
    /// The manifests that need it, if known.
    needed_by: Option<Vec<ManifestName>>,
}

const NAMES: usize = 3;

impl Found {
    fn names(&self) -> String {
        let Some(names) = &self.needed_by else {
            return String::new();
        };
        let mut text: Vec<String> = names.iter().take(NAMES).map(printable).collect();
        if let more @ 1.. = names.len().saturating_sub(NAMES) {
            text.push(format!("{more} more"));
        }
        text.join(", ")
    }
}

struct Report<'a> {
    uri: &'a str,
    found: Vec<Found>,
    complete: bool,
    /// The store's size, if it could be determined.
    usage: Option<Usage>,
}

impl Report<'_> {
    /// The schema `transload.store.verify/1`; `null` means unknown.
    fn json(&self) -> Value {
        let faults = self.found.iter().map(|Found { fault, needed_by }| {
            let needed_by = needed_by.as_ref();
            let names = |names: &Vec<ManifestName>| names.iter().map(ToString::to_string).collect();
            let needed_by: Option<Vec<String>> = needed_by.map(names);
            json!({"what": fault.what, "how": fault.how, "needed_by": needed_by})
        });
        json!({
            "schema": "transload.store.verify/1",
            "uri": self.uri,
            "ok": self.found.is_empty(),
            "complete": self.complete,
            "faults": faults.collect::<Vec<_>>(),
            "usage": self.usage.as_ref().map(usage),
        })
    }

    fn table(&self) -> String {
        let usage =
            self.usage.as_ref().map_or_else(|| " the store's size could not be determined\n".to_owned(), summary);
        if self.found.is_empty() {
            return format!("{usage} verified: everything is present and intact\n");
        }
        let mut table = Table::new("what|how|needed by");
        for found in &self.found {
            let Fault { what, how } = &found.fault;
            table.row([text::printable(what), text::printable(how), found.names()]);
        }
        let rest = match self.complete {
            true => "",
            false => " not everything could be verified: there may be more faults\n",
        };
        format!("{}\n{rest}{usage}", table.finish())
    }
}
