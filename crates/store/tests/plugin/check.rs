//! The conformance kit at the C border: every item of a library in a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use transload_store::conformance::{self, Options, Report, Verdict};

use crate::build::{self, Environment, Toy};

fn options() -> Options {
    Options { large: 1 << 20, seed: 7, ..Options::quick() }
}

/// Checks a library in the same way as the command line. The children run this program.
pub(crate) fn check(path: &Path, uri: &str) -> Report {
    check_in(path, uri, &[])
}

/// Does the same for a library that reads its environment.
pub(crate) fn check_in(path: &Path, uri: &str, environment: &Environment) -> Report {
    let limit = Duration::from_secs(60);
    let report = check_chosen(&options(), path, uri, environment, limit);
    assert_eq!(report.findings.len(), conformance::items().count());
    report
}

fn check_chosen(options: &Options, path: &Path, uri: &str, environment: &Environment, limit: Duration) -> Report {
    let command = |item: &'static conformance::Item| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "check::other_process", "--nocapture"])
            .env("CHECK_ITEM", item.name)
            .env("CHECK_LIBRARY", path)
            .env("CHECK_URI", uri)
            .envs(environment.iter().cloned())
            .stderr(Stdio::null());
        command
    };
    let mut heard = 0;
    let report = conformance::check_in_children(options, limit, &command, &mut |_| heard += 1);
    assert_eq!(report.findings.len(), heard);
    report
}

#[test]
#[ignore = "one item, for the tests that start a process for each"]
fn other_process() {
    let variable = |name| std::env::var(name).unwrap();
    let item = conformance::item(&variable("CHECK_ITEM")).unwrap();
    let library = PathBuf::from(variable("CHECK_LIBRARY"));
    let uri = variable("CHECK_URI").parse().unwrap();
    let subject = conformance::Subject::File(library, uri);
    conformance::run_in_child(item, subject, &options()).unwrap();
}

/// The only item that fails for a library that keeps everything in memory, such as the toy and the example.
const IN_MEMORY: &str = "outlives-process";

fn failed(report: &Report) -> Vec<&str> {
    let findings = report.findings.iter();
    let failed = findings.filter(|finding| finding.verdict == Verdict::Fail);
    failed.map(|finding| finding.item.name).collect()
}

/// Checks that these items fail or note, each with these words, and that no others fail. Other notes are ignored,
/// because the toy in C does not follow our own rules.
fn objects(defines: &[&str], expected: &[(&str, &str)]) {
    let toy = Toy::new(defines);
    // None of these hangs.
    let report = check(&toy.path(), "toy://here");
    for (name, words) in expected {
        let finding = report.finding(name).expect(name);
        assert!(
            matches!(finding.verdict, Verdict::Fail | Verdict::Note) && finding.seen.contains(words),
            "{defines:?}: {name} is {} and saw: {}",
            finding.verdict,
            finding.seen
        );
    }
    for finding in &report.findings {
        let expected = expected.iter().any(|(name, _)| *name == finding.item.name) || finding.item.name == IN_MEMORY;
        assert!(
            expected || finding.verdict != Verdict::Fail,
            "{defines:?}: nobody expected {} to fail:\n{report}",
            finding.item.name
        );
    }
}

/// Checks that nothing failed or was noted. Symbols are an exception: the example is built with the features of the
/// tests, and a crate among them exports C functions. The plugins that are shipped have their own test for that.
fn assert_clean(report: &Report) {
    let mut noted =
        report.findings.iter().filter(|finding| !matches!(finding.verdict, Verdict::Pass | Verdict::Skipped));
    assert!(noted.all(|finding| ["exported-symbols", IN_MEMORY].contains(&finding.item.name)), "{report}");
}

#[test]
fn a_plugin_made_by_the_macro_passes_everything() {
    let report = check(&build::memory_plugin(), "memory://here");
    assert_clean(&report);
    assert_eq!(failed(&report), [IN_MEMORY]);
    // A version 1 table has no prefetch to be tried.
    assert_eq!(report.count(Verdict::Skipped), 1, "{report}");
}

