//! Defaults of configs, and choices of operators.

use serde_json::json;
use transload_layout::Dtype;
use transload_layout::catalog::{CacheDtype, Model, Options};
use transload_layout::document::Value;
use transload_layout::spec::Spec;

use crate::common::{attention, config, default_of, delta_net, groups, mamba1, mamba2, model, read, sizes, specs};

#[test]
fn an_empty_config_is_what_its_class_says() {
    /// The groups with their layers, and the specs of the first group.
    type Expected = (&'static str, Vec<(&'static str, String)>, Vec<Spec>);
    let all = |last: u64| format!("0-{last}");
    let expected: [Expected; 15] = [
        ("nemotron_h", vec![("mamba", "0".into()), ("attn", "2".into())], mamba2(128, 64, 8, 128, Dtype::F32)),
        ("granitemoehybrid", vec![("mamba", all(31))], mamba2(128, 64, 1, 256, Dtype::Bf16)),
        ("bamba", vec![("mamba", all(31))], mamba2(128, 64, 1, 256, Dtype::Bf16)),
        ("falcon_h1", vec![("mamba", all(31)), ("attn", all(31))], mamba2(128, 8, 1, 256, Dtype::Bf16)),
        (
            "zamba2",
            vec![("mamba", all(53)), ("attn", "6,12,18,24,30,36,42,47,51".into())],
            mamba2(8, 640, 1, 64, Dtype::Bf16),
        ),
        ("mamba2", vec![("mamba", all(63))], mamba2(128, 64, 8, 128, Dtype::Bf16)),
        ("mamba", vec![("mamba", all(31))], mamba1(1536, 16)),
        ("falcon_mamba", vec![("mamba", all(31))], mamba1(1536, 16)),
        (
            "jamba",
            vec![("mamba", "0-3,5-11,13-19,21-27,29-31".into()), ("attn", "4,12,20,28".into())],
            mamba1(8192, 16),
        ),
        (
            "qwen3_next",
            vec![
                ("gdn", "0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30,32-34,36-38,40-42,44-46".into()),
                ("attn", "3,7,11,15,19,23,27,31,35,39,43,47".into()),
            ],
            delta_net((16, 128), (32, 128), Dtype::Bf16),
        ),
        (
            "qwen3_5",
            vec![
                ("gdn", "0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30".into()),
                ("attn", "3,7,11,15,19,23,27,31".into()),
            ],
            delta_net((16, 128), (32, 128), Dtype::Bf16),
        ),
        (
            "qwen3_5_moe",
            vec![
                ("gdn", "0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30,32-34,36-38".into()),
                ("attn", "3,7,11,15,19,23,27,31,35,39".into()),
            ],
            delta_net((16, 128), (32, 128), Dtype::Bf16),
        ),
        (
            "kimi_linear",
            vec![("kda", "0-3,5-7,9-11,13-15,17-19,21-23,25-26".into()), ("mla", "4,8,12,16,20,24".into())],
            delta_net((32, 128), (32, 128), Dtype::F32),
        ),
        (
            "minimax",
            vec![
                ("attn", "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30".into()),
                ("linear", "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31".into()),
            ],
            attention(8, 128),
        ),
        ("lfm2", vec![("attn", all(31))], attention(8, 80)),
    ];
    for (family, expected, first) in expected {
        let model = default_of(family);
        assert_eq!(groups(&model), expected, "{family}");
        assert_eq!(model.groups[0].specs, first, "{family}");
    }
}

#[test]
fn attention_of_an_empty_config_has_the_heads_of_its_class() {
    for (family, heads, head_dim) in [
        ("nemotron_h", 8, 128),
        ("falcon_h1", 8, 128),
        ("zamba2", 32, 160),
        ("jamba", 8, 128),
        ("qwen3_next", 2, 256),
        ("qwen3_5", 4, 256),
        ("qwen3_5_moe", 2, 256),
    ] {
        let model = default_of(family);
        assert_eq!(specs(&model, "attn"), attention(heads, head_dim), "{family}");
    }
    let granite = json!({"model_type": "granitemoehybrid", "num_hidden_layers": 1,
        "layer_types": ["attention"]});
    // Its class has no num_key_value_heads of its own.
    assert_eq!(specs(&read(&granite).unwrap(), "attn"), attention(32, 128));
}

#[test]
fn a_cache_type_is_for_tokens_and_leaves_states_alone() {
    let options = Options { cache_dtype: CacheDtype::from_name("fp8") };
    for (name, state, token) in [
        ("nemotron-h-8b", "mamba", "attn"),
        ("jamba-mini-1.5", "mamba", "attn"),
        ("qwen3-next-80b-a3b", "gdn", "attn"),
        ("kimi-linear-48b-a3b", "kda", "mla"),
        ("minimax-text-01", "linear", "attn"),
        ("lfm2-1.2b", "conv", "attn"),
    ] {
        let value: Value = serde_json::from_value(config(name)).unwrap();
        let (plain, fp8) = (model(name), Model::from_config(&value, &options).unwrap());
        assert_eq!(specs(&fp8, state), specs(&plain, state), "{name}");
        let (layers, bytes) = sizes(&plain, token);
        assert_eq!(sizes(&fp8, token), (layers, bytes / 2), "{name}");
    }
}
