//! `transload plan`.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use common::{Ran, transload_in};
use serde_json::{Value, json};

/// A document of Llama's shape with these lines before its group, and these in it.
fn document(lines: &str, group: &str) -> String {
    let spec = "kind = \"attention\"\nheads = 8\nhead_dim = 16\ndtype = \"bf16\"";
    format!(
        "schema = \"transload.deployment/1\"\n{lines}\n[[group]]\nname = \"attn\"\n\
         layers = \"0-3\"\n{group}\n[[group.spec]]\n{spec}\n"
    )
}

/// A folder with a source in `a.toml` and a destination in `b.toml`.
fn pair(a: &str, b: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("a.toml"), a).expect("a file");
    fs::write(dir.path().join("b.toml"), b).expect("a file");
    dir
}

fn plan(dir: &Path, more: &[&str]) -> Ran {
    let mut args = vec!["plan", "--from", "a.toml", "--to", "b.toml"];
    args.extend(more);
    transload_in(dir, &args)
}

#[track_caller]
fn plan_json(dir: &Path, more: &[&str]) -> Value {
    let mut args = vec!["--format", "json"];
    args.extend(more);
    let ran = plan(dir, &args);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    ran.json()
}

/// The plan without what differs from run to run.
fn untimed(mut plan: Value) -> Value {
    plan["compile_ns"].take();
    plan
}

const SRC: &str = "tp = 1\nblock_size = 16\nnum_blocks = 8";
const DST: &str = "tp = 2\nblock_size = 32\nnum_blocks = 8";

#[test]
fn totals_and_routes_add_up() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let plan = plan_json(dir.path(), &["--tokens", "100"]);
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
    let args = [
        "--tokens",
        "70",
        "--start",
        "10",
        "--src-blocks",
        "5,0,3-4,7",
        "--dst-blocks",
        "2,1,0",
    ];
    let plan = plan_json(dir.path(), &[&args[..], &["--chunks"]].concat());
    for route in plan["routes"].as_array().expect("routes") {
        let list = route["list"].as_array().expect("a list");
        assert_eq!(route["chunks"], list.len());
        let mut bytes = BTreeSet::new();
        for chunk in list {
            let [_, dst, length] = [0, 1, 2].map(|i| chunk[i].as_u64().expect("a number"));
            for byte in dst..dst + length {
                assert!(
                    bytes.insert(byte),
                    "destination byte {byte} is written twice"
                );
            }
        }
        assert_eq!(route["bytes"], bytes.len());
    }
    // The first token: position 10 of source block 5, and of destination block 2; rank 0's half of
    // the heads.
    let state = (8 * 64, 4 * 64);
    let first = json!([(5 * 16 + 10) * state.0, (2 * 32 + 10) * state.1, 256]);
    let list = plan["routes"][0]["list"].as_array().expect("a list");
    assert!(list.contains(&first), "{first} in {list:?}");
}

#[test]
fn the_digest_does_not_depend_on_block_lists() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let here = plan_json(dir.path(), &["--tokens", "64"]);
    assert_eq!(here["histogram"], json!([[256, 512]]));
    let there = plan_json(dir.path(), &["--tokens", "64", "--src-blocks", "7,2,5,0"]);
    assert_eq!(here["digest"], there["digest"]);
    let fewer = plan_json(dir.path(), &["--tokens", "63"]);
    assert_ne!(here["digest"], fewer["digest"]);
}

#[test]
fn a_document_may_be_json() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let before = plan_json(dir.path(), &["--tokens", "64"]);
    let value: toml::Value = toml::from_str(&document(DST, "")).expect("TOML");
    fs::write(dir.path().join("b.toml"), "").expect("a file");
    fs::write(dir.path().join("b.json"), json!(value).to_string()).expect("a file");
    let args = [
        "plan", "--from", "a.toml", "--to", "b.json", "--tokens", "64", "--format", "json",
    ];
    assert_eq!(
        untimed(transload_in(dir.path(), &args).json()),
        untimed(before)
    );
}

