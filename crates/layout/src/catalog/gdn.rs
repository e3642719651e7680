//! Families with gated delta nets: pages of a convolution (`q`, `k`, `v`) and a state as `gdn` in three layers of four,
//! and keys and values as `attn` in the fourth.
//!
//! The convolution keeps the last `kernel - 1` inputs in the model's type. The state is `[value_heads, value_head_dim,
//! key_head_dim]`, in the model's type too. Qwen3.5 may name another type for it (`mamba_ssm_dtype`, published as
//! float32), which vLLM uses for that family only.

use super::Kin;
use super::attention::keys_and_values;
use super::config::Preset::Number;
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::presets::{Class, class};
use super::recurrent::{Mixer, WORDS, gather, listed_all, taps};
use crate::dtype::Dtype;
use crate::spec::{ConvLayout, GdnConv, GdnSsm, Spec};

const QWEN3_NEXT: Presets = &qwen_class(48, 2048, 2).presets;
const QWEN3_5: Presets = &qwen_class(32, 4096, 4).presets;
const QWEN3_5_MOE: Presets = &qwen_class(40, 2048, 2).presets;

/// Returns one of Qwen's classes. They differ in layers, hidden size, and heads with keys and values.
const fn qwen_class(layers: u64, hidden: u64, kv_heads: u64) -> Class {
    class(layers, hidden, 16)
        .kv(kv_heads)
        .dim(256)
        .and("full_attention_interval", 4)
        .and("linear_num_key_heads", 16)
        .and("linear_num_value_heads", 32)
        .and("linear_key_head_dim", 128)
        .and("linear_value_head_dim", 128)
        .and("linear_conv_kernel_dim", 4)
}

const OLMO_HYBRID: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(3840)),
    ("num_attention_heads", Number(30)),
    ("linear_conv_kernel_dim", Number(4)),
];

pub(super) const QWEN3_NEXT_KIN: Kin =
    Kin { members: &[("qwen3_next", QWEN3_NEXT)], caches: |config| qwen(config, config.model_dtype()?) };

pub(super) const QWEN3_5_KIN: Kin = Kin {
    members: &[("qwen3_5_text", QWEN3_5), ("qwen3_5_moe_text", QWEN3_5_MOE)],
    caches: |config| match config.dtype_of("mamba_ssm_dtype")? {
        Some(ssm_dtype) => qwen(config, ssm_dtype),
        None => qwen(config, config.model_dtype()?),
    },
};

pub(super) const OLMO_HYBRID_KIN: Kin = Kin { members: &[("olmo_hybrid", OLMO_HYBRID)], caches: olmo_hybrid };

fn qwen(config: &Config<'_>, ssm_dtype: Dtype) -> Result<Layers, ConfigError> {
    let mixers = match listed_all(config, "layer_types", WORDS)? {
        Some(mixers) => mixers,
        None => {
            let interval = config.positive("full_attention_interval")?;
            let layers = config.layers("num_hidden_layers")?;
            Mixer::each(layers, |layer| (layer + 1) % interval == 0)
        }
    };
    let heads = Heads {
        key_heads: config.positive("linear_num_key_heads")?,
        value_heads: config.positive("linear_num_value_heads")?,
        key_head_dim: config.positive("linear_key_head_dim")?,
        value_head_dim: config.positive("linear_value_head_dim")?,
    };
    hybrid(config, &mixers, &heads, ssm_dtype)
}

/// Returns the layers of OLMo Hybrid. Without a list, every fourth layer attends, or the last of fewer than four.
/// Absent sizes of states follow from those of attention.
fn olmo_hybrid(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    let mixers = match listed_all(config, "layer_types", WORDS)? {
        Some(mixers) => mixers,
        None => Mixer::each(layers, |layer| layer % 4 == 3 || (layers < 4 && layer + 1 == layers)),
    };
    let or = |key, otherwise: u64| match config.optional(key)? {
        Some(0) => Err(config.fault(key, "cannot be 0")),
        Some(size) => Ok(size),
        None => Ok(otherwise),
    };
    let heads = config.positive("num_attention_heads")?;
    let key_heads = or("linear_num_key_heads", heads)?;
    // Sizes are at most 2^40, so the product cannot overflow.
    let key_head_dim = config.positive("hidden_size")? * 3 / 4 / key_heads;
    let key_head_dim = or("linear_key_head_dim", key_head_dim)?;
    if key_head_dim == 0 {
        let problem = "is too small to give each key head anything";
        return Err(config.fault("hidden_size", problem));
    }
    let heads = Heads {
        key_heads,
        value_heads: or("linear_num_value_heads", heads)?,
        key_head_dim,
        value_head_dim: or("linear_value_head_dim", key_head_dim * 2)?,
    };
    hybrid(config, &mixers, &heads, config.model_dtype()?)
}

struct Heads {
    key_heads: u64,
    value_heads: u64,
    key_head_dim: u64,
    value_head_dim: u64,
}

fn hybrid(config: &Config<'_>, mixers: &[Mixer], heads: &Heads, ssm_dtype: Dtype) -> Result<Layers, ConfigError> {
    gather(
        config,
        mixers,
        ("gdn", || page(config, heads, ssm_dtype)),
        ("attn", || Ok(Spec::Attention(keys_and_values(config)?))),
    )
}

fn page(config: &Config<'_>, heads: &Heads, ssm_dtype: Dtype) -> Result<Vec<Spec>, ConfigError> {
    let (keys, values) = (heads.key_heads, heads.value_heads);
    if !values.is_multiple_of(keys) {
        let problem = format!("is {values}, which linear_num_key_heads = {keys} does not divide");
        return Err(config.fault("linear_num_value_heads", problem));
    }
    let conv = GdnConv {
        key_heads: keys,
        key_head_dim: heads.key_head_dim,
        value_heads: values,
        value_head_dim: heads.value_head_dim,
        conv_states: taps(config, "linear_conv_kernel_dim")?,
        dtype: config.model_dtype()?,
        conv_layout: ConvLayout::Sd,
    };
    let ssm = GdnSsm {
        value_heads: values,
        value_head_dim: heads.value_head_dim,
        key_head_dim: heads.key_head_dim,
        dtype: ssm_dtype,
    };
    Ok(vec![Spec::GdnConv(conv), Spec::GdnSsm(ssm)])
}
