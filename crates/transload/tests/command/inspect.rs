//! `transload inspect`.

use std::fs;
use std::path::Path;

use crate::common::{Ran, typed};
use serde_json::{Value, json};

/// Returns the folder with the configs of well-known models.
fn configs() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../layout/tests/catalog/configs")
}

fn inspect(config: &str, more: &str) -> Ran {
    typed(&configs(), &format!("inspect {config} {more}"))
}

#[track_caller]
fn inspect_json(config: &str, more: &str) -> Value {
    let ran = inspect(config, &format!("{more} --format json"));
    ran.is_good();
    ran.json()
}

/// Runs `inspect` on a given config.
fn own(config: &str, more: &str) -> Ran {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("config.json"), config).expect("a file");
    typed(dir.path(), &format!("inspect config.json {more}"))
}

#[test]
fn the_schema_says_what_a_token_and_a_sequence_cost() {
    let told = inspect_json("llama-3.1-8b.json", "");
    assert_eq!(told["schema"], "transload.inspect/1");
    assert_eq!(told["family"], "llama");
    assert_eq!(told["num_layers"], 32);
    assert_eq!(told["bytes_per_token"], 131_072);
    assert_eq!(told["fixed_bytes"], 0);
    let sequence = json!({"tokens": 2000, "bytes": 262_144_000, "allocated_bytes": 262_144_000});
    assert_eq!(told["sequence"], sequence);
    let group = &told["groups"][0];
    assert_eq!((&group["name"], &group["layers"]), (&json!("attn"), &json!("0-31")));
    let spec = json!({"kind": "attention", "heads": 8, "head_dim": 128, "dtype": "bf16"});
    assert_eq!(group["spec"], json!([spec]));
}

#[test]
fn windows_do_not_grow() {
    let told = inspect_json("gpt-oss-120b.json", "--tokens 1000 --block-size 16");
    assert_eq!(told["bytes_per_token"], 36_864);
    let token_and_layer = 2 * 8 * 64 * 2;
    assert_eq!(told["fixed_bytes"], 18 * 128 * token_and_layer);
    // The last 128 of 1,000 tokens are in 9 blocks, all tokens in 63.
    assert_eq!(told["sequence"]["bytes"], 18 * (1000 + 128) * token_and_layer);
    let blocks = 18 * (63 + 9) * 16 * token_and_layer;
    assert_eq!(told["sequence"]["allocated_bytes"], blocks);
}

#[test]
fn the_layers_of_a_hybrid_are_counted() {
    let told = inspect_json("nemotron-h-8b.json", "--tp 2");
    let kinds = told["layer_kinds"].as_array().expect("a list");
    let count = |caches: Value| {
        let kind = kinds.iter().find(|kind| kind["caches"] == caches);
        kind.map_or(0, |kind| kind["layers"].as_u64().unwrap_or(0))
    };
    assert_eq!(count(json!(["mamba"])), 24);
    assert_eq!(count(json!(["attn"])), 4);
    assert_eq!(count(json!([])), 24);
    // The ranks of a TP size divide the state among them.
    let (whole, rank) = (&told["fixed_bytes"], &told["ranks"][0]["fixed_bytes"]);
    assert_eq!(whole.as_u64(), rank.as_u64().map(|bytes| bytes * 2));
}

#[test]
fn ranks_hold_their_stage_and_their_heads() {
    let told = inspect_json("llama-3.1-8b.json", "--tp 16 --pp 3 --memory 1GiB");
    let ranks = told["ranks"].as_array().expect("a list");
    let layers: Vec<&str> = ranks.iter().filter_map(|rank| rank["layers"].as_str()).collect();
    assert_eq!(layers, ["0-10", "11-21", "22-31"]);
    // 8 heads on 16 ranks: each rank holds one, which another rank holds too.
    assert_eq!(ranks[0]["bytes_per_token"], 11 * 2 * 128 * 2);
    let sequence = 11 * 2 * 128 * 2 * 2000;
    assert_eq!(ranks[0]["sequences"], (1u64 << 30) / sequence);
}

