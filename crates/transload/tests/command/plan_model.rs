//! `transload plan` with a model and short descriptions of two sides, and further output about a plan.

use std::fs;
use std::path::Path;

use crate::common::{DST, Ran, SRC, document, pair, typed};
use serde_json::{Value, json};

/// Returns the folder with the canonical model's config.
fn llama() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let config = r#"{"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
        "num_attention_heads": 64, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}"#;
    fs::write(dir.path().join("config.json"), config).expect("a file");
    dir
}

/// Plans the canonical case from a config and two descriptions.
fn canonical(more: &str) -> Ran {
    let sides = "--from-side tp=4,block=16,order=NHD --to-side tp=8,block=64,order=HND";
    typed(llama().path(), &format!("plan config.json {sides} --tokens 2048 {more}"))
}

/// A head's elements and their scales are parts of a page, each cut by heads and by tokens.
#[test]
fn packed_rows_are_cut_by_heads() {
    for (dtype, bytes) in [("nvfp4", 80 * 8 * 144), ("int8_per_token_head", 80 * 8 * 264)] {
        let ran = canonical(&format!("--dtype {dtype} --format json"));
        assert_eq!(ran.json()["totals"]["bytes"], 2048 * bytes, "{dtype}");
    }
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../layout/tests/catalog/configs");
    for windows in [
        "plan gpt-oss-120b.json --dtype nvfp4 --from-side tp=2 --to-side tp=4 --tokens 100",
        "inspect gpt-oss-120b.json --dtype nvfp4 --deployment",
    ] {
        typed(&configs, windows).refused("nvfp4 keeps the scales");
    }
}

#[test]
fn links_and_sides_are_taken_as_people_type_them() {
    let seconds = |link| {
        let told = canonical(&format!("--link {link} --format json")).json();
        told["link"]["seconds_with_a_link_each"].as_f64()
    };
    assert_eq!(seconds("2x200Gbit"), seconds("400Gbit"));
    assert!(seconds("400Gbit").is_some());
    let ran = canonical("--link -1Gbit");
    ran.refused("write, for example, 100Gbit");
    let replicas = "plan config.json --from-side tp=1,dp=8,order=nhd --to-side tp=8 --tokens 64";
    typed(llama().path(), replicas).refused("leave dp out");
}

#[test]
fn sides_can_be_described() {
    let plan = canonical("--format json").json();
    assert_eq!(plan["totals"]["bytes"], 671_088_640);
    assert_eq!(plan["totals"]["chunks"], 1_310_720);
    // Each decode rank has half of what one prefill rank holds.
    let matrix: Vec<Value> = (0..8).map(|to| json!([to / 2, to, 83_886_080, 163_840])).collect();
    assert_eq!(plan["matrix"], json!(matrix));
    assert_eq!(plan["descriptors"], json!({"each_side": 1_310_720, "bytes": 1_310_720 * 48}));
}

#[test]
fn a_described_side_serves_what_the_other_document_is_about() {
    let dir = pair(&document(SRC, ""), "");
    let ran = typed(dir.path(), "plan --from a.toml --to-side tp=4 --tokens 100 --format json");
    ran.is_good();
    assert_eq!(ran.json()["totals"]["bytes"], 100 * 4 * 8 * 64);
}

#[test]
fn scattered_blocks_never_go_on_in_the_next() {
    let chunks = |more: &str| {
        let sides = "--from-side order=BLSHC --to-side order=BLSHC";
        let line = format!("plan config.json --tokens 160 --format json {sides} {more}");
        typed(llama().path(), &line).json()["totals"]["chunks"].clone()
    };
    assert_eq!((chunks(""), chunks("--scattered")), (json!(1), json!(10)));
}

#[test]
fn a_link_takes_its_time() {
    let link = canonical("--format json --link 100Gbit --chunk-cost 1us").json()["link"].clone();
    let seconds = |key: &str| link[key].as_f64().expect("seconds");
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
    // A prefill rank sends to two decode ranks.
    let each = 2.0 * (83_886_080.0 / 12.5e9 + 163_840.0 * 1e-6);
    assert!(near(seconds("seconds_with_a_link_each"), each), "{link}");
    let one = 671_088_640.0 / 12.5e9 + 2.0 * 163_840.0 * 1e-6;
    assert!(near(seconds("seconds_with_one_link"), one), "{link}");
}