#[test]
fn a_good_library_in_c_passes() {
    for version in ["VERSION=1", "VERSION=2", "VERSION=3"] {
        let toy = Toy::new(&[version]);
        let report = check(&toy.path(), "toy://here");
        assert_eq!(failed(&report), [IN_MEMORY], "{report}");
        // These are optional, and the toy does not do them: it does not check names, and missing is -1.
        let notes: Vec<_> = report
            .findings
            .iter()
            .filter(|finding| finding.verdict == Verdict::Note)
            .map(|finding| finding.item.name)
            .collect();
        assert_eq!(notes, ["name-bounds", "open-nonsense", "missing-code"], "{report}");
    }
}

/// Any negative code may mean missing, even one that means an error elsewhere.
#[test]
fn a_strange_code_for_missing_is_a_note() {
    let toy = Toy::new(&["MISSING_IS=-5"]);
    let report = check(&toy.path(), "toy://here");
    assert_eq!(failed(&report), [IN_MEMORY], "{report}");
    let finding = report.finding("missing-code").unwrap();
    assert_eq!(finding.verdict, Verdict::Note, "{}", finding.seen);
    assert!(finding.seen.contains("-5"), "{}", finding.seen);
}

/// Runs the checks in this process, which works as long as nothing crashes.
#[test]
fn a_library_can_be_checked_in_process() {
    let uri = "memory://in-process".parse().unwrap();
    let report = conformance::check_library(&build::memory_plugin(), &uri, &options());
    assert_clean(&report);
    let toy = Toy::new(&["FAULT_STATIC_OUTPUT"]);
    let uri = "toy://in-process".parse().unwrap();
    let item = conformance::item("outputs-malloc").unwrap();
    let finding = conformance::run_library_item(item, &toy.path(), &uri, &options());
    assert_eq!(finding.verdict, Verdict::Fail, "{}", finding.seen);
}

#[test]
fn a_library_that_is_none_fails_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libkv_store_none.so");
    std::fs::write(&path, "text").unwrap();
    let report = check(&path, "none://here");
    assert_eq!(report.count(Verdict::Fail), 1, "{report}");
    assert_eq!(report.count(Verdict::Skipped), report.findings.len() - 1);
    let seen = &report.finding("library-loads").unwrap().seen;
    assert!(seen.contains("it is a text, not an ELF file"), "{seen}");
}

/// The item that loads the library always runs, even if only others are selected.
#[test]
fn a_library_that_is_none_fails_whatever_is_tried_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libkv_store_none.so");
    std::fs::write(&path, "text").unwrap();
    let options = Options { only: vec!["chunk-again".into()], ..options() };
    let limit = Duration::from_secs(60);
    let report = check_chosen(&options, &path, "none://here", &[], limit);
    assert_eq!(failed(&report), ["library-loads"], "{report}");
}

macro_rules! toys {
    ($($test:ident: [$($define:literal),+] [$($item:literal: $words:literal),+ $(,)?])*) => {
        $(#[test]
        fn $test() {
            objects(&[$($define),+], &[$(($item, $words)),+]);
        })*
    };
}

