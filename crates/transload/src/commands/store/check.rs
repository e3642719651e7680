//! `transload store check`: checks whether a backend fulfils the contract of kv_store_v1.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueHint;
use serde_json::{Value, json};
use transload::store::conformance::{
    Finding, Item, Options, Report, Source, Subject, Verdict, check_in_children, item, items, run_in_child,
};
use transload::store::internal::period;
use transload::store::loader::Library;
use transload::store::{ManifestName, StoreUri, is_built_in, open};

use super::printable;
use crate::failure::Failure;
use crate::output::Output;
use crate::program::ThisProgram;
use crate::show::number;
use crate::show::progress::Progress;
use crate::show::table::Table;
use crate::show::text;

const EXAMPLES: &str = "\
Examples:
  transload store check file:///tmp/scratch
  transload store check foo://host/scratch --library ./libkv_store_foo.so
  KV_STORE_LIBRARY_PATH=. transload store check foo://host/scratch \\
      --item manifest --format json

Each item runs in its own process, so that a crash or a hang of a library
affects that item only. Violations of the contract of kv_store_v1 fail. Where
the contract is silent and only the built-in backends promise more, there is a
note. The check removes its manifests; its chunks stay until the store's next
collection. Exit code 1 means that an item failed.";

/// Check item by item whether a backend fulfils the contract of kv_store_v1.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URI of a store to check with. Its existing contents are not touched.
    uri: String,

    /// Library to check, whatever the URI's scheme. Default: the scheme's library in a folder of KV_STORE_LIBRARY_PATH,
    /// else the built-in backend, else a library that the system finds.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    library: Option<PathBuf>,

    /// Run only items whose name contains this text; may be repeated.
    #[arg(long = "item", value_name = "NAME")]
    items: Vec<String>,

    /// Run fewer cases, in a tenth of the time.
    #[arg(long)]
    quick: bool,

    /// Report notes as failures: what only the built-in backends promise.
    #[arg(long)]
    strict: bool,

    /// Allow the check to use the whole store: also test names that other programs may use, and the shortest hashes.
    #[arg(long)]
    scratch: bool,

    /// Seed for random choices, to repeat a run. Default: random.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Time limit for one item, after which its process is killed.
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = period::parse_limit)]
    limit: Duration,

    /// Run one item, as the child process of a check.
    #[arg(long, hide = true, value_name = "NAME", requires = "seed")]
    child: Option<String>,
}

pub(super) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    let uri: StoreUri = args.uri.parse().map_err(|error| {
        Failure::input(format!("{error}"), "name a store as file:///absolute/path or foo://host/scratch")
    })?;
    if let Some(path) = args.library.as_ref().filter(|path| !path.is_file()) {
        return Err(Failure::input(
            format!("--library {}: there is no such file", path.display()),
            "name the file of a library: ./libkv_store_foo.so",
        ));
    }
    let options = args.options();
    let subject = args.subject(&uri);
    if let Some(name) = &args.child {
        return child(subject, name, &options);
    }
    let options = Options { border: !matches!(subject, Subject::Backend(_)), ..options };
    let chosen = items().filter(|item| args.chooses(item.name, &options));
    let chosen = chosen.count();
    let is_any = |part: &String| items().any(|item| item.name.contains(part.as_str()));
    if !args.items.is_empty() && !args.items.iter().any(is_any) {
        let names: Vec<&str> = items().map(|item| item.name).collect();
        return Err(Failure::input(
            format!("no item's name contains {}", args.items.join(" or ")),
            format!("the items are {}", names.join(", ")),
        ));
    }
    let of_libraries = |part: &&String| {
        let mut of_part = items().filter(|item| item.name.contains(part.as_str()));
        !options.border && is_any(part) && of_part.all(|item| item.border)
    };
    if let Some(part) = args.items.iter().find(of_libraries) {
        return Err(Failure::input(
            format!("--item {part} applies to libraries only, and `{}` is a built-in backend", uri.scheme()),
            "name a library with --library, or its folder with KV_STORE_LIBRARY_PATH",
        ));
    }
    let called = match &subject {
        // Opened once beforehand, so that a missing store is reported once and not for every item.
        Subject::Backend(_) => {
            super::Store::open(&args.uri)?;
            format!("the built-in backend for `{}`", uri.scheme())
        }
        Subject::File(path, _) => path.display().to_string(),
        Subject::System(_) => args.found_by_the_system(&uri)?,
    };
    let library = match &subject {
        Subject::File(path, _) => Some(path),
        _ => None,
    };
    let bar = Progress::new("checking", chosen as u64);
    let report = args.in_children(library, &options, &mut |finding| {
        bar.advance(1);
        bar.say(format!("checked {}", finding.item.name));
    })?;
    drop(bar);
    let checked = Checked { uri: &args.uri, called, report };
    output.show(|| checked.json(), || checked.table())?;
    match checked.report.count(Verdict::Fail) as u64 {
        0 => Ok(()),
        n => Err(Failure::no(
            format!("{} violates the contract: {}", checked.called, number::count(n, "failure")),
            format!("repeat one item with --item NAME --seed {}", checked.report.seed),
        )),
    }
}

