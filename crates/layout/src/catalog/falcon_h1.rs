//! Falcon-H1: every layer has both a Mamba2 page (`mamba`) and keys and values (`attn`).
//!
//! The Mamba2 part has `mamba_d_ssm` channels, or `mamba_expand * hidden_size` if that key is null.

use super::Kin;
use super::attention::keys_and_values;
use super::config::Preset::{Number, Text};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::mamba2::{Inner, hybrid_page};
use super::recurrent::{Mixer, gather};
use crate::spec::Spec;

const FALCON_H1: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(4096)),
    ("num_attention_heads", Number(32)),
    ("num_key_value_heads", Number(8)),
    ("mamba_d_ssm", Number(1024)),
    ("mamba_n_heads", Number(128)),
    ("mamba_d_head", Text("auto")),
    ("mamba_n_groups", Number(1)),
    ("mamba_d_state", Number(256)),
    ("mamba_d_conv", Number(4)),
    ("mamba_expand", Number(2)),
];

pub(super) const KIN: Kin = Kin { members: &[("falcon_h1", FALCON_H1)], caches };

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let mixers = config.layers("num_hidden_layers")?;
    let mixers: Vec<Mixer> = (0..mixers).map(|_| Mixer::Both).collect();
    gather(
        config,
        &mixers,
        ("mamba", || hybrid_page(config, &inner(config)?)),
        ("attn", || Ok(Spec::Attention(keys_and_values(config)?))),
    )
}

fn inner(config: &Config<'_>) -> Result<Inner, ConfigError> {
    match config.optional("mamba_d_ssm")? {
        Some(0) => Err(config.fault("mamba_d_ssm", "cannot be 0")),
        Some(size) => Ok(Inner { size, called: "mamba_d_ssm" }),
        None => Inner::expanded(config),
    }
}
