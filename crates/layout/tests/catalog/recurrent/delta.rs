//! Delta nets: gated ones (Qwen3-Next, Qwen3.5, OLMo Hybrid) and Kimi's.

use serde_json::{Value as Json, json};
use transload_layout::catalog::{Engine, Serving};
use transload_layout::spec::{Mla, Spec};
use transload_layout::{Deployment, Dtype, Footprint};

use crate::common::{
    attention, bare, caches, config, config_but, default_of, delta_net, fault, groups, layers, model, read, read_in,
    sizes, specs,
};

#[test]
fn qwen3_next_attends_in_one_layer_of_four() {
    let model = model("qwen3-next-80b-a3b");
    let gdn = "0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30,32-34,36-38,40-42,44-46";
    assert_eq!(groups(&model), [("gdn", gdn.to_owned()), ("attn", "3,7,11,15,19,23,27,31,35,39,43,47".to_owned())]);
    let page = delta_net((16, 128), (32, 128), Dtype::Bf16);
    assert_eq!(specs(&model, "gdn"), page);
    let conv = 3 * (2 * 16 * 128 + 32 * 128) * 2;
    assert_eq!(sizes(&model, "gdn"), (36, conv + 32 * 128 * 128 * 2));
    // 24,576 B per token of the whole model; heads of 256, not of 2048 / 16.
    assert_eq!(sizes(&model, "attn"), (12, 2 * 2 * 256 * 2));
}

#[test]
fn qwen3_5_says_in_its_text_part_that_states_are_float32() {
    let model = model("qwen3.5-27b");
    assert_eq!(model.family, "qwen3_5_text");
    assert_eq!(model.num_layers, 64);
    let page = delta_net((16, 128), (48, 128), Dtype::F32);
    assert_eq!(specs(&model, "gdn"), page);
    let conv = 3 * (2 * 16 * 128 + 48 * 128) * 2;
    assert_eq!(sizes(&model, "gdn"), (48, conv + 48 * 128 * 128 * 4));
    // 65,536 B per token of the whole model.
    assert_eq!(sizes(&model, "attn"), (16, 2 * 4 * 256 * 2));

    let mut config = config("qwen3.5-27b");
    config["text_config"]["mamba_ssm_dtype"] = json!(null);
    let page = delta_net((16, 128), (48, 128), Dtype::Bf16);
    assert_eq!(specs(&read(&config).unwrap(), "gdn"), page);
    // Qwen3-Next has no such key.
    let next = config_but("qwen3-next-80b-a3b", json!({"mamba_ssm_dtype": "float32"}));
    let page = delta_net((16, 128), (32, 128), Dtype::Bf16);
    assert_eq!(specs(&read(&next).unwrap(), "gdn"), page);
}