/// An estimate assumes engines that have run for a while, unless `--contiguous` is given. It says which it assumes.
#[test]
fn a_link_is_estimated_with_scattered_blocks_unless_asked_otherwise() {
    let line =
        "plan config.json --tokens 160 --from-side order=BLSHC --to-side order=BLSHC --link 1GB/s --chunk-cost 1ms";
    let ran = |more: &str| typed(llama().path(), &format!("{line} {more}"));
    let estimate = |more: &str| {
        let plan = ran(&format!("--format json {more}")).json();
        let bytes = plan["totals"]["bytes"].as_f64().expect("bytes");
        let chunks = plan["totals"]["chunks"].as_u64().expect("chunks");
        let seconds = plan["link"]["seconds_with_one_link"].as_f64();
        let estimated = (seconds.expect("seconds") - bytes / 1e9) * 1e3;
        (plan["link"]["blocks"].clone(), chunks, estimated.round() as u64)
    };
    // The plan itself is unchanged: one chunk.
    assert_eq!(estimate(""), (json!("scattered"), 1, 10));
    assert_eq!(estimate("--contiguous"), (json!("contiguous"), 1, 1));
    assert_eq!(estimate("--scattered"), (json!("scattered"), 10, 10));
    let listed = "--src-blocks 0-9 --dst-blocks 5-9,0-4";
    assert_eq!(estimate(listed), (json!("listed"), 2, 2));
    for (more, told) in [("", "blocks scattered"), ("--contiguous", "blocks contiguous"), (listed, "blocks as listed")]
    {
        let table = ran(more).stdout;
        assert!(table.contains(told), "{more:?}: {table}");
    }
    let both = ran("--contiguous --scattered");
    assert_eq!(both.code, Some(2), "{}", both.stdout);
}

/// A latent has four replicas and two readers. All replicas send, and replicated data counts once.
#[test]
fn replicas_share_and_distinct_bytes_are_told() {
    let dir = tempfile::tempdir().expect("a folder");
    let document = "schema = \"transload.deployment/1\"\nblock_size = 16\nnum_blocks = 8\n\
        [[group]]\nname = \"latent\"\nlayers = \"0-59\"\n[[group.spec]]\nkind = \"mla\"\n\
        latent = 576\ndtype = \"bf16\"\n";
    fs::write(dir.path().join("mla.toml"), document).expect("a file");
    let plan =
        |from, to, more| typed(dir.path(), &format!("plan --spec mla.toml --from-side {from} --to-side {to} {more}"));
    let told = plan("tp=4", "tp=2", "--tokens 100 --format json").json();
    let whole = 60u64 * 576 * 2 * 100;
    assert_eq!(told["totals"]["bytes"], 2 * whole);
    assert_eq!(told["totals"]["distinct_bytes"], whole);
    let half = |src, dst| json!([src, dst, whole / 2, 30 * 7]);
    let matrix = json!([half(0, 0), half(1, 0), half(2, 1), half(3, 1)]);
    let bytes = |matrix: &Value| -> Vec<Value> {
        let rows = matrix.as_array().expect("rows").iter();
        rows.map(|row| json!([row[0], row[1], row[2]])).collect()
    };
    assert_eq!(bytes(&told["matrix"]), bytes(&matrix));
    assert_eq!(told["links"], json!({"all": 8, "idle": 4, "idle_sources": []}));
    let table = plan("tp=4", "tp=2", "--tokens 100").stdout;
    for line in [
        "100 tokens from position 0: 13,824,000 bytes",
        "6,912,000 bytes of them distinct; 4 of 8 links have no traffic; every source rank sends",
    ] {
        assert!(table.contains(line), "{line} in {table}");
    }
    // One block of one layer cannot be divided.
    let document = document.replace("0-59", "0");
    fs::write(dir.path().join("mla.toml"), document).expect("a file");
    let told = plan("tp=4", "tp=1", "--tokens 100 --format json");
    assert_eq!(told.json()["links"]["idle_sources"], json!([]));
    let told = plan("tp=4", "tp=1", "--tokens 16 --format json");
    assert_eq!(told.json()["links"]["idle_sources"], json!([1, 2, 3]));
}

#[test]
fn tokens_may_be_thousands_and_are_told_again() {
    let of = |tokens| {
        let line = format!("plan config.json --from-side tp=1 --to-side tp=2 --tokens {tokens}");
        typed(llama().path(), &line)
    };
    for (tokens, told) in [("128k", "128,000"), ("128Ki", "131,072")] {
        let ran = of(tokens);
        let line = format!(" {told} tokens from position 0: ");
        assert!(ran.stdout.contains(&line), "{}{}", ran.stdout, ran.stderr);
    }
    for tokens in ["1e6", "128,000", "-1", "many"] {
        of(tokens).refused("128k (128,000)");
    }
}

