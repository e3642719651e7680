//! Zamba2: a Mamba2 page (`mamba`) in every layer, and keys and values (`attn`) in the `hybrid` layers too.
//!
//! The hybrid layers share a few blocks of weights, but each has its own cache. Attention gets the hidden state and the
//! embedding together, so its heads are `2 * hidden_size / num_attention_heads` wide.

use super::Kin;
use super::attention::keys_and_values;
use super::config::Preset::{Number, Texts};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::mamba2::{self, Inner, Keys};
use super::recurrent::{Mixer, Word, check_count, gather, listed};
use crate::spec::{Attention, Spec};

const ZAMBA2: Presets = &[
    ("num_hidden_layers", Number(54)),
    ("layers_block_type", Texts(&BLOCKS)),
    ("hidden_size", Number(2560)),
    ("num_attention_heads", Number(32)),
    ("n_mamba_heads", Number(8)),
    ("mamba_ngroups", Number(1)),
    ("mamba_d_state", Number(64)),
    ("mamba_d_conv", Number(4)),
    ("mamba_expand", Number(2)),
];

pub(super) const KIN: Kin = Kin { members: &[("zamba2", ZAMBA2)], caches };

/// The default layers: those of Zamba2-2.7B.
const BLOCKS: [&str; 54] = {
    let mut blocks = ["linear_attention"; 54];
    let hybrid = [6, 12, 18, 24, 30, 36, 42, 47, 51];
    let mut i = 0;
    while i < hybrid.len() {
        blocks[hybrid[i]] = "hybrid";
        i += 1;
    }
    blocks
};

const WORDS: &[Word] = &[("linear_attention", Mixer::Recurrent), ("hybrid", Mixer::Both), ("mamba", Mixer::Recurrent)];

const KEYS: Keys = Keys {
    heads: "n_mamba_heads",
    head_dim: "mamba_headdim",
    groups: "mamba_ngroups",
    state_size: "mamba_d_state",
    conv_kernel: "mamba_d_conv",
};

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let key = match config.get("layers_block_type") {
        None if config.get("layer_types").is_some() => "layer_types",
        _ => "layers_block_type",
    };
    let mixers = listed(config, key, WORDS)?.unwrap_or_default();
    let mixers = check_count(config, key, mixers, config.layers("num_hidden_layers")?)?;
    gather(config, &mixers, ("mamba", || page(config)), ("attn", || Ok(Spec::Attention(attention(config)?))))
}

fn page(config: &Config<'_>) -> Result<Vec<Spec>, ConfigError> {
    let (inner, head_dim) = (Inner::expanded(config)?, config.optional(KEYS.head_dim)?);
    mamba2::page(config, &KEYS, &inner, head_dim, config.model_dtype()?)
}

fn attention(config: &Config<'_>) -> Result<Attention, ConfigError> {
    let attention = keys_and_values(config)?;
    let head_dim = match config.optional("attention_head_dim")? {
        Some(0) => return Err(config.fault("attention_head_dim", "cannot be 0")),
        Some(head_dim) => head_dim,
        None if config.get("head_dim").is_some() => attention.head_dim,
        None => attention.head_dim * 2,
    };
    Ok(Attention { head_dim, v_head_dim: head_dim, ..attention })
}
