//! `transload store check`: whether a backend keeps the contract of kv_store_v1.

use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueHint;
use serde::Serialize;
use transload::store::conformance::{
    Finding, Options, Report, Source, Verdict, check_in_children, item, items, run_item,
    run_library_item,
};
use transload::store::loader::{Library, LoadError};
use transload::store::{StoreUri, open};

use crate::failure::{Failure, chain};
use crate::output::Output;
use crate::show::number;
use crate::show::progress::Progress;
use crate::show::table::{Lean, Table};

const EXAMPLES: &str = "\
Examples:
  transload store check file:///tmp/scratch
  transload store check foo://host/scratch --library ./libkv_store_foo.so
  KV_STORE_LIBRARY_PATH=. transload store check foo://host/scratch --item manifest --format json

A library is run in a process of its own for each item, so that a crash or a hang is what that item saw. What
the contract of kv_store_v1 asks for fails; where it is silent, and our backends do more, there is a note.
Chunks that no manifest refers to stay behind until the store's next collection. Exit code 1 means that
something failed.";

/// Check whether a backend keeps the contract of kv_store_v1, item by item.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A store to check with. Nothing of what it holds is touched.
    uri: String,

    /// The library to check, whatever the URI's scheme. Default: that of the scheme in a folder of
    /// KV_STORE_LIBRARY_PATH, or else our own backend, or else what the system finds.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    library: Option<PathBuf>,

    /// Only the items whose name contains this; may be repeated.
    #[arg(long = "item", value_name = "NAME")]
    items: Vec<String>,

    /// Try less, in a tenth of the time.
    #[arg(long)]
    quick: bool,

    /// What only our backends promise is a failure too.
    #[arg(long)]
    strict: bool,

    /// The store is there for this check alone: also try names that everybody may use, and the shortest hashes.
    #[arg(long)]
    scratch: bool,

    /// Decides random choices, to repeat a run; random without it.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// How long one item may take, in seconds, before its process is killed.
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,

    /// Runs one item and prints its finding: what a second process is started for.
    #[arg(long, hide = true, value_name = "NAME", requires_all = ["library", "seed"])]
    child: Option<String>,
}

pub(super) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    let uri: StoreUri = args.uri.parse().map_err(|error| {
        Failure::input(
            format!("{error}"),
            "name a store as file:///absolute/path or foo://host/scratch",
        )
    })?;
    let options = args.options();
    if let Some(name) = &args.child {
        return child(&args, &uri, name, &options);
    }
    let chosen = items().filter(|item| args.chooses(item.name)).count();
    if chosen == 0 {
        let names: Vec<&str> = items().map(|item| item.name).collect();
        return Err(Failure::input(
            format!("no item's name contains {}", args.items.join(" or ")),
            format!("there are {}", names.join(", ")),
        ));
    }
    let bar = Progress::new("checking", chosen as u64);
    let mut found = |finding: &Finding| {
        bar.advance(1);
        bar.say(format!("checked {}", finding.item.name));
    };
    let (called, report) = match args.library(&uri)? {
        Some(library) => {
            let report = in_children(&args, &library, &options, &mut found)?;
            (library.display().to_string(), report)
        }
        None => (
            format!("the backend of this program for `{}`", uri.scheme()),
            in_this_process(&args, &options, &mut found)?,
        ),
    };
    drop(bar);
    let checked = Checked {
        uri: &args.uri,
        called,
        report,
    };
    output.show(|| checked.json(), || checked.table())?;
    match checked.report.count(Verdict::Fail) as u64 {
        0 => Ok(()),
        n => Err(Failure::no(
            format!(
                "{} does not keep the contract: {}",
                checked.called,
                number::count(n, "failure")
            ),
            format!("--item NAME --seed {} tries one again", checked.report.seed),
        )),
    }
}

impl Args {
    fn options(&self) -> Options {
        let options = match self.quick {
            true => Options::quick(),
            false => Options::new(),
        };
        let options = options.with_strict(self.strict).with_scratch(self.scratch);
        let options = match self.seed {
            Some(seed) => options.with_seed(seed),
            None => options,
        };
        let items = self.items.iter();
        items.fold(options, |options, item| options.with_only(item))
    }

    fn chooses(&self, name: &str) -> bool {
        self.items.is_empty() || self.items.iter().any(|part| name.contains(part.as_str()))
    }

