//! `transload plan`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{DST, Ran, SRC, document, pair, typed};
use serde_json::{Value, json};

fn plan(dir: &Path, more: &str) -> Ran {
    typed(dir, &format!("plan --from a.toml --to b.toml {more}"))
}

#[track_caller]
fn plan_json(dir: &Path, more: &str) -> Value {
    let ran = plan(dir, &format!("--format json {more}"));
    ran.is_good();
    ran.json()
}

/// Returns the plan without values that differ between runs.
fn untimed(mut plan: Value) -> Value {
    plan["compile_ns"].take();
    plan
}

#[test]
fn totals_and_routes_add_up() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let plan = plan_json(dir.path(), "--tokens 100");
    assert_eq!(plan["schema"], "transload.plan/1");
    assert_eq!(plan["digest"].as_str().map(str::len), Some(64));
    assert!(plan["compile_ns"].as_u64() > Some(0));
    // 100 tokens of 4 layers and 8 heads; a chunk is one token's 4 heads of 64 bytes.
    assert_eq!(plan["totals"]["bytes"], 100 * 4 * 8 * 64);
    assert_eq!(plan["totals"]["chunks"], 2 * 100 * 4);
    assert_eq!(plan["totals"]["segments"], 7);
    assert!(plan["totals"]["wire_bytes"].as_u64() <= Some(4096));
    assert_eq!(
        plan["routes"][1],
        json!({
            "src_rank": 0, "dst_rank": 1, "group": "attn", "component": "kv",
            "bytes": 100 * 4 * 4 * 64, "chunks": 400, "chunk_bytes": {"min": 256, "max": 256}
        })
    );
}

#[test]
fn the_list_holds_every_byte_once() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let plan = plan_json(dir.path(), "--tokens 70 --start 10 --src-blocks 5,0,3-4,7 --dst-blocks 2,1,0 --chunks");
    for route in plan["routes"].as_array().expect("routes") {
        let list = route["list"].as_array().expect("a list");
        assert_eq!(route["chunks"], list.len());
        let mut bytes = BTreeSet::new();
        for chunk in list {
            let [_, dst, length] = [0, 1, 2].map(|i| chunk[i].as_u64().expect("a number"));
            for byte in dst..dst + length {
                assert!(bytes.insert(byte), "destination byte {byte} is written twice");
            }
        }
        assert_eq!(route["bytes"], bytes.len());
    }
    // The first token is at position 10 of source block 5 and of destination block 2. Rank 0 has half of the heads.
    let state = (8 * 64, 4 * 64);
    let first = json!([(5 * 16 + 10) * state.0, (2 * 32 + 10) * state.1, 256]);
    let list = plan["routes"][0]["list"].as_array().expect("a list");
    assert!(list.contains(&first), "{first} in {list:?}");
}

#[test]
fn the_digest_does_not_depend_on_block_lists() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let here = plan_json(dir.path(), "--tokens 64");
    assert_eq!(here["histogram"], json!([[256, 512]]));
    let there = plan_json(dir.path(), "--tokens 64 --src-blocks 7,2,5,0");
    assert_eq!(here["digest"], there["digest"]);
    let fewer = plan_json(dir.path(), "--tokens 63");
    assert_ne!(here["digest"], fewer["digest"]);
}

#[test]
fn a_document_may_be_json() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let before = plan_json(dir.path(), "--tokens 64");
    let value: toml::Value = toml::from_str(&document(DST, "")).expect("TOML");
    fs::write(dir.path().join("b.toml"), "").expect("a file");
    fs::write(dir.path().join("b.json"), json!(value).to_string()).expect("a file");
    let ran = typed(dir.path(), "plan --from a.toml --to b.json --tokens 64 --format json");
    assert_eq!(untimed(ran.json()), untimed(before));
}

