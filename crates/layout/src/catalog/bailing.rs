//! Ling 3 (`bailing_hybrid`): pages of Kimi delta attention as `kda`, and latents as `mla` in the last of every
//! `layer_group_size` layers.
//!
//! Ling 2.5 has the same name, and lightning attention instead of KDA. Its configs lack `short_conv_kernel_size`.

use super::Kin;
use super::config::Preset::Number;
use super::config::{Config, ConfigError, Presets};
use super::kimi_linear::kda;
use super::layers::Layers;
use super::mla::latent;
use super::recurrent::{Mixer, WORDS, gather, listed_all, taps};
use super::window::full_every;
use crate::spec::{Linear, Spec};

const PRESETS: Presets = &[
    ("num_hidden_layers", Number(42)),
    ("num_attention_heads", Number(32)),
    ("head_dim", Number(128)),
    ("kv_lora_rank", Number(512)),
    ("qk_rope_head_dim", Number(64)),
    ("short_conv_kernel_size", Number(4)),
    ("layer_group_size", Number(6)),
];

pub(super) const KIN: Kin = Kin { members: &[("bailing_hybrid", PRESETS)], caches };

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    let (heads, head_dim) = (config.positive("num_attention_heads")?, config.positive("head_dim")?);
    let mixers = match listed_all(config, "layer_types", WORDS)? {
        Some(mixers) => mixers,
        None => Mixer::each(layers, {
            let linear = full_every(config.positive("layer_group_size")?);
            move |layer| !linear(layer)
        }),
    };
    let lightning = config.get("linear_attn_norm_group_size").is_some() || config.get("group_norm_size").is_some();
    if lightning && config.get("short_conv_kernel_size").is_none() {
        let state = Linear { heads, head_dim, v_head_dim: head_dim, dtype: crate::dtype::Dtype::F32 };
        let page = || Ok(vec![Spec::Linear(state.clone())]);
        return gather(config, &mixers, ("linear", page), ("mla", || latent(config)));
    }
    let taps = taps(config, "short_conv_kernel_size")?;
    gather(config, &mixers, ("kda", || kda(config, heads, head_dim, taps)), ("mla", || latent(config)))
}