#[test]
fn allocations_per_layer_are_listed_with_their_layers() {
    let per_layer = "allocation = \"per_layer\"";
    let lists = |src: &str, dst: &str| {
        let dir = pair(
            &document(SRC, src),
            &document(&DST.replace("tp = 2", "tp = 1\npp = 2"), dst),
        );
        let plan = plan_json(dir.path(), &["--tokens", "16", "--chunks"]);
        plan["routes"].clone()
    };
    // One block of 16 tokens is one run of 8 KiB. Layer 3 is in slot 1 of the second stage.
    let both = lists(per_layer, per_layer);
    assert_eq!(both[1]["dst_rank"], 1);
    assert_eq!(
        both[1]["list"],
        json!([[2, 0, 2, 0, 8192], [3, 0, 3, 0, 8192]])
    );
    // The side that has one allocation counts from its start.
    let source = lists(per_layer, "");
    assert_eq!(
        source[1]["list"],
        json!([[2, 0, 2, 0, 8192], [3, 0, 3, 8 * 16384, 8192]])
    );
    let neither = lists("", "");
    assert_eq!(neither[0]["list"][1], json!([8 * 8192, 8 * 16384, 8192]));
}

#[test]
fn groups_have_lists_of_their_own() {
    let second = "\n[[group]]\nname = \"state\"\nlayers = \"4-5\"\nnum_blocks = 4\n[[group.spec]]\n\
                  kind = \"linear\"\nheads = 8\nhead_dim = 4\ndtype = \"f32\"\n";
    let text = document("block_size = 16\nnum_blocks = 8", "") + second;
    let dir = pair(&text, &text);
    let args = [
        "--tokens",
        "16",
        "--chunks",
        "--src-blocks",
        "attn=6",
        "--src-blocks",
        "state=3",
    ];
    let plan = plan_json(dir.path(), &args);
    let starts: Vec<_> = plan["routes"]
        .as_array()
        .expect("routes")
        .iter()
        .map(|route| (route["group"].as_str(), route["list"][0][0].as_u64()))
        .collect();
    // A block of attention is 8 KiB, one of state 8 heads of 16 floats.
    assert_eq!(
        starts,
        [
            (Some("attn"), Some(6 * 8192)),
            (Some("state"), Some(3 * 512))
        ]
    );

    for (lists, part) in [
        (&["--src-blocks", "nope=1"][..], "no group \"nope\""),
        (
            &["--src-blocks", "attn=1", "--src-blocks", "attn=2"],
            "given twice for group \"attn\"",
        ),
        (
            &["--dst-blocks", "1", "--dst-blocks", "2"],
            "given twice for all groups",
        ),
    ] {
        let ran = self::plan(dir.path(), &[&["--tokens", "16"], lists].concat());
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
}

#[test]
fn what_cannot_be_bridged_is_named_with_both_values() {
    let dir = pair(
        &document(SRC, ""),
        &document(DST, "").replace("head_dim = 16", "head_dim = 32"),
    );
    let ran = plan(dir.path(), &["--tokens", "16"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    for part in [
        "a.toml",
        "b.toml",
        "head_dim",
        "16 at the source",
        "32 at the destination",
    ] {
        assert!(ran.told().contains(part), "{part} in {}", ran.stderr);
    }
}

#[test]
fn all_faults_of_a_document_are_told_at_once() {
    let bad = document(SRC, "")
        .replace("tp = 1", "tp = 0")
        .replace("heads = 8", "head = 8");
    let dir = pair(&bad, &document(DST, ""));
    let ran = plan(dir.path(), &["--tokens", "16"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    for part in [
        "a.toml",
        "3 faults",
        "tp: has to be from 1 to 4096, not 0",
        "group[0].spec[0].head: is no field here; did you mean heads?",
        "group[0].spec[0].heads: is missing",
    ] {
        assert!(ran.stderr.contains(part), "{part} in {}", ran.stderr);
    }
    assert!(
        !ran.stderr.contains('\u{1b}'),
        "no colours but on a terminal"
    );
}

#[test]
fn tables_that_do_not_suit_are_bad_input() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    for (args, part) in [
        (
            &["--tokens", "64", "--src-blocks", "0,1"][..],
            "has 2 blocks, 4 are needed",
        ),
        (&["--tokens", "64", "--src-blocks", "0,-,2,3"], "entry 1"),
        (&["--tokens", "64", "--src-blocks", "0-2,8"], "block 8"),
        (
            &["--tokens", "64", "--dst-blocks", "3,3"],
            "block 3 stands twice",
        ),
        (&["--tokens", "1000"], "block 62"),
        (
            &["--tokens", "18446744073709551615", "--start", "1"],
            "beyond the last position",
        ),
        (&["--tokens", "16", "--chunks"], "--format json"),
        (&["--tokens", "-5"], "--tokens"),
        (&["--tokens", "16", "--src-blocks", "x"], "is no block"),
    ] {
        let ran = plan(dir.path(), args);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(ran.stderr.contains(part), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn blocks_that_are_never_touched_need_no_number() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let args = [
        "--tokens",
        "16",
        "--start",
        "32",
        "--src-blocks",
        "-,-,7",
        "--dst-blocks",
        "-,3",
    ];
    assert_eq!(plan_json(dir.path(), &args)["totals"]["segments"], 1);
}

#[test]
fn no_tokens_are_no_routes_and_no_error() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let plan = plan_json(dir.path(), &["--tokens", "0"]);
    assert_eq!(plan["totals"]["bytes"], 0);
    assert_eq!(plan["totals"]["chunks"], 0);
}

#[test]
fn lines_fit_the_columns_there_are() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let ran = common::command()
        .current_dir(dir.path())
        .env("COLUMNS", "80")
        .args([
            "plan", "--from", "a.toml", "--to", "b.toml", "--tokens", "64",
        ])
        .output()
        .expect("it starts");
    let text = String::from_utf8(ran.stdout).expect("text");
    let table = text.lines().take_while(|line| !line.is_empty());
    let widest = table.map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{text}");
}

/// A plan with this on stdin.
fn plan_from(stdin: impl Into<std::process::Stdio>, dir: &Path, args: &[&str]) -> Ran {
    let mut command = common::command();
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
    let ran = plan_from(sent(&document(SRC, "")), dir.path(), &args);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let ran = plan_from(sent("{"), dir.path(), &args);
    assert_eq!(ran.code, Some(2));
    assert!(ran.told().contains("stdin is no JSON"), "{}", ran.stderr);
    let args = ["--from", "-", "--to", "-", "--tokens", "64"];
    let ran = plan_from(sent(&document(SRC, "")), dir.path(), &args);
    assert_eq!(ran.code, Some(2));
    assert!(ran.told().contains("both -"), "{}", ran.stderr);
}

#[test]
fn a_document_of_one_line_is_not_printed_whole() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let padding = "1,".repeat(100_000);
    fs::write(dir.path().join("a.json"), format!("{{\"x\": [{padding}]}}")).expect("a file");
    fs::write(
        dir.path().join("a.toml"),
        format!("tp = 0\nx = [{padding}]"),
    )
    .expect("a file");
    let told = |from| {
        let args = ["plan", "--from", from, "--to", "b.toml", "--tokens", "1"];
        let ran = transload_in(dir.path(), &args);
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.len() < 2000, "{} bytes", ran.stderr.len());
        ran.told()
    };
    let syntax = told("a.json");
    assert!(syntax.contains("at line 1 column 200008"), "{syntax}");
    let faults = told("a.toml");
    assert!(faults.contains("tp: has to be from 1 to"), "{faults}");
}

#[test]
fn a_plan_is_drawn_into_a_file() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let table = plan(dir.path(), &["--tokens", "100", "--svg", "plan.svg"]);
    assert_eq!((table.code, table.stderr.as_str()), (Some(0), ""));
    assert!(
        table.stdout.contains(" drawn in plan.svg\n"),
        "{}",
        table.stdout
    );
    let drawn = || fs::read_to_string(dir.path().join("plan.svg")).expect("a picture");
    let picture = drawn();
    assert!(picture.starts_with("<svg "), "{picture}");
    let json = plan_json(dir.path(), &["--tokens", "100", "--svg", "plan.svg"]);
    assert_eq!(json["svg"], "plan.svg");
    assert_eq!(drawn(), picture);
    let json = plan_json(dir.path(), &["--tokens", "100"]);
    assert_eq!(json.get("svg"), None);
}

#[test]
fn a_picture_that_cannot_be_written_is_a_fault() {
    let dir = pair(&document(SRC, ""), &document(DST, ""));
    let ran = plan(
        dir.path(),
        &["--tokens", "100", "--svg", "missing/plan.svg"],
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    let told = ran.told();
    assert!(
        told.contains("missing/plan.svg") && told.contains("a folder that exists"),
        "{told}"
    );
}

/// The folder with the canonical model's config.
fn llama() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let config = r#"{"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
        "num_attention_heads": 64, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}"#;
    fs::write(dir.path().join("config.json"), config).expect("a file");
    dir
}