    /// The library to check, or none where the backend is ours.
    fn library(&self, uri: &StoreUri) -> Result<Option<PathBuf>, Failure> {
        if let Some(path) = &self.library {
            return match path.is_file() {
                true => Ok(Some(path.clone())),
                false => Err(Failure::input(
                    format!("--library {}: there is no such file", path.display()),
                    "name the file of a library: ./libkv_store_foo.so",
                )),
            };
        }
        // Not loaded here: what it does to a process is for those that are started for it.
        if let Some(path) = Library::locate(uri.scheme()) {
            return Ok(Some(path));
        }
        let ours = ["file", "redis", "rediss", "s3"].contains(&uri.scheme());
        if ours {
            return Ok(None);
        }
        // Only by loading it the system says where it has found one.
        match Library::find(uri.scheme()) {
            Ok(library) => Ok(Some(library.path().to_owned())),
            Err(error @ LoadError::NotFound { .. }) => Err(Failure::input(
                chain(&error),
                "name it with --library, or its folder with KV_STORE_LIBRARY_PATH",
            )),
            // It is there and wrong, which is what the check is for.
            Err(
                LoadError::Io { path, .. }
                | LoadError::Image { path, .. }
                | LoadError::NoSymbol { path }
                | LoadError::Table { path, .. },
            ) if path.is_absolute() => Ok(Some(path)),
            Err(error) => Err(Failure::input(chain(&error), "name it with --library")),
        }
    }
}

/// The second process: one item, and its finding on stdout.
fn child(args: &Args, uri: &StoreUri, name: &str, options: &Options) -> Result<(), Failure> {
    let library = args.library.as_deref().unwrap_or(Path::new(""));
    let Some(item) = item(name) else {
        return Err(Failure::input(
            format!("there is no item {name}"),
            "this is for `transload store check` alone",
        ));
    };
    let finding = run_library_item(item, library, uri, options);
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(finding.to_line().as_bytes())?;
    stdout.flush()?;
    Ok(())
}

fn in_children(
    args: &Args,
    library: &Path,
    options: &Options,
    found: &mut dyn FnMut(&Finding),
) -> Result<Report, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::input(
            format!("this program does not find itself: {error}"),
            "was it removed while it runs?",
        )
    })?;
    let command = |item: &'static transload::store::conformance::Item| {
        let mut command = Command::new(&program);
        command.args(["store", "check", &args.uri, "--child", item.name]);
        command.arg("--library").arg(library);
        command.args(["--seed", &options.seed.to_string()]);
        if args.quick {
            command.arg("--quick");
        }
        if args.strict {
            command.arg("--strict");
        }
        if args.scratch {
            command.arg("--scratch");
        }
        command
    };
    let limit = Duration::from_secs(args.limit);
    Ok(check_in_children(options, limit, &command, found))
}

fn in_this_process(
    args: &Args,
    options: &Options,
    found: &mut dyn FnMut(&Finding),
) -> Result<Report, Failure> {
    // Once before, so that a store that is not there is no failure of every item.
    super::Store::open(&args.uri)?;
    let opening = || open(&args.uri);
    let chosen = items().filter(|item| !item.border && args.chooses(item.name));
    let findings = chosen.map(|item| {
        let finding = run_item(item, &opening, options);
        found(&finding);
        finding
    });
    Ok(Report::of(options.seed, findings.collect()))
}

struct Checked<'a> {
    uri: &'a str,
    /// What was checked.
    called: String,
    report: Report,
}

/// The schema `transload.store.check/1`.
#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    uri: &'a str,
    checked: &'a str,
    ok: bool,
    seed: u64,
    counts: Counts,
    items: Vec<JsonItem<'a>>,
}

#[derive(Serialize)]
struct Counts {
    pass: usize,
    fail: usize,
    note: usize,
    skipped: usize,
}

#[derive(Serialize)]
struct JsonItem<'a> {
    name: &'static str,
    verdict: &'static str,
    seen: &'a str,
    asks: &'static str,
    /// Whether the contract asks for it; else our backends do it and the contract is silent.
    contract: bool,
}

impl Checked<'_> {
    fn json(&self) -> Json<'_> {
        let items = self.report.findings.iter().map(|finding| JsonItem {
            name: finding.item.name,
            verdict: finding.verdict.as_str(),
            seen: &finding.seen,
            asks: finding.item.asks,
            contract: finding.item.source == Source::Contract,
        });
        Json {
            schema: "transload.store.check/1",
            uri: self.uri,
            checked: &self.called,
            ok: self.report.passed(),
            seed: self.report.seed,
            counts: Counts {
                pass: self.report.count(Verdict::Pass),
                fail: self.report.count(Verdict::Fail),
                note: self.report.count(Verdict::Note),
                skipped: self.report.count(Verdict::Skipped),
            },
            items: items.collect(),
        }
    }

    fn table(&self) -> String {
        let mut table = Table::new(&[
            ("item", Lean::Left),
            ("verdict", Lean::Left),
            ("seen", Lean::Left),
        ]);
        for finding in &self.report.findings {
            table.row([
                finding.item.name,
                finding.verdict.as_str(),
                &finding.seen.escape_debug().to_string(),
            ]);
        }
        let mut text = table.finish();
        let wrong = self.report.findings.iter();
        let wrong =
            wrong.filter(|finding| matches!(finding.verdict, Verdict::Fail | Verdict::Note));
        for (i, finding) in wrong.enumerate() {
            if i == 0 {
                text.push('\n');
            }
            let item = finding.item;
            let _ = writeln!(text, " {} asks: {} ({})", item.name, item.asks, item.source);
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