#[test]
fn a_list_of_layers_goes_before_an_interval() {
    let config = json!({"model_type": "qwen3_next", "num_hidden_layers": 3,
        "full_attention_interval": 1,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"]});
    assert_eq!(groups(&read(&config).unwrap()), [("attn", "0".to_owned()), ("gdn", "1-2".to_owned())]);
}

#[test]
fn olmo_hybrid_derives_its_delta_net_from_attention() {
    let model = default_of("olmo_hybrid");
    assert_eq!(groups(&model)[1], ("attn", "3,7,11,15,19,23,27,31".to_owned()));
    // Three quarters of 3840 over 30 heads for keys, twice as much for values.
    let page = delta_net((30, 96), (30, 192), Dtype::Bf16);
    assert_eq!(specs(&model, "gdn"), page);
    assert_eq!(specs(&model, "attn"), attention(30, 128));
    let few = read(&json!({"model_type": "olmo_hybrid", "num_hidden_layers": 3})).unwrap();
    assert_eq!(groups(&few), [("gdn", "0-1".to_owned()), ("attn", "2".to_owned())]);
}

#[test]
fn kimi_linear_counts_its_layers_from_1() {
    let model = model("kimi-linear-48b-a3b");
    assert_eq!(model.num_layers, 27);
    assert_eq!(
        groups(&model),
        [("kda", "0-2,4-6,8-10,12-14,16-18,20-22,24-25".to_owned()), ("mla", "3,7,11,15,19,23,26".to_owned())]
    );
    // The model is bf16; the state is not. A head_dim of 72 beside the table is of no account.
    let page = delta_net((32, 128), (32, 128), Dtype::F32);
    assert_eq!(specs(&model, "kda"), page);
    let latent = Mla { latent: 512 + 64, dtype: Dtype::Bf16, sliding_window: None };
    assert_eq!(specs(&model, "mla"), [Spec::Mla(latent)]);
    let conv = 3 * (3 * 32 * 128) * 2;
    assert_eq!(sizes(&model, "kda"), (20, conv + 32 * 128 * 128 * 4));
    // 8,064 B per token of the whole model.
    assert_eq!(sizes(&model, "mla"), (7, 576 * 2));
}

#[test]
fn kimi_linear_reads_kinds_first_and_sizes_beside_the_table() {
    let config = json!({"model_type": "kimi_linear", "num_hidden_layers": 2,
        "layer_types": ["full_attention", "linear_attention"], "linear_num_heads": 8,
        "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [2], "head_dim": 64}});
    let model = read(&config).unwrap();
    assert_eq!(groups(&model), [("mla", "0".to_owned()), ("kda", "1".to_owned())]);
    assert_eq!(specs(&model, "kda"), delta_net((8, 64), (8, 64), Dtype::F32));
}

/// The bytes are those of vLLM 0.32's own classes, as printed by `tests/tools/vllm_caches.py`.
#[test]
fn glm_5_3_flash_chooses_stretches_of_tokens() {
    let model = default_of("glm5_next");
    let attends = "3,7,11,15,19,23,27,31,35,39,43";
    let names = ["kda", "mla", "indexer", "indexer-state"];
    let found: Vec<&str> = groups(&model).iter().map(|(name, _)| *name).collect();
    assert_eq!(found, names);
    for name in &names[1..] {
        assert_eq!(layers(&model, name), attends, "{name}");
    }
    assert_eq!(specs(&model, "kda"), delta_net((64, 128), (64, 128), Dtype::F32));
    assert_eq!(
        caches(&model)[1..],
        ["mla 11: 512 bf16", "indexer 11: 128+4 B of 16", "indexer-state 11: 1x(128+128) bf16, chunk 16"]
    );
    assert_eq!(sizes(&model, "kda"), (34, 3 * 24_576 * 2 + 64 * 128 * 128 * 4));
    for (group, tokens, bytes) in [("mla", 1024, 1_048_576), ("indexer", 1024, 8_448), ("indexer-state", 16, 8_192)] {
        for tp in [1, 8] {
            let footprint = Footprint::of(specs(&model, group), tp).unwrap();
            assert_eq!(footprint.block_bytes(tokens), bytes, "{group}, TP {tp}");
        }
    }
}

/// The blocks are those of vLLM 0.32 itself, as printed by `tests/tools/vllm_hybrid_pages.py`. The indexer's kernels
/// process 32 groups of tokens.
#[test]
fn glm_5_3_flash_gets_the_blocks_that_vllm_takes() {
    let model = default_of("glm5_next_text");
    for (tp, asked, taken, bytes) in [
        (1, None, 4608, 4_718_592),
        (1, Some(128), 4608, 4_718_592),
        (1, Some(1024), 5120, 5_242_880),
        (2, None, 2560, 2_621_440),
        (2, Some(1024), 3072, 3_145_728),
        (8, None, 1024, 1_048_576),
        (8, Some(128), 1024, 1_048_576),
    ] {
        let serving = Serving { tp, block_size: asked, engine: Some(Engine::Vllm), ..Serving::default() };
        let page = model.hybrid_page(&serving);
        let found = page.map(|page| (page.block_size, page.bytes));
        assert_eq!(found, Some((taken, bytes)), "TP {tp}, {asked:?}");
        let served = Deployment::from_document(model.serve(&serving, 8192)).unwrap();
        let blocks: Vec<u64> = served.groups().iter().map(|group| group.block_size()).collect();
        assert_eq!(blocks, [taken, taken, taken, 16]);
    }
}

#[test]
fn glm_5_3_flash_is_refused_where_engines_would_cache_otherwise() {
    let glm = |changes: Json| {
        let mut config = bare("glm5_next_text");
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        config
    };
    for (changes, expected) in [
        (json!({"index_kpool": 1}), "index_kpool: must be 2 or more: "),
        (json!({"index_head_dim": 64}), "index_head_dim: is 64, which "),
        (json!({"indexer_types": vec!["shared"; 45]}), "indexer_types: has layer 3 take over "),
        (json!({"index_topk_freq": 3}), "index_topk_freq: has layer 3 take over "),
    ] {
        let fault = fault(&glm(changes));
        assert!(fault.starts_with(expected), "{fault}");
    }
    for (dtype, changes, expected) in [
        ("fp8", json!({}), Some("mla 11: 512 f8e4m3")),
        ("fp8_ds_mla", json!({}), Some("mla 11: 1x656 B of 1")),
        ("fp8_ds_mla", json!({"kv_lora_rank": 256}), None),
        ("nvfp4_ds_mla", json!({}), None),
        ("int8_per_token_head", json!({}), None),
    ] {
        let read = read_in(dtype, &glm(changes));
        match (read, expected) {
            (Ok(model), Some(expected)) => {
                assert_eq!(caches(&model)[1], expected);
                // Keys of the indexer have types of their own.
                assert_eq!(caches(&model)[2..], caches(&default_of("glm5_next_text"))[2..]);
            }
            (Err(error), None) => assert!(error.to_string().starts_with(dtype), "{error}"),
            (read, _) => panic!("{dtype}: {read:?}"),
        }
    }
}
