//! LFM2: a short convolution keeps the last `conv_L_cache - 1` inputs of each channel as `conv`. The other layers have
//! keys and values as `attn`.
//!
//! There is no state besides the convolution's inputs, which are partitioned like those of a Mamba1 layer. So one spec
//! of that kind is the whole page.

use super::Kin;
use super::attention::keys_and_values;
use super::config::Preset::Number;
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::recurrent::{Mixer, Word, attention_at, gather, listed_all, taps};
use crate::spec::{ConvLayout, Mamba1Conv, Spec};

const LFM2: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(2560)),
    ("num_attention_heads", Number(32)),
    ("num_key_value_heads", Number(8)),
    ("conv_L_cache", Number(3)),
];

const LFM2_MOE: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(2048)),
    ("num_attention_heads", Number(32)),
    ("num_key_value_heads", Number(8)),
    ("conv_L_cache", Number(3)),
];

pub(super) const LFM2_KIN: Kin = Kin { members: &[("lfm2", LFM2)], caches: lfm2 };

pub(super) const LFM2_MOE_KIN: Kin = Kin {
    members: &[("lfm2_moe", LFM2_MOE)],
    caches: |config| match listed_all(config, "layer_types", WORDS)? {
        Some(mixers) => hybrid(config, &mixers),
        // Its class has no default.
        None => Err(config.fault("layer_types", "is missing: it must list conv or full_attention for each layer")),
    },
};

const WORDS: &[Word] =
    &[("conv", Mixer::Recurrent), ("full_attention", Mixer::Attention), ("attention", Mixer::Attention)];

/// Reads `layer_types`, or else the indices of `full_attn_idxs`. Without either, every layer attends.
fn lfm2(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    let mixers = match listed_all(config, "layer_types", WORDS)? {
        Some(mixers) => mixers,
        None if config.numbers("full_attn_idxs")?.is_some() => attention_at(config, "full_attn_idxs", layers)?,
        None => Mixer::each(layers, |_| true),
    };
    hybrid(config, &mixers)
}

fn hybrid(config: &Config<'_>, mixers: &[Mixer]) -> Result<Layers, ConfigError> {
    gather(
        config,
        mixers,
        ("conv", || Ok(vec![Spec::Mamba1Conv(conv(config)?)])),
        ("attn", || Ok(Spec::Attention(keys_and_values(config)?))),
    )
}

fn conv(config: &Config<'_>) -> Result<Mamba1Conv, ConfigError> {
    Ok(Mamba1Conv {
        d_inner: config.positive("hidden_size")?,
        conv_states: taps(config, "conv_L_cache")?,
        dtype: config.model_dtype()?,
        conv_layout: ConvLayout::Sd,
    })
}
