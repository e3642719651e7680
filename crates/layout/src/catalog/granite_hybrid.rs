//! Granite 4: Mamba2 pages as `mamba` in most layers, and keys and values as `attn` in the others. The dense Granite 4
//! models have the same class and only attention layers.

use super::Kin;
use super::attention::keys_and_values;
use super::config::Preset::{Number, Text};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::mamba2::{Inner, hybrid_page};
use super::recurrent::{Mixer, WORDS, gather, listed_all};
use crate::spec::Spec;

const GRANITE_MOE_HYBRID: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(4096)),
    ("num_attention_heads", Number(32)),
    ("mamba_n_heads", Number(128)),
    ("mamba_d_head", Text("auto")),
    ("mamba_n_groups", Number(1)),
    ("mamba_d_state", Number(256)),
    ("mamba_d_conv", Number(4)),
    ("mamba_expand", Number(2)),
];

pub(super) const KIN: Kin = Kin { members: &[("granitemoehybrid", GRANITE_MOE_HYBRID)], caches };

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    // The class accepts both names for the list.
    let key = match config.get("layer_types") {
        None => "layers_block_type",
        Some(_) => "layer_types",
    };
    let mixers = match listed_all(config, key, WORDS)? {
        Some(mixers) => mixers,
        None => Mixer::each(config.layers("num_hidden_layers")?, |_| false),
    };
    gather(
        config,
        &mixers,
        ("mamba", || hybrid_page(config, &Inner::expanded(config)?)),
        ("attn", || Ok(Spec::Attention(keys_and_values(config)?))),
    )
}
