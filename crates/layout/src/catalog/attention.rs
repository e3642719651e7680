//! Families that cache keys and values of every token in every layer: `[layers, B, S, kv_heads, [K, V]]` as `attn`.
//!
//! The number of heads with keys and values (`num_key_value_heads`) defaults to all heads if the class has no preset.
//! `head_dim` is read if a config has it, since it is not always `hidden_size / num_attention_heads` (Qwen3, Gemma).

use std::collections::BTreeMap;

use super::Kin;
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::presets::class;
use crate::document::Value;
use crate::spec::{Attention, Spec};

pub(super) const KINS: &[Kin] = &[Kin {
    members: &[
        ("llama", LLAMA),
        ("apertus", LLAMA),
        ("arcee", &class(32, 2560, 32).presets),
        ("bitnet", &class(30, 2560, 20).kv(5).presets),
        ("cohere", &class(40, 8192, 64).presets),
        ("diffllama", &class(16, 2048, 32).presets),
        ("ernie4_5", &class(18, 1024, 16).kv(2).dim(128).presets),
        ("ernie4_5_moe", &class(28, 2560, 20).kv(4).presets),
        ("flex_olmo", LLAMA),
        ("gemma", &class(28, 3072, 16).kv(16).dim(256).presets),
        ("glm", &class(40, 4096, 32).kv(2).dim(128).presets),
        ("glm4", &class(40, 4096, 32).kv(2).dim(128).presets),
        ("glm4_moe", &class(46, 4096, 96).kv(8).presets),
        ("glm4v_moe_text", &class(46, 4096, 96).kv(8).presets),
        ("glm4v_text", &class(40, 4096, 32).kv(2).presets),
        ("glm_ocr_text", &class(16, 1024, 16).kv(8).presets),
        ("granite", LLAMA),
        ("granitemoe", LLAMA),
        ("granitemoeshared", LLAMA),
        ("helium", &class(24, 2560, 20).kv(20).dim(128).presets),
        ("hunyuan_v1_dense", LLAMA),
        ("hunyuan_v1_moe", LLAMA),
        ("hy_v3", &class(80, 4096, 64).kv(8).dim(128).presets),
        ("hyperclovax", LLAMA),
        ("internlm3", &class(48, 4096, 32).kv(2).dim(128).presets),
        ("iquestcoder", &class(80, 5120, 40).kv(8).dim(128).presets),
        ("jais2", &class(32, 3328, 26).presets),
        ("minimax_m2", &class(62, 3072, 48).kv(8).dim(128).presets),
        ("nanochat", &class(12, 768, 6).presets),
        ("nemotron", &class(32, 6144, 48).presets),
        ("olmo", LLAMA),
        ("olmo2", LLAMA),
        ("olmoe", &class(16, 2048, 16).presets),
        ("phi", &class(24, 2048, 32).presets),
        ("qwen3_omni_moe_text", &class(28, 2048, 28).kv(4).presets),
        ("qwen3_vl_moe_text", &class(24, 2048, 16).kv(16).presets),
        ("qwen3_vl_text", &class(32, 4096, 32).kv(32).dim(128).presets),
        ("seed_oss", &class(64, 4096, 80).kv(8).dim(128).presets),
        ("solar_open", &class(48, 4096, 64).kv(8).dim(128).presets),
        ("stablelm", &class(32, 2560, 32).kv(32).presets),
        // Every head has keys and values of its own. These configs have no other number.
        ("biogpt", &class(24, 1024, 16).presets),
        ("gpt_neox", &class(44, 6144, 64).presets),
        ("opt", &class(12, 768, 12).presets),
        ("persimmon", &class(36, 4096, 64).presets),
    ],
    caches,
}];

const LLAMA: Presets = &class(32, 4096, 32).presets;

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    in_every_layer(config, layers, &keys_and_values(config)?)
}

/// Returns layers that all cache the same attention, except those with keys of their own in `per_layer_config`.
pub(super) fn in_every_layer(config: &Config<'_>, layers: u64, attention: &Attention) -> Result<Layers, ConfigError> {
    let (mut layers, own) = (Layers::of(layers), LayerOverrides::read(config, layers)?);
    for layer in layers.ids() {
        let attention = own.applied(layer, Mask::All, attention.clone())?;
        layers.add(layer, "attn", [Spec::Attention(attention)]);
    }
    Ok(layers)
}

