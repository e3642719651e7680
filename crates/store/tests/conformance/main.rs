//! The conformance kit must pass a correct store, and fail a faulty one for the right reason.

mod toys;

use std::sync::Arc;

use transload_store::backend::MemoryStore;
use transload_store::conformance::{self, Finding, Open, Options, Report, Verdict};
use transload_store::{Backend, StoreError};

use toys::{Fault, Toy};

fn options() -> Options {
    Options { large: 1 << 20, seed: 7, scratch: true, ..Options::quick() }
}

fn check(open: &Open<'_>) -> Report {
    conformance::check(open, &options())
}

fn check_toy(fault: Fault) -> Report {
    let store = toys::Shared::default();
    check(&|| -> Result<Arc<dyn Backend>, StoreError> { Ok(Arc::new(Toy::new(&store, fault))) })
}

/// Checks that these items fail, each with these words. Others may fail only if the fault is so broad that they must.
fn objects(fault: Fault, others: bool, expected: &[(&str, &str)]) {
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
            others || expected || finding.verdict == Verdict::Pass,
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
    let items = conformance::items().filter(|item| !item.border && !item.processes).count();
    assert_eq!(report.count(Verdict::Pass), items);
}

#[test]
fn a_store_that_buffers_passes_too() {
    let report = check_toy(Fault::None);
    assert!(report.is_clean(), "{report}");
}

/// Every manifest of a run is removed afterwards, even for items that fail.
#[test]
fn a_check_cleans_up() {
    for fault in [Fault::None, Fault::LastWriterWins, Fault::EmptyForMissing] {
        let store = toys::Shared::default();
        check(&|| -> Result<Arc<dyn Backend>, StoreError> { Ok(Arc::new(Toy::new(&store, fault))) });
        assert_eq!(store.manifests(), 0, "{fault:?}");
    }
}

/// A store in use keeps its values, even under obvious names.
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
    let open = || -> Result<Arc<dyn Backend>, StoreError> { Ok(Arc::new(Toy::new(&store, Fault::DeleteTakesChunks))) };
    let item = conformance::item("delete-keeps-chunks").unwrap();
    let finding = conformance::run_item(item, &open, &options());
    assert_eq!(finding.verdict, Verdict::Note);
    let finding = conformance::run_item(item, &open, &Options { strict: true, ..options() });
    assert_eq!(finding.verdict, Verdict::Fail);
}

