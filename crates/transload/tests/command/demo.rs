//! The demo, with a short request.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{command, transload};

/// The time in which a process has to notice that the other has ended. It is generous, for busy machines.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn every_byte_is_verified() {
    let ran = transload(&["demo", "--tokens", "100"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.stderr, "");
    let last = ran.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with(" verified: every byte of 100 tokens"), "{}", ran.stdout);
    for shown in [
        "LBSHC",
        "LBHSC",
        "512 B x 25,600",
        "completed, completed",
        " ring ",
        "GB/s",
        "nothing was saved: a store holds only whole chunks of 256 tokens",
    ] {
        assert!(ran.stdout.contains(shown), "{shown}: {}", ran.stdout);
    }
}

#[test]
fn programs_can_read_what_it_did() {
    let ran = transload(&["demo", "--tokens", "33", "--seed", "5", "--format", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let json = ran.json();
    assert_eq!(json["schema"], "transload.demo/1");
    assert_eq!(json["verified"], true);
    assert_eq!((&json["tokens"], &json["seed"]), (&33.into(), &5.into()));
    let bytes = 33 * 131_072;
    assert_eq!(json["plan"]["totals"]["bytes"], bytes);
    for (number, path) in ["quic", "ring"].into_iter().enumerate() {
        let transfer = &json["transfers"][number];
        assert_eq!(transfer["bytes"], bytes);
        assert_eq!(transfer["verified_bytes"], bytes);
        // One block of 64 tokens holds the request; the pool has two more.
        assert_eq!(transfer["canary_bytes"], (3 * 64 - 33) * 131_072);
        assert_eq!(transfer["paths"], serde_json::json!([path]));
        assert_eq!(transfer["leases"], serde_json::json!(["completed", "completed"]));
    }
}

#[test]
fn what_it_moved_is_saved_and_restored_into_a_third_layout() {
    let folder = tempfile::tempdir().expect("a folder");
    let uri = format!("file://{}/kv", folder.path().display());
    let demo = || {
        let args = ["demo", "--tokens", "300", "--seed", "5", "--store", &uri, "--format", "json"];
        let ran = transload(&args);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.json()["kept"].clone()
    };
    let bytes = 256 * 131_072;
    let kept = demo();
    assert_eq!(kept["store"], uri);
    assert_eq!((&kept["tokens"], &kept["pieces"]), (&256.into(), &8.into()));
    assert_eq!((&kept["saved_bytes"], &kept["restored_bytes"]), (&bytes.into(), &bytes.into()));
    // Ten blocks of 32 tokens hold the request, and three more are in the pool.
    assert_eq!(kept["verified_bytes"], bytes);
    assert_eq!(kept["canary_bytes"], (13 * 32 - 256) * 131_072);
    // The store outlives the demo, so existing data is not written again.
    assert_eq!(demo()["saved_bytes"], 0);

    let names = transload(&["store", "ls", &uri, "--format", "json"]).json();
    let names = names["manifests"].as_array().expect("a list").iter();
    let names: Vec<&str> = names.map(|entry| entry["name"].as_str().expect("a name")).collect();
    // The rest is a root for the only whole token chunk. The parts of the ranks are removed.
    let root = names.iter().find(|name| !name.contains("/part/"));
    assert_eq!((names.len(), root.is_some()), (1, true), "{names:?}");
    let shown = transload(&["store", "show", &uri, root.expect("a root")]).stdout;
    assert!(shown.contains("root of a saved prefix of 256 tokens"), "{shown}");
    assert!(shown.contains("group 0: tokens 0 to 256, 8 pieces"), "{shown}");
    let verified = transload(&["store", "verify", &uri]);
    assert_eq!(verified.code, Some(0), "{}", verified.stdout);
}

#[test]
fn the_other_process_is_of_no_use_by_hand() {
    let output = command().arg("source-process").stdin(Stdio::null()).output().expect("it starts");
    assert_eq!(output.status.code(), Some(0), "nothing was ordered, nothing was done");
    assert!(output.stdout.is_empty());
}

/// Starts a demo that runs for some seconds. Returns it and its second process.
#[cfg(target_os = "linux")]
#[expect(clippy::zombie_processes, reason = "whoever asks for it waits for it")]
fn running() -> (Child, u32) {
    let mut demo = command()
        .args(["demo", "--tokens", "1000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let children = format!("/proc/{0}/task/{0}/children", demo.id());
    let started = Instant::now();
    loop {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        if let Some(child) = text.split_whitespace().next() {
            return (demo, child.parse().expect("a process id"));
        }
        if started.elapsed() > PATIENCE {
            demo.kill().expect("it is killed");
            demo.wait().expect("it is gone");
            panic!("there is no second process");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_death_of_the_other_process_is_an_error() {
    let (demo, child) = running();
    // The kill comes at some time between the start and the end of the transfer.
    std::thread::sleep(Duration::from_millis(700));
    let killed = std::process::Command::new("kill").args(["-9", &child.to_string()]).status().expect("kill is there");
    assert!(killed.success());
    let output = demo.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the source process ended too early (signal: 9"), "{stderr}");
}

#[cfg(target_os = "linux")]
#[test]
fn the_other_process_does_not_outlive_the_demo() {
    let (mut demo, child) = running();
    std::thread::sleep(Duration::from_millis(300));
    demo.kill().expect("it is killed");
    demo.wait().expect("it is gone");
    let started = Instant::now();
    while alive(child) {
        assert!(started.elapsed() < PATIENCE, "process {child} lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether the process exists and is not a zombie.
#[cfg(target_os = "linux")]
fn alive(process: u32) -> bool {
    let stat = PathBuf::from(format!("/proc/{process}/stat"));
    std::fs::read_to_string(stat).is_ok_and(|stat| {
        let state = stat.rsplit(") ").next().unwrap_or_default();
        !state.starts_with('Z')
    })
}
