//! Families that cache keys and values of every token in some layers and of a window's tokens in the others: `[layers,
//! B, S, kv_heads, [K, V]]` as `attn` and as `window`.
//!
//! `layer_types` lists the layers with a window. If a config does not have it, each class has a rule. In a model
//! without a window (`sliding_window` is null), these layers attend to everything. A window of W tokens includes the
//! newest, in the config classes as in vLLM.

use super::Kin;
use super::attention::{LayerOverrides, Mask, keys_and_values};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::presets::class;
use crate::spec::{Attention, Spec};

pub(super) const KINS: &[Kin] = &[
    Kin {
        members: &[
            ("ministral", MISTRAL),
            ("mistral", MISTRAL),
            // It has a window only if the config does.
            ("ministral3", &class(34, 4096, 32).kv(8).dim(128).presets),
            ("mixtral", &class(32, 4096, 32).kv(8).presets),
            // The draft model of a Muse Glimmer, which uses some of that model's hidden states.
            ("muse_glimmer_assistant", MUSE_GLIMMER_ASSISTANT),
            ("phi3", &class(32, 3072, 32).presets),
            ("phimoe", &class(32, 4096, 32).kv(8).presets),
            ("starcoder2", &class(30, 3072, 24).kv(2).presets),
        ],
        caches: |config| caches(config, size(config)?, |_| true),
    },
    Kin {
        members: &[
            ("qwen2", QWEN2),
            ("qwen2_5_omni_text", QWEN2_5_OMNI),
            ("qwen2_5_vl_text", QWEN2_VL),
            ("qwen2_vl_text", QWEN2_VL),
            ("qwen3", QWEN3),
        ],
        caches: |config| after_the_first(config, size_if_used(config)?),
    },
    Kin {
        // It has no switch for windows.
        members: &[("dots1", DOTS1)],
        caches: |config| after_the_first(config, size(config)?),
    },
    Kin {
        members: &[("qwen2_moe", QWEN2_MOE)],
        caches: |config| {
            let end = config.number(FROM)?;
            let rule = |layer: u64| layer.is_multiple_of(2) && layer < end;
            caches(config, size_if_used(config)?, rule)
        },
    },
    Kin {
        members: &[("qwen3_moe", &class(24, 2048, 32).kv(4).window(4096).presets)],
        caches: |config| caches(config, size_if_used(config)?, |_| true),
    },
    Kin { members: &[("smollm3", SMOLLM3)], caches: in_layers_without_positions },
    Kin {
        members: &[("gemma2", GEMMA2), ("gpt_oss", GPT_OSS), ("vaultgemma", GEMMA2)],
        caches: |config| caches(config, size(config)?, full_every(2)),
    },
    Kin {
        members: &[("olmo3", &class(32, 4096, 32).window(4096).presets)],
        caches: |config| caches(config, size(config)?, full_every(4)),
    },
    Kin {
        // Every fourth layer attends to everything, counted from the last.
        members: &[("muse_glimmer_text", MUSE_GLIMMER)],
        caches: |config| {
            let last = config.layers("num_hidden_layers")? - 1;
            let rule = |layer: u64| !last.saturating_sub(layer).is_multiple_of(4);
            caches(config, size(config)?, rule)
        },
    },
    Kin { members: &[("kolibri1", KOLIBRI1)], caches: |config| caches(config, size(config)?, full_every(5)) },
    Kin {
        members: &[
            ("cwm", CWM),
            ("granite_swa", &class(24, 2560, 20).kv(4).window(128).presets),
            ("granitemoe_swa", &class(32, 4096, 32).window(128).presets),
        ],
        caches: |config| caches(config, size(config)?, |layer| !layer.is_multiple_of(4)),
    },
    Kin {
        members: &[("cohere2", COHERE2), ("exaone4", EXAONE4), ("exaone_moe", EXAONE4)],
        caches: |config| in_pattern(config, size(config)?, "sliding_window_pattern"),
    },
    Kin {
        members: &[("afmoe", AFMOE)],
        caches: |config| in_pattern(config, size(config)?, "global_attn_every_n_layers"),
    },
    Kin { members: &[("cohere2_moe", COHERE2_MOE)], caches: after_a_prefix },
    Kin {
        members: &[
            ("laguna", &class(40, 2048, 48).kv(8).dim(128).window(512).presets),
            ("mellum", &class(28, 2304, 32).kv(4).dim(128).window(1024).presets),
        ],
        caches: |config| caches(config, size(config)?, |_| false),
    },
];

