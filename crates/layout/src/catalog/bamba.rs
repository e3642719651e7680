//! Bamba: keys and values as `attn` in the layers of `attn_layer_indices`, and Mamba2 pages as `mamba` in all others.

use super::Kin;
use super::attention::keys_and_values;
use super::config::Preset::{Number, Text};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::mamba2::{Inner, hybrid_page};
use super::recurrent::{attention_at, gather};
use crate::spec::Spec;

const BAMBA: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(4096)),
    ("num_attention_heads", Number(32)),
    ("num_key_value_heads", Number(8)),
    ("mamba_n_heads", Number(128)),
    ("mamba_d_head", Text("auto")),
    ("mamba_n_groups", Number(1)),
    ("mamba_d_state", Number(256)),
    ("mamba_d_conv", Number(4)),
    ("mamba_expand", Number(2)),
];

pub(super) const KIN: Kin = Kin { members: &[("bamba", BAMBA)], caches };

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    gather(
        config,
        &attention_at(config, "attn_layer_indices", layers)?,
        ("mamba", || hybrid_page(config, &Inner::expanded(config)?)),
        ("attn", || Ok(Spec::Attention(keys_and_values(config)?))),
    )
}