#[test]
fn documents_that_would_take_all_memory_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let side = |name: &str, ranks: &str| {
        let mut text =
            format!("schema = \"transload.deployment/1\"\n{ranks} = 4096\nblock_size = 16\nnum_blocks = 4\n");
        for group in 0..64 {
            text.push_str(&format!(
                "[[group]]\nname = \"g{group}\"\nlayers = \"0-1023\"\n[[group.spec]]\n\
                 kind = \"mla\"\nlatent = 8\ndtype = \"bf16\"\n"
            ));
        }
        fs::write(dir.path().join(name), text).expect("a file");
    };
    side("a.toml", "pp");
    side("b.toml", "tp");
    let ran = typed(dir.path(), "plan --from a.toml --to b.toml --tokens 64");
    ran.refused("268435456 slices, more than the most there may be, 262144");
}

#[test]
fn a_model_where_a_document_should_be_is_told_what_to_type() {
    let dir = llama();
    fs::write(dir.path().join("empty.toml"), "\n").expect("a file");
    for (from, told) in
        [("config.json", "transload plan config.json --from-side tp=4,block=16"), ("empty.toml", "empty.toml is empty")]
    {
        typed(dir.path(), &format!("plan --from {from} --to-side tp=2 --tokens 5")).refused(told);
    }
    let ran = typed(dir.path(), "plan config.json --from-side pp=81 --to-side tp=2 --tokens 5");
    ran.refused("use at most 80 stages");
}

#[test]
fn rows_are_for_spreadsheets_too() {
    let csv = canonical("--format csv").stdout;
    let mut lines = csv.lines();
    let header = "src_rank,dst_rank,group,component,bytes,chunks,min_chunk_bytes,max_chunk_bytes";
    assert_eq!(lines.next(), Some(header));
    assert_eq!(lines.next(), Some("0,0,attn,kv,83886080,163840,512,512"));
    assert_eq!(lines.count(), 7);
}

#[test]
fn suggestions_say_what_to_change_and_what_that_gains() {
    let plan = canonical("--format json --suggest").json();
    let suggested = &plan["suggestions"];
    assert_eq!(suggested["today"], json!({"chunks": 163_840, "bytes": 83_886_080, "chunk_bytes": 512}));
    assert_eq!(
        suggested["advice"],
        "Give the source the order LBHSC: 10,240 chunks of 8 KiB for a destination rank instead of \
         163,840 chunks of 512 B, 16.0 times fewer."
    );
    let best = suggested["best"].as_array().expect("a list");
    let advised = json!({"from": {"order": "LBHSC"}, "to": {},
        "chunks": 10_240, "bytes": 83_886_080, "chunk_bytes": 8192});
    assert!(best.contains(&advised), "{best:#?}");
    // With heads outside layers on both sides, a block is one chunk.
    let whole = json!({"from": {"order": "BHLSC"}, "to": {"order": "BHLSC", "block_size": 16},
        "chunks": 128, "bytes": 83_886_080, "chunk_bytes": 640 << 10});
    assert!(best.contains(&whole), "{best:#?}");
    // Suggestions are sorted by gain, and none occurs twice.
    let chunks: Vec<_> = best.iter().map(|way| way["chunks"].as_u64()).collect();
    assert!(chunks.is_sorted(), "{best:#?}");
    let changes = |way: &Value| {
        let side = |side: &str| way[side].as_object().map_or(0, |changes| changes.len());
        side("from") + side("to")
    };
    let sides = |way: &Value| ["from", "to"].map(|side| way[side] != json!({}));
    let mut gains: Vec<_> = best.iter().map(|way| (changes(way), sides(way), way["chunks"].as_u64())).collect();
    let all = gains.len();
    gains.sort();
    gains.dedup();
    assert_eq!(gains.len(), all, "{best:#?}");
    for way in best {
        for order in ["from", "to"].iter().filter_map(|side| way[side]["order"].as_str()) {
            let engines = suggested["engines"][order].as_str();
            assert!(engines.is_some_and(|engines| engines.contains("vLLM")), "{order}");
        }
    }
}

/// Returns what is suggested for the sides of a model.
fn suggested(config: &Path, sides: &str) -> Value {
    let line = format!("plan {} --tokens 64 --format json --suggest {sides}", config.display());
    typed(Path::new("."), &line).json()["suggestions"].clone()
}

/// Either side could take the other's order. Both suggestions are made, since a user may control only one side.
#[test]
fn either_side_may_change_for_the_same_gain() {
    let config = crate::common::root().join("docs/examples/models/llama-3.1-70b.json");
    let told = suggested(&config, "--from-side tp=4,order=NHD --to-side tp=4,order=HND");
    let best = told["best"].as_array().expect("a list");
    let of = |from, to| {
        let mut ways = best.iter();
        let way = ways.find(|way| (&way["from"], &way["to"]) == (&from, &to));
        way.unwrap_or_else(|| panic!("{told:#}"))["chunks"].clone()
    };
    assert_eq!(of(json!({"order": "LBHSC"}), json!({})), of(json!({}), json!({"order": "LBSHC"})));
}

