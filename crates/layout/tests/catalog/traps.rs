//! Keys that do not mean what they seem to mean, and the results if they are null or missing.

use serde_json::{Value as Json, json};
use transload_layout::Footprint;

use crate::common::{bare, caches, config, config_but, fault, growth, layers, read, read_in, specs};

#[test]
fn a_head_dim_in_the_config_wins_over_the_hidden_size() {
    // 1024 / 16 would be 64.
    let config = config_but("qwen3-0.6b", json!({"head_dim": "absent"}));
    assert_eq!(caches(&read(&config).unwrap()), ["attn 28: 8x(128+128) bf16"]);
    let config = config_but("qwen3-0.6b", json!({"head_dim": null}));
    assert_eq!(caches(&read(&config).unwrap()), ["attn 28: 8x(64+64) bf16"]);
}

#[test]
fn key_value_heads_are_the_class_s_where_absent_and_all_where_null() {
    for (kv, heads) in [(json!("absent"), 4), (json!(null), 16)] {
        let config = config_but("smollm3-3b", json!({"num_key_value_heads": kv}));
        let expected = format!("attn 36: {heads}x(128+128) bf16");
        assert_eq!(caches(&read(&config).unwrap()), [expected]);
    }
}

#[test]
fn mistral_has_a_window_unless_it_is_null() {
    for (window, group) in [(json!("absent"), "window"), (json!(null), "attn")] {
        let config = config_but("mistral-7b-v0.3", json!({"sliding_window": window}));
        assert_eq!(layers(&read(&config).unwrap(), group), "0-31");
    }
}

#[test]
fn qwen_has_windows_only_where_they_are_switched_on_and_from_a_layer_on() {
    let on = json!({"use_sliding_window": true, "max_window_layers": 20});
    let model = read(&config_but("qwen2.5-7b", on)).unwrap();
    assert_eq!(layers(&model, "attn"), "0-19");
    assert_eq!(layers(&model, "window"), "20-27");
    let sparse = json!({"model_type": "qwen2_moe", "use_sliding_window": true, "max_window_layers": 5});
    let model = read(&sparse).unwrap();
    assert_eq!(layers(&model, "window"), "0,2,4");
    let all = json!({"model_type": "qwen3_moe", "use_sliding_window": true});
    assert_eq!(layers(&read(&all).unwrap(), "window"), "0-23");
    let dots = json!({"model_type": "dots1", "use_sliding_window": false, "max_window_layers": 60});
    assert_eq!(layers(&read(&dots).unwrap(), "window"), "60-61");
    let listed = json!({
        "model_type": "qwen3", "num_hidden_layers": 2, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"],
    });
    assert_eq!(layers(&read(&listed).unwrap(), "attn"), "0-1");
}

#[test]
fn layer_types_win_over_the_pattern() {
    let types = vec!["full_attention"; 34];
    let mut config = config("gemma-3-4b");
    config["text_config"]["layer_types"] = json!(types);
    assert_eq!(layers(&read(&config).unwrap(), "attn"), "0-33");
    let config = config_but("gemma-3-1b", json!({"sliding_window_pattern": 2}));
    assert_eq!(layers(&read(&config).unwrap(), "attn"), "1,3,5,7,9,11,13,15,17,19,21,23,25");
}

#[test]
fn windows_that_are_null_are_none() {
    let config = config_but("exaone-4.0-32b", json!({"sliding_window": null}));
    assert_eq!(caches(&read(&config).unwrap()), ["attn 64: 8x(128+128) bf16"]);
    let pattern = json!({"model_type": "exaone4", "sliding_window": null, "sliding_window_pattern": "LLLG"});
    assert_eq!(layers(&read(&pattern).unwrap(), "attn"), "0-31");
}

#[test]
fn encoders_have_half_a_window_on_each_side() {
    let config = config_but("gemma-3-1b", json!({"use_bidirectional_attention": true}));
    let window = &caches(&read(&config).unwrap())[0];
    assert_eq!(window, "window 22: 1x(256+256) bf16, window 257");
}

#[test]
fn smollm3_has_windows_where_positions_are_not_rotated() {
    let on = json!({"use_sliding_window": true, "sliding_window": 512});
    let model = read(&config_but("smollm3-3b", on.clone())).unwrap();
    assert_eq!(layers(&model, "window"), "3,7,11,15,19,23,27,31,35");
    let mut on = on;
    on["no_rope_layers"] = json!("absent");
    on["no_rope_layer_interval"] = json!(18);
    let model = read(&config_but("smollm3-3b", on)).unwrap();
    assert_eq!(layers(&model, "window"), "17,35");
}

