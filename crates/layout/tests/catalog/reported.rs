//! Configs that users reported because the answer was wrong: new names, unknown wrappers, and packed caches.

use serde_json::{Value as Json, json};
use transload_layout::Footprint;
use transload_layout::catalog::Model;

use crate::common::{caches, config, config_but, fault, read, read_in};

fn reported(name: &str) -> Json {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/catalog/reported");
    let text = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn bytes_per_token(model: &Model) -> f64 {
    let groups = model.groups.iter().map(|group| {
        let footprint = Footprint::of(&group.specs, 1).unwrap();
        footprint.bytes_per_token() * group.layers.ids().len() as f64
    });
    groups.sum()
}

#[test]
fn each_is_answered_as_it_should_be() {
    for (name, bytes, expected) in [
        ("minimax-m3", 137_472.0, &["attn 60: 4x(128+128) bf16", "indexer 57: 128 bf16"][..]),
        ("deepseek-ocr", 61_440.0, &["attn 12: 10x(128+128) bf16"]),
        ("mimo-v2.5", 5_120.0, &["attn 1: 8x(192+128) bf16", "window 1: 8x(192+128) bf16, window 128"]),
        ("gemma-4-assistant", 0.0, &[]),
        ("qwen3-nvfp4", 41_472.0, &["attn 36: 8x64 B of 1; 8x8 B of 1; 8x64 B of 1; 8x8 B of 1"]),
    ] {
        let model = read(&reported(name)).unwrap();
        assert_eq!(caches(&model), expected, "{name}");
        assert_eq!(bytes_per_token(&model), bytes, "{name}");
        assert_eq!(model.unread, [""; 0], "{name}");
        assert_eq!(model.wrapper, None, "{name}");
    }
    assert_eq!(read(&reported("gemma-4-assistant")).unwrap().num_layers, 4);
}

#[test]
fn a_wrapper_that_nobody_knows_is_named_with_its_keys_that_were_not_read() {
    let mut text = config("llama-3.1-8b");
    text["sparse_attention_config"] = json!({"sparse_index_dim": 128});
    let config = json!({
        "model_type": "unheard_of_vl", "text_config": text, "vision_config": {"hidden_size": 8},
        "memory_tokens": 64, "image_token_id": 1, "off": false, "nothing": null
    });
    let model = read(&config).unwrap();
    assert_eq!(model.wrapper.as_deref(), Some("unheard_of_vl"));
    assert_eq!(model.unread, ["memory_tokens", "text_config.sparse_attention_config"]);
    assert_eq!(caches(&model), ["attn 32: 8x(128+128) bf16"]);
}

#[test]
fn a_key_that_changes_the_caches_of_others_is_named_where_it_is_not_read() {
    for (name, key, value) in [
        ("minimax-m2", "index_head_dim", json!(128)),
        ("llama-3.1-8b", "num_kv_shared_layers", json!(4)),
        ("llama-3.1-8b", "sliding_window", json!(4096)),
        ("qwen3-8b", "kv_lora_rank", json!(512)),
        ("qwen3-8b", "a_key_of_next_year", json!({"each": 2})),
    ] {
        let model = read(&config_but(name, json!({ key: value }))).unwrap();
        assert_eq!(model.unread, [key], "{name}");
    }
    let harmless = json!({
        "rope_theta": 1e6, "attention_bias": true, "sliding_window": null, "use_cache": true, "auto_map": {"a": "b"},
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}, "unsloth_version": "1"
    });
    let model = read(&config_but("llama-3.1-8b", harmless)).unwrap();
    assert_eq!(model.unread, [""; 0]);
}

#[test]
fn the_nearest_names_share_the_first_word() {
    for (family, stem) in
        [("qwen5", "qwen"), ("minimax_m4", "minimax"), ("glm6next", "glm"), ("deepseek_v5", "deepseek")]
    {
        let fault = fault(&config_but("llama-3.1-8b", json!({ "model_type": family })));
        let (_, nearest) = fault.split_once("the nearest are ").unwrap();
        let first = nearest.split(", ").next().unwrap();
        assert!(first.starts_with(stem), "{fault}");
    }
}

#[test]
fn a_family_that_no_spec_describes_is_refused_with_what_it_caches() {
    for (config, expected) in [
        (
            json!({"model_type": "inkling_mm_model", "text_config": {"num_hidden_layers": 2, "hidden_size": 64}}),
            "model_type: \"inkling_mm_model\" is refused: each of its layers keeps the last inputs of four convolutions ",
        ),
        (
            json!({"model_type": "inkling_mm_model", "text_config": {"model_type": "inkling_text"}}),
            "model_type: \"inkling_text\" is refused: ",
        ),
        (
            json!({"model_type": "qwen4_exp", "text_config": {"model_type": "qwen4_exp_text"}}),
            "model_type: \"qwen4_exp_text\" is refused: it keeps inputs of PLE convolutions whole on every rank, ",
        ),
    ] {
        let fault = fault(&config);
        assert!(fault.starts_with(expected), "{fault}");
        assert!(fault.ends_with("; no kind of spec says that"), "{fault}");
        assert_eq!(fault.lines().count(), 1);
    }
}

