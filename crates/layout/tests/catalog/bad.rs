//! Configs from which the caches of a model cannot be determined: one message, which names the key.

use serde_json::{Value as Json, json};

use crate::common::{config, config_but, fault};

#[test]
fn the_key_is_named_with_what_is_wrong() {
    for (name, changes, expected) in [
        ("llama-3.1-8b", json!({"num_hidden_layers": "32"}), "num_hidden_layers: must be a whole number, not \"32\""),
        (
            "llama-3.1-8b",
            json!({"num_hidden_layers": 1_000_000_000_000_u64}),
            "num_hidden_layers: cannot be more than 65536, not 1000000000000",
        ),
        ("llama-3.1-8b", json!({"num_hidden_layers": 0}), "num_hidden_layers: cannot be 0"),
        (
            "llama-3.1-8b",
            json!({"num_attention_heads": 33}),
            "hidden_size: is 4096, which num_attention_heads = 33 does not divide",
        ),
        ("llama-3.1-8b", json!({"num_key_value_heads": 0}), "num_key_value_heads: cannot be 0"),
        ("llama-3.1-8b", json!({"num_key_value_heads": -8}), "num_key_value_heads: cannot be negative (-8)"),
        ("llama-3.1-8b", json!({"head_dim": 128.5}), "head_dim: must be a whole number, not 128.5"),
        (
            "llama-3.1-8b",
            json!({"head_dim": 1_u64 << 41}),
            "head_dim: cannot be more than 1099511627776, not 2199023255552",
        ),
        (
            "llama-3.1-8b",
            json!({"torch_dtype": "bfloat61"}),
            "torch_dtype: must be an element type as bfloat16, not \"bfloat61\"",
        ),
        (
            "llama-3.1-8b",
            json!({"per_layer_config": {"three": {}}}),
            "per_layer_config: has \"three\", which is none of the layers 0 to 31",
        ),
        (
            "llama-3.1-8b",
            json!({"per_layer_config": {"32": {}}}),
            "per_layer_config: has \"32\", which is none of the layers 0 to 31",
        ),
        (
            "llama-3.1-8b",
            json!({"model_type": "\u{1b}[2J\n\"llama\""}),
            "model_type: \"\\u{1b}[2J\\n\\\"llama\\\"\" is not a model family of the catalog; the nearest are \
             llama, diffllama, smollm3, mellum, flex_olmo",
        ),
        (
            "gpt-oss-120b",
            json!({"per_layer_config": {"0": {"sliding_window": 0}}}),
            "per_layer_config.0.sliding_window: cannot be 0",
        ),
        (
            "llama-3.1-8b",
            json!({"per_layer_config": {"3": {"skip": ["self_attn"]}}}),
            "per_layer_config.3.skip: may leave out a cache or not: it is not known",
        ),
        (
            "llama-3.1-8b",
            json!({"per_layer_config": {"3": {"head_dim": 0}}}),
            "per_layer_config.3.head_dim: cannot be 0",
        ),
        (
            "llama-3.1-8b",
            json!({"model_type": "absent"}),
            "model_type: is missing: it must name the model's family, as \"llama\"",
        ),
        (
            "gpt-oss-120b",
            json!({"layer_types": ["full_attention"]}),
            "layer_types: has 1 entries, but there are 36 layers",
        ),
        (
            "gpt-oss-120b",
            json!({"layer_types": "full_attention"}),
            "layer_types: must be a list of texts, not \"full_attention\"",
        ),
        ("gpt-oss-120b", json!({"sliding_window": 0}), "sliding_window: cannot be 0; null is no window"),
        ("gemma-3-1b", json!({"sliding_window_pattern": 0}), "sliding_window_pattern: cannot be 0"),
        ("qwen2.5-7b", json!({"use_sliding_window": "yes"}), "use_sliding_window: must be true or false, not \"yes\""),
        ("smollm3-3b", json!({"no_rope_layers": [1, 0]}), "no_rope_layers: has 2 entries, but there are 36 layers"),
        ("smollm3-3b", json!({"no_rope_layers": [1, "0"]}), "no_rope_layers[1]: must be a whole number, not \"0\""),
        ("mimo-v2-flash", json!({"sliding_window_size": 0}), "sliding_window_size: cannot be 0"),
        ("mimo-v2-flash", json!({"swa_head_dim": 0}), "swa_head_dim: cannot be 0"),
        ("step-3.5-flash", json!({"attention_other_setting": 96}), "attention_other_setting: must be a table, not 96"),
        (
            "step-3.5-flash",
            json!({"attention_other_setting": {"head_dim": 0}}),
            "attention_other_setting.head_dim: cannot be 0",
        ),
        ("dbrx", json!({"attn_config": {"kv_n_heads": 0}}), "attn_config.kv_n_heads: cannot be 0"),
        ("deepseek-v3", json!({"kv_lora_rank": 0}), "kv_lora_rank: cannot be 0"),
        ("longcat-flash", json!({"num_layers": 65_537}), "num_layers: cannot be more than 65536, not 65537"),
        ("deepseek-v3.2", json!({"index_head_dim": 96}), "index_head_dim: is 96, which cannot be scaled 128 by 128"),
        ("glm-5", json!({"index_topk_pattern": "FSX"}), "index_topk_pattern: must be a letter for each layer, F or S"),
        ("glm-5", json!({"index_topk_pattern": "FS"}), "index_topk_pattern: has 2 entries, but there are 78 layers"),
        (
            "deepseek-v4-flash",
            json!({"qk_rope_head_dim": 100}),
            "qk_rope_head_dim: is 100, but head_dim = 512 less that must be a multiple of 64",
        ),
        (
            "deepseek-v4-flash",
            json!({"qk_rope_head_dim": 576}),
            "qk_rope_head_dim: is 576, but head_dim = 512 less that must be a multiple of 64",
        ),
        (
            "deepseek-v4-flash",
            json!({"compress_rates": {"compressed_sparse_attention": 8}}),
            "compress_rates.compressed_sparse_attention: must be 4, not 8",
        ),
    ] {
        assert_eq!(fault(&config_but(name, changes)), expected, "{name}");
    }
}

