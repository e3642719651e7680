//! A check leaves no process and no removable manifest behind, however it ends.

use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use transload_store::conformance::{self, Options, Report, Verdict};
use transload_store::open_existing;

use crate::build::compile;
use crate::consumer::file_plugin;

/// The library of `tests/c/around.c`, which wraps the file plugin, and the store for its checks.
struct Around {
    folder: TempDir,
}

impl Around {
    fn new(define: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let around = Self { folder };
        let define = format!("-D{define}");
        let flags = ["-shared", "-fPIC", &define, "-ldl"];
        compile("cc", "around.c", &around.library(), &flags);
        around
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("libkv_store_file.so")
    }

    fn uri(&self) -> String {
        format!("file://{}", self.folder.path().join("kv").display())
    }

    fn manifests(&self) -> Vec<String> {
        let store = open_existing(&self.uri()).unwrap();
        let mut names = Vec::new();
        let visited = store.inventory().unwrap().manifests(&mut |entry| {
            names.push(entry.name.to_string());
            Ok(())
        });
        visited.unwrap();
        names
    }

    /// Returns the command of a process that checks the library. Its stderr is a pipe that all its children inherit.
    fn checking(&self) -> Command {
        let mut command = this_program("left::other_process");
        self.name_it(&mut command);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn name_it(&self, command: &mut Command) {
        command.env("CHECK_LIBRARY", self.library()).env("CHECK_URI", self.uri()).env("AROUND", file_plugin());
    }

    fn check(&self, limit: Duration, stderr: &io::PipeWriter) -> Report {
        let command = |item: &'static conformance::Item| {
            let mut command = this_program("check::other_process");
            self.name_it(&mut command);
            command.env("CHECK_ITEM", item.name).stderr(stderr.try_clone().unwrap());
            command
        };
        conformance::check_in_children(&one(), limit, &command, &mut |_| ())
    }
}

fn this_program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    command
}

fn one() -> Options {
    Options { only: vec!["manifest-replace".into()], ..Options::quick() }
}

#[test]
#[ignore = "the process that is killed while it checks"]
fn other_process() {
    // What it checks stands in its environment.
    let command = |item: &'static conformance::Item| {
        let mut command = this_program("check::other_process");
        command.env("CHECK_ITEM", item.name);
        command
    };
    conformance::check_in_children(&one(), Duration::MAX, &command, &mut |_| ());
}

/// The end of stderr shows that no process is left that could write to it. Otherwise this test never ends.
#[test]
fn a_child_that_dies_leaves_nothing() {
    // One that hangs takes all of its time, and needs enough of it to come that far.
    for (define, limits, says) in [("CRASH", &[60][..], ""), ("HANG", &[10, 60], "it hangs")] {
        let came_so_far = limits.iter().any(|&seconds| {
            let around = Around::new(define);
            let (mut reader, writer) = io::pipe().unwrap();
            let report = around.check(Duration::from_secs(seconds), &writer);
            drop(writer);
            let mut said = Vec::new();
            reader.read_to_end(&mut said).unwrap();
            if !String::from_utf8_lossy(&said).contains(says) {
                // The machine is busy.
                return false;
            }
            assert_eq!(report.count(Verdict::Fail), 1, "{report}");
            assert_eq!(report.left().count(), 0, "{report}");
            assert!(around.manifests().is_empty(), "{define}");
            true
        });
        assert!(came_so_far, "{define}");
    }
}

/// A child started by hand, or by a process that has ended since.
#[test]
fn a_child_without_a_task_does_nothing() {
    let around = Around::new("REFUSE");
    let mut command = this_program("check::other_process");
    around.name_it(&mut command);
    command.env("CHECK_ITEM", "manifest-replace");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
    assert!(!around.folder.path().join("kv").exists());
}

#[test]
fn what_cannot_be_removed_is_told() {
    let around = Around::new("REFUSE");
    let (mut reader, writer) = io::pipe().unwrap();
    let report = around.check(Duration::from_secs(60), &writer);
    let left: Vec<_> = report.left().map(ToString::to_string).collect();
    assert_eq!(left, around.manifests(), "{report}");
    assert_eq!(left.len(), 1, "{report}");
    assert!(report.to_string().contains(&left[0]), "{report}");
    drop(writer);
    reader.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_check_that_is_killed_leaves_nothing() {
    let around = Around::new("HANG");
    let mut checking = around.checking().spawn().unwrap();
    let mut stderr = BufReader::new(checking.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("it hangs") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0);
    }
    assert_eq!(around.manifests().len(), 1);
    checking.kill().unwrap();
    checking.wait().unwrap();
    stderr.read_to_end(&mut Vec::new()).unwrap();
    assert!(around.manifests().is_empty());
}