#[test]
fn cohere2_moe_has_a_pattern_of_its_own_in_its_dense_layers() {
    let config = json!({
        "model_type": "cohere2_moe", "num_hidden_layers": 10,
        "first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2,
    });
    assert_eq!(layers(&read(&config).unwrap(), "attn"), "1,5,9");
}

#[test]
fn gemma_3n_and_4_share_the_caches_of_earlier_layers() {
    let mut config = config("gemma-3n-e4b");
    config["text_config"]["num_kv_shared_layers"] = json!(0);
    let model = read(&config).unwrap();
    assert_eq!(layers(&model, "attn"), "4,9,14,19,24,29,34");
    config["text_config"]["num_kv_shared_layers"] = json!(31);
    let fault = read(&config).unwrap_err().to_string();
    let expected = "text_config.num_kv_shared_layers: leaves no full layer whose cache could be shared";
    assert_eq!(fault, expected);

    let shared = json!({"model_type": "gemma4_text", "num_hidden_layers": 35, "num_kv_shared_layers": 20,
        "num_key_value_heads": 1, "head_dim": 256});
    let model = read(&shared).unwrap();
    // The last layer sees everything, and shares like the rest.
    assert_eq!(layers(&model, "attn"), "5,11");
    assert_eq!(model.num_layers, 35);
}

#[test]
fn gemma_4_has_other_heads_in_layers_that_see_everything() {
    let without = |key: &str| {
        let mut config = config("gemma-4-31b");
        config["text_config"][key] = json!(null);
        caches(&read(&config).unwrap()).pop().unwrap()
    };
    assert_eq!(without("attention_k_eq_v"), "attn 10: 16x(512+512) bf16");
    assert_eq!(without("num_global_key_value_heads"), "attn 10: 16x(512+512) bf16");
    assert_eq!(without("global_head_dim"), "attn 10: 4x(512+512) bf16");
    // As newer releases write the same model.
    let mut config = config("gemma-4-31b");
    let text = config["text_config"].as_object_mut().unwrap();
    for key in ["global_head_dim", "num_global_key_value_heads", "attention_k_eq_v"] {
        text.remove(key);
    }
    let own = |layer| (format!("{layer:02}"), json!({"head_dim": 512, "num_key_value_heads": 4}));
    let own: serde_json::Map<_, _> = (5..60).step_by(6).map(own).collect();
    text.insert("per_layer_config".to_owned(), own.into());
    assert_eq!(read(&config).unwrap(), read(&crate::common::config("gemma-4-31b")).unwrap());
}

#[test]
fn any_layer_may_have_keys_of_its_own() {
    let config = config_but(
        "llama-3.1-8b",
        json!({"per_layer_config": {"03": {"num_key_value_heads": 4}, "30": {"intermediate_size": 1}}}),
    );
    let model = read(&config).unwrap();
    assert_eq!(caches(&model), ["attn 31: 8x(128+128) bf16", "attn-2 1: 4x(128+128) bf16"]);
    assert_eq!(layers(&model, "attn-2"), "3");
    // Layer 1 sees everything, and no window makes it see less.
    let own = json!({"per_layer_config": {
        "0": {"sliding_window": 64}, "1": {"sliding_window": 64}, "2": {"sliding_window": null}}});
    let model = read(&config_but("gpt-oss-120b", own)).unwrap();
    assert_eq!(
        caches(&model),
        ["window 1: 8x(64+64) bf16, window 64", "attn 19: 8x(64+64) bf16", "window-2 16: 8x(64+64) bf16, window 128"]
    );
}

#[test]
fn llama_4_is_chunked_where_positions_are_rotated() {
    let with = |key: &str, value| {
        let mut config = config("llama-4-scout-17b-16e");
        config["text_config"][key] = value;
        read(&config).unwrap()
    };
    let mut rotates = vec![1; 48];
    rotates[47] = 0;
    assert_eq!(layers(&with("no_rope_layers", json!(rotates)), "attn"), "47");
    assert_eq!(layers(&with("attention_chunk_size", json!(null)), "attn"), "0-47");
    let interval = with("no_rope_layer_interval", json!(16));
    assert_eq!(layers(&interval, "attn"), "15,31,47");
    let types = vec!["chunked_attention"; 48];
    assert_eq!(layers(&with("layer_types", json!(types)), "chunk"), "0-47");
}

