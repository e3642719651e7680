//! Families whose windowed layers differ in more than the window: `[layers, B, S, kv_heads, [K, V]]` as `attn` and as
//! `window`.

use super::Kin;
use super::attention::{attention, head_dim, keys_and_values};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::presets::class;
use super::window::{alternating, full_every, size, windowed};
use crate::spec::Attention;

pub(super) const KINS: &[Kin] = &[
    Kin {
        // The class of the second one comes with its checkpoints, so nothing is assumed.
        members: &[("mimo_v2_flash", MIMO_V2_FLASH), ("mimo_v2", &[])],
        caches: mimo_v2_flash,
    },
    Kin { members: &[("step3p5", &class(45, 4096, 64).kv(8).dim(128).presets)], caches: step3p5 },
];

const MIMO_V2_FLASH: Presets = &class(48, 4096, 64).kv(4).dim(192).and("v_head_dim", 128).window(129).presets;

/// Returns the caches of MiMo: values narrower than keys, and twice the heads in windowed layers.
/// The config class makes a window of `sliding_window_size + 1` tokens, and vLLM one of `sliding_window_size`,
/// including the newest. This follows vLLM.
fn mimo_v2_flash(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    let rule = |layer: u64| layer > 0 && full_every(6)(layer);
    let pattern = config.numbers_by_layer("hybrid_layer_pattern", layers)?;
    let windowed = match pattern {
        Some(pattern) if config.get("layer_types").is_none() => pattern.iter().map(|kind| *kind != 0).collect(),
        _ => windowed(config, layers, rule)?,
    };
    let full = keys_and_values(config)?;
    let full = Attention { v_head_dim: config.positive("v_head_dim")?, ..full };
    let or = |key, other| match config.optional(key)? {
        Some(0) => Err(config.fault(key, "cannot be 0")),
        found => Ok(found.unwrap_or(other)),
    };
    let local = Attention {
        heads: or("swa_num_key_value_heads", full.heads.saturating_mul(2))?,
        head_dim: or("swa_head_dim", full.head_dim)?,
        v_head_dim: or("swa_v_head_dim", full.v_head_dim)?,
        sliding_window: match config.optional("sliding_window_size")? {
            Some(0) => return Err(config.fault("sliding_window_size", "cannot be 0")),
            Some(tokens) => Some(tokens),
            None => size(config)?,
        },
        ..full.clone()
    };
    alternating(config, &windowed, &full, &local)
}

/// Returns the caches of Step 3.5: another key for key-value heads, and other heads in windowed layers
/// (`attention_other_setting`).
fn step3p5(config: &Config<'_>) -> Result<Layers, ConfigError> {
    const GROUPS: &str = "num_attention_groups";
    let layers = config.layers("num_hidden_layers")?;
    let windowed = windowed(config, layers, |_| false)?;
    let full = match config.get(GROUPS) {
        Some(_) => attention(config, config.positive(GROUPS)?, head_dim(config)?)?,
        None => keys_and_values(config)?,
    };
    let mut local = Attention { sliding_window: size(config)?, ..full.clone() };
    if let Some(other) = config.inside("attention_other_setting")? {
        if other.get(GROUPS).is_some() {
            local.heads = other.positive(GROUPS)?;
        }
        if other.get("head_dim").is_some() {
            local.head_dim = other.positive("head_dim")?;
            local.v_head_dim = local.head_dim;
        }
    }
    alternating(config, &windowed, &full, &local)
}
