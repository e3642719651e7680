//! Faults: one message, with the path of the key.

use serde_json::{Value as Json, json};

use crate::common::{assert_fault, config_but, fault};

#[test]
fn layers_that_are_told_wrong() {
    let pattern = |pattern| json!({"model_type": "nemotron_h", "hybrid_override_pattern": pattern});
    assert_fault(
        &pattern("M*xE"),
        "hybrid_override_pattern: has 'x' for layer 2: it must be of M (mamba), * (attention), \
         - (mlp) and E (experts)",
    );
    assert_fault(&pattern(""), "hybrid_override_pattern: cannot be empty");
    assert_fault(
        &pattern(&*"M".repeat(65_537)),
        "hybrid_override_pattern: cannot have more than 65536 layers, not 65537",
    );
    assert_fault(
        &config_but("nemotron-h-8b", json!({"num_hidden_layers": 50})),
        "hybrid_override_pattern: has 52 layers, but num_hidden_layers is 50",
    );
    assert_fault(
        &config_but("nemotron-h-8b", json!({"hybrid_override_pattern": "absent"})),
        "hybrid_override_pattern: is missing: num_hidden_layers is 52, and the class knows of 4 \
         layers only",
    );
    assert_fault(
        &json!({"model_type": "nemotron_h", "layers_block_type": ["mamba", "mlp", "rwkv"]}),
        "layers_block_type[2]: must be one of linear_attention, full_attention, mlp, moe, mamba, \
         attention, not \"rwkv\"",
    );
    assert_fault(
        &config_but("granite-4.0-h-small", json!({"num_hidden_layers": 41})),
        "layer_types: has 40 layers, but num_hidden_layers is 41",
    );
    assert_fault(
        &config_but("bamba-9b", json!({"attn_layer_indices": [9, 32]})),
        "attn_layer_indices[1]: is 32, but the layers are 0 to 31",
    );
    assert_fault(
        &config_but("lfm2-1.2b", json!({"full_attn_idxs": [16]})),
        "full_attn_idxs[0]: is 16, but the layers are 0 to 15",
    );
    assert_fault(
        &config_but("jamba-mini-1.5", json!({"attn_layer_offset": 8})),
        "attn_layer_offset: is 8: it must be below attn_layer_period = 8",
    );
    assert_fault(&config_but("jamba-mini-1.5", json!({"attn_layer_period": 0})), "attn_layer_period: cannot be 0");
    assert_fault(
        &config_but("qwen3-next-80b-a3b", json!({"full_attention_interval": 0})),
        "full_attention_interval: cannot be 0",
    );
    assert_fault(
        &config_but("minimax-text-01", json!({"num_hidden_layers": 2, "attn_type_list": [0, 2]})),
        "attn_type_list[1]: must be 0 (linear) or 1 (full), not 2",
    );
    assert_fault(
        &config_but("minimax-text-01", json!({"attn_type_list": "absent"})),
        "attn_type_list: is missing: it must list 0 (linear) or 1 (full) for each layer",
    );
    assert_fault(
        &json!({"model_type": "lfm2_moe"}),
        "layer_types: is missing: it must list conv or full_attention for each layer",
    );
}

#[test]
fn kimi_layers_that_are_told_wrong() {
    let told =
        |linear: Json| json!({"model_type": "kimi_linear", "num_hidden_layers": 4, "linear_attn_config": linear});
    for (linear, expected) in [
        (
            json!({"kda_layers": [0, 1, 2], "full_attn_layers": [3]}),
            "linear_attn_config.kda_layers[0]: is 0, but layers are counted from 1 to 4",
        ),
        (
            json!({"kda_layers": [1, 2, 3], "full_attn_layers": [5]}),
            "linear_attn_config.full_attn_layers[0]: is 5, but layers are counted from 1 to 4",
        ),
        (
            json!({"kda_layers": [1, 2, 3], "full_attn_layers": [3, 4]}),
            "linear_attn_config.full_attn_layers[0]: names layer 3 a second time",
        ),
        (
            json!({"kda_layers": [1, 2], "full_attn_layers": [4]}),
            "linear_attn_config: names layer 3 (counted from 1) neither in kda_layers nor in \
             full_attn_layers",
        ),
        (
            json!({"kda_layers": [1, 2, 3]}),
            "linear_attn_config.full_attn_layers: is missing: kda_layers and full_attn_layers are \
             needed together",
        ),
        (json!([1]), "linear_attn_config: must be a table, not a list"),
        (
            json!({"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 0}),
            "linear_attn_config.num_heads: cannot be 0",
        ),
    ] {
        assert_fault(&told(linear), expected);
    }
}

#[test]
fn sizes_that_do_not_fit_together() {
    for (name, keys, expected) in [
        (
            "bamba-9b",
            json!({"mamba_n_heads": 100}),
            "mamba_n_heads: is 100, which does not divide mamba_expand * hidden_size = 8192",
        ),
        (
            "bamba-9b",
            json!({"mamba_d_head": 32}),
            "mamba_d_head: is 32, but mamba_expand * hidden_size = 8192 over 128 heads is 64",
        ),
        (
            "falcon-h1-7b",
            json!({"mamba_d_head": 64}),
            "mamba_d_head: is 64, but mamba_d_ssm = 3072 over 24 heads is 128",
        ),
        ("falcon-h1-7b", json!({"mamba_d_ssm": 0}), "mamba_d_ssm: cannot be 0"),
        (
            "mamba-codestral-7b",
            json!({"expand": 3}),
            "head_dim: is 64, but expand * hidden_size = 12288 over 128 heads is 96",
        ),
        ("nemotron-h-8b", json!({"n_groups": 3}), "n_groups: is 3, which does not divide mamba_num_heads = 128"),
        ("nemotron-h-8b", json!({"conv_kernel": 1}), "conv_kernel: must be 2 or more, or there is nothing to keep"),
        (
            "nemotron-h-8b",
            json!({"mamba_num_heads": 1u64 << 30, "mamba_head_dim": 1u64 << 30}),
            "mamba_num_heads: times mamba_head_dim cannot be more than 1099511627776",
        ),
        (
            "qwen3-next-80b-a3b",
            json!({"linear_num_value_heads": 40}),
            "linear_num_value_heads: is 40, which linear_num_key_heads = 16 does not divide",
        ),
        (
            "granite-4.0-h-tiny",
            json!({"num_attention_heads": 7}),
            "hidden_size: is 1536, which num_attention_heads = 7 does not divide",
        ),
    ] {
        assert_fault(&config_but(name, keys), expected);
    }
}

#[test]
fn auto_is_no_number() {
    for (name, key) in [
        ("nemotron-h-8b", "mamba_head_dim"),
        ("bamba-9b", "mamba_n_heads"),
        ("mamba-codestral-7b", "head_dim"),
        ("zamba2-2.7b", "mamba_headdim"),
        ("jamba-mini-1.5", "mamba_d_state"),
    ] {
        let error = fault(&config_but(name, json!({key: "auto"})));
        let expected = format!("{key}: must be a whole number, not \"auto\"");
        assert_eq!(error, expected, "{name}");
    }
    let error = fault(&config_but("bamba-9b", json!({"mamba_d_head": "wide"})));
    assert_eq!(error, "mamba_d_head: must be a whole number, not \"wide\"");
}