/// The canonical case, from a config and two descriptions.
fn canonical(more: &[&str]) -> Ran {
    let mut args = vec![
        "plan",
        "config.json",
        "--from-side",
        "tp=4,block=16,order=NHD",
        "--to-side",
        "tp=8,block=64,order=HND",
        "--tokens",
        "2048",
    ];
    args.extend(more);
    transload_in(llama().path(), &args)
}

#[test]
fn sides_can_be_described() {
    let plan = canonical(&["--format", "json"]).json();
    assert_eq!(plan["totals"]["bytes"], 671_088_640);
    assert_eq!(plan["totals"]["chunks"], 1_310_720);
    // Each decode rank has half of what one prefill rank holds.
    let matrix: Vec<Value> = (0..8)
        .map(|to| json!([to / 2, to, 83_886_080, 163_840]))
        .collect();
    assert_eq!(plan["matrix"], json!(matrix));
    assert_eq!(
        plan["descriptors"],
        json!({"each_side": 1_310_720, "bytes": 1_310_720 * 48})
    );
}

#[test]
fn a_described_side_serves_what_the_other_document_is_about() {
    let dir = pair(&document(SRC, ""), "");
    let args = [
        "plan",
        "--from",
        "a.toml",
        "--to-side",
        "tp=4",
        "--tokens",
        "100",
    ];
    let ran = transload_in(dir.path(), &[&args[..], &["--format", "json"]].concat());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert_eq!(ran.json()["totals"]["bytes"], 100 * 4 * 8 * 64);
}