toys! {
    the_symbol_is_missing: ["FAULT_NO_SYMBOL"] ["library-loads": "does not export kv_store_get_vtable"]
    the_table_is_null: ["FAULT_NULL_TABLE"] ["library-loads": "returned NULL"]
    a_function_is_null: ["FAULT_NULL_FUNCTION"] ["library-loads": "`get_chunk` is NULL"]
    the_version_is_0: ["VERSION=0"] ["library-loads": "version 0"]
    open_returns_null: ["FAULT_NULL_HANDLE"] ["library-loads": "could not open toy://here"]
    open_aborts: ["FAULT_ABORT_IN_OPEN"] ["library-loads": "SIGABRT"]
    close_crashes: ["FAULT_CRASH_IN_CLOSE"] ["library-loads": "SIGSEGV"]
    version_2_without_prefetch: ["VERSION=2", "FAULT_NULL_PREFETCH"] [
        "table-version": "version is 2, and prefetch_chunks is NULL",
    ]
    prefetch_returns_a_number: ["VERSION=2", "FAULT_PREFETCH_COUNTS"] ["chunk-prefetch": "returned 1"]
    prefetch_goes_through_all: ["VERSION=2", "FAULT_PREFETCH_LOOPS"] [
        "prefetch-bounds": "did not return within 10s",
    ]
    outputs_are_kept: ["FAULT_LEAK"] ["outputs-malloc": "took up that memory for good"]
    names_have_no_case: ["FAULT_NO_CASE"] ["names-case": "after only other names were put"]
    a_long_hash_aborts: ["FAULT_ABORT_ON_LONG_HASH"] ["hash-length-bounds": "SIGABRT"]
    outputs_of_no_bytes_are_null: ["FAULT_NULL_FOR_EMPTY"] ["outputs-empty": "is NULL"]
}

/// Checks a fault that affects all outputs. It shows in every item that reads something, mostly as a crash of free().
fn outputs(define: &str, words: &str) {
    let toy = Toy::new(&[define]);
    let report = check(&toy.path(), "toy://here");
    let finding = report.finding("outputs-malloc").unwrap();
    assert_eq!(finding.verdict, Verdict::Fail);
    assert!(finding.seen.contains(words), "{define}: {}", finding.seen);
    assert_eq!(report.finding("library-loads").unwrap().verdict, Verdict::Pass);
    let died = report.findings.iter().find(|finding| finding.seen.contains("SIG"));
    assert!(died.is_some(), "{define}: nobody has seen a signal:\n{report}");
}

#[test]
fn an_output_in_the_middle_of_a_buffer() {
    outputs("FAULT_INNER_OUTPUT", "malloc knows 0 bytes");
}

#[test]
fn an_output_in_static_memory() {
    outputs("FAULT_STATIC_OUTPUT", "malloc knows");
}

#[test]
fn an_output_of_mmap() {
    outputs("FAULT_MMAP_OUTPUT", "");
}

#[test]
fn an_output_that_the_store_keeps() {
    let toy = Toy::new(&["FAULT_OWN_OUTPUT"]);
    let report = check(&toy.path(), "toy://here");
    let finding = report.finding("outputs-own").unwrap();
    assert_eq!(finding.verdict, Verdict::Fail);
    assert!(finding.seen.contains("the same buffer"), "{}", finding.seen);
}

#[test]
fn more_symbols_than_one_are_a_note() {
    let toy = Toy::new(&["FAULT_MORE_SYMBOLS"]);
    let report = check(&toy.path(), "toy://here");
    assert_eq!(failed(&report), [IN_MEMORY], "{report}");
    let seen = &report.finding("exported-symbols").unwrap().seen;
    assert!(seen.contains("toy_helper"), "{seen}");
}

#[test]
fn a_call_that_never_returns_is_a_failure_of_its_item() {
    let toy = Toy::new(&["FAULT_HANG"]);
    // One that hangs and one that does not, which needs as long as a process takes to start on a busy machine.
    let options = Options { only: vec!["chunk-put-get".into(), "library-loads".into()], ..options() };
    let limit = Duration::from_secs(10);
    let report = check_chosen(&options, &toy.path(), "toy://here", &[], limit);
    let seen = &report.finding("chunk-put-get").unwrap().seen;
    assert!(seen.contains("did not end within 10 s"), "{seen}");
    assert_eq!(report.finding("library-loads").unwrap().verdict, Verdict::Pass);
}

#[test]
fn a_library_of_another_name_is_a_failure() {
    let toy = Toy::new(&[]);
    let report = check(&toy.path(), "other://here");
    let finding = report.finding("library-name").unwrap();
    assert_eq!(finding.verdict, Verdict::Fail);
    assert!(finding.seen.contains("libkv_store_other.so"), "{}", finding.seen);
}
