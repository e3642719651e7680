//! Jamba: keys and values as `attn` in every `attn_layer_period`th layer, from `attn_layer_offset` on, and Mamba1 pages
//! as `mamba` in all others.

use super::Kin;
use super::attention::keys_and_values;
use super::config::Preset::Number;
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::mamba1;
use super::recurrent::{Mixer, gather};
use crate::spec::Spec;

const JAMBA: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(4096)),
    ("num_attention_heads", Number(32)),
    ("num_key_value_heads", Number(8)),
    ("attn_layer_period", Number(8)),
    ("attn_layer_offset", Number(4)),
    ("mamba_d_state", Number(16)),
    ("mamba_d_conv", Number(4)),
    ("mamba_expand", Number(2)),
];

pub(super) const KIN: Kin = Kin { members: &[("jamba", JAMBA)], caches };

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    let period = config.positive("attn_layer_period")?;
    let offset = config.number("attn_layer_offset")?;
    if offset >= period {
        let problem = format!("is {offset}: it must be below attn_layer_period = {period}");
        return Err(config.fault("attn_layer_offset", problem));
    }
    gather(
        config,
        &Mixer::each(layers, |layer| layer % period == offset),
        ("mamba", || {
            let d_inner = config.product("mamba_expand", "hidden_size")?;
            mamba1::page(config, d_inner, "mamba_d_state", "mamba_d_conv")
        }),
        ("attn", || Ok(Spec::Attention(keys_and_values(config)?))),
    )
}
