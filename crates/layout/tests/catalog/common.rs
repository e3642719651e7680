//! Reads configs, and says in short what a model caches.

use serde_json::{Value as Json, json};
use transload_layout::catalog::{CacheDtype, ConfigError, Model, Options};
use transload_layout::document::Value;
use transload_layout::spec::Spec;

/// The text of a published config.
pub(crate) fn config(name: &str) -> Json {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/catalog/configs");
    let path = format!("{folder}/{name}.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The same with other values under some keys, or without them where the value is `"absent"`.
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

/// A config that says no more than its family.
pub(crate) fn bare(family: &str) -> Json {
    json!({ "model_type": family })
}

pub(crate) fn read(config: &Json) -> Result<Model, ConfigError> {
    let value: Value = serde_json::from_value(config.clone()).unwrap();
    Model::from_config(&value, &Options::default())
}

/// With a cache of another type than the model's.
pub(crate) fn read_in(dtype: &str, config: &Json) -> Result<Model, ConfigError> {
    let value: Value = serde_json::from_value(config.clone()).unwrap();
    let cache_dtype = CacheDtype::from_name(dtype);
    assert!(cache_dtype.is_some(), "{dtype}");
    Model::from_config(&value, &Options { cache_dtype })
}

/// What is wrong with a config.
pub(crate) fn fault(config: &Json) -> String {
    match read(config) {
        Ok(model) => panic!("{config} is {model:?}"),
        Err(error) => error.to_string(),
    }
}

/// Each group in short: `attn 32: 8x(128+128) bf16`.
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
            let what = format!(
                "{}x{} B of {}",
                spec.heads, spec.entry_bytes, spec.tokens_per_state
            );
            (what, None)
        }
        other => (other.kind().to_owned(), None),
    };
    match window {
        Some(window) => format!("{what}, window {window}"),
        None => what,
    }
}

/// Bytes of so many tokens of a sequence that is long already, all layers together: what windows and chunks
/// hold does not grow.
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

/// Bytes that full windows hold.
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

/// Bytes of one state of one layer, all heads.
fn state_bytes(spec: &Spec) -> u64 {
    spec.state_content_size(1).unwrap() * spec.num_heads(1).unwrap()
}

/// Layers of a group, as text.
pub(crate) fn layers(model: &Model, group: &str) -> String {
    let found = model.groups.iter().find(|known| known.name == group);
    found
        .unwrap_or_else(|| panic!("no {group} in {model:?}"))
        .layers
        .to_string()
}
