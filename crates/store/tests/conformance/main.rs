//! The conformance kit has to pass what is good and to fail what is not, for the reason that it is not.

mod toys;

use std::sync::Arc;

use transload_store::backend::MemoryStore;
use transload_store::conformance::{self, Finding, Open, Options, Report, Verdict};
use transload_store::{Backend, StoreError};

use toys::{Fault, Toy};

fn options() -> Options {
    Options::quick().with_large(1 << 20).with_seed(7)
}

fn check(open: &Open<'_>) -> Report {
    conformance::check(open, &options())
}

fn check_toy(fault: Fault) -> Report {
    let store = toys::Shared::default();
    check(&|| -> Result<Arc<dyn Backend>, StoreError> { Ok(Arc::new(Toy::new(&store, fault))) })
}

/// These items, and no others, object; each with these words.
fn fails(fault: Fault, expected: &[(&str, &str)]) {
    let report = check_toy(fault);
    for (name, words) in expected {
        let Finding { verdict, seen, .. } = report.finding(name).expect(name);
        assert!(
            matches!(verdict, Verdict::Fail | Verdict::Note) && seen.contains(words),
            "{fault:?}: {name} is {verdict} and saw: {seen}"
        );
    }
    for finding in &report.findings {
        let expected = expected.iter().any(|(name, _)| *name == finding.item.name);
        assert!(
            expected || finding.verdict == Verdict::Pass,
            "{fault:?}: nobody expected {} to object:\n{report}",
            finding.item.name
        );
    }
}

#[test]
fn a_good_store_passes_everything() {
    let store = MemoryStore::new();
    let report = check(&|| Ok(Arc::new(store.clone())));
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.count(Verdict::Skipped), 0, "{report}");
    let items = conformance::items().filter(|item| !item.border).count();
    assert_eq!(report.count(Verdict::Pass), items);
}

#[test]
fn a_store_that_buffers_passes_too() {
    let report = check_toy(Fault::None);
    assert!(report.is_clean(), "{report}");
}

/// Every manifest of a run is gone afterwards, also of items that fail.
#[test]
fn a_check_cleans_up() {
    for fault in [Fault::None, Fault::LastWriterWins, Fault::EmptyForMissing] {
        let store = toys::Shared::default();
        check(&|| -> Result<Arc<dyn Backend>, StoreError> {
            Ok(Arc::new(Toy::new(&store, fault)))
        });
        assert_eq!(store.manifests(), 0, "{fault:?}");
    }
}

/// A store in use keeps what it has, also under names that everybody would think of.
#[test]
fn a_check_leaves_what_is_there_alone() {
    let store = MemoryStore::new();
    let names = ["", "chunks", "..", "/"].map(|name| name.parse().unwrap());
    for name in &names {
        store.put_manifest(name, b"in use").unwrap();
    }
    let report = check(&|| Ok(Arc::new(store.clone())));
    assert!(report.is_clean(), "{report}");
    let seen = &report.finding("names-no-paths").unwrap().seen;
    assert!(seen.contains("not tried"), "{seen}");
    for name in &names {
        assert_eq!(store.get_manifest(name).unwrap().unwrap(), "in use");
    }
}

#[test]
fn notes_are_failures_where_that_is_asked_for() {
    let store = toys::Shared::default();
    let open = || -> Result<Arc<dyn Backend>, StoreError> {
        Ok(Arc::new(Toy::new(&store, Fault::DeleteTakesChunks)))
    };
    let item = conformance::item("delete-keeps-chunks").unwrap();
    let finding = conformance::run_item(item, &open, &options());
    assert_eq!(finding.verdict, Verdict::Note);
    let finding = conformance::run_item(item, &open, &options().with_strict(true));
    assert_eq!(finding.verdict, Verdict::Fail);
}

#[test]
fn a_report_says_what_was_asked_and_what_was_seen() {
    let text = check_toy(Fault::SecondPutStored).to_string();
    for part in [
        "fail    chunk-again",
        "returned 0",
        "asked for: putting a chunk",
        "the contract",
        "seed 7",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

macro_rules! toy_tests {
    ($($test:ident: $fault:ident, [$($item:literal: $words:literal),+ $(,)?];)*) => {
        $(#[test]
        fn $test() {
            fails(Fault::$fault, &[$(($item, $words)),+]);
        })*
    };
}

toy_tests! {
    a_second_put_that_returns_0: SecondPutStored, ["chunk-again": "returned 0"];
}