#[test]
fn scattered_blocks_never_go_on_in_the_next() {
    let chunks = |more: &[&str]| {
        let sides = ["--from-side", "order=BLSHC", "--to-side", "order=BLSHC"];
        let args = ["plan", "config.json", "--tokens", "160", "--format", "json"];
        let args = [&args[..], &sides, more].concat();
        transload_in(llama().path(), &args).json()["totals"]["chunks"].clone()
    };
    assert_eq!(
        (chunks(&[]), chunks(&["--scattered"])),
        (json!(1), json!(10))
    );
}

#[test]
fn a_link_takes_its_time() {
    let more = [
        "--format",
        "json",
        "--link",
        "100Gbit",
        "--chunk-cost",
        "1us",
    ];
    let link = canonical(&more).json()["link"].clone();
    let seconds = |key: &str| link[key].as_f64().expect("seconds");
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
    // A prefill rank sends to two decode ranks.
    let each = 2.0 * (83_886_080.0 / 12.5e9 + 163_840.0 * 1e-6);
    assert!(near(seconds("seconds_with_a_link_each"), each), "{link}");
    let one = 671_088_640.0 / 12.5e9 + 2.0 * 163_840.0 * 1e-6;
    assert!(near(seconds("seconds_with_one_link"), one), "{link}");
}

#[test]
fn rows_are_for_spreadsheets_too() {
    let csv = canonical(&["--format", "csv"]).stdout;
    let mut lines = csv.lines();
    let header = "src_rank,dst_rank,group,component,bytes,chunks,min_chunk_bytes,max_chunk_bytes";
    assert_eq!(lines.next(), Some(header));
    assert_eq!(lines.next(), Some("0,0,attn,kv,83886080,163840,512,512"));
    assert_eq!(lines.count(), 7);
}