#[test]
fn types_of_caches_can_be_chosen() {
    let told = inspect_json("deepseek-v3.json", "");
    assert_eq!(told["bytes_per_token"], 70_272);
    let told = inspect_json("deepseek-v3.json", "--dtype fp8_ds_mla");
    assert_eq!(told["bytes_per_token"], 61 * 656);
    let told = inspect_json("llama-3.1-8b.json", "--dtype fp8");
    assert_eq!(told["bytes_per_token"], 65_536);
    inspect("llama-3.1-8b.json", "--dtype fp8_ds_mla").refused("fp8_ds_mla is a format of latents");
    inspect("llama-3.1-8b.json", "--dtype fp9").refused("the types are f64, f32, f16, bf16");
}

/// For every config of the catalog's tests, `--deployment` prints a deployment that can be planned.
#[test]
fn a_printed_deployment_is_read_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut configs: Vec<_> =
        fs::read_dir(configs()).expect("configs").map(|entry| entry.expect("a config").path()).collect();
    configs.sort();
    assert!(configs.len() >= 25);
    for config in configs {
        let config = config.to_str().expect("a name");
        for (format, file) in [("table", "side.toml"), ("json", "side.json")] {
            let line = format!("inspect {config} --deployment --tokens 500 --format {format}");
            let ran = typed(dir.path(), &line);
            ran.is_good();
            fs::write(dir.path().join(file), ran.stdout).expect("a file");
        }
        let ran = typed(dir.path(), "plan --from side.toml --to side.json --tokens 500 --format json");
        ran.is_good();
        assert!(ran.json()["totals"]["bytes"].as_u64() > Some(0), "{config}");
    }
}

#[test]
fn one_can_describe_a_model_oneself() {
    let dir = tempfile::tempdir().expect("a folder");
    let document = "schema = \"transload.deployment/1\"\nmodel = \"mine\"\nblock_size = 16\n\
        num_blocks = 4\n[[group]]\nname = \"all\"\nlayers = \"0-3\"\n[[group.spec]]\n\
        kind = \"opaque\"\nheads = 2\nentry_bytes = 100\n";
    fs::write(dir.path().join("mine.toml"), document).expect("a file");
    let told = typed(dir.path(), "inspect --spec mine.toml --format json").json();
    assert_eq!((&told["family"], &told["num_layers"]), (&json!("mine"), &json!(4)));
    assert_eq!(told["bytes_per_token"], 4 * 200);
}

#[test]
fn a_folder_and_stdin_are_configs_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = fs::read(configs().join("llama-3.1-8b.json")).expect("a config");
    fs::write(dir.path().join("config.json"), config).expect("a file");
    let ran = typed(dir.path(), "inspect .");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("131,072 bytes"), "{}", ran.stdout);
}

/// This holds whether the state is a page of several specs or a single one.
#[test]
fn orders_of_keys_and_values_leave_recurrent_state_alone() {
    for (config, state) in [
        ("lfm2-1.2b.json", "conv as LBSHC"),
        ("minimax-text-01.json", "linear as LBSHC"),
        ("nemotron-h-8b.json", "mamba as LB"),
    ] {
        let ran = inspect(config, "--order KLBSHD");
        assert_eq!(ran.code, Some(0), "{config}: {}", ran.stderr);
        for order in [state, "attn as KLBSHD"] {
            assert!(ran.stdout.contains(order), "{config}: {}", ran.stdout);
        }
    }
}

/// A long list of assumptions is shortened for people; the JSON has all of it.
#[test]
fn what_is_assumed_is_told_in_short() {
    let config = r#"{"model_type": "zamba2", "torch_dtype": "bfloat16"}"#;
    let told = own(config, "").stdout;
    let short = "layers_block_type = hybrid at 6, 12, 18, 24, 30, 36, 42, 47, 51, else linear_attention";
    assert!(told.contains(short), "{told}");
    let told = own(config, "--format json").json();
    let all = told["assumed"]["layers_block_type"].as_str();
    assert_eq!(all.map(|all| all.split(", ").count()), Some(54));
}

