//! A process that is killed, or whose system calls fail, at each system call of a save.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use transload_store::backend::{Backend, CollectOptions};

use crate::saving::{again, called, chunk, count, intent, manifest, name, open, verify, wrong_chunk};

/// The system calls that a save makes.
const CALLS: [&str; 17] = [
    "openat",
    "openat2",
    "pwrite64",
    "pread64",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "renameat2",
    "unlinkat",
    "flock",
    "ftruncate",
    "fchmod",
    "utimensat",
    "getdents64",
    "newfstatat",
    "close",
];

/// Runs the process below under strace, which does `what` at the call number `at` of this kind.
fn run(root: &Path, role: &str, call: &str, what: &str, at: usize) -> Output {
    let mut command = Command::new("strace");
    let inject = format!("inject={call}:{what}:when={at}");
    command
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg(format!("trace={call}"))
        .args(["-e", &inject])
        .arg(std::env::current_exe().unwrap());
    again(&mut command, "kills::other_process", root, role);
    command.output().unwrap()
}

/// The distance between the sampled calls, for those that change nothing: a kill there has the same effect as one after
/// the previous change. `TRANSLOAD_TEST_EVERY_CALL=1` tests all calls.
const SAMPLED: usize = 10;

fn sampled(call: &str) -> usize {
    let changes = ["pwrite64", "fsync", "fdatasync", "renameat", "renameat2", "unlinkat", "ftruncate", "fchmod"];
    match changes.contains(&call) || count("TRANSLOAD_TEST_EVERY_CALL", 0) > 0 {
        true => 1,
        false => SAMPLED,
    }
}

/// Returns for each kind of call the number of calls before the save, and the total.
fn calls(root: &Path, log: &Path) -> Vec<(&'static str, usize, usize)> {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(log);
    command.arg(std::env::current_exe().unwrap());
    again(&mut command, "kills::other_process", root, "save");
    assert!(command.output().unwrap().status.success());
    let text = std::fs::read_to_string(log).unwrap();
    let begin = text.find(BEGIN).unwrap();
    let thread = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let saver = text.lines().find(|line| line.contains(BEGIN)).and_then(thread);
    CALLS
        .into_iter()
        .filter_map(|call| {
            // strace injects by counting the calls of each thread.
            let needle = format!(" {call}(");
            let count = |text: &str| {
                let lines = text.lines().filter(|line| thread(line) == saver);
                lines.filter(|line| line.contains(&needle)).count()
            };
            let (before, all) = (count(&text[..begin]), count(&text));
            (all > before).then_some((call, before, all))
        })
        .collect()
}

fn has_strace() -> bool {
    let works = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).status();
    let works = works.is_ok_and(|status| status.success());
    if !works {
        println!("NOT RUN: there is no strace that works here");
    }
    works
}

const BEGIN: &str = "here-begins-the-save";

/// Checks that everything reported as saved exists, that all existing values are intact, and that the store works.
fn check(root: &Path, output: &Output, why: &str) {
    let store = open(root);
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines() {
        let Some(saved) = line.strip_prefix("saved ") else {
            continue;
        };
        let (which, version) = saved.split_once(' ').unwrap();
        let there = store.get_manifest(&name(which)).unwrap();
        let there = there.unwrap_or_else(|| panic!("{why}: {which} is gone"));
        let found = u64::from_le_bytes(there[..8].try_into().unwrap());
        // The next one may be there too, but was not acknowledged.
        let version: u64 = version.parse().unwrap();
        assert!(found >= version, "{why}: {which} is {found}");
    }
    for which in ["a", "b"] {
        if let Some(there) = store.get_manifest(&name(which)).unwrap() {
            assert_eq!(wrong_chunk(&store, &there).unwrap(), None, "{why}: {which}");
        }
    }
    verify(&store);
    for which in ["a", "b", "1", "2"] {
        store.delete_manifest(&name(which)).unwrap();
    }
    let now = CollectOptions { grace: std::time::Duration::ZERO, ..CollectOptions::default() };
    store.inventory().unwrap().collect(&now, &mut |_| ()).unwrap();
    let left = store.inventory().unwrap().usage().unwrap();
    assert_eq!((left.manifests, left.chunks), (0, 0), "{why}");
    let rubbish = std::fs::read_dir(root.join("tmp")).unwrap().count();
    assert_eq!(rubbish, 0, "{why}: temporary files stay");
}

#[test]
fn a_process_killed_at_any_system_call_loses_nothing_that_was_saved() {
    if !has_strace() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    drop(open(&root));
    let (mut kills, mut survived) = (0, 0);
    for (call, before, all) in calls(&root, &folder.path().join("log")) {
        for at in (before + 1..=all).step_by(sampled(call)) {
            let output = run(&root, "save", call, "signal=KILL", at);
            match output.status.success() {
                // A call fewer than the first time: folders that were new are not any more.
                true => survived += 1,
                false => kills += 1,
            }
            check(&root, &output, &format!("killed at {call} {at}"));
        }
    }
    println!("killed at {kills} system calls");
    assert!(kills > 60 && survived < kills / 4, "{kills} killed, {survived} not");
}

