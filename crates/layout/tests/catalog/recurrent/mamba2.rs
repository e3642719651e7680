//! Mamba2: pages of `x`, `B` and `C` and a state, in all layers or along with attention.

use serde_json::json;
use transload_layout::Dtype;
use transload_layout::spec::Spec;

use crate::common::{attention, config_but, groups, mamba2, model, read, sizes, specs};

#[test]
fn nemotron_h_has_mlps_as_layers_and_its_state_in_float32() {
    let model = model("nemotron-h-8b");
    assert_eq!(model.num_layers, 52);
    let mamba = "0,2,4,6,9,11,13,15,17,20,22,24,26,28,31,33,35,37,39,42,44,46,48,50";
    assert_eq!(groups(&model), [("mamba", mamba.to_owned()), ("attn", "7,18,29,40".to_owned())]);
    assert_eq!(specs(&model, "mamba"), mamba2(128, 64, 8, 128, Dtype::F32));
    assert_eq!(specs(&model, "attn"), attention(8, 128));
    // bf16: 3 taps of x (128 * 64) and B and C (8 groups of 128 each); float32: 128 heads of 64 * 128.
    let conv = 3 * (128 * 64 + 2 * 8 * 128) * 2;
    assert_eq!(sizes(&model, "mamba"), (24, conv + 128 * 64 * 128 * 4));
    assert_eq!(sizes(&model, "attn"), (4, 2 * 8 * 128 * 2));
}

#[test]
fn nemotron_nano_v2_is_wider_than_expand_times_hidden() {
    // 128 * 80 = 10240 channels, where expand * hidden_size is 8960; heads of 128, not of 4480 / 40.
    let model = model("nemotron-nano-9b-v2");
    assert_eq!(model.num_layers, 56);
    assert_eq!(specs(&model, "mamba"), mamba2(128, 80, 8, 128, Dtype::F32));
    assert_eq!(specs(&model, "attn"), attention(8, 128));
    let conv = 3 * (128 * 80 + 2 * 8 * 128) * 2;
    assert_eq!(sizes(&model, "mamba"), (27, conv + 128 * 80 * 128 * 4));
    assert_eq!(groups(&model)[1], ("attn", "14,21,30,39".to_owned()));
}

#[test]
fn nemotron_3_has_experts_as_layers() {
    let model = model("nemotron-3-nano-30b-a3b");
    assert_eq!(model.num_layers, 52);
    assert_eq!(groups(&model)[1], ("attn", "5,12,19,26,33,42".to_owned()));
    assert_eq!(specs(&model, "mamba"), mamba2(64, 64, 8, 128, Dtype::F32));
    let conv = 3 * (64 * 64 + 2 * 8 * 128) * 2;
    assert_eq!(sizes(&model, "mamba"), (23, conv + 64 * 64 * 128 * 4));
    // 6,144 B per token of the whole model.
    assert_eq!(sizes(&model, "attn"), (6, 2 * 2 * 128 * 2));
}

#[test]
fn nemotron_h_reads_lists_in_old_and_new_words_before_a_pattern() {
    for (key, list) in [
        ("layers_block_type", ["mamba", "moe", "attention", "mlp"]),
        ("layer_types", ["linear_attention", "moe", "full_attention", "mlp"]),
    ] {
        let config = json!({"model_type": "nemotron_h", key: list, "hybrid_override_pattern": "MM"});
        assert_eq!(groups(&read(&config).unwrap()), [("mamba", "0".to_owned()), ("attn", "2".to_owned())]);
    }
    let nulls = json!({"model_type": "nemotron_h", "layers_block_type": null,
        "hybrid_override_pattern": "M-", "num_hidden_layers": null});
    assert_eq!(groups(&read(&nulls).unwrap()), [("mamba", "0".to_owned())]);
}

#[test]
fn nemotron_h_follows_the_type_and_the_old_names_of_its_config() {
    let config = json!({"model_type": "nemotron_h", "hybrid_override_pattern": "M",
        "mamba_n_groups": 4, "mamba_d_conv": 3, "n_groups": 8, "conv_kernel": 4,
        "mamba_ssm_cache_dtype": "bfloat16"});
    let mut page = mamba2(128, 64, 4, 128, Dtype::Bf16);
    if let Spec::Mamba2Conv(conv) = &mut page[0] {
        conv.conv_states = 2;
    }
    assert_eq!(specs(&read(&config).unwrap(), "mamba"), page);
    let auto = config_but("nemotron-h-8b", json!({"mamba_ssm_cache_dtype": "auto", "torch_dtype": "float16"}));
    let model = read(&auto).unwrap();
    let [Spec::Mamba2Conv(conv), Spec::Mamba2Ssm(ssm)] = specs(&model, "mamba") else {
        panic!("{model:?}");
    };
    assert_eq!((conv.dtype, ssm.dtype), (Dtype::F16, Dtype::F16));
}

#[test]
fn granite_4_is_mamba2_with_attention_in_every_tenth_layer() {
    let small = model("granite-4.0-h-small");
    let mamba = "0-4,6-14,16-24,26-34,36-39".to_owned();
    assert_eq!(groups(&small), [("mamba", mamba.clone()), ("attn", "5,15,25,35".to_owned())]);
    assert_eq!(specs(&small, "mamba"), mamba2(128, 64, 1, 128, Dtype::Bf16));
    let conv = 3 * (128 * 64 + 2 * 128) * 2;
    assert_eq!(sizes(&small, "mamba"), (36, conv + 128 * 64 * 128 * 2));
    assert_eq!(sizes(&small, "attn"), (4, 2 * 8 * 128 * 2));

    let tiny = model("granite-4.0-h-tiny");
    assert_eq!(groups(&tiny)[0], ("mamba", mamba));
    assert_eq!(specs(&tiny, "mamba"), mamba2(48, 64, 1, 128, Dtype::Bf16));
    assert_eq!(specs(&tiny, "attn"), attention(4, 128));
}

