//! Reads configs, and describes briefly what a model caches.

use serde_json::{Value as Json, json};
use transload_layout::Dtype;
use transload_layout::catalog::{CacheDtype, ConfigError, Model, Options};
use transload_layout::document::Value;
use transload_layout::spec::{
    Attention, ConvLayout, GdnConv, GdnSsm, Mamba1Conv, Mamba1Ssm, Mamba2Conv, Mamba2Ssm, Spec,
};

pub(crate) fn config(name: &str) -> Json {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/catalog/configs");
    let path = format!("{folder}/{name}.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns a published config with changed values under some keys. The value `"absent"` removes the key.
pub(crate) fn config_but(name: &str, changes: Json) -> Json {
    let mut config = config(name);
    let table = config.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        match value == "absent" {
            true => drop(table.remove(key)),
            false => drop(table.insert(key.clone(), value.clone())),
        }
    }
    config
}

pub(crate) fn bare(family: &str) -> Json {
    json!({ "model_type": family })
}

pub(crate) fn read(config: &Json) -> Result<Model, ConfigError> {
    let value: Value = serde_json::from_value(config.clone()).unwrap();
    Model::from_config(&value, &Options::default())
}

pub(crate) fn read_in(dtype: &str, config: &Json) -> Result<Model, ConfigError> {
    let value: Value = serde_json::from_value(config.clone()).unwrap();
    let cache_dtype = CacheDtype::from_name(dtype);
    assert!(cache_dtype.is_some(), "{dtype}");
    Model::from_config(&value, &Options { cache_dtype })
}

pub(crate) fn fault(config: &Json) -> String {
    match read(config) {
        Ok(model) => panic!("{config} is {model:?}"),
        Err(error) => error.to_string(),
    }
}

/// Describes each group briefly: `attn 32: 8x(128+128) bf16`.
pub(crate) fn caches(model: &Model) -> Vec<String> {
    let groups = model.groups.iter().map(|group| {
        let specs: Vec<String> = group.specs.iter().map(in_short).collect();
        let layers = group.layers.ids().len();
        format!("{} {layers}: {}", group.name, specs.join("; "))
    });
    groups.collect()
}

fn in_short(spec: &Spec) -> String {
    let (what, window) = match spec {
        Spec::Attention(spec) => {
            let (k, v) = (spec.head_dim, spec.v_head_dim);
            let what = format!("{}x({k}+{v}) {}", spec.heads, spec.dtype.name());
            match spec.chunk_size {
                Some(chunk) => (format!("{what}, chunk {chunk}"), spec.sliding_window),
                None => (what, spec.sliding_window),
            }
        }
        Spec::Mla(spec) => {
            let what = format!("{} {}", spec.latent, spec.dtype.name());
            (what, spec.sliding_window)
        }
        Spec::Compressed(spec) | Spec::Indexer(spec) => {
            let (data, scale) = (spec.data_bytes, spec.scale_bytes);
            let what = format!("{data}+{scale} B of {}", spec.tokens_per_state);
            (what, spec.sliding_window)
        }
        Spec::Opaque(spec) => {
            let what = format!("{}x{} B of {}", spec.heads, spec.entry_bytes, spec.tokens_per_state);
            (what, None)
        }
        other => (other.kind().to_owned(), None),
    };
    match window {
        Some(window) => format!("{what}, window {window}"),
        None => what,
    }
}

/// Returns the bytes by which that many tokens extend a long sequence. Full windows and chunks do not grow.
pub(crate) fn growth(model: &Model, tokens: u64) -> u64 {
    let far = 1 << 20;
    let specs = model.groups.iter().flat_map(|group| {
        let layers = group.layers.ids().len() as u64;
        group.specs.iter().map(move |spec| (layers, spec))
    });
    let bytes = specs.map(|(layers, spec)| match spec.first_token_needed(0, far) {
        0 => layers * state_bytes(spec) * tokens / spec.tokens_per_state().unwrap(),
        _ => 0,
    });
    bytes.sum()
}

pub(crate) fn windows(model: &Model) -> u64 {
    let specs = model.groups.iter().flat_map(|group| {
        let layers = group.layers.ids().len() as u64;
        group.specs.iter().map(move |spec| (layers, spec))
    });
    let bytes = specs.map(|(layers, spec)| {
        let window = match spec {
            Spec::Attention(spec) => spec.sliding_window,
            Spec::Mla(spec) => spec.sliding_window,
            Spec::Compressed(spec) => spec.sliding_window,
            _ => None,
        };
        layers * state_bytes(spec) * window.unwrap_or(0)
    });
    bytes.sum()
}

fn state_bytes(spec: &Spec) -> u64 {
    spec.state_content_size(1).unwrap() * spec.num_heads(1).unwrap()
}

pub(crate) fn layers(model: &Model, group: &str) -> String {
    let found = model.groups.iter().find(|known| known.name == group);
    found.unwrap_or_else(|| panic!("no {group} in {model:?}")).layers.to_string()
}

pub(crate) fn model(name: &str) -> Model {
    read(&config(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(crate) fn default_of(family: &str) -> Model {
    read(&bare(family)).unwrap_or_else(|error| panic!("{family}: {error}"))
}

pub(crate) fn groups(model: &Model) -> Vec<(&str, String)> {
    let groups = model.groups.iter();
    groups.map(|group| (group.name.as_str(), group.layers.to_string())).collect()
}

pub(crate) fn specs<'a>(model: &'a Model, group: &str) -> &'a [Spec] {
    let found = model.groups.iter().find(|known| known.name == group);
    &found.unwrap_or_else(|| panic!("no group {group}")).specs
}

/// Returns the number of layers, and the bytes of one of them: of its one state for a sequence, or of one token.
pub(crate) fn sizes(model: &Model, group: &str) -> (u64, u64) {
    let found = model.groups.iter().find(|known| known.name == group);
    let found = found.unwrap_or_else(|| panic!("no group {group}"));
    let bytes = found.specs.iter().map(|spec| spec.num_heads(1).unwrap() * spec.state_content_size(1).unwrap());
    (found.layers.ids().len() as u64, bytes.sum())
}

pub(crate) fn attention(heads: u64, head_dim: u64) -> Vec<Spec> {
    vec![Spec::Attention(Attention {
        heads,
        head_dim,
        v_head_dim: head_dim,
        dtype: Dtype::Bf16,
        sliding_window: None,
        chunk_size: None,
    })]
}

/// Returns the specs of a Mamba2 page with a kernel of 4.
pub(crate) fn mamba2(heads: u64, head_dim: u64, groups: u64, state_size: u64, ssm: Dtype) -> Vec<Spec> {
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
        Spec::Mamba2Ssm(Mamba2Ssm { heads, head_dim, state_size, dtype: ssm }),
    ]
}

/// Returns the specs of a Mamba1 page with a kernel of 4.
pub(crate) fn mamba1(d_inner: u64, state_size: u64) -> Vec<Spec> {
    vec![
        Spec::Mamba1Conv(Mamba1Conv { d_inner, conv_states: 3, dtype: Dtype::Bf16, conv_layout: ConvLayout::Sd }),
        Spec::Mamba1Ssm(Mamba1Ssm { d_inner, state_size, dtype: Dtype::Bf16 }),
    ]
}

/// Returns the specs of a delta net's page with a kernel of 4. Arguments are (heads, width) of keys and of values.
pub(crate) fn delta_net(keys: (u64, u64), values: (u64, u64), ssm: Dtype) -> Vec<Spec> {
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
        Spec::GdnSsm(GdnSsm { value_heads: values.0, value_head_dim: values.1, key_head_dim: keys.1, dtype: ssm }),
    ]
}

#[track_caller]
pub(crate) fn assert_fault(config: &Json, expected: &str) {
    assert_eq!(fault(config), expected);
}