const PATTERN: &str = "sliding_window_pattern";
const FROM: &str = "max_window_layers";
const MISTRAL: Presets = &class(32, 4096, 32).kv(8).window(4096).presets;
const QWEN2: Presets = &class(32, 4096, 32).kv(32).window(4096).and(FROM, 28).presets;
const QWEN3: Presets = &class(32, 4096, 32).kv(32).dim(128).window(4096).and(FROM, 28).presets;
const QWEN2_VL: Presets = &class(80, 8192, 64).kv(8).window(4096).and(FROM, 80).presets;
const QWEN2_5_OMNI: Presets = &class(28, 3584, 28).kv(4).window(32768).and(FROM, 28).presets;
const QWEN2_MOE: Presets = &class(24, 2048, 16).kv(16).window(4096).and(FROM, 28).presets;
const DOTS1: Presets = &class(62, 4608, 32).kv(32).window(4096).and(FROM, 62).presets;
const SMOLLM3: Presets = &class(36, 2048, 16).kv(4).and("no_rope_layer_interval", 4).presets;
const GEMMA2: Presets = &class(26, 2304, 8).kv(4).dim(256).window(4096).presets;
const GPT_OSS: Presets = &class(36, 2880, 64).kv(8).dim(64).window(128).presets;
const MUSE_GLIMMER: Presets = &class(52, 6656, 32).kv(2).dim(128).window(2048).presets;
const MUSE_GLIMMER_ASSISTANT: Presets = &class(5, 6656, 32).kv(8).dim(128).window(2048).presets;
const KOLIBRI1: Presets = &class(50, 2560, 48).kv(4).dim(128).window(513).presets;
const CWM: Presets = &class(64, 6144, 48).kv(8).dim(128).window(8192).presets;
const COHERE2: Presets = &class(40, 8192, 64).window(4096).and(PATTERN, 4).presets;
const EXAONE4: Presets = &class(32, 4096, 32).kv(32).window(4096).and(PATTERN, 4).presets;
const AFMOE: Presets = &class(32, 2048, 16).dim(128).window(1024).and("global_attn_every_n_layers", 4).presets;
const COHERE2_MOE: Presets =
    &class(40, 8192, 64).dim(128).window(4096).and(PATTERN, 4).and("prefix_dense_sliding_window_pattern", 1).presets;

pub(super) fn size(config: &Config<'_>) -> Result<Option<u64>, ConfigError> {
    match config.optional("sliding_window")? {
        Some(0) => Err(config.fault("sliding_window", "cannot be 0; null is no window")),
        size => Ok(size),
    }
}

fn size_if_used(config: &Config<'_>) -> Result<Option<u64>, ConfigError> {
    match config.flag("use_sliding_window")? {
        true => size(config),
        false => Ok(None),
    }
}

fn caches(config: &Config<'_>, size: Option<u64>, rule: impl Fn(u64) -> bool) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    let windowed = windowed(config, layers, rule)?;
    let attention = keys_and_values(config)?;
    let local = Attention { sliding_window: size, ..attention.clone() };
    alternating(config, &windowed, &attention, &local)
}

/// Returns which layers have a window: from `layer_types`, else by the class's rule.
pub(super) fn windowed(config: &Config<'_>, layers: u64, rule: impl Fn(u64) -> bool) -> Result<Vec<bool>, ConfigError> {
    let known = [("full_attention", false), ("sliding_attention", true)];
    let listed = config.words_by_layer("layer_types", layers, &known)?;
    Ok(listed.unwrap_or_else(|| (0..layers).map(rule).collect()))
}

pub(super) fn alternating(
    config: &Config<'_>,
    windowed: &[bool],
    full: &Attention,
    local: &Attention,
) -> Result<Layers, ConfigError> {
    // Some layers may have no cache.
    let own = LayerOverrides::read(config, config.layers("num_hidden_layers")?)?;
    let mut layers = Layers::of(windowed.len() as u64);
    for (layer, &windowed) in layers.ids().zip(windowed) {
        let (mask, attention) = match windowed {
            true => (Mask::Window, local),
            false => (Mask::All, full),
        };
        let attention = own.applied(layer, mask, attention.clone())?;
        let name = match attention.sliding_window {
            Some(_) => "window",
            None => "attn",
        };
        layers.add(layer, name, [Spec::Attention(attention)]);
    }
    Ok(layers)
}

fn after_the_first(config: &Config<'_>, size: Option<u64>) -> Result<Layers, ConfigError> {
    let first = config.number(FROM)?;
    caches(config, size, |layer| size.is_some() && layer >= first)
}

/// Returns a rule by which the last of every `n` layers attends to everything.
pub(super) fn full_every(n: u64) -> impl Fn(u64) -> bool {
    move |layer| !(layer + 1).is_multiple_of(n)
}

pub(super) fn in_pattern(config: &Config<'_>, size: Option<u64>, key: &str) -> Result<Layers, ConfigError> {
    // A pattern of letters (EXAONE's "LLLG") comes with the layer types that it abbreviates.
    let unread = size.is_none() || config.texts("layer_types")?.is_some();
    let n = if unread { 1 } else { config.positive(key)? };
    caches(config, size, full_every(n))
}

fn in_layers_without_positions(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    let rotated = match config.numbers_by_layer("no_rope_layers", layers)? {
        Some(rotated) => rotated,
        None => {
            let interval = config.positive("no_rope_layer_interval")?;
            let rotated = full_every(interval);
            (0..layers).map(|layer| u64::from(rotated(layer))).collect()
        }
    };
    let rule = |layer: u64| rotated.get(layer as usize) == Some(&0);
    caches(config, size_if_used(config)?, rule)
}

/// Returns the caches of a model whose first, dense layers have a separate pattern.
fn after_a_prefix(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let dense = config.optional("first_k_dense_replace")?.unwrap_or(0);
    let first = full_every(config.positive("prefix_dense_sliding_window_pattern")?);
    let rest = full_every(config.positive(PATTERN)?);
    caches(config, size(config)?, |layer| match layer.checked_sub(dense) {
        None => first(layer),
        Some(layer) => rest(layer),
    })
}
