//! Tests of the example command lines and configurations in help texts, in the book, and in packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use serde_json::Value;
use transload_sidecar::announce::Announcement;
use transload_sidecar::settings::Settings;

use super::tests::read;
use super::{announce, proxy, sidecar};
use crate::cli::Cli;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn take(line: &str) {
    match line.starts_with("transload announce ") {
        true => drop(announced(line)),
        false => drop(settings(line)),
    }
}

fn announced(line: &str) -> Announcement {
    let cli = Cli::try_parse_from(line.split_whitespace());
    match cli.unwrap_or_else(|error| panic!("{line}: {error}")).command {
        crate::commands::Command::Announce(args) => args.announcement().expect(line),
        other => panic!("{other:?}"),
    }
}

/// Returns the settings of a command line. Files below `/etc/transload` are those of the systemd package.
fn settings(line: &str) -> Settings {
    let installed = format!("{}/", root().join("packaging/systemd").display());
    let line = line.replace("/etc/transload/", &installed);
    let words = line.split_whitespace().skip(1);
    let words: Vec<_> = words.map(|word| word.trim_matches('\'')).collect();
    match read(&words, &[]) {
        Ok((settings, _)) => settings,
        Err(error) => panic!("{line}: {error}"),
    }
}

/// Returns the `transload` command lines in a text; a `\` at a line's end continues the line.
fn lines(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("$ "));
    let lines = lines.filter(|line| {
        let mut words = line.split(' ');
        words.next() == Some("transload") && matches!(words.next(), Some("sidecar" | "proxy" | "announce"))
    });
    lines.map(|line| line.trim_end_matches(" &").to_owned()).collect()
}

fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = text(page);
    let blocks = text.split("```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    blocks.map(str::to_owned).collect()
}

#[test]
fn command_lines_of_helps_and_of_the_book_are_right() {
    for help in [sidecar::EXAMPLES, proxy::EXAMPLES, announce::EXAMPLES] {
        let lines = lines(help);
        assert!(lines.len() > 2, "{lines:?}");
        for line in lines {
            take(&line);
        }
    }
    let mut found = 0;
    for page in ["README.md", "docs/src/guide/sidecar.md", "docs/src/guide/proxy.md"] {
        for block in blocks(page, "sh") {
            for line in lines(&block) {
                take(&line);
                found += 1;
            }
        }
        for block in blocks(page, "yaml").iter().filter(|block| !block.contains("apiVersion:")) {
            let command = page.rsplit('/').next().and_then(|name| name.strip_suffix(".md"));
            let configuration = format!("--configuration={block}");
            read(&[command.expect("a page of a command"), &configuration], &[]).expect(page);
            found += 1;
        }
    }
    assert!(found > 5, "the book has {found} examples");
}

fn unit(file: &str, key: &str) -> Vec<String> {
    let text = text(file);
    let values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

#[test]
fn units_start_what_is_there_and_wait_for_the_drain() {
    for name in ["sidecar", "proxy"] {
        let file = format!("packaging/systemd/transload-{name}.service");
        let [start] = &unit(&file, "ExecStart")[..] else {
            panic!("one start");
        };
        assert_eq!(start.split(' ').nth(1), Some(name));
        let settings = settings(start);
        let [stop] = &unit(&file, "TimeoutStopSec")[..] else {
            panic!("one time to stop");
        };
        let stop: u64 = stop.parse().expect("seconds");
        assert!(stop > settings.drain.as_secs());
        assert_eq!(unit(&file, "ExecReload"), ["/bin/kill -HUP $MAINPID"]);
    }
}

#[test]
fn systemd_takes_the_units_and_finds_them_hardened() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("NOT RUN: there is no systemd-analyze");
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["sidecar", "proxy"] {
        let unit = dir.path().join(format!("transload-{name}.service"));
        let text = text(&format!("packaging/systemd/transload-{name}.service"));
        // It looks whether the program is there, which is not installed here.
        fs::write(&unit, text.replace("/usr/bin/transload", "/bin/true")).expect("a unit");
        for arguments in [&["verify"][..], &["security", "--offline=true", "--threshold=20"]] {
            let ran = Command::new("systemd-analyze").args(arguments).arg(&unit).output();
            let ran = ran.expect("it starts");
            let said = String::from_utf8_lossy(&ran.stderr) + String::from_utf8_lossy(&ran.stdout);
            if said.contains("Unknown option") || said.contains("unrecognized option") {
                eprintln!("NOT RUN: systemd-analyze {arguments:?}: this one is too old");
                continue;
            }
            assert!(ran.status.success(), "{arguments:?}: {said}");
        }
    }
}