/// Checks block sizes of hybrids against vLLM 0.32, as recorded by `tests/tools/vllm_hybrid_pages.py`.
#[test]
fn hybrids_get_the_blocks_that_vllm_takes() {
    for (block, taken, page) in VLLM_PAGES {
        let told = inspect_json("nemotron-h-8b.json", &format!("--engine vllm --block-size {block}"));
        let expected = json!({"block_size": taken, "state_bytes": 4_255_744, "page_bytes": page});
        assert_eq!(told["hybrid_page"], expected, "{block}");
        assert_eq!(told["groups"][1]["block_size"], taken);
    }
    // The size of a sequence is that on all ranks together.
    for tp in [1, 2, 8] {
        let told = inspect_json("nemotron-h-8b.json", &format!("--engine vllm --tp {tp}"));
        let number = |value: &Value| value.as_u64().expect("a number");
        let of_rank = number(&told["ranks"][0]["allocated_bytes"]);
        assert_eq!(number(&told["sequence"]["allocated_bytes"]), tp * of_rank);
    }
    let document = inspect("nemotron-h-8b.json", "--engine vllm --deployment --format json").json();
    assert_eq!(document["group"][0]["block_stride"], 4_259_840);
    // A model that is no hybrid keeps its block size.
    let told = inspect_json("llama-3.1-8b.json", "--engine vllm");
    assert_eq!(told.get("hybrid_page"), None);
    assert_eq!(told["groups"][0]["block_size"], 16);
}

/// The requested block size, the resulting one, and the bytes of a page.
const VLLM_PAGES: [(&str, u64, u64); 3] = [("16", 1040, 4_259_840), ("32", 1056, 4_325_376), ("128", 1152, 4_718_592)];

#[test]
fn what_a_config_does_not_say_is_told() {
    let ran = own(r#"{"model_type": "llama", "hidden_size": 2048, "num_attention_heads": 16}"#, "");
    let told = "assumed, since the config does not say: num_hidden_layers = 32, \
                num_key_value_heads = 16, head_dim = 128, dtype = bf16";
    assert!(ran.stdout.contains(told), "{}{}", ran.stdout, ran.stderr);
    let told = inspect_json("llama-3.1-8b.json", "");
    assert!(told["assumed"].is_object(), "{told}");
}

#[test]
fn mistakes_of_newcomers_are_told_what_to_type() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = fs::read(configs().join("llama-3.1-8b.json")).expect("a config");
    fs::write(dir.path().join("config.json"), config).expect("a file");
    fs::write(dir.path().join("empty.json"), "").expect("a file");
    let document = "schema = \"transload.deployment/1\"\n";
    fs::write(dir.path().join("side.toml"), document).expect("a file");
    for (args, told) in [
        ("empty.json", "empty.json is empty"),
        ("side.toml", "pass it as --spec FILE"),
        ("meta-llama/Llama-3.1-8B", "hf download meta-llama/Llama-3.1-8B config.json"),
        ("config.json --memory 40", "write 40GiB"),
        ("config.json --tokens 1e6", "128k (128,000)"),
        ("config.json --pp 33", "use at most 32 stages"),
        ("config.json --engine vllm --block-size 17", "use 16 or 32"),
        ("config.json --engine vllm --block-size 0", "block_size"),
    ] {
        typed(dir.path(), &format!("inspect {args}")).refused(told);
    }
    let ran = typed(dir.path(), "inspect config.json --tokens 128Ki");
    assert!(ran.stdout.contains("a sequence of 131,072 tokens"), "{}", ran.stdout);
}

#[test]
fn what_means_something_is_taken() {
    let told = inspect_json("llama-3.1-8b.json", "--tokens 0");
    assert_eq!(told["sequence"]["bytes"], 0);
    // A block of 17 tokens is allowed, unless the engine is one that cannot have it.
    let told = inspect_json("llama-3.1-8b.json", "--block-size 17");
    assert_eq!(told["groups"][0]["block_bytes"], 17 * 131_072);
    let small = inspect("llama-3.1-8b.json", "--order hnd").stdout;
    let large = inspect("llama-3.1-8b.json", "--order HND").stdout;
    assert_eq!(small, large);
}