#[test]
fn a_checkpoint_says_the_type_of_its_cache_in_many_ways() {
    let eight = "attn 32: 8x(128+128) f8e4m3";
    let four = "attn 32: 8x64 B of 1; 8x8 B of 1; 8x64 B of 1; 8x8 B of 1";
    let own = "attn 32: 8x(128+128) bf16";
    for (quantization, expected, unread) in [
        (json!({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}), eight, false),
        (json!({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}), eight, false),
        (json!({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "NVFP4"}}), four, false),
        (
            json!({"quant_method": "modelopt", "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"}}),
            eight,
            false,
        ),
        (
            json!({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}),
            four,
            false,
        ),
        (json!({"quant_method": "compressed-tensors", "kv_cache_scheme": null}), own, false),
        (json!({"quant_method": "modelopt", "kv_cache_quant_algo": "none"}), own, false),
        // Engines keep to the model's type.
        (json!({"quant_method": "modelopt", "kv_cache_quant_algo": "FP3"}), own, true),
        (json!({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 4, "type": "int"}}), own, true),
    ] {
        let model = read(&config_but("llama-3.1-8b", json!({"quantization_config": quantization}))).unwrap();
        assert_eq!(caches(&model), [expected], "{quantization}");
        assert_eq!(!model.unread.is_empty(), unread, "{quantization}");
    }
}

/// The sizes in vLLM 0.32 of a head's row of 128 elements.
#[test]
fn every_type_of_engines_has_its_size() {
    let llama = |dtype, expected| {
        let model = read_in(dtype, &config("llama-3.1-8b")).unwrap();
        assert_eq!(bytes_per_token(&model), f64::from(expected), "{dtype}");
    };
    llama("nvfp4", 32 * 8 * 2 * 72);
    llama("nvfp4_4over6", 32 * 8 * 2 * 72);
    llama("int8_per_token_head", 32 * 8 * 2 * 132);
    llama("fp8_per_token_head", 32 * 8 * 2 * 132);
    llama("int4_per_token_head", 32 * 8 * 2 * 68);
    llama("fp8_inc", 32 * 8 * 2 * 128);
    // The first two and the last two layers are bf16.
    let ends = 4 * 8 * 512;
    llama("turboquant_k8v4", ends + 28 * 8 * (128 + 68));
    llama("turboquant_4bit_nc", ends + 28 * 8 * (66 + 68));
    llama("turboquant_k3v4_nc", ends + 28 * 8 * (50 + 68));
    llama("turboquant_3bit_nc", ends + 28 * 8 * (50 + 52));
    llama("ultraquant_4bit", ends + 28 * 8 * 2 * 68);
    // Hybrids leave no layer out.
    let hybrid = read_in("turboquant_k8v4", &config("qwen3-next-80b-a3b")).unwrap();
    assert!(caches(&hybrid)[1].starts_with("attn 12: 2x(256+132) u8"), "{:?}", caches(&hybrid));
    let windows = read_in("nvfp4", &config("gpt-oss-120b")).unwrap();
    assert_eq!(
        caches(&windows),
        ["window 18: 8x(36+36) u8, window 128", "attn 18: 8x32 B of 1; 8x4 B of 1; 8x32 B of 1; 8x4 B of 1"]
    );
    for (dtype, name, expected) in [
        ("nvfp4_ds_mla", "deepseek-v3.2", "mla 61: 1x352 B of 1"),
        ("fp8_ds_mla", "deepseek-v3.2", "mla 61: 1x656 B of 1"),
        ("int8_per_token_head", "deepseek-v3", "mla 61: 584 u8"),
        ("int4_per_token_head", "deepseek-v3", "mla 61: 296 u8"),
    ] {
        let model = read_in(dtype, &config(name)).unwrap();
        assert_eq!(caches(&model)[0], expected, "{dtype}");
    }
}

#[test]
fn a_type_that_a_model_cannot_have_is_refused_by_name() {
    for (dtype, name) in [
        ("nvfp4", "deepseek-v3"),
        ("turboquant_k8v4", "deepseek-v3"),
        ("nvfp4_ds_mla", "deepseek-v3"),
        ("nvfp4_ds_mla", "llama-3.1-8b"),
        ("nvfp4", "deepseek-v4-flash"),
        ("nvfp4", "mimo-v2-flash"),
    ] {
        let error = read_in(dtype, &config(name)).unwrap_err().to_string();
        assert!(error.contains(dtype), "{name}: {error}");
    }
}