#[test]
fn mimo_has_twice_the_heads_in_its_windows_where_it_does_not_say() {
    let keys = ["swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim"];
    let mut absent: serde_json::Map<_, _> = keys.iter().map(|key| ((*key).to_owned(), json!("absent"))).collect();
    let said = read(&config("mimo-v2-flash")).unwrap();
    assert_eq!(read(&config_but("mimo-v2-flash", absent.clone().into())).unwrap(), said);
    // The class's pattern is the published one.
    absent.insert("hybrid_layer_pattern".to_owned(), json!("absent"));
    assert_eq!(read(&config_but("mimo-v2-flash", absent.into())).unwrap(), said);
}

#[test]
fn lists_may_go_on_with_layers_that_only_predict() {
    let with = |layers: i64| config_but("step-3.5-flash", json!({"num_nextn_predict_layers": layers}));
    assert_eq!(read(&with(3)).unwrap().num_layers, 45);
    let fault = read(&with(2)).unwrap_err().to_string();
    assert_eq!(fault, "layer_types: has 48 entries, but there are 45 layers");
    // DeepSeek V4's go on with draft layers that no key counts.
    let mut ratios = config("deepseek-v4-flash")["compress_ratios"].clone();
    ratios.as_array_mut().unwrap().extend([json!(0), json!(0)]);
    let config = config_but("deepseek-v4-flash", json!({ "compress_ratios": ratios }));
    assert_eq!(growth(&read(&config).unwrap(), 128), 21 * 716 * 32 + 20 * 584);
}

#[test]
fn deepseek_v4_may_name_its_layers_instead() {
    let config = json!({
        "model_type": "deepseek_v4", "num_hidden_layers": 3,
        "layer_types": [
            "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
        ],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
    });
    let model = read(&config).unwrap();
    assert_eq!(layers(&model, "window"), "0-2");
    assert_eq!((layers(&model, "c4"), layers(&model, "c128")), ("1".into(), "2".into()));
}

/// The bytes of a block are those of vLLM 0.32's own classes, as printed by `tests/tools/vllm_caches.py`.
#[test]
fn dots3_note_has_rows_of_one_length() {
    let dots = |changes: Json| {
        let mut config = bare("dots3_note");
        let table = config.as_object_mut().unwrap();
        table.extend(changes.as_object().unwrap().clone());
        config
    };
    let model = read(&bare("dots3_note")).unwrap();
    for (group, bytes) in [("mla", 2_228_224), ("window", 2_228_224), ("indexer", 135_168)] {
        let footprint = Footprint::of(specs(&model, group), 8).unwrap();
        assert_eq!(footprint.block_bytes(1024), bytes, "{group}");
    }
    let published = dots(json!({
        "num_hidden_layers": 4, "num_nextn_predict_layers": 1, "use_dsa": true, "sliding_window_size": 256,
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "swa_kv_lora_rank": 768, "swa_qk_rope_head_dim": 32, "swa_num_attention_heads": 64, "swa_attention_gate_type": "headwise",
        "index_topk_pattern": "FFSF", "torch_dtype": "float16",
    }));
    let model = read(&published).unwrap();
    assert_eq!(caches(&model), ["mla 2: 800 f16", "indexer 1: 128+4 B of 1", "window 2: 800 f16, window 256"]);
    assert_eq!((model.num_layers, model.unread.len()), (4, 0), "{:?}", model.unread);
    let all = read(&dots(json!({"use_sliding_window": false}))).unwrap();
    assert_eq!(layers(&all, "mla"), "0-45");
    for (changes, expected) in [
        (json!({"use_dsa": false}), "use_dsa: cannot be false: "),
        (json!({"per_layer_config": {"2": {"kv_lora_rank": 9}}}), "per_layer_config: is not what vLLM 0.32 reads "),
        (json!({"kv_lora_rank": 1025}), "kv_lora_rank: makes rows of 1089 elements, "),
        (json!({"swa_head_dim": 192}), "swa_head_dim: is 192, of which "),
        (json!({"sliding_window_size": 0}), "sliding_window_size: cannot be 0"),
    ] {
        let fault = fault(&dots(changes));
        assert!(fault.starts_with(expected), "{fault}");
    }
    for dtype in ["fp8", "fp8_ds_mla", "nvfp4_ds_mla", "int8_per_token_head"] {
        let error = read_in(dtype, &bare("dots3_note")).unwrap_err().to_string();
        assert!(error.contains("dots3.note in bf16 or f16"), "{error}");
    }
}