fn reported(name: &str) -> String {
    let folder = configs().join("../reported");
    fs::read_to_string(folder.join(format!("{name}.json"))).expect("a config")
}

#[test]
fn a_draft_that_owns_no_cache_is_told_so() {
    let config = reported("gemma-4-assistant");
    let told = own(&config, "");
    told.is_good();
    assert!(told.stdout.contains("no cache of its own"), "{}", told.stdout);
    let told = own(&config, "--format json").json();
    assert_eq!(told["bytes_per_token"], 0);
    assert_eq!(told["groups"], json!([]));
    own(&config, "--deployment").refused("has no cache of its own");
}

#[test]
fn what_is_not_understood_is_told_with_the_answer() {
    let config = r#"{"model_type": "new_vl", "text_config": {"model_type": "llama", "index_keys": 4}}"#;
    let told = own(config, "").stdout;
    assert!(told.contains("\"new_vl\" is not a wrapper that the catalog knows"), "{told}");
    let unread = "not read, although they may change what is cached: text_config.index_keys";
    assert!(told.contains(unread), "{told}");
    let told = own(config, "--format json").json();
    assert_eq!(told["wrapper"], "new_vl");
    assert_eq!(told["unread"], json!(["text_config.index_keys"]));
    assert_eq!(inspect_json("llama-3.1-8b.json", "")["unread"], json!([]));
}

#[test]
fn packed_caches_are_told_by_name() {
    let told = own(&reported("qwen3-nvfp4"), "").stdout;
    assert!(told.contains("takes 41,472 bytes"), "{told}");
    assert!(told.contains("nvfp4: sizes"), "{told}");
    let told = inspect_json("llama-3.1-8b.json", "--dtype turboquant_k8v4");
    assert_eq!(told["packed"], "turboquant_k8v4");
}

/// Older checkpoints of ModelOpt state the quantisation in a separate file.
#[test]
fn hf_quant_config_beside_the_config_is_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = fs::read(configs().join("llama-3.1-8b.json")).expect("a config");
    fs::write(dir.path().join("config.json"), config).expect("a file");
    let quantization = r#"{"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}"#;
    fs::write(dir.path().join("hf_quant_config.json"), quantization).expect("a file");
    for config in ["config.json", "."] {
        let told = typed(dir.path(), &format!("inspect {config} --format json")).json();
        assert_eq!(told["bytes_per_token"], 65_536, "{config}");
    }
    fs::write(dir.path().join("hf_quant_config.json"), "{").expect("a file");
    typed(dir.path(), "inspect .").refused("hf_quant_config.json is not valid JSON");
}

/// The error is one message that names the file and the key.
#[test]
fn bad_configs_are_told_what_is_wrong() {
    for (config, told) in [
        ("{", "config.json is not valid JSON"),
        ("{\"a\":\n", "EOF while parsing a value"),
        ("[]", "config.json: a config is a table, not a list"),
        ("{}", "config.json: model_type: is missing"),
        (r#"{"model_type": "lama"}"#, "\"lama\" is not a model family of the catalog; the nearest are llama"),
        (
            r#"{"model_type": "llama", "num_key_value_heads": "8"}"#,
            "config.json: num_key_value_heads: must be a whole number, not \"8\"",
        ),
        (
            r#"{"model_type": "llama", "num_hidden_layers": 1000000000000}"#,
            "config.json: num_hidden_layers: cannot be more than 65536, not 1000000000000",
        ),
        (
            r#"{"model_type": "llama", "num_attention_heads": 33, "head_dim": null}"#,
            "config.json: hidden_size: is 4096, which num_attention_heads = 33 does not divide",
        ),
    ] {
        own(config, "").refused(told);
    }
    inspect("llama-3.1-8b.json", "--tp 3").refused("group attn: heads: 8 cannot be shared out over tp = 3");
    inspect("nowhere.json", "").refused("nowhere.json cannot be read");
}
