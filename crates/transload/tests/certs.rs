//! `transload certs`.

mod common;

use common::transload_in;
use transload::transfer::identity::Identity;
use transload::transfer::ids::AgentId;

#[test]
fn init_makes_a_folder_that_agents_can_use() {
    let dir = tempfile::tempdir().expect("a folder");
    let ran = transload_in(
        dir.path(),
        &[
            "certs",
            "init",
            "certs",
            "--cluster",
            "blue",
            "--format",
            "json",
        ],
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let json = ran.json();
    assert_eq!(json["schema"], "transload.certs/1");
    assert_eq!(json["cluster"], "blue");
    assert_eq!(json["agents"][0]["name"], "prefill");
    assert_eq!(
        json["agents"][1]["roles"],
        serde_json::json!(["pull", "serve", "renew", "map"])
    );

    for name in ["prefill", "decode"] {
        let name: AgentId = name.parse().expect("a name");
        let identity = Identity::load_agent(dir.path().join("certs"), &name).expect("an identity");
        assert_eq!(identity.peer().agent, name);
        assert_eq!(identity.peer().cluster.as_str(), "blue");
    }
}

#[cfg(unix)]
#[test]
fn secrets_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    assert_eq!(
        transload_in(dir.path(), &["certs", "init", "certs"]).code,
        Some(0)
    );
    for secret in ["ca.key", "ticket.key", "prefill.key", "decode.key"] {
        let path = dir.path().join("certs").join(secret);
        let mode = std::fs::metadata(&path).expect(secret).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
}

#[test]
fn nothing_is_overwritten() {
    let dir = tempfile::tempdir().expect("a folder");
    assert_eq!(
        transload_in(dir.path(), &["certs", "init", "certs"]).code,
        Some(0)
    );
    let key = dir.path().join("certs/ca.key");
    let before = std::fs::read(&key).expect("a key");
    let again = transload_in(dir.path(), &["certs", "init", "certs"]);
    assert_eq!(again.code, Some(2));
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
    assert!(
        again.stderr.contains("transload certs add"),
        "{}",
        again.stderr
    );
    assert_eq!(std::fs::read(&key).expect("a key"), before);
}

#[test]
fn further_agents_join_the_same_cluster() {
    let dir = tempfile::tempdir().expect("a folder");
    let certs = dir.path().join("certs");
    assert_eq!(
        transload_in(dir.path(), &["certs", "init", "certs"]).code,
        Some(0)
    );
    let added = transload_in(
        dir.path(),
        &["certs", "add", "certs", "decode-1=pull,renew"],
    );
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    let load =
        |name: &str| Identity::load_agent(&certs, &name.parse().expect("a name")).expect(name);
    assert_eq!(
        load("decode-1").peer().cluster,
        load("prefill").peer().cluster
    );
}

#[test]
fn faults_leave_no_half_made_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    for (agents, part) in [
        (["a=pull", "a=serve"], "agent a is given twice"),
        (["a=pull", "ca=pull"], "cannot be called \"ca\""),
    ] {
        let [one, two] = agents;
        let args = ["certs", "init", "certs", "--agent", one, "--agent", two];
        let ran = transload_in(dir.path(), &args);
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
        assert!(!dir.path().join("certs").exists());
    }
}

#[test]
fn faults_say_what_to_do() {
    let dir = tempfile::tempdir().expect("a folder");
    assert_eq!(
        transload_in(dir.path(), &["certs", "init", "certs"]).code,
        Some(0)
    );
    for (folder, agent, part) in [
        (
            "none",
            "a=pull",
            "make a folder with `transload certs init`",
        ),
        ("certs", "a=", "an agent without a role"),
        ("certs", "decode=pull", "give the agent another name"),
    ] {
        let ran = transload_in(dir.path(), &["certs", "add", folder, agent]);
        assert_eq!(ran.code, Some(2));
        assert!(ran.told().contains(part), "{}", ran.stderr);
    }
}
