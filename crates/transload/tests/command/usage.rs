//! Tests of behaviour common to all commands: help, exit codes, streams.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{command, transload};

/// Returns every command, as typed.
fn commands() -> Vec<Vec<&'static str>> {
    const COMMANDS: [&str; 28] = [
        "plan",
        "inspect",
        "demo",
        "certs",
        "certs init",
        "certs add",
        "bench",
        "bench plan",
        "bench copy",
        "bench quic",
        "bench local",
        "bench store",
        "bench gpu",
        "store",
        "store ls",
        "store show",
        "store rm",
        "store verify",
        "store gc",
        "store check",
        "store kvc",
        "store kvc inspect",
        "store kvc verify",
        "store llama",
        "store llama inspect",
        "sidecar",
        "proxy",
        "announce",
    ];
    COMMANDS.iter().map(|line| line.split(' ').collect()).collect()
}

#[test]
fn help_goes_to_stdout_with_examples() {
    for mut args in commands() {
        args.push("--help");
        let ran = transload(&args);
        assert_eq!(ran.code, Some(0), "{args:?}");
        assert_eq!(ran.stderr, "", "{args:?}");
        assert!(ran.stdout.contains("Examples:\n  transload "), "{args:?}: {}", ran.stdout);
        assert!(ran.stdout.contains("--format"), "{args:?}");
        assert!(!ran.stdout.contains('\u{1b}'), "no colours but on a terminal: {args:?}");
    }
}

/// The text after the options has manual line breaks for terminals of 80 columns. If a line is longer, clap breaks it
/// again, in the middle.
#[test]
fn help_on_stores_fits_into_80_columns() {
    for mut args in commands() {
        if args[0] != "store" && args != ["bench"] && args != ["bench", "store"] {
            continue;
        }
        args.push("--help");
        let help = transload(&args).stdout;
        let behind = help.lines().skip_while(|line| *line != "Examples:");
        for line in behind {
            assert!(line.chars().count() <= 78, "{args:?}: {line}");
        }
    }
}

#[test]
fn every_command_is_in_the_help_and_the_book() {
    let help = transload(&["--help"]).stdout;
    let book = std::fs::read_to_string(crate::common::root().join("docs/src/reference/command-line.md"))
        .expect("the page is there");
    for args in commands() {
        assert!(help.contains(args[0]), "{args:?}");
        assert!(book.contains(&format!("transload {}", args.join(" "))), "{args:?}");
    }
    for line in help.lines().skip_while(|l| !l.starts_with("Commands:")).skip(1) {
        let Some(name) = line.split_whitespace().next() else {
            break;
        };
        assert!(commands().iter().any(|c| c[0] == name), "{name} is not in this test");
    }
}

/// A plan between documents that do not exist.
const OF_NOTHING: [&str; 7] = ["plan", "--from", "/nonexistent/a", "--to", "b", "--tokens", "1"];

#[test]
fn bad_usage_exits_2_and_says_so_on_stderr() {
    for args in [
        &["nonsense"][..],
        &[],
        &["plan"],
        &["plan", "--from", "a", "--to", "b", "--tokens", "1", "--format", "yaml"],
        &OF_NOTHING,
    ] {
        let ran = transload(args);
        assert_eq!(ran.code, Some(2), "{args:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
        assert!(!ran.stderr.is_empty(), "{args:?}");
    }
}

/// A plan between the documents of the examples.
const OF_EXAMPLES: [&str; 7] = ["plan", "--from", "prefill.toml", "--to", "decode.toml", "--tokens", "64"];

fn examples() -> PathBuf {
    crate::common::root().join("docs/examples")
}

/// Returns a command that prints more than a pipe holds.
fn long() -> Command {
    let mut command = command();
    command.current_dir(examples()).args(OF_EXAMPLES).args(["--chunks", "--format", "json"]);
    command
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = long().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn nobody_need_read_errors() {
    let mut child = command().args(OF_NOTHING).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stderr.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(2));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let output = long().stdout(full).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("could not be written"));
}

#[test]
fn what_is_done_is_told_where_it_is_asked_for() {
    let quiet = crate::common::transload_in(&examples(), &OF_EXAMPLES);
    quiet.is_good();
    let told = crate::common::transload_in(&examples(), &[&["-v"], &OF_EXAMPLES[..]].concat());
    assert!(told.stderr.contains("planned"), "{}", told.stderr);
    assert!(!told.stderr.contains('\u{1b}'), "{}", told.stderr);
    let output =
        command().current_dir(examples()).env("TRANSLOAD_LOG", "=====").args(OF_EXAMPLES).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2), "a filter that is none");
}
