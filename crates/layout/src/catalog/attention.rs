//! Keys and values in every layer, of every token: `[layers, B, S, kv_heads, [K, V]]` as `attn`.
//!
//! Heads that share keys and values (`num_key_value_heads`) default to all of them; `head_dim`, where a
//! config has it, is not always `hidden_size / num_attention_heads` (Qwen3).

use super::Kin;
use super::config::Preset::Number;
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use crate::spec::{Attention, Spec};

const LLAMA: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(4096)),
    ("num_attention_heads", Number(32)),
];

pub(super) const KIN: Kin = Kin {
    members: &[("llama", LLAMA)],
    caches,
};

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let mut layers = Layers::of(config.layers("num_hidden_layers")?);
    let attention = Spec::Attention(keys_and_values(config)?);
    for layer in layers.ids() {
        layers.add(layer, "attn", [attention.clone()]);
    }
    Ok(layers)
}

/// What a layer of grouped-query attention caches, all tokens of it.
pub(super) fn keys_and_values(config: &Config<'_>) -> Result<Attention, ConfigError> {
    let heads = match config.optional("num_key_value_heads")? {
        Some(heads) if heads > 0 => heads,
        Some(_) => return Err(config.fault("num_key_value_heads", "cannot be 0")),
        None => config.positive("num_attention_heads")?,
    };
    let head_dim = head_dim(config)?;
    Ok(Attention {
        heads,
        head_dim,
        v_head_dim: head_dim,
        dtype: config.plain_cache_dtype()?,
        sliding_window: None,
        chunk_size: None,
    })
}

/// `head_dim`, or what is left for each head of `hidden_size`.
pub(super) fn head_dim(config: &Config<'_>) -> Result<u64, ConfigError> {
    match config.optional("head_dim")? {
        Some(0) => Err(config.fault("head_dim", "cannot be 0")),
        Some(head_dim) => Ok(head_dim),
        None => config.share("hidden_size", "num_attention_heads"),
    }
}