impl Args {
    fn options(&self) -> Options {
        let options = match self.quick {
            true => Options::quick(),
            false => Options::default(),
        };
        Options {
            strict: self.strict,
            scratch: self.scratch,
            seed: self.seed.unwrap_or(options.seed),
            only: self.items.clone(),
            ..options
        }
    }

    fn chooses(&self, name: &str, options: &Options) -> bool {
        item(name).is_some_and(|item| options.border || !item.border)
            && (self.items.is_empty()
                || options.border && name == LOADS
                || self.items.iter().any(|part| name.contains(part.as_str())))
    }

    /// Returns the subject of the check. No library is loaded in this process, since only the child processes are meant
    /// to suffer its effects.
    fn subject(&self, uri: &StoreUri) -> Subject {
        let named = self.library.clone();
        if let Some(path) = named.or_else(|| Library::locate(uri.scheme())) {
            return Subject::File(path, uri.clone());
        }
        match is_built_in(uri.scheme()) {
            true => {
                let uri = self.uri.clone();
                Subject::Backend(Box::new(move || open(&uri)))
            }
            false => Subject::System(uri.clone()),
        }
    }

    /// Returns a name for the library that the system finds. Only loading it, in a child process, shows whether there
    /// is one.
    fn found_by_the_system(&self, uri: &StoreUri) -> Result<String, Failure> {
        let mut only = self.options();
        only.only = vec![LOADS.to_owned()];
        let report = self.in_children(None, &only, &mut |_| {})?;
        match report.finding(LOADS) {
            Some(finding) if finding.verdict == Verdict::Skipped => Err(Failure::input(
                finding.seen.clone(),
                "name it with --library, or its folder with KV_STORE_LIBRARY_PATH",
            )),
            _ => Ok(format!("the library for `{}` that the system finds", uri.scheme())),
        }
    }

    fn in_children(
        &self,
        library: Option<&PathBuf>,
        options: &Options,
        found: &mut dyn FnMut(&Finding),
    ) -> Result<Report, Failure> {
        let this_program = ThisProgram::find().map_err(|error| {
            Failure::input(
                format!("cannot find this program's own file: {error}"),
                "check whether the file was \
                                                                                     removed or replaced",
            )
        })?;
        let command = |item: &'static Item| {
            let mut command = this_program.command();
            command.args(["store", "check", &self.uri, "--child", item.name]);
            command.args(["--seed", &options.seed.to_string()]);
            if let Some(library) = library {
                command.arg("--library").arg(library);
            }
            for (flag, is_set) in [("--quick", self.quick), ("--strict", self.strict), ("--scratch", self.scratch)] {
                command.args(is_set.then_some(flag));
            }
            command
        };
        Ok(check_in_children(options, self.limit, &command, found))
    }
}

/// The item that loads a library. It is skipped only if there is none.
const LOADS: &str = "library-loads";

fn child(subject: Subject, name: &str, options: &Options) -> Result<(), Failure> {
    let Some(item) = item(name) else {
        return Err(Failure::input(
            format!("there is no item {name}"),
            "this option is only for `transload store \
                                                                       check` itself",
        ));
    };
    Ok(run_in_child(item, subject, options)?)
}

struct Checked<'a> {
    uri: &'a str,
    called: String,
    report: Report,
}

impl Checked<'_> {
    /// The schema `transload.store.check/1`.
    fn json(&self) -> Value {
        let items = self.report.findings.iter().map(|finding| {
            json!({
                "name": finding.item.name,
                "verdict": finding.verdict.as_str(),
                "seen": finding.seen,
                "asks": finding.item.asks,
                "contract": finding.item.source == Source::Contract,
            })
        });
        let left: Vec<&str> = self.report.left().map(ManifestName::as_str).collect();
        json!({
            "schema": "transload.store.check/1",
            "uri": self.uri,
            "checked": self.called,
            "ok": self.report.passed(),
            "seed": self.report.seed,
            "counts": {
                "pass": self.report.count(Verdict::Pass),
                "fail": self.report.count(Verdict::Fail),
                "note": self.report.count(Verdict::Note),
                "skipped": self.report.count(Verdict::Skipped),
            },
            "items": items.collect::<Vec<_>>(),
            "left": left,
        })
    }

    fn table(&self) -> String {
        let mut table = Table::new("item|verdict|seen");
        for finding in &self.report.findings {
            table.row([finding.item.name, finding.verdict.as_str(), &text::printable(&finding.seen)]);
        }
        let mut text = table.finish();
        let wrong = self.report.findings.iter();
        let wrong = wrong.filter(|finding| matches!(finding.verdict, Verdict::Fail | Verdict::Note));
        for (i, finding) in wrong.enumerate() {
            if i == 0 {
                text.push('\n');
            }
            let item = finding.item;
            let _ = writeln!(text, " {} requires: {} ({})", item.name, item.asks, item.source);
        }
        for (i, name) in self.report.left().enumerate() {
            if i == 0 {
                text.push_str("\n could not be removed:\n");
            }
            let _ = writeln!(text, " manifest {}", printable(name));
        }
        let count = |verdict| self.report.count(verdict);
        let _ = writeln!(
            text,
            "\n {}: {} passed, {} failed, {} noted, {} skipped; seed {}",
            self.called,
            count(Verdict::Pass),
            count(Verdict::Fail),
            count(Verdict::Note),
            count(Verdict::Skipped),
            self.report.seed,
        );
        text
    }
}