#[test]
fn heads_of_auto_width_share_the_channels() {
    for d_head in [json!("auto"), json!(null)] {
        let config = config_but("granite-4.0-h-tiny", json!({"mamba_d_head": d_head}));
        assert_eq!(read(&config).unwrap(), model("granite-4.0-h-tiny"));
    }
    let absent = config_but("bamba-9b", json!({"mamba_d_head": "absent"}));
    assert_eq!(read(&absent).unwrap(), model("bamba-9b"));
}

#[test]
fn a_dense_granite_4_needs_no_sound_mamba_keys() {
    let dense = config_but("granite-4.0-h-tiny", json!({"layer_types": vec!["attention"; 40], "mamba_n_heads": 7}));
    assert_eq!(groups(&read(&dense).unwrap()), [("attn", "0-39".to_owned())]);
}

#[test]
fn bamba_attends_where_its_indices_say() {
    let model = model("bamba-9b");
    assert_eq!(groups(&model), [("mamba", "0-8,10-17,19-26,28-31".to_owned()), ("attn", "9,18,27".to_owned())]);
    let conv = 3 * (128 * 64 + 2 * 128) * 2;
    assert_eq!(sizes(&model, "mamba"), (29, conv + 128 * 64 * 128 * 2));
    assert_eq!(sizes(&model, "attn"), (3, 2 * 8 * 128 * 2));
}

#[test]
fn falcon_h1_has_two_caches_in_every_layer() {
    let large = model("falcon-h1-7b");
    let all = || "0-43".to_owned();
    assert_eq!(groups(&large), [("mamba", all()), ("attn", all())]);
    assert_eq!(specs(&large, "mamba"), mamba2(24, 128, 1, 256, Dtype::Bf16));
    let conv = 3 * (3072 + 2 * 256) * 2;
    assert_eq!(sizes(&large, "mamba"), (44, conv + 3072 * 256 * 2));
    // 45,056 B per token of the whole model; heads of 128, not of 3072 / 12.
    assert_eq!(sizes(&large, "attn"), (44, 2 * 2 * 128 * 2));

    // mamba_d_ssm is neither hidden_size nor twice it.
    let small = model("falcon-h1-tiny-90m");
    assert_eq!(small.num_layers, 24);
    assert_eq!(specs(&small, "mamba"), mamba2(24, 32, 1, 64, Dtype::Bf16));
    assert_eq!(specs(&small, "attn"), attention(2, 64));
}

#[test]
fn falcon_h1_expands_where_mamba_d_ssm_is_null() {
    let config = config_but("falcon-h1-7b", json!({"mamba_d_ssm": null, "mamba_d_head": "auto"}));
    let model = read(&config).unwrap();
    assert_eq!(specs(&model, "mamba"), mamba2(24, 256, 1, 256, Dtype::Bf16));
}

#[test]
fn zamba2_has_a_state_in_every_layer_and_wide_heads_in_some() {
    let model = model("zamba2-2.7b");
    assert_eq!(groups(&model), [("mamba", "0-53".to_owned()), ("attn", "6,12,18,24,30,36,42,47,51".to_owned())]);
    assert_eq!(specs(&model, "mamba"), mamba2(80, 64, 1, 64, Dtype::Bf16));
    // Twice hidden_size / num_attention_heads.
    assert_eq!(specs(&model, "attn"), attention(32, 160));
    let derived = config_but("zamba2-2.7b", json!({"attention_head_dim": "absent"}));
    assert_eq!(read(&derived).unwrap(), model);
    let derived = config_but("zamba2-2.7b", json!({"mamba_headdim": "absent"}));
    assert_eq!(read(&derived).unwrap(), model);
    let layers = config_but("zamba2-2.7b", json!({"layers_block_type": "absent"}));
    assert_eq!(read(&layers).unwrap().groups, model.groups);
}

#[test]
fn mamba2_has_nothing_but_states() {
    let model = model("mamba-codestral-7b");
    assert_eq!(groups(&model), [("mamba", "0-63".to_owned())]);
    assert_eq!(specs(&model, "mamba"), mamba2(128, 64, 8, 128, Dtype::Bf16));
    let conv = 3 * (8192 + 2 * 8 * 128) * 2;
    assert_eq!(sizes(&model, "mamba"), (64, conv + 8192 * 128 * 2));
}

#[test]
fn tp_has_to_divide_several_groups_but_repeats_a_single_one() {
    let eight = model("nemotron-h-8b");
    let conv = &specs(&eight, "mamba")[0];
    let taps = 3 * 2;
    assert_eq!(conv.state_content_size(8), Ok(taps * (1024 + 2 * 128)));
    // 16 ranks would take a group each of 8: vLLM's Mamba2 layer does not start then either.
    assert!(conv.state_content_size(16).is_err());
    let one = model("bamba-9b");
    let conv = &specs(&one, "mamba")[0];
    assert_eq!(conv.state_content_size(16), Ok(taps * (512 + 2 * 128)));
}