#[test]
fn suggestions_say_what_to_change_and_what_that_gains() {
    let plan = canonical(&["--format", "json", "--suggest"]).json();
    let suggested = &plan["suggestions"];
    assert_eq!(
        suggested["today"],
        json!({"chunks": 163_840, "bytes": 83_886_080, "chunk_bytes": 512})
    );
    assert_eq!(
        suggested["advice"],
        "Give the source the order LBHSC: 10,240 chunks of 8 KiB for a destination rank instead of \
         163,840 chunks of 512 B, 16.0 times fewer."
    );
    let best = suggested["best"].as_array().expect("a list");
    let first = json!({"from": {"order": "LBHSC"}, "to": {},
        "chunks": 10_240, "bytes": 83_886_080, "chunk_bytes": 8192});
    assert_eq!(best[0], first);
    // With heads outside of layers on both sides, a block is one chunk.
    let whole = json!({"from": {"order": "BHLSC"}, "to": {"order": "BHLSC", "block_size": 16},
        "chunks": 128, "bytes": 83_886_080, "chunk_bytes": 640 << 10});
    assert!(best.contains(&whole), "{best:#?}");
}

#[test]
fn convolutions_laid_out_alike_are_suggested() {
    let config = common::root().join("docs/examples/models/nemotron-h-8b.json");
    let config = config.to_str().expect("a path");
    let suggested = |from, to| {
        let args = [
            "plan",
            config,
            "--tokens",
            "64",
            "--format",
            "json",
            "--suggest",
        ];
        let sides = ["--from-side", from, "--to-side", to];
        let ran = transload_in(Path::new("."), &[&args[..], &sides].concat());
        ran.json()["suggestions"].clone()
    };
    let told = suggested("tp=1,order=HND,conv=DS", "tp=2,order=HND");
    let advice = told["advice"].as_str().expect("a sentence");
    assert!(
        advice.starts_with("Give the destination convolutions laid out as DS: "),
        "{advice}"
    );
    assert_eq!(told["best"][0]["to"], json!({"conv_layout": "DS"}));
    // As both have it already.
    let told = suggested("tp=1,order=HND,conv=DS", "tp=2,order=HND,conv=DS");
    let best = told["best"].as_array().expect("a list");
    let mut sides = best.iter().flat_map(|s| [&s["from"], &s["to"]]);
    assert!(
        sides.all(|side| side.get("conv_layout").is_none()),
        "{told}"
    );
}

/// What is counted period by period is what is counted whole.
#[test]
fn suggestions_for_long_sequences_count_every_chunk() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../layout/tests/catalog/configs");
    for (config, start, tokens) in [
        ("gpt-oss-120b", "0", "1000"),
        ("gpt-oss-120b", "0", "4097"),
        ("gpt-oss-120b", "70", "4097"),
        ("gpt-oss-120b", "100000", "2500"),
        ("llama-4-scout-17b-16e", "5000", "30000"),
        // Most bytes of a short sequence are states, of a long one latents.
        ("deepseek-v4-flash", "0", "300000"),
    ] {
        let config = configs.join(format!("{config}.json"));
        let args = [
            "plan",
            config.to_str().expect("a path"),
            "--from-side",
            "tp=1,block=128",
            "--to-side",
            "tp=1,block=256",
            "--start",
            start,
            "--tokens",
            tokens,
            "--format",
            "json",
            "--suggest",
            "--scattered",
        ];
        let plan = transload_in(Path::new("."), &args).json();
        let histogram = plan["histogram"].as_array().expect("a list").iter();
        let lengths = histogram.map(|entry| (entry[0].as_u64(), entry[1].as_u64()));
        let lengths: Vec<(u64, u64)> = lengths.filter_map(|(l, c)| Some((l?, c?))).collect();
        let longest = lengths
            .iter()
            .max_by_key(|(length, chunks)| length * chunks);
        let expected = json!({
            "chunks": plan["totals"]["chunks"],
            "bytes": plan["totals"]["bytes"],
            "chunk_bytes": longest.expect("chunks").0,
        });
        assert_eq!(plan["suggestions"]["today"], expected, "{args:?}");
    }
}

/// Each allocation is as large as one may be: all together are more than 64 bits can count.
#[test]
fn more_bytes_than_can_be_counted_are_no_plan() {
    let absurd = json!({"schema": "transload.deployment/1", "tp": 64, "block_size": 1u64 << 32,
        "num_blocks": 1, "group": [{"name": "attn", "layers": "0-65535", "allocation": "per_layer",
        "spec": [{"kind": "attention", "heads": 1, "head_dim": 512, "dtype": "bf16"}]}]});
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("absurd.json"), absurd.to_string()).expect("a file");
    let tokens = (1u64 << 32).to_string();
    let sides = ["plan", "--from", "absurd.json", "--to", "absurd.json"];
    let ran = transload_in(dir.path(), &[&sides[..], &["--tokens", &tokens]].concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    let told = "36893488147419103232 bytes would move";
    assert!(ran.told().contains(told), "{}", ran.stderr);
}