pub(super) fn keys_and_values(config: &Config<'_>) -> Result<Attention, ConfigError> {
    let heads = match config.optional("num_key_value_heads")? {
        Some(heads) if heads > 0 => heads,
        Some(_) => return Err(config.fault("num_key_value_heads", "cannot be 0")),
        None => {
            let heads = config.positive("num_attention_heads")?;
            config.assume("num_key_value_heads", heads);
            heads
        }
    };
    attention(config, heads, head_dim(config)?)
}

pub(super) fn attention(config: &Config<'_>, heads: u64, head_dim: u64) -> Result<Attention, ConfigError> {
    Ok(Attention {
        heads,
        head_dim,
        v_head_dim: head_dim,
        dtype: config.plain_cache_dtype()?,
        sliding_window: None,
        chunk_size: None,
    })
}

/// Returns `head_dim`, or the share of each head in `hidden_size`.
pub(super) fn head_dim(config: &Config<'_>) -> Result<u64, ConfigError> {
    match config.optional("head_dim")? {
        Some(0) => Err(config.fault("head_dim", "cannot be 0")),
        Some(head_dim) => Ok(head_dim),
        None => {
            let head_dim = config.share("hidden_size", "num_attention_heads")?;
            config.assume("head_dim", head_dim);
            Ok(head_dim)
        }
    }
}

/// The attention mask that a layer type asks for. Its size may be absent from the config.
#[derive(Clone, Copy)]
pub(super) enum Mask {
    All,
    Window,
    Chunk,
}

/// Layers whose heads or windows differ from the rest: in `per_layer_config`, a table of keys for each such layer.
pub(super) struct LayerOverrides<'a>(BTreeMap<u64, Config<'a>>);

impl<'a> LayerOverrides<'a> {
    pub(super) fn read(config: &Config<'a>, layers: u64) -> Result<Self, ConfigError> {
        const KEY: &str = "per_layer_config";
        let mut own = BTreeMap::new();
        let table = config.inside(KEY)?;
        if let Some(table) = &table
            && let Value::Table(entries) = table.table
        {
            for (name, value) in entries {
                let layer = name.parse().ok().filter(|layer| *layer < layers);
                let Some(layer) = layer else {
                    let name = Value::Text(name.clone()).describe();
                    let range = format!("0 to {}", layers - 1);
                    let problem = format!("has {name}, which is none of the layers {range}");
                    return Err(config.fault(KEY, problem));
                };
                let Some(keys) = table.entered(name, value)? else {
                    continue;
                };
                // Names of modules. Only the model's own code knows what they cache.
                if keys.texts("skip")?.is_some_and(|skipped| !skipped.is_empty()) {
                    return Err(keys.fault("skip", "may leave out a cache or not: it is not known"));
                }
                own.insert(layer, keys);
            }
        }
        Ok(Self(own))
    }

    pub(super) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns what this layer caches, given what the other layers cache.
    pub(super) fn applied(&self, layer: u64, mask: Mask, mut attention: Attention) -> Result<Attention, ConfigError> {
        let Some(keys) = self.0.get(&layer) else {
            return Ok(attention);
        };
        if keys.get("num_key_value_heads").is_some() {
            attention.heads = keys.positive("num_key_value_heads")?;
        }
        if keys.get("head_dim").is_some() {
            attention.head_dim = keys.positive("head_dim")?;
            attention.v_head_dim = attention.head_dim;
        }
        let (key, reach) = match mask {
            Mask::All => return Ok(attention),
            Mask::Window => ("sliding_window", &mut attention.sliding_window),
            Mask::Chunk => ("attention_chunk_size", &mut attention.chunk_size),
        };
        if keys.get(key).is_some() {
            *reach = match keys.optional(key)? {
                Some(0) => return Err(keys.fault(key, "cannot be 0")),
                tokens => tokens,
            };
        }
        Ok(attention)
    }
}