#[test]
fn the_image_is_built_of_the_whole_workspace_and_starts_the_sidecar() {
    let file = text("packaging/Containerfile");
    let copied: Vec<_> =
        file.lines().filter_map(|line| line.strip_prefix("COPY ")?.split_once(' ')).map(|(from, _)| from).collect();
    let manifest: toml::Table = toml::from_str(&text("Cargo.toml")).expect("a manifest");
    for member in manifest["workspace"]["members"].as_array().expect("a list") {
        let folder = member.as_str().and_then(|member| member.split('/').next());
        assert!(copied.contains(&folder.expect("a folder")), "{member}");
    }
    assert!(copied.contains(&"cuda"), "the kernels that are built in");
    let start = file.lines().find_map(|line| line.strip_prefix("ENTRYPOINT "));
    let start: Vec<String> = serde_json::from_str(start.expect("a start")).expect("a list");
    assert_eq!(start, ["/usr/local/bin/transload", "sidecar"]);
}

#[test]
fn the_pod_has_a_sidecar_where_llm_ds_was() {
    let objects = text("packaging/kubernetes/decode.yaml");
    let object: Value = serde_saphyr::from_str(&objects).expect("YAML");
    let pod = &object["spec"]["template"]["spec"];
    let [sidecar] = &pod["initContainers"].as_array().expect("a list")[..] else {
        panic!("one container");
    };
    assert_eq!(sidecar["restartPolicy"], "Always");
    let arguments = sidecar["args"].as_array().expect("arguments").iter();
    let arguments: Vec<_> = arguments.map(|one| one.as_str().expect("text")).collect();
    let settings = settings(&format!("transload sidecar {}", arguments.join(" ")));

    let admin = settings.admin.expect("an admin address");
    assert!(admin.ip().is_unspecified(), "the kubelet asks the pod's address");
    let ports = sidecar["ports"].as_array().expect("ports").iter();
    let ports: Vec<_> = ports.map(|port| (port["name"].as_str(), port["containerPort"].as_u64())).collect();
    assert!(ports.contains(&(Some("http"), Some(settings.listen.port().into()))));
    assert!(ports.contains(&(Some("admin"), Some(admin.port().into()))));
    for (probe, path) in [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let get = &sidecar[probe]["httpGet"];
        assert_eq!((&get["path"], &get["port"]), (&path.into(), &"admin".into()), "{probe}");
    }
    assert_eq!(sidecar["env"][0]["name"], "POD_IP");
    assert_eq!(sidecar["env"][0]["valueFrom"]["fieldRef"]["fieldPath"], "status.podIP");
    assert_eq!(sidecar["securityContext"]["runAsNonRoot"], true);

    let vllm = &pod["containers"][0];
    let command = vllm["command"].as_array().expect("a command");
    let port = command.iter().position(|word| word == "--port").expect("a port");
    let transload_sidecar::settings::Mode::Sidecar(beside) = &settings.mode else {
        panic!("a sidecar");
    };
    assert_eq!(command[port + 1], beside.decode.target.port.to_string().as_str());
    let connector = vllm["args"][0].as_str().expect("settings");
    serde_json::from_str::<Value>(connector).expect("JSON");
    let script = vllm["lifecycle"]["preStop"]["exec"]["command"][2].as_str().expect("a script");
    assert!(script.contains(&format!("127.0.0.1:{}/status", admin.port())));
    // 5 s and 55 more.
    assert!(script.contains("sleep 5\n") && script.contains("seq 55"));
    let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("seconds");
    assert!(grace > 60 + settings.drain.as_secs());
}
