//! Gemma: windows in most layers, `[layers, B, S, kv_heads, [K, V]]` as `window` and as `attn`. From Gemma 3n on, the
//! last `num_kv_shared_layers` layers use the cache of an earlier layer of their kind and have none. In Gemma 4,
//! full-attention layers have fewer and wider heads.
//!
//! Gemma 4's values equal its keys in those layers (`attention_k_eq_v`) before both are normed, so both are cached.

use super::Kin;
use super::attention::{LayerOverrides, keys_and_values};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::presets::class;
use super::window::{alternating, full_every, in_pattern, size, windowed};
use crate::spec::Attention;

pub(super) const KINS: &[Kin] = &[
    Kin {
        members: &[("gemma3_text", GEMMA3)],
        caches: |config| in_pattern(config, window(config)?, "sliding_window_pattern"),
    },
    Kin { members: &[("gemma3n_text", GEMMA3N)], caches: gemma3n },
    Kin { members: &[("gemma4_text", GEMMA4), ("gemma4_unified_text", GEMMA4_UNIFIED)], caches: gemma4 },
    Kin {
        // The draft model of a Gemma 4. All its layers use the target model's caches.
        members: &[("gemma4_assistant_text", GEMMA4)],
        caches: |config| Ok(Layers::of(config.layers("num_hidden_layers")?)),
    },
];

const GEMMA3: Presets = &class(26, 2304, 8).kv(4).dim(256).window(4096).and("sliding_window_pattern", 6).presets;

const GEMMA3N: Presets = &class(35, 2048, 8).kv(2).dim(256).window(512).and("num_kv_shared_layers", 15).presets;

const GEMMA4: Presets =
    &class(30, 2304, 8).kv(4).dim(256).window(512).and("num_kv_shared_layers", 0).and("global_head_dim", 512).presets;

const GEMMA4_UNIFIED: Presets =
    &class(30, 2304, 8).kv(4).dim(256).window(1024).and("num_kv_shared_layers", 0).and("global_head_dim", 512).presets;

/// Returns the window in tokens. Encoders (`use_bidirectional_attention`) look to both sides.
fn window(config: &Config<'_>) -> Result<Option<u64>, ConfigError> {
    use crate::document::Value::{Bool, Text};
    let both_sides = match config.get("use_bidirectional_attention") {
        Some(Bool(both)) => *both,
        Some(Text(which)) => which == "all",
        _ => false,
    };
    let window = size(config)?;
    Ok(window.map(|tokens| if both_sides { tokens / 2 + 1 } else { tokens }))
}

fn gemma3n(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    let windowed = windowed(config, layers, full_every(5))?;
    let full = keys_and_values(config)?;
    let local = Attention { sliding_window: window(config)?, ..full.clone() };
    owned(config, &windowed, &full, &local)
}

fn gemma4(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    let mut windowed = windowed(config, layers, full_every(6))?;
    // The class makes the last layer attend to everything, whatever the config says.
    if let Some(last) = windowed.last_mut() {
        *last = false;
    }
    let plain = keys_and_values(config)?;
    let local = Attention { sliding_window: window(config)?, ..plain.clone() };
    // Newer configs give sizes for each layer, and the keys below no longer apply.
    if LayerOverrides::read(config, layers)?.any() {
        return owned(config, &windowed, &plain, &local);
    }
    let mut full = plain;
    if config.flag("attention_k_eq_v")? && config.optional("num_global_key_value_heads")?.is_some() {
        full.heads = config.positive("num_global_key_value_heads")?;
    }
    full.head_dim = config.positive("global_head_dim")?;
    full.v_head_dim = full.head_dim;
    owned(config, &windowed, &full, &local)
}

/// Returns the caches of the layers that have one: all except the last few.
fn owned(config: &Config<'_>, windowed: &[bool], full: &Attention, local: &Attention) -> Result<Layers, ConfigError> {
    const SHARED: &str = "num_kv_shared_layers";
    let layers = windowed.len() as u64;
    let Some(owning) = layers.checked_sub(config.number(SHARED)?) else {
        return Err(config.fault(SHARED, format!("cannot be more than the {layers} layers")));
    };
    let (owning, sharing) = windowed.split_at(owning as usize);
    if let Some(kind) = sharing.iter().find(|kind| !owning.contains(kind)) {
        let kind = if *kind { "windowed" } else { "full" };
        let problem = format!("leaves no {kind} layer whose cache could be shared");
        return Err(config.fault(SHARED, problem));
    }
    let caches = alternating(config, owning, full, local)?;
    Ok(caches.followed_by(sharing.len() as u64))
}