#[test]
fn an_entry_of_a_list_is_named_with_its_place() {
    let mut types = config("gpt-oss-120b")["layer_types"].clone();
    types[7] = json!("linear_attention");
    assert_eq!(
        fault(&config_but("gpt-oss-120b", json!({ "layer_types": types }))),
        "layer_types[7]: must be full_attention or sliding_attention, not \"linear_attention\""
    );
    let mut ratios = config("deepseek-v4-flash")["compress_ratios"].clone();
    ratios[4] = json!(8);
    assert_eq!(
        fault(&config_but("deepseek-v4-flash", json!({ "compress_ratios": ratios }))),
        "compress_ratios[4]: must be 0, 4 or 128, not 8"
    );
}

#[test]
fn keys_of_a_text_model_have_the_path_to_it() {
    for (name, key, value, expected) in [
        ("gemma-3-27b", "head_dim", json!("128"), "must be a whole number, not \"128\""),
        ("gemma-3n-e4b", "num_kv_shared_layers", json!(36), "cannot be more than the 35 layers"),
        ("gemma-4-31b", "global_head_dim", json!(0), "cannot be 0"),
        ("llama-4-scout-17b-16e", "attention_chunk_size", json!(0), "cannot be 0"),
        ("llama-4-scout-17b-16e", "no_rope_layers", json!([1]), "has 1 entries, but there are 48 layers"),
        ("mistral-small-3.2-24b", "hidden_size", json!(null), ""),
    ] {
        let mut config = config(name);
        config["text_config"][key] = value;
        if expected.is_empty() {
            // With a head_dim of its own nothing asks for it.
            crate::common::read(&config).unwrap();
        } else {
            assert_eq!(fault(&config), format!("text_config.{key}: {expected}"));
        }
    }
}

#[test]
fn what_is_no_config_is_told_so() {
    assert_eq!(fault(&json!([])), "a config is a table, not a list");
    assert_eq!(fault(&json!(7)), "a config is a table, not 7");
    let unknown = fault(&json!({"model_type": "lama"}));
    assert!(unknown.starts_with("model_type: \"lama\" is not a model family of the catalog; the nearest are llama, "));
}

/// Whatever the value of a key, reading ends with a result or an error.
#[test]
fn no_value_of_any_key_makes_reading_panic() {
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(1_u64 << 40),
        json!(u64::MAX),
        json!(1.5),
        json!(1e300),
        json!(""),
        json!("auto"),
        json!([]),
        json!([0]),
        json!([null]),
        json!(["full_attention"]),
        json!({}),
        json!({"0": {}}),
        json!({"head_dim": 0}),
    ];
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/catalog/configs");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let config: Json = serde_json::from_str(&text).unwrap();
        for at in [vec![], vec!["text_config"]] {
            let table = at.iter().fold(&config, |table, key| &table[*key]);
            let Some(table) = table.as_object() else {
                continue;
            };
            let more = ["per_layer_config", "num_nextn_predict_layers", "layer_types"];
            for key in table.keys().map(String::as_str).chain(more) {
                for value in &values {
                    let mut config = config.clone();
                    let table = at.iter().fold(&mut config, |table, key| &mut table[*key]);
                    table[key] = value.clone();
                    let _ = crate::common::read(&config);
                    read += 1;
                }
            }
        }
    }
    assert!(read > 5000, "{read}");
}
