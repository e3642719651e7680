//! Checks that the Grafana dashboard and the alert rules use only existing metrics.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use transload_sidecar::internal::observe::Observer;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn named(text: &str) -> BTreeSet<&str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_' && letter != ':')
        .filter(|word| word.starts_with("transload_") || word.starts_with("vllm:"))
        .collect()
}

#[test]
fn every_metric_that_is_named_is_exported() {
    let observer = Observer::new("proxy", "1", Instant::now());
    let metrics = observer.metrics();
    let exported: BTreeSet<_> = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    // Documents refer to histograms by the name of their family.
    let families: BTreeSet<_> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let connector = read("crates/python/python/transload/vllm/stats.py");
    for file in ["docs/grafana/transload-pd.json", "docs/grafana/alerts.yaml"] {
        let text = read(file);
        let names = named(&text);
        assert!(names.len() >= 5, "{names:?}");
        for name in names {
            let known = match name.strip_prefix("vllm:transload_") {
                // Our connector's counters are created without the suffix `_total` with which they are exported.
                Some(rest) => {
                    let bare = rest.strip_suffix("_total").expect("a counter");
                    connector.contains(&format!("_counter(\"{bare}\", "))
                }
                None => exported.contains(name),
            };
            assert!(known, "{file} names {name}, which is not exported");
        }
    }
    let reference = read("docs/src/reference/status.md");
    assert_eq!(named(&reference), families);
}

#[test]
fn the_dashboard_is_one_that_grafana_reads() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("docs/grafana/transload-pd.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut filled = BTreeSet::new();
    for panel in panels {
        let place = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        for x in place("x")..place("x") + place("w") {
            assert!(x < 24, "{} is outside the grid", panel["title"]);
            for y in place("y")..place("y") + place("h") {
                assert!(filled.insert((x, y)), "{} overlaps", panel["title"]);
            }
        }
    }
}

#[test]
fn alerts_fire_on_what_they_are_for() {
    let rules = root().join("docs/grafana/alerts.yaml");
    let folder = tempfile::tempdir().expect("a folder");
    let tests = folder.path().join("tests.yaml");
    let text = include_str!("alerts.yaml").replace("RULES", &rules.display().to_string());
    std::fs::write(&tests, text).expect("a file");
    for (kind, file) in [("check", &rules), ("test", &tests)] {
        let output = match Command::new("promtool").arg(kind).arg("rules").arg(file).output() {
            Ok(output) => output,
            Err(error) => return eprintln!("NOT RUN: promtool: {error}; install prometheus"),
        };
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "promtool {kind} rules: {said}");
    }
}