#[test]
fn convolutions_laid_out_alike_are_suggested() {
    let config = crate::common::root().join("docs/examples/models/nemotron-h-8b.json");
    let told = suggested(&config, "--from-side tp=1,order=HND,conv=DS --to-side tp=2,order=HND");
    let advice = told["advice"].as_str().expect("a sentence");
    assert!(advice.starts_with("Give the destination convolutions laid out as DS: "), "{advice}");
    let best = told["best"].as_array().expect("a list");
    let advised = (json!({}), json!({"conv_layout": "DS"}));
    assert!(best.iter().any(|way| (&way["from"], &way["to"]) == (&advised.0, &advised.1)), "{told}");
    // Both sides have this layout already, so it is not suggested.
    let told = suggested(&config, "--from-side tp=1,order=HND,conv=DS --to-side tp=2,order=HND,conv=DS");
    let best = told["best"].as_array().expect("a list");
    let mut sides = best.iter().flat_map(|s| [&s["from"], &s["to"]]);
    assert!(sides.all(|side| side.get("conv_layout").is_none()), "{told}");
}

/// Counting by periods gives the same result as counting everything.
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
        let sides = "--from-side tp=1,block=128 --to-side tp=1,block=256";
        let more = "--format json --suggest --scattered";
        let line = format!("plan {config}.json {sides} --start {start} --tokens {tokens} {more}");
        let plan = typed(&configs, &line).json();
        let histogram = plan["histogram"].as_array().expect("a list").iter();
        let lengths = histogram.map(|entry| (entry[0].as_u64(), entry[1].as_u64()));
        let lengths: Vec<(u64, u64)> = lengths.filter_map(|(l, c)| Some((l?, c?))).collect();
        let longest = lengths.iter().max_by_key(|(length, chunks)| length * chunks);
        let expected = json!({
            "chunks": plan["totals"]["chunks"],
            "bytes": plan["totals"]["bytes"],
            "chunk_bytes": longest.expect("chunks").0,
        });
        assert_eq!(plan["suggestions"]["today"], expected, "{line}");
    }
}

/// Each allocation has the largest allowed size, so the sum exceeds 64 bits.
#[test]
fn more_bytes_than_can_be_counted_are_no_plan() {
    let absurd = json!({"schema": "transload.deployment/1", "tp": 64, "block_size": 1u64 << 32,
        "num_blocks": 1, "group": [{"name": "attn", "layers": "0-65535", "allocation": "per_layer",
        "spec": [{"kind": "attention", "heads": 1, "head_dim": 512, "dtype": "bf16"}]}]});
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("absurd.json"), absurd.to_string()).expect("a file");
    let line = format!("plan --from absurd.json --to absurd.json --tokens {}", 1u64 << 32);
    typed(dir.path(), &line).refused("36893488147419103232 bytes would move");
}

#[test]
fn lists_in_the_terms_of_nixl_pair_up() {
    let dir = pair(&document(SRC, "allocation = \"per_layer\""), &document(DST, ""));
    let lists = typed(dir.path(), "plan --from a.toml --to b.toml --tokens 70 --emit nixl").json();
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
            agents.find(|agent| agent["name"] == transfer[key]).expect("an agent")
        };
        let (local, remote) = (named("local_agent"), named("remote_agent"));
        let descs = |key: &str| transfer[key].as_array().expect("a list").clone();
        let (here, there) = (descs("local_descs"), descs("remote_descs"));
        assert_eq!(here.len() as u64, transfer["descs"].as_u64().expect("a number"));
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
        ("config.json --tokens 5", "a model is given, but no side that serves it"),
        ("--from-side tp=2 --to-side tp=4 --tokens 5", "no model is given"),
        ("config.json --from-side tp=2 --tokens 5", "the to side is missing"),
        ("config.json --from-side tp=x --tokens 5", "tp must be a whole number"),
        (
            "config.json --from-side tp=3 --to-side tp=4 --tokens 5",
            "group attn: heads: 8 cannot be shared out over tp = 3",
        ),
        ("config.json --from-side tp=2 --to-side tp=4 --emit nixl", "the number of tokens is missing"),
        ("config.json --from-side tp=2 --to-side tp=4 --tokens 5 --link fast", "is not a rate"),
    ] {
        typed(dir.path(), &format!("plan {args}")).refused(told);
    }
    typed(dir.path(), "inspect config.json --format csv").refused("only `transload plan` supports --format csv");
}

#[test]
fn more_scattered_blocks_than_a_list_holds_are_refused() {
    let side = "block=1,allocation=per_layer";
    let line = format!("plan config.json --tokens 30000000 --scattered --from-side {side} --to-side {side}");
    typed(llama().path(), &line).refused("too many blocks");
}