#[test]
fn allocations_per_layer_are_listed_with_their_layers() {
    let per_layer = "allocation = \"per_layer\"";
    let lists = |src: &str, dst: &str| {
        let dir = pair(&document(SRC, src), &document(&DST.replace("tp = 2", "tp = 1\npp = 2"), dst));
        let plan = plan_json(dir.path(), "--tokens 16 --chunks");
        plan["routes"].clone()
    };
    // One block of 16 tokens is one run of 8 KiB. Layer 3 is in slot 1 of the second stage.
    let both = lists(per_layer, per_layer);
    assert_eq!(both[1]["dst_rank"], 1);
    assert_eq!(both[1]["list"], json!([[2, 0, 2, 0, 8192], [3, 0, 3, 0, 8192]]));
    // Offsets of the side with one allocation count from its start.
    let source = lists(per_layer, "");
    assert_eq!(source[1]["list"], json!([[2, 0, 2, 0, 8192], [3, 0, 3, 8 * 16384, 8192]]));
    let neither = lists("", "");
    assert_eq!(neither[0]["list"][1], json!([8 * 8192, 8 * 16384, 8192]));
}

#[test]
fn groups_have_lists_of_their_own() {
    let second = "\n[[group]]\nname = \"state\"\nlayers = \"4-5\"\nnum_blocks = 4\n[[group.spec]]\n\
                  kind = \"linear\"\nheads = 8\nhead_dim = 4\ndtype = \"f32\"\n";
    let text = document("block_size = 16\nnum_blocks = 8", "") + second;
    let dir = pair(&text, &text);
    let plan = plan_json(dir.path(), "--tokens 16 --chunks --src-blocks attn=6 --src-blocks state=3");
    let starts: Vec<_> = plan["routes"]
        .as_array()
        .expect("routes")
        .iter()
        .map(|route| (route["group"].as_str(), route["list"][0][0].as_u64()))
        .collect();
    // A block of attention is 8 KiB, one of state 8 heads of 16 floats.
    assert_eq!(starts, [(Some("attn"), Some(6 * 8192)), (Some("state"), Some(3 * 512))]);

    for (lists, part) in [
        ("--src-blocks nope=1", "no group \"nope\""),
        ("--src-blocks attn=1 --src-blocks attn=2", "given twice for group \"attn\""),
        ("--dst-blocks 1 --dst-blocks 2", "given twice for all groups"),
    ] {
        self::plan(dir.path(), &format!("--tokens 16 {lists}")).refused(part);
    }
}

#[test]
fn what_cannot_be_bridged_is_named_with_both_values() {
    let dir = pair(&document(SRC, ""), &document(DST, "").replace("head_dim = 16", "head_dim = 32"));
    let ran = plan(dir.path(), "--tokens 16");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    for part in ["a.toml", "b.toml", "head_dim", "16 at the source", "32 at the destination"] {
        assert!(ran.told().contains(part), "{part} in {}", ran.stderr);
    }
}

#[test]
fn all_faults_of_a_document_are_told_at_once() {
    let bad = document(SRC, "").replace("tp = 1", "tp = 0").replace("heads = 8", "head = 8");
    let dir = pair(&bad, &document(DST, ""));
    let ran = plan(dir.path(), "--tokens 16");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    for part in [
        "a.toml",
        "3 faults",
        "tp: must be from 1 to 4096, not 0",
        "group[0].spec[0].head: is not a field here; did you mean heads?",
        "group[0].spec[0].heads: is missing",
    ] {
        assert!(ran.stderr.contains(part), "{part} in {}", ran.stderr);
    }
    assert!(!ran.stderr.contains('\u{1b}'), "no colours but on a terminal");
}

#[test]
fn tables_that_do_not_suit_are_bad_input() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    for (args, part) in [
        ("--tokens 64 --src-blocks 0,1", "has 2 blocks, 4 are needed"),
        ("--tokens 64 --src-blocks 0,-,2,3", "entry 1"),
        ("--tokens 64 --src-blocks 0-2,8", "block 8"),
        ("--tokens 64 --dst-blocks 3,3", "block 3 stands twice"),
        ("--tokens 1000", "block 62"),
        ("--tokens 18446744073709551615 --start 1", "beyond the last position"),
        ("--tokens 16 --chunks", "--format json"),
        ("--tokens -5", "--tokens"),
        ("--tokens 16 --src-blocks x", "is not a block"),
    ] {
        plan(dir.path(), args).refused(part);
    }
}

