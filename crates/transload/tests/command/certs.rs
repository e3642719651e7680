//! `transload certs`.

use crate::common::typed;
use transload::transfer::{Identity, ServiceName};

#[test]
fn init_makes_a_folder_that_agents_can_use() {
    let dir = tempfile::tempdir().expect("a folder");
    let ran = typed(dir.path(), "certs init certs --cluster blue --format json");
    ran.is_good();
    let json = ran.json();
    assert_eq!(json["schema"], "transload.certs/1");
    assert_eq!(json["cluster"], "blue");
    assert_eq!(json["agents"][0]["name"], "prefill");
    assert_eq!(json["agents"][1]["roles"], serde_json::json!(["pull", "serve", "renew"]));

    for name in ["prefill", "decode"] {
        let name: ServiceName = name.parse().expect("a name");
        let identity = Identity::load_agent(dir.path().join("certs"), &name).expect("an identity");
        assert_eq!(identity.peer().service, name);
        assert_eq!(identity.peer().cluster.as_str(), "blue");
    }
}

#[cfg(unix)]
#[test]
fn secrets_are_for_their_owner_only_whatever_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    let mode = |path: &std::path::Path| {
        let metadata = std::fs::metadata(path).expect("a file");
        metadata.permissions().mode() & 0o777
    };
    for (umask, name) in [("000", "open"), ("022", "usual"), ("277", "shut")] {
        // The umask belongs to the whole process, so it is set in a child.
        let ran = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("umask {umask}; exec \"$0\" certs init {name}"))
            .arg(env!("CARGO_BIN_EXE_transload"))
            .current_dir(dir.path())
            .output()
            .expect("a shell");
        assert!(ran.status.success(), "{ran:?}");
        let certs = dir.path().join(name);
        assert_eq!(mode(&certs), 0o700, "{name}");
        for secret in ["ca.key", "ticket.key", "prefill.key", "decode.key"] {
            assert_eq!(mode(&certs.join(secret)), 0o600, "{name}/{secret}");
        }
    }
}

#[cfg(unix)]
#[test]
fn keys_that_others_can_read_are_told_of() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    let run = |line| typed(dir.path(), line);
    assert_eq!(run("certs init certs").code, Some(0));
    let quiet = run("certs ls certs");
    quiet.is_good();
    let key = dir.path().join("certs/decode.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    let listed = run("certs ls certs --format json");
    let added = run("certs add certs decode-1=pull");
    for ran in [&listed, &added] {
        assert_eq!(ran.code, Some(0));
        assert!(ran.told().contains("decode.key has mode 0644"), "{}", ran.stderr);
    }
    let open = &listed.json()["open_keys"][0];
    assert_eq!(open["path"], "certs/decode.key");
}

#[test]
fn expiry_is_told_when_certificates_are_made_and_later() {
    let dir = tempfile::tempdir().expect("a folder");
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let in_days = |seconds: &serde_json::Value| {
        let seconds = seconds.as_u64().expect("seconds") - now.as_secs();
        // The slack covers rounding to seconds and the time that the commands took.
        (seconds + 43_200) / 86_400
    };
    let made = typed(dir.path(), "certs init certs --days 9 --format json").json();
    assert_eq!(in_days(&made["agents"][0]["expires"]), 9);
    assert_eq!(in_days(&made["authority_expires"]), 3650);
    let listed = typed(dir.path(), "certs ls certs --format json").json();
    assert_eq!(listed["agents"].as_array().expect("agents").len(), 2);
    assert_eq!(listed["agents"][0]["expires"], made["agents"][1]["expires"]);
    let table = typed(dir.path(), "certs ls certs");
    assert!(table.stdout.contains("expires"), "{}", table.stdout);
    assert!(table.stdout.contains(" UTC"), "{}", table.stdout);
}

#[test]
fn nothing_is_overwritten() {
    let dir = tempfile::tempdir().expect("a folder");
    assert_eq!(typed(dir.path(), "certs init certs").code, Some(0));
    let key = dir.path().join("certs/ca.key");
    let before = std::fs::read(&key).expect("a key");
    let again = typed(dir.path(), "certs init certs");
    again.refused("exists already");
    again.refused("transload certs add");
    assert_eq!(std::fs::read(&key).expect("a key"), before);
}

#[test]
fn further_agents_join_the_same_cluster() {
    let dir = tempfile::tempdir().expect("a folder");
    let certs = dir.path().join("certs");
    assert_eq!(typed(dir.path(), "certs init certs").code, Some(0));
    let added = typed(dir.path(), "certs add certs decode-1=pull,renew");
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    let load = |name: &str| Identity::load_agent(&certs, &name.parse().expect("a name")).expect(name);
    assert_eq!(load("decode-1").peer().cluster, load("prefill").peer().cluster);
}

#[test]
fn faults_leave_no_half_made_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    for (other, part) in [("a=serve", "agent a is given twice"), ("ca=pull", "cannot be called \"ca\"")] {
        typed(dir.path(), &format!("certs init certs --agent a=pull --agent {other}")).refused(part);
        assert!(!dir.path().join("certs").exists());
    }
}

#[test]
fn faults_say_what_to_do() {
    let dir = tempfile::tempdir().expect("a folder");
    assert_eq!(typed(dir.path(), "certs init certs").code, Some(0));
    for (folder, agent, part) in [
        ("none", "a=pull", "create the folder with `transload certs init`"),
        ("certs", "a=", "an agent needs at least one role"),
        ("certs", "decode=pull", "choose another name for the agent"),
    ] {
        typed(dir.path(), &format!("certs add {folder} {agent}")).refused(part);
    }
}
