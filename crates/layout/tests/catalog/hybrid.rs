//! Families with recurrent state: which layer keeps what, and how many bytes that is.
//!
//! Bytes are worked out here from the published numbers, in the open, and not by the crate.

use serde_json::{Value as Json, json};
use transload_layout::catalog::{CacheDtype, Model, Options};
use transload_layout::document::Value;
use transload_layout::dtype::Dtype;
use transload_layout::spec::{
    Attention, ConvLayout, GdnConv, GdnSsm, Linear, Mamba1Conv, Mamba1Ssm, Mamba2Conv, Mamba2Ssm,
    Mla, Spec,
};

fn read(config: &Json) -> Result<Model, String> {
    let value: Value = serde_json::from_value(config.clone()).unwrap();
    Model::from_config(&value, &Options::default()).map_err(|error| error.to_string())
}

fn published(name: &str) -> Json {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/catalog/configs");
    let text = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A published config with some keys changed.
fn changed(name: &str, keys: Json) -> Json {
    let mut config = published(name);
    let keys = keys.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(keys);
    config
}

fn without(name: &str, key: &str) -> Json {
    let mut config = published(name);
    config.as_object_mut().unwrap().remove(key).unwrap();
    config
}

fn model(name: &str) -> Model {
    read(&published(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn default_of(family: &str) -> Model {
    read(&json!({"model_type": family})).unwrap_or_else(|error| panic!("{family}: {error}"))
}

/// Groups as (name, layers).
fn groups(model: &Model) -> Vec<(&str, String)> {
    let groups = model.groups.iter();
    groups
        .map(|group| (group.name.as_str(), group.layers.to_string()))
        .collect()
}

fn specs<'a>(model: &'a Model, group: &str) -> &'a [Spec] {
    let found = model.groups.iter().find(|known| known.name == group);
    &found.unwrap_or_else(|| panic!("no group {group}")).specs
}

/// Layers, and bytes of one of them: of the one state of a sequence, or of one token.
fn sizes(model: &Model, group: &str) -> (u64, u64) {
    let found = model.groups.iter().find(|known| known.name == group);
    let found = found.unwrap_or_else(|| panic!("no group {group}"));
    let bytes = found
        .specs
        .iter()
        .map(|spec| spec.num_heads(1).unwrap() * spec.state_content_size(1).unwrap());
    (layer_count(&found.layers.to_string()), bytes.sum())
}

/// How many layers a text as `0-3,5` names.
fn layer_count(layers: &str) -> u64 {
    let ranges = layers.split(',').map(|range| match range.split_once('-') {
        Some((first, last)) => last.parse::<u64>().unwrap() - first.parse::<u64>().unwrap() + 1,
        None => 1,
    });
    ranges.sum()
}

fn attention(heads: u64, head_dim: u64) -> Vec<Spec> {
    vec![Spec::Attention(Attention {
        heads,
        head_dim,
        v_head_dim: head_dim,
        dtype: Dtype::Bf16,
        sliding_window: None,
        chunk_size: None,
    })]
}

/// A Mamba2 page with a kernel of 4.
fn mamba2(heads: u64, head_dim: u64, groups: u64, state_size: u64, ssm: Dtype) -> Vec<Spec> {
    vec![
        Spec::Mamba2Conv(Mamba2Conv {
            d_inner: heads * head_dim,
            heads,
            groups,
            state_size,
            conv_states: 3,
            dtype: Dtype::Bf16,
            conv_layout: ConvLayout::Sd,
        }),
        Spec::Mamba2Ssm(Mamba2Ssm {
            heads,
            head_dim,
            state_size,
            dtype: ssm,
        }),
    ]
}

/// A Mamba1 page with a kernel of 4.
fn mamba1(d_inner: u64, state_size: u64) -> Vec<Spec> {
    vec![
        Spec::Mamba1Conv(Mamba1Conv {
            d_inner,
            conv_states: 3,
            dtype: Dtype::Bf16,
            conv_layout: ConvLayout::Sd,
        }),
        Spec::Mamba1Ssm(Mamba1Ssm {
            d_inner,
            state_size,
            dtype: Dtype::Bf16,
        }),
    ]
}

/// A page of a delta net with a kernel of 4: (heads, width) of keys and of values.
fn delta_net(keys: (u64, u64), values: (u64, u64), ssm: Dtype) -> Vec<Spec> {
    vec![
        Spec::GdnConv(GdnConv {
            key_heads: keys.0,
            key_head_dim: keys.1,
            value_heads: values.0,
            value_head_dim: values.1,
            conv_states: 3,
            dtype: Dtype::Bf16,
            conv_layout: ConvLayout::Sd,
        }),
        Spec::GdnSsm(GdnSsm {
            value_heads: values.0,
            value_head_dim: values.1,
            key_head_dim: keys.1,
            dtype: ssm,
        }),
    ]
}

#[track_caller]
fn assert_error(config: &Json, expected: &str) {
    let error = read(config).expect_err("this config is bad");
    assert_eq!(error, expected);
}

// Mamba2.

#[test]
fn nemotron_h_has_mlps_as_layers_and_its_state_in_float32() {
    let model = model("nemotron-h-8b");
    assert_eq!(model.num_layers, 52);
    let mamba = "0,2,4,6,9,11,13,15,17,20,22,24,26,28,31,33,35,37,39,42,44,46,48,50";
    assert_eq!(
        groups(&model),
        [
            ("mamba", mamba.to_owned()),
            ("attn", "7,18,29,40".to_owned())
        ]
    );
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
        (
            "layer_types",
            ["linear_attention", "moe", "full_attention", "mlp"],
        ),
    ] {
        let config =
            json!({"model_type": "nemotron_h", key: list, "hybrid_override_pattern": "MM"});
        assert_eq!(
            groups(&read(&config).unwrap()),
            [("mamba", "0".to_owned()), ("attn", "2".to_owned())]
        );
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
    let auto = changed(
        "nemotron-h-8b",
        json!({"mamba_ssm_cache_dtype": "auto", "torch_dtype": "float16"}),
    );
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
    assert_eq!(
        groups(&small),
        [("mamba", mamba.clone()), ("attn", "5,15,25,35".to_owned())]
    );
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
        let config = changed("granite-4.0-h-tiny", json!({"mamba_d_head": d_head}));
        assert_eq!(read(&config).unwrap(), model("granite-4.0-h-tiny"));
    }
    let absent = without("bamba-9b", "mamba_d_head");
    assert_eq!(read(&absent).unwrap(), model("bamba-9b"));
}

#[test]
fn a_dense_granite_4_needs_no_sound_mamba_keys() {
    let dense = changed(
        "granite-4.0-h-tiny",
        json!({"layer_types": vec!["attention"; 40], "mamba_n_heads": 7}),
    );
    assert_eq!(
        groups(&read(&dense).unwrap()),
        [("attn", "0-39".to_owned())]
    );
}

#[test]
fn bamba_attends_where_its_indices_say() {
    let model = model("bamba-9b");
    assert_eq!(
        groups(&model),
        [
            ("mamba", "0-8,10-17,19-26,28-31".to_owned()),
            ("attn", "9,18,27".to_owned())
        ]
    );
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
    let config = changed(
        "falcon-h1-7b",
        json!({"mamba_d_ssm": null, "mamba_d_head": "auto"}),
    );
    let model = read(&config).unwrap();
    assert_eq!(specs(&model, "mamba"), mamba2(24, 256, 1, 256, Dtype::Bf16));
}

#[test]
fn zamba2_has_a_state_in_every_layer_and_wide_heads_in_some() {
    let model = model("zamba2-2.7b");
    assert_eq!(
        groups(&model),
        [
            ("mamba", "0-53".to_owned()),
            ("attn", "6,12,18,24,30,36,42,47,51".to_owned())
        ]
    );
    assert_eq!(specs(&model, "mamba"), mamba2(80, 64, 1, 64, Dtype::Bf16));
    // Twice hidden_size / num_attention_heads.
    assert_eq!(specs(&model, "attn"), attention(32, 160));
    let derived = without("zamba2-2.7b", "attention_head_dim");
    assert_eq!(read(&derived).unwrap(), model);
    let derived = without("zamba2-2.7b", "mamba_headdim");
    assert_eq!(read(&derived).unwrap(), model);
    let layers = without("zamba2-2.7b", "layers_block_type");
    assert_eq!(read(&layers).unwrap(), model);
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

// Mamba1.

#[test]
fn jamba_attends_in_one_layer_of_eight() {
    let model = model("jamba-mini-1.5");
    assert_eq!(
        groups(&model),
        [
            ("mamba", "0-3,5-11,13-19,21-27,29-31".to_owned()),
            ("attn", "4,12,20,28".to_owned())
        ]
    );
    assert_eq!(specs(&model, "mamba"), mamba1(8192, 16));
    assert_eq!(sizes(&model, "mamba"), (28, 8192 * 3 * 2 + 8192 * 16 * 2));
    assert_eq!(sizes(&model, "attn"), (4, 2 * 8 * 128 * 2));
}

#[test]
fn falcon_mamba_does_not_mean_its_expand() {
    let model = model("falcon-mamba-7b");
    assert_eq!(groups(&model), [("mamba", "0-63".to_owned())]);
    assert_eq!(specs(&model, "mamba"), mamba1(8192, 16));
    let expanded = without("falcon-mamba-7b", "intermediate_size");
    assert_eq!(
        specs(&read(&expanded).unwrap(), "mamba"),
        mamba1(65_536, 16)
    );
}

// Delta nets.

#[test]
fn qwen3_next_attends_in_one_layer_of_four() {
    let model = model("qwen3-next-80b-a3b");
    let gdn = "0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30,32-34,36-38,40-42,44-46";
    assert_eq!(
        groups(&model),
        [
            ("gdn", gdn.to_owned()),
            ("attn", "3,7,11,15,19,23,27,31,35,39,43,47".to_owned())
        ]
    );
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

    let mut config = published("qwen3.5-27b");
    config["text_config"]["mamba_ssm_dtype"] = json!(null);
    let page = delta_net((16, 128), (48, 128), Dtype::Bf16);
    assert_eq!(specs(&read(&config).unwrap(), "gdn"), page);
    // Qwen3-Next has no such key.
    let next = changed("qwen3-next-80b-a3b", json!({"mamba_ssm_dtype": "float32"}));
    let page = delta_net((16, 128), (32, 128), Dtype::Bf16);
    assert_eq!(specs(&read(&next).unwrap(), "gdn"), page);
}

#[test]
fn a_list_of_layers_goes_before_an_interval() {
    let config = json!({"model_type": "qwen3_next", "num_hidden_layers": 3,
        "full_attention_interval": 1,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"]});
    assert_eq!(
        groups(&read(&config).unwrap()),
        [("attn", "0".to_owned()), ("gdn", "1-2".to_owned())]
    );
}

#[test]
fn olmo_hybrid_derives_its_delta_net_from_attention() {
    let model = default_of("olmo_hybrid");
    assert_eq!(
        groups(&model)[1],
        ("attn", "3,7,11,15,19,23,27,31".to_owned())
    );
    // Three quarters of 3840 over 30 heads for keys, twice as much for values.
    let page = delta_net((30, 96), (30, 192), Dtype::Bf16);
    assert_eq!(specs(&model, "gdn"), page);
    assert_eq!(specs(&model, "attn"), attention(30, 128));
    let few = read(&json!({"model_type": "olmo_hybrid", "num_hidden_layers": 3})).unwrap();
    assert_eq!(
        groups(&few),
        [("gdn", "0-1".to_owned()), ("attn", "2".to_owned())]
    );
}

#[test]
fn kimi_linear_counts_its_layers_from_1() {
    let model = model("kimi-linear-48b-a3b");
    assert_eq!(model.num_layers, 27);
    assert_eq!(
        groups(&model),
        [
            ("kda", "0-2,4-6,8-10,12-14,16-18,20-22,24-25".to_owned()),
            ("mla", "3,7,11,15,19,23,26".to_owned())
        ]
    );
    // The model is bf16; the state is not. A head_dim of 72 beside the table is of no account.
    let page = delta_net((32, 128), (32, 128), Dtype::F32);
    assert_eq!(specs(&model, "kda"), page);
    let latent = Mla {
        latent: 512 + 64,
        dtype: Dtype::Bf16,
        sliding_window: None,
    };
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
    assert_eq!(
        groups(&model),
        [("mla", "0".to_owned()), ("kda", "1".to_owned())]
    );
    assert_eq!(
        specs(&model, "kda"),
        delta_net((8, 64), (8, 64), Dtype::F32)
    );
}

// Linear attention and convolutions.

#[test]
fn minimax_text_01_has_a_state_for_every_query_head() {
    let model = model("minimax-text-01");
    assert_eq!(
        groups(&model)[1],
        ("attn", "7,15,23,31,39,47,55,63,71,79".to_owned())
    );
    // 64 heads of 128, where hidden_size over heads is 96.
    let state = Linear {
        heads: 64,
        head_dim: 128,
        v_head_dim: 128,
        dtype: Dtype::Bf16,
    };
    assert_eq!(specs(&model, "linear"), [Spec::Linear(state)]);
    assert_eq!(sizes(&model, "linear"), (70, 64 * 128 * 128 * 2));
    assert_eq!(sizes(&model, "attn"), (10, 2 * 8 * 128 * 2));
    for family in ["minimax_m1", "minimax"] {
        let same = changed("minimax-text-01", json!({"model_type": family}));
        assert_eq!(read(&same).unwrap().groups, model.groups);
    }
}

#[test]
fn lfm2_keeps_two_inputs_of_each_channel() {
    let dense = model("lfm2-1.2b");
    assert_eq!(
        groups(&dense),
        [
            ("conv", "0-1,3-4,6-7,9,11,13,15".to_owned()),
            ("attn", "2,5,8,10,12,14".to_owned())
        ]
    );
    assert_eq!(sizes(&dense, "conv"), (10, 2048 * 2 * 2));
    // 12,288 B per token of the whole model.
    assert_eq!(sizes(&dense, "attn"), (6, 2 * 8 * 64 * 2));
    let experts = model("lfm2-8b-a1b");
    assert_eq!(groups(&experts)[1], ("attn", "2,6,10,14,18,21".to_owned()));
    assert_eq!(sizes(&experts, "conv"), (18, 2048 * 2 * 2));
}

// What configs leave out, and what operators choose.

#[test]
fn an_empty_config_is_what_its_class_says() {
    /// Groups with their layers, and the specs of the first.
    type Expected = (&'static str, Vec<(&'static str, String)>, Vec<Spec>);
    let all = |last: u64| format!("0-{last}");
    let expected: [Expected; 15] = [
        (
            "nemotron_h",
            vec![("mamba", "0".into()), ("attn", "2".into())],
            mamba2(128, 64, 8, 128, Dtype::F32),
        ),
        (
            "granitemoehybrid",
            vec![("mamba", all(31))],
            mamba2(128, 64, 1, 256, Dtype::Bf16),
        ),
        (
            "bamba",
            vec![("mamba", all(31))],
            mamba2(128, 64, 1, 256, Dtype::Bf16),
        ),
        (
            "falcon_h1",
            vec![("mamba", all(31)), ("attn", all(31))],
            mamba2(128, 8, 1, 256, Dtype::Bf16),
        ),
        (
            "zamba2",
            vec![
                ("mamba", all(53)),
                ("attn", "6,12,18,24,30,36,42,47,51".into()),
            ],
            mamba2(8, 640, 1, 64, Dtype::Bf16),
        ),
        (
            "mamba2",
            vec![("mamba", all(63))],
            mamba2(128, 64, 8, 128, Dtype::Bf16),
        ),
        ("mamba", vec![("mamba", all(31))], mamba1(1536, 16)),
        ("falcon_mamba", vec![("mamba", all(31))], mamba1(1536, 16)),
        (
            "jamba",
            vec![
                ("mamba", "0-3,5-11,13-19,21-27,29-31".into()),
                ("attn", "4,12,20,28".into()),
            ],
            mamba1(8192, 16),
        ),
        (
            "qwen3_next",
            vec![
                (
                    "gdn",
                    "0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30,32-34,36-38,40-42,44-46".into(),
                ),
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
                (
                    "gdn",
                    "0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30,32-34,36-38".into(),
                ),
                ("attn", "3,7,11,15,19,23,27,31,35,39".into()),
            ],
            delta_net((16, 128), (32, 128), Dtype::Bf16),
        ),
        (
            "kimi_linear",
            vec![
                ("kda", "0-3,5-7,9-11,13-15,17-19,21-23,25-26".into()),
                ("mla", "4,8,12,16,20,24".into()),
            ],
            delta_net((32, 128), (32, 128), Dtype::F32),
        ),
        (
            "minimax",
            vec![
                ("attn", "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30".into()),
                (
                    "linear",
                    "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31".into(),
                ),
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
        assert_eq!(
            specs(&model, "attn"),
            attention(heads, head_dim),
            "{family}"
        );
    }
    let granite = json!({"model_type": "granitemoehybrid", "num_hidden_layers": 1,
        "layer_types": ["attention"]});
    // Its class has no num_key_value_heads of its own.
    assert_eq!(specs(&read(&granite).unwrap(), "attn"), attention(32, 128));
}

#[test]
fn a_cache_type_is_for_tokens_and_leaves_states_alone() {
    let options = Options {
        cache_dtype: CacheDtype::from_name("fp8"),
    };
    for (name, state, token) in [
        ("nemotron-h-8b", "mamba", "attn"),
        ("jamba-mini-1.5", "mamba", "attn"),
        ("qwen3-next-80b-a3b", "gdn", "attn"),
        ("kimi-linear-48b-a3b", "kda", "mla"),
        ("minimax-text-01", "linear", "attn"),
        ("lfm2-1.2b", "conv", "attn"),
    ] {
        let value: Value = serde_json::from_value(published(name)).unwrap();
        let (plain, fp8) = (model(name), Model::from_config(&value, &options).unwrap());
        assert_eq!(specs(&fp8, state), specs(&plain, state), "{name}");
        let (layers, bytes) = sizes(&plain, token);
        assert_eq!(sizes(&fp8, token), (layers, bytes / 2), "{name}");
    }
}

// Faults: one message, with the path of the key.

#[test]
fn layers_that_are_told_wrong() {
    let pattern = |pattern| json!({"model_type": "nemotron_h", "hybrid_override_pattern": pattern});
    assert_error(
        &pattern("M*xE"),
        "hybrid_override_pattern: has 'x' for layer 2: it has to be of M (mamba), * (attention), \
         - (mlp) and E (experts)",
    );
    assert_error(&pattern(""), "hybrid_override_pattern: cannot be empty");
    assert_error(
        &pattern(&*"M".repeat(65_537)),
        "hybrid_override_pattern: cannot have more than 65536 layers, not 65537",
    );
    assert_error(
        &changed("nemotron-h-8b", json!({"num_hidden_layers": 50})),
        "hybrid_override_pattern: has 52 layers, but num_hidden_layers is 50",
    );
    assert_error(
        &without("nemotron-h-8b", "hybrid_override_pattern"),
        "hybrid_override_pattern: is missing: num_hidden_layers is 52, and the class knows of 4 \
         layers only",
    );
    assert_error(
        &json!({"model_type": "nemotron_h", "layers_block_type": ["mamba", "mlp", "rwkv"]}),
        "layers_block_type[2]: has to be one of linear_attention, full_attention, mlp, moe, mamba, \
         attention, not \"rwkv\"",
    );
    assert_error(
        &changed("granite-4.0-h-small", json!({"num_hidden_layers": 41})),
        "layer_types: has 40 layers, but num_hidden_layers is 41",
    );
    assert_error(
        &changed("bamba-9b", json!({"attn_layer_indices": [9, 32]})),
        "attn_layer_indices[1]: is 32, but the layers are 0 to 31",
    );
    assert_error(
        &changed("lfm2-1.2b", json!({"full_attn_idxs": [16]})),
        "full_attn_idxs[0]: is 16, but the layers are 0 to 15",
    );
    assert_error(
        &changed("jamba-mini-1.5", json!({"attn_layer_offset": 8})),
        "attn_layer_offset: is 8: it has to be below attn_layer_period = 8",
    );
    assert_error(
        &changed("jamba-mini-1.5", json!({"attn_layer_period": 0})),
        "attn_layer_period: cannot be 0",
    );
    assert_error(
        &changed("qwen3-next-80b-a3b", json!({"full_attention_interval": 0})),
        "full_attention_interval: cannot be 0",
    );
    assert_error(
        &changed(
            "minimax-text-01",
            json!({"num_hidden_layers": 2, "attn_type_list": [0, 2]}),
        ),
        "attn_type_list[1]: has to be 0 (linear) or 1 (full), not 2",
    );
    assert_error(
        &without("minimax-text-01", "attn_type_list"),
        "attn_type_list: is missing: it has to list 0 (linear) or 1 (full) for each layer",
    );
    assert_error(
        &json!({"model_type": "lfm2_moe"}),
        "layer_types: is missing: it has to list conv or full_attention for each layer",
    );
}

#[test]
fn kimi_layers_that_are_told_wrong() {
    let told = |linear: Json| json!({"model_type": "kimi_linear", "num_hidden_layers": 4, "linear_attn_config": linear});
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
        (
            json!([1]),
            "linear_attn_config: has to be a table, not a list",
        ),
        (
            json!({"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 0}),
            "linear_attn_config.num_heads: cannot be 0",
        ),
    ] {
        assert_error(&told(linear), expected);
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
        (
            "falcon-h1-7b",
            json!({"mamba_d_ssm": 0}),
            "mamba_d_ssm: cannot be 0",
        ),
        (
            "mamba-codestral-7b",
            json!({"expand": 3}),
            "head_dim: is 64, but expand * hidden_size = 12288 over 128 heads is 96",
        ),
        (
            "nemotron-h-8b",
            json!({"n_groups": 3}),
            "n_groups: is 3, which does not divide mamba_num_heads = 128",
        ),
        (
            "nemotron-h-8b",
            json!({"conv_kernel": 1}),
            "conv_kernel: has to be 2 or more, or there is nothing to keep",
        ),
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
        assert_error(&changed(name, keys), expected);
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
        let error = read(&changed(name, json!({key: "auto"}))).unwrap_err();
        let expected = format!("{key}: has to be a whole number, not \"auto\"");
        assert_eq!(error, expected, "{name}");
    }
    let error = read(&changed("bamba-9b", json!({"mamba_d_head": "wide"}))).unwrap_err();
    assert_eq!(
        error,
        "mamba_d_head: has to be a whole number, not \"wide\""
    );
}