#[test]
fn blocks_that_are_never_touched_need_no_number() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let plan = plan_json(dir.path(), "--tokens 16 --start 32 --src-blocks -,-,7 --dst-blocks -,3");
    assert_eq!(plan["totals"]["segments"], 1);
}

#[test]
fn no_tokens_are_no_routes_and_no_error() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let plan = plan_json(dir.path(), "--tokens 0");
    assert_eq!(plan["totals"]["bytes"], 0);
    assert_eq!(plan["totals"]["chunks"], 0);
}

#[test]
fn lines_fit_the_columns_there_are() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let ran = crate::common::command()
        .current_dir(dir.path())
        .env("COLUMNS", "80")
        .args(["plan", "--from", "a.toml", "--to", "b.toml", "--tokens", "64"])
        .output()
        .expect("it starts");
    let text = String::from_utf8(ran.stdout).expect("text");
    let table = text.lines().take_while(|line| !line.is_empty());
    let widest = table.map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{text}");
}

fn plan_from(stdin: impl Into<std::process::Stdio>, dir: &Path, args: &[&str]) -> Ran {
    let mut command = crate::common::command();
    let ran = command.current_dir(dir).stdin(stdin).arg("plan").args(args);
    Ran::new(ran.output().expect("the command starts"))
}

#[cfg(unix)]
#[test]
fn stdin_may_be_a_socket_and_is_one_document() {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let sent = |text: &str| {
        let (mut here, there) = UnixStream::pair().expect("sockets");
        here.write_all(text.as_bytes()).expect("room for it");
        OwnedFd::from(there)
    };
    let args = ["--from", "-", "--to", "b.toml", "--tokens", "64"];
    plan_from(sent(&document(SRC, "")), dir.path(), &args).is_good();
    let ran = plan_from(sent("{"), dir.path(), &args);
    ran.refused("stdin is not valid JSON");
    let args = ["--from", "-", "--to", "-", "--tokens", "64"];
    plan_from(sent(&document(SRC, "")), dir.path(), &args).refused("both -");
}

#[test]
fn a_document_of_one_line_is_not_printed_whole() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let padding = "1,".repeat(100_000);
    fs::write(dir.path().join("a.json"), format!("{{\"x\": [{padding}]}}")).expect("a file");
    fs::write(dir.path().join("a.toml"), format!("tp = 0\nx = [{padding}]")).expect("a file");
    let told = |from| {
        let ran = typed(dir.path(), &format!("plan --from {from} --to b.toml --tokens 1"));
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.len() < 2000, "{} bytes", ran.stderr.len());
        ran.told()
    };
    let syntax = told("a.json");
    assert!(syntax.contains("at line 1 column 200008"), "{syntax}");
    let faults = told("a.toml");
    assert!(faults.contains("tp: must be from 1 to"), "{faults}");
}

#[test]
fn a_plan_is_drawn_into_a_file() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let table = plan(dir.path(), "--tokens 100 --svg plan.svg");
    table.is_good();
    assert!(table.stdout.contains(" picture: plan.svg\n"), "{}", table.stdout);
    let drawn = || fs::read_to_string(dir.path().join("plan.svg")).expect("a picture");
    let picture = drawn();
    assert!(picture.starts_with("<svg "), "{picture}");
    let json = plan_json(dir.path(), "--tokens 100 --svg plan.svg");
    assert_eq!(json["svg"], "plan.svg");
    assert_eq!(drawn(), picture);
    let json = plan_json(dir.path(), "--tokens 100");
    assert_eq!(json.get("svg"), None);
}

#[test]
fn a_picture_that_cannot_be_written_is_a_fault() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let ran = plan(dir.path(), "--tokens 100 --svg missing/plan.svg");
    ran.refused("missing/plan.svg");
    ran.refused("an existing, writable folder");
}