/// A process that completes the work of a dead one moves manifests away and back. Others must find them at any time.
#[test]
fn a_process_killed_while_it_finishes_what_another_one_left_hides_nothing() {
    if !has_strace() {
        return;
    }
    let (mut kills, mut away) = (0, 0);
    for call in ["renameat", "linkat", "unlinkat", "fsync"] {
        for at in 1.. {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("store");
            let store = open(&root);
            for n in [1, 2] {
                let (hash, data) = chunk(n);
                store.put_chunk(&hash, &data).unwrap();
                let which = name(&n.to_string());
                store.put_manifest(&which, &manifest(n, &[n])).unwrap();
            }
            for which in ["1", "2", "never"] {
                std::fs::write(intent(&root, which), "").unwrap();
            }
            let output = run(&root, "collect", call, "signal=KILL", at);
            let why = format!("killed at {call} {at}");
            let files = std::fs::read_dir(root.join("manifests")).unwrap();
            let files = files.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
            let mut names = files.map(|file| file.unwrap().file_name());
            away += u32::from(names.any(|name| name.to_string_lossy().ends_with(".away")));
            for n in [1, 2] {
                let there = store.get_manifest(&name(&n.to_string())).unwrap();
                let there = there.unwrap_or_else(|| panic!("{why}: {n} is gone"));
                assert_eq!(wrong_chunk(&store, &there).unwrap(), None, "{why}");
                let other = open(&root);
                assert!(other.get_manifest(&name(&n.to_string())).unwrap().is_some());
                verify(&other);
            }
            check(&root, &output, &why);
            if output.status.success() {
                break;
            }
            kills += 1;
        }
    }
    println!("killed {kills} times, with a manifest away {away} times");
    assert!(kills > 10 && away > 1, "{kills}, {away}");
}

#[test]
fn a_system_call_that_fails_is_never_acknowledged() {
    if !has_strace() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    drop(open(&root));
    let troubles = [
        ("fsync", "EIO"),
        ("fdatasync", "EIO"),
        ("pwrite64", "ENOSPC"),
        ("renameat", "EDQUOT"),
        ("openat", "EMFILE"),
        ("openat2", "EMFILE"),
    ];
    let mut failures = BTreeMap::new();
    for (call, before, all) in calls(&root, &folder.path().join("log")) {
        let Some((_, errno)) = troubles.iter().find(|(other, _)| *other == call) else {
            continue;
        };
        for at in (before + 1..=all).step_by(sampled(call)) {
            let output = run(&root, "save", call, &format!("error={errno}"), at);
            *failures.entry(*errno).or_insert(0) += 1;
            let why = format!("{errno} at {call} {at}");
            // A call that strace makes fail has no effect, but as long as the machine runs that looks the same as
            // success. So the process itself must report the failure: it ends at the first error. With EMFILE it may
            // succeed, because not every file is needed.
            if errno != &"EMFILE" {
                assert!(!output.status.success(), "{why}: nobody noticed");
            }
            check(&root, &output, &why);
        }
    }
    println!("system calls that failed: {failures:?}");
    assert!(failures.values().sum::<usize>() > 20, "{failures:?}");
    assert_eq!(failures.len(), 4, "{failures:?}");
}

/// Sandboxes forbid `openat2` or do not know it.
#[test]
fn a_system_without_openat2_opens_all_the_same() {
    if !has_strace() {
        return;
    }
    for errno in ["ENOSYS", "EPERM"] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("store");
        let mut command = Command::new("strace");
        command
            .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=openat2", "-e"])
            .arg(format!("inject=openat2:error={errno}"))
            .arg(std::env::current_exe().unwrap());
        again(&mut command, "kills::other_process", &root, "save");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{errno}: {output:?}");
        let store = open(&root);
        assert!(store.get_manifest(&name("a")).unwrap().is_some(), "{errno}");
        verify(&store);
    }
}

#[test]
#[ignore = "a process of the tests above"]
fn other_process() {
    let Some((root, role)) = called() else {
        return;
    };
    let _ = std::fs::metadata(BEGIN);
    let _ = std::fs::File::open(BEGIN);
    let store = open(Path::new(&root));
    if role == "collect" {
        let inventory = store.inventory().unwrap();
        let collected = inventory.collect(&CollectOptions::default(), &mut |_| ());
        collected.unwrap();
        return;
    }
    for (version, which, chunks) in [(1, "a", 0..3), (2, "b", 2..5), (3, "a", 3..8)] {
        let chunks: Vec<u64> = chunks.collect();
        for &n in &chunks {
            let (hash, data) = chunk(n);
            let there = store.put_chunk(&hash, &data);
            there.unwrap();
        }
        store.put_manifest(&name(which), &manifest(version, &chunks)).unwrap();
        println!("\nsaved {which} {version}");
    }
}