#[test]
fn a_report_says_what_was_asked_and_what_was_seen() {
    let text = check_toy(Fault::SecondPutStored).to_string();
    for part in ["fail    chunk-again", "returned 0", "asked for: the first put of a chunk", "the contract", "seed 7"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

/// The result of a prefetch never fails an item.
#[test]
fn a_prefetch_may_fail() {
    let report = check_toy(Fault::PrefetchFails);
    assert!(report.is_clean(), "{report}");
    let seen = &report.finding("chunk-prefetch").unwrap().seen;
    assert!(seen.contains("4 of 4"), "{seen}");
}

macro_rules! toys {
    ($($test:ident: $fault:ident $kind:ident [$($item:literal: $words:literal),+ $(,)?])*) => {
        $(#[test]
        fn $test() {
            let others = stringify!($kind) == "among_others";
            objects(Fault::$fault, others, &[$(($item, $words)),+]);
        })*
    };
}

toys! {
    the_second_put_returns_0: SecondPutStored exactly [
        "chunk-again": "the second put_chunk on a handle returned 0",
        "chunk-first-stays": "put_chunk of other bytes returned 0",
        "chunk-empty": "put_chunk of no bytes returned 0 again",
        "reopen": "put_chunk of the same returned 0",
        "model": "returned 0, but it was there",
    ]
    the_first_put_returns_1: FirstPutThere exactly [
        "chunk-again": "the first put_chunk returned 1",
        "chunk-missing": "put_chunk after a get_chunk that found nothing returned 1",
        "chunk-empty": "returned 1 at first",
        "two-namespaces": "returned 1",
        "model": "returned 1, but it was never put",
    ]
    the_last_bytes_win: LastWriterWins exactly [
        "chunk-first-stays": "after other bytes were put under its hash, the chunk differs",
    ]
    a_manifest_is_written_in_halves: TornManifest exactly ["manifest-atomic": "no version of the manifest"]
    a_manifest_is_deleted_before_it_is_written: DeleteThenWrite exactly [
        "manifest-atomic": "found nothing while the manifest was being replaced",
    ]
    a_shorter_manifest_keeps_the_longer_ones_end: StaleTail among_others [
        "manifest-replace": "has 100000 bytes, not 3",
        "manifest-atomic": "no version of the manifest",
        "large-manifest": "after a short one replaced it",
    ]
    a_manifest_is_visible_too_late: LateManifest among_others [
        "manifest-replace": "has 10 bytes, not 100000",
        "two-handles": "after put_manifest on another handle",
        "manifest-atomic": "had returned",
    ]
    a_handle_remembers_old_manifests: CachedManifest among_others [
        "two-handles": "after put_manifest on another handle",
        "manifest-atomic": "had returned",
    ]
    names_are_paths: NameAsPath exactly [
        "names-distinct": "after only other names were put",
        "names-no-paths": "after only other names were put",
    ]
    names_are_cut: NameCut exactly ["names-long": "after only other names were put"]
    names_have_no_case: NameFolded exactly [
        "names-case": "after only other names were put",
        "names-distinct": "after only other names were put"]
    a_slash_is_replaced: NameReplaced exactly ["names-distinct": "after only other names were put"]
    names_that_are_folders_are_refused: NameRefused exactly ["names-no-paths": "it is a path"]
    chunks_are_published_too_late: LateChunks among_others [
        "publish": "after put_manifest, on a handle that was open before, the chunk is missing",
        "publish-together": "in a reader that had just seen the manifest, the chunk is missing",
        "reopen": "the chunk is missing",
    ]
    the_manifest_comes_before_its_chunks: ManifestFirst exactly [
        "publish-together": "in a reader that had just seen the manifest, the chunk is missing",
    ]
    chunks_are_never_published: NeverPublished among_others [
        "publish": "the chunk is missing",
        "reopen": "the chunk is missing",
        "model": "but it was",
    ]
    a_handle_does_not_see_its_own_chunks: BlindToOwn exactly [
        "read-own-puts": "before put_manifest, on its own handle, the chunk is missing",
    ]
    publishing_is_left_to_another_handle: OthersBuffer exactly [
        "publish-already-there": "the chunk is missing",
        "model": "it was published",
    ]
    hashes_count_up_to_32_bytes: HashCut exactly ["hash-any-length": "under a hash of 33 bytes"]
    hashes_are_c_strings: HashUntilNul among_others ["hash-whole": "under a hash of "]
    only_one_length_of_hash_is_taken: HashOnly32 among_others [
        "hash-8-16-32": "a chunk's hash has 1 to 64 bytes, not 8",
    ]
    values_are_c_strings: ValueUntilNul among_others [
        "chunk-any-bytes": "has 0 bytes, not 512",
        "manifest-replace": "not 100000",
    ]
    long_values_are_cut: LongValueCut among_others [
        "chunk-any-bytes": "has 65536 bytes, not 65537",
        "large-chunk": "has 65536 bytes, not 1048576",
    ]
    long_values_are_refused: LongValueRefused exactly [
        "chunk-any-bytes": "too many for one value",
        "large-chunk": "too many for one value",
    ]
    an_empty_value_is_missing: EmptyIsMissing exactly [
        "chunk-empty": "the chunk is missing",
        "manifest-empty": "is missing",
    ]
    a_missing_value_is_empty: EmptyForMissing among_others [
        "chunk-missing": "returned 0 and 0 bytes",
        "manifest-missing": "returned 0 and 0 bytes",
        "manifest-delete": "after delete_manifest",
    ]
    a_missing_value_is_an_error: ErrorForMissing among_others [
        "chunk-missing": "there is nothing",
        "manifest-missing": "there is nothing",
    ]
    deleting_twice_is_an_error: DeleteMissingFails exactly [
        "manifest-delete": "delete_manifest failed",
        "model": "delete_manifest failed",
    ]
    deleting_does_nothing: DeleteNothing among_others [
        "manifest-delete": "after delete_manifest",
        "two-handles": "after delete_manifest on another handle",
    ]
    deleting_a_manifest_takes_its_chunks: DeleteTakesChunks exactly [
        "delete-keeps-chunks": "the chunk is missing",
    ]
    chunks_and_manifests_share_their_keys: OneNamespace exactly [
        "two-namespaces": "a manifest can be read as a chunk",
    ]
    threads_share_a_buffer: NotThreadSafe exactly [
        "threads-one-handle": "chunk",
        "threads-own-handles": "chunk",
    ]
    nothing_outlives_its_handles: NotKept exactly ["reopen": "the chunk is missing"]
    a_prefetch_makes_chunks: PrefetchMakes exactly [
        "chunk-prefetch": "a missing chunk is there after prefetch_chunks",
    ]
    a_panic_of_a_writer_keeps_nobody_waiting: PanicsPutting among_others [
        "manifest-atomic": "the backend panicked: no manifest can be put",
        "publish-together": "the backend panicked: no manifest can be put",
    ]
    a_panic_is_a_finding: Panics among_others [
        "manifest-replace": "the backend panicked: no manifest can be read",
        "manifest-atomic": "the backend panicked: no manifest can be read",
    ]
}
