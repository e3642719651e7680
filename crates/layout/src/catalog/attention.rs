//! Keys and values in every layer, of every token: `[layers, B, S, kv_heads, [K, V]]` as `attn`.
//!
//! Heads that share keys and values (`num_key_value_heads`) default to all of them where the class has no
//! number of its own; `head_dim`, where a config has it, is not always `hidden_size / num_attention_heads`
//! (Qwen3, Gemma).

use super::Kin;
use super::config::Preset::Number;
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use crate::spec::{Attention, Spec};

pub(super) const KINS: &[Kin] = &[Kin {
    members: &[
        ("llama", LLAMA),
        ("apertus", LLAMA),
        ("arcee", &sizes(32, 2560, 32)),
        ("bitnet", &sizes_grouped(30, 2560, 20, 5)),
        ("cohere", &sizes(40, 8192, 64)),
        ("diffllama", &sizes(16, 2048, 32)),
        ("ernie4_5", &sizes_with_head_dim(18, 1024, 16, 2, 128)),
        ("ernie4_5_moe", &sizes_grouped(28, 2560, 20, 4)),
        ("flex_olmo", LLAMA),
        ("gemma", &sizes_with_head_dim(28, 3072, 16, 16, 256)),
        ("glm", &sizes_with_head_dim(40, 4096, 32, 2, 128)),
        ("glm4", &sizes_with_head_dim(40, 4096, 32, 2, 128)),
        ("glm4_moe", &sizes_grouped(46, 4096, 96, 8)),
        ("glm4v_moe_text", &sizes_grouped(46, 4096, 96, 8)),
        ("glm4v_text", &sizes_grouped(40, 4096, 32, 2)),
        ("glm_ocr_text", &sizes_grouped(16, 1024, 16, 8)),
        ("granite", LLAMA),
        ("granitemoe", LLAMA),
        ("granitemoeshared", LLAMA),
        ("helium", &sizes_with_head_dim(24, 2560, 20, 20, 128)),
        ("hunyuan_v1_dense", LLAMA),
        ("hunyuan_v1_moe", LLAMA),
        ("hy_v3", &sizes_with_head_dim(80, 4096, 64, 8, 128)),
        ("hyperclovax", LLAMA),
        ("internlm3", &sizes_with_head_dim(48, 4096, 32, 2, 128)),
        ("iquestcoder", &sizes_with_head_dim(80, 5120, 40, 8, 128)),
        ("jais2", &sizes(32, 3328, 26)),
        ("minimax_m2", &sizes_with_head_dim(62, 3072, 48, 8, 128)),
        ("nanochat", &sizes(12, 768, 6)),
        ("nemotron", &sizes(32, 6144, 48)),
        ("olmo", LLAMA),
        ("olmo2", LLAMA),
        ("olmoe", &sizes(16, 2048, 16)),
        ("phi", &sizes(24, 2048, 32)),
        ("qwen3_omni_moe_text", &sizes_grouped(28, 2048, 28, 4)),
        ("qwen3_vl_moe_text", &sizes_grouped(24, 2048, 16, 16)),
        ("qwen3_vl_text", &sizes_with_head_dim(32, 4096, 32, 32, 128)),
        ("seed_oss", &sizes_with_head_dim(64, 4096, 80, 8, 128)),
        ("solar_open", &sizes_with_head_dim(48, 4096, 64, 8, 128)),
        ("stablelm", &sizes_grouped(32, 2560, 32, 32)),
        // Every head has keys and values of its own: their configs know no other number.
        ("biogpt", &sizes(24, 1024, 16)),
        ("gpt_neox", &sizes(44, 6144, 64)),
        ("opt", &sizes(12, 768, 12)),
        ("persimmon", &sizes(36, 4096, 64)),
    ],
    caches,
}];

const LLAMA: Presets = &sizes(32, 4096, 32);

/// A preset of a config class.
pub(super) type Entry = (&'static str, super::config::Preset);

/// What a class puts where `num_hidden_layers`, `hidden_size` and `num_attention_heads` are absent; each head
/// has keys and values of its own.
pub(super) const fn sizes(layers: u64, hidden: u64, heads: u64) -> [Entry; 3] {
    [
        ("num_hidden_layers", Number(layers)),
        ("hidden_size", Number(hidden)),
        ("num_attention_heads", Number(heads)),
    ]
}

/// The same with `num_key_value_heads`.
pub(super) const fn sizes_grouped(layers: u64, hidden: u64, heads: u64, kv: u64) -> [Entry; 4] {
    let [a, b, c] = sizes(layers, hidden, heads);
    [a, b, c, ("num_key_value_heads", Number(kv))]
}

/// The same with `head_dim`.
pub(super) const fn sizes_with_head_dim(
    layers: u64,
    hidden: u64,
    heads: u64,
    kv: u64,
    head_dim: u64,
) -> [Entry; 5] {
    let [a, b, c, d] = sizes_grouped(layers, hidden, heads, kv);
    [a, b, c, d, ("head_dim", Number(head_dim))]
}

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    Ok(in_every_layer(layers, keys_and_values(config)?))
}

/// The same attention in every layer.
pub(super) fn in_every_layer(layers: u64, attention: Attention) -> Layers {
    let mut layers = Layers::of(layers);
    for layer in layers.ids() {
        layers.add(layer, "attn", [Spec::Attention(attention.clone())]);
    }
    layers
}

/// What a layer of grouped-query attention caches, all tokens of it.
pub(super) fn keys_and_values(config: &Config<'_>) -> Result<Attention, ConfigError> {
    let heads = match config.optional("num_key_value_heads")? {
        Some(heads) if heads > 0 => heads,
        Some(_) => return Err(config.fault("num_key_value_heads", "cannot be 0")),
        None => config.positive("num_attention_heads")?,
    };
    attention(config, heads, head_dim(config)?)
}

/// Keys and values of one width, of all tokens.
pub(super) fn attention(
    config: &Config<'_>,
    heads: u64,
    head_dim: u64,
) -> Result<Attention, ConfigError> {
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