#[test]
fn indexers_are_shared_as_the_config_says() {
    let by_key = read(&config("glm-5.2")).unwrap();
    let letters: String = (0..78).map(|i| if i < 3 || i % 4 == 2 { 'F' } else { 'S' }).collect();
    let words: Vec<&str> = letters.chars().map(|c| if c == 'F' { "full" } else { "shared" }).collect();
    let singles: Vec<String> = letters.chars().map(String::from).collect();
    for (key, value) in [
        ("index_topk_pattern", json!(letters)),
        ("index_topk_pattern", json!(singles)),
        ("indexer_types", json!(words)),
    ] {
        let config = config_but("glm-5", json!({ key: value }));
        assert_eq!(read(&config).unwrap(), by_key, "{key}");
    }
}

#[test]
fn a_wrapper_says_whose_model_is_in_it() {
    for (wrapper, family) in [
        ("llava", "llama"),
        ("kimi_k25", "deepseek_v3"),
        ("internvl", "qwen2"),
        ("glm4v", "glm4v_text"),
        ("step3p7", "step3p5"),
        ("paligemma", "gemma"),
        ("aya_vision", "cohere2"),
    ] {
        let config = json!({"model_type": wrapper, "text_config": {"num_hidden_layers": 3}});
        let model = read(&config).unwrap_or_else(|error| panic!("{wrapper}: {error}"));
        assert_eq!((model.family.as_str(), model.num_layers), (family, 3), "{wrapper}");
        assert_eq!(read(&bare(wrapper)).unwrap().family, family);
    }
    let omni = json!({"model_type": "qwen2_5_omni", "thinker_config": {
        "model_type": "qwen2_5_omni_thinker", "text_config": {"num_hidden_layers": 5}}});
    let model = read(&omni).unwrap();
    assert_eq!((model.family.as_str(), model.num_layers), ("qwen2_5_omni_text", 5));
    let kimi = json!({"model_type": "kimi_k25", "text_config": {"model_type": "kimi_k2"}});
    assert_eq!(read(&kimi).unwrap().family, "kimi_k2");
}

#[test]
fn the_type_is_the_model_s_unless_the_checkpoint_scales_its_cache() {
    let float = config_but("llama-3.1-8b", json!({"torch_dtype": "float32"}));
    assert_eq!(growth(&read(&float).unwrap(), 1), 262_144);
    for quantization in [
        json!({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}),
        json!({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}),
    ] {
        let config = config_but("llama-3.1-8b", json!({ "quantization_config": quantization }));
        assert_eq!(growth(&read(&config).unwrap(), 1), 65_536);
    }
    // Outside of the text model, in a wrapper.
    let mut config = config("mistral-small-3.2-24b");
    config["torch_dtype"] = json!("float16");
    assert_eq!(caches(&read(&config).unwrap()), ["attn 40: 8x(128+128) f16"]);
}

#[test]
fn one_head_for_all_queries_is_known_to_two_families() {
    for (family, expected) in [("gpt2", "attn 12: 12x(64+64) bf16"), ("gpt_bigcode", "attn 12: 1x(64+64) bf16")] {
        let config = json!({"model_type": family, "multi_query": true});
        assert_eq!(caches(&read(&config).unwrap()), [expected], "{family}");
    }
}

#[test]
fn a_wrapper_without_a_table_has_the_text_model_of_its_class() {
    for (family, expected) in [
        ("paligemma", "attn 18: 1x(256+256) bf16"),
        ("mistral3", "attn 40: 8x(128+128) bf16"),
        ("got_ocr2", "attn 24: 16x(64+64) bf16"),
    ] {
        assert_eq!(caches(&read(&bare(family)).unwrap()), [expected], "{family}");
    }
    // A table is read alone, but for that of Voxtral.
    let table = json!({"num_hidden_layers": 4, "num_key_value_heads": 2});
    for (family, expected) in
        [("mistral3", "window 4: 2x(128+128) bf16, window 4096"), ("voxtral", "attn 4: 2x(128+128) bf16")]
    {
        let config = json!({"model_type": family, "text_config": table});
        assert_eq!(caches(&read(&config).unwrap()), [expected], "{family}");
    }
}