#[test]
fn lists_in_the_terms_of_nixl_pair_up() {
    let dir = pair(
        &document(SRC, "allocation = \"per_layer\""),
        &document(DST, ""),
    );
    let lists = plan(dir.path(), &["--tokens", "70", "--emit", "nixl"]).json();
    let agents = lists["agents"].as_array().expect("a list");
    assert_eq!(agents.len(), 1 + 2);
    assert_eq!(agents[0]["reg_descs"].as_array().map(Vec::len), Some(4));
    let inside = |desc: &Value, agent: &Value| {
        let number = |value: &Value| value.as_u64().expect("a number");
        let regions = agent["reg_descs"].as_array().expect("a list").iter();
        let (start, end) = (number(&desc[0]), number(&desc[0]) + number(&desc[1]));
        let mut regions = regions.map(|r| (number(&r[0]), number(&r[0]) + number(&r[1])));
        regions.any(|(first, last)| first <= start && end <= last)
    };
    let mut bytes = 0;
    for transfer in lists["transfers"].as_array().expect("a list") {
        let named = |key: &str| {
            let mut agents = agents.iter();
            agents
                .find(|agent| agent["name"] == transfer[key])
                .expect("an agent")
        };
        let (local, remote) = (named("local_agent"), named("remote_agent"));
        let descs = |key: &str| transfer[key].as_array().expect("a list").clone();
        let (here, there) = (descs("local_descs"), descs("remote_descs"));
        assert_eq!(
            here.len() as u64,
            transfer["descs"].as_u64().expect("a number")
        );
        assert_eq!(here.len(), there.len());
        for (here, there) in here.iter().zip(&there) {
            assert_eq!(here[1], there[1]);
            assert!(inside(here, local) && inside(there, remote));
            bytes += here[1].as_u64().expect("a number");
        }
    }
    assert_eq!(bytes, 70 * 4 * 8 * 64);
}

#[test]
fn sides_that_make_no_sense_are_told_what_is_wrong() {
    let dir = llama();
    for (args, told) in [
        (
            &["config.json", "--tokens", "5"][..],
            "there is a model, but no side that serves it",
        ),
        (
            &["--from-side", "tp=2", "--to-side", "tp=4", "--tokens", "5"],
            "there is no model that they serve",
        ),
        (
            &["config.json", "--from-side", "tp=2", "--tokens", "5"],
            "nothing says what the to side is",
        ),
        (
            &["config.json", "--from-side", "tp=x", "--tokens", "5"],
            "tp has to be a whole number",
        ),
        (
            &[
                "config.json",
                "--from-side",
                "tp=3",
                "--to-side",
                "tp=4",
                "--tokens",
                "5",
            ],
            "group attn: heads: 8 cannot be shared out over tp = 3",
        ),
        (
            &[
                "config.json",
                "--from-side",
                "tp=2",
                "--to-side",
                "tp=4",
                "--emit",
                "nixl",
            ],
            "how many tokens",
        ),
        (
            &[
                "config.json",
                "--from-side",
                "tp=2",
                "--to-side",
                "tp=4",
                "--tokens",
                "5",
                "--link",
                "fast",
            ],
            "is no rate",
        ),
    ] {
        let ran = transload_in(dir.path(), &[&["plan"], args].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(ran.told().contains(told), "{args:?}: {}", ran.stderr);
    }
    let ran = transload_in(dir.path(), &["inspect", "config.json", "--format", "csv"]);
    assert!(
        ran.told().contains("csv is for `transload plan`"),
        "{}",
        ran.stderr
    );
}

#[test]
fn more_scattered_blocks_than_a_list_holds_are_refused() {
    let side = "block=1,allocation=per_layer";
    let sides = ["--from-side", side, "--to-side", side];
    let args = ["plan", "config.json", "--tokens", "30000000", "--scattered"];
    let ran = transload_in(llama().path(), &[&args[..], &sides].concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.told().contains("too many blocks"), "{}", ran.stderr);
}
