//! Kimi Linear: pages of Kimi delta attention as `kda` in three layers of four, and latents as `mla` in the fourth.
//!
//! KDA is a gated delta net with as many key heads as value heads, all of the same width. vLLM keeps the inputs of its
//! three convolutions as the `q`, `k` and `v` channels of one, in the model's type. The state is `[heads, head_dim,
//! head_dim]` in float32, whatever the model's type is.
//!
//! Published configs list the layers in `linear_attn_config`, **counted from 1**.

use super::Kin;
use super::config::Preset::Number;
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::mla::latent;
use super::recurrent::{Mixer, WORDS, gather, listed_all, taps};
use crate::dtype::Dtype;
use crate::spec::{ConvLayout, GdnConv, GdnSsm, Spec};

const KIMI_LINEAR: Presets = &[
    ("num_hidden_layers", Number(27)),
    ("kv_lora_rank", Number(512)),
    ("qk_rope_head_dim", Number(64)),
    ("linear_head_dim", Number(128)),
    ("linear_num_heads", Number(32)),
    ("linear_conv_kernel_dim", Number(4)),
];

pub(super) const KIN: Kin = Kin { members: &[("kimi_linear", KIMI_LINEAR)], caches };

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let linear = config.inside("linear_attn_config")?;
    gather(
        config,
        &mixers(config, linear.as_ref())?,
        ("kda", || page(config, linear.as_ref())),
        ("mla", || latent(config)),
    )
}

/// Returns the kind of each layer: from `layer_types`, else from the two lists of `linear_attn_config`, else from the
/// class's default (layers 4, 8, … counted from 0, unlike the published models).
fn mixers(config: &Config<'_>, linear: Option<&Config<'_>>) -> Result<Vec<Mixer>, ConfigError> {
    let layers = config.layers("num_hidden_layers")?;
    if let Some(mixers) = listed_all(config, "layer_types", WORDS)? {
        return Ok(mixers);
    }
    let has_list = |linear: &Config<'_>, key| Ok::<_, ConfigError>(linear.numbers(key)?.is_some());
    match linear {
        Some(linear) if has_list(linear, KDA_LAYERS)? || has_list(linear, FULL_LAYERS)? => {
            numbered(config, linear, layers)
        }
        _ => Ok(Mixer::each(layers, |layer| layer > 0 && layer % 4 == 0)),
    }
}

const KDA_LAYERS: &str = "kda_layers";
const FULL_LAYERS: &str = "full_attn_layers";

/// Reads the two lists, which together have to name each layer once. Engines read only the first, and the class needs
/// both. So a single list is refused as ambiguous.
fn numbered(config: &Config<'_>, linear: &Config<'_>, layers: u64) -> Result<Vec<Mixer>, ConfigError> {
    let mut mixers = vec![None; layers as usize];
    for (key, mixer) in [(KDA_LAYERS, Mixer::Recurrent), (FULL_LAYERS, Mixer::Attention)] {
        let Some(numbers) = linear.numbers(key)? else {
            let problem = "is missing: kda_layers and full_attn_layers are needed together";
            return Err(linear.fault(key, problem));
        };
        for (i, number) in numbers.into_iter().enumerate() {
            let fault = |problem| Err(linear.fault(&format!("{key}[{i}]"), problem));
            let slot = number.checked_sub(1).and_then(|i| usize::try_from(i).ok());
            match slot.and_then(|slot| mixers.get_mut(slot)) {
                Some(slot @ None) => *slot = Some(mixer),
                Some(Some(_)) => return fault(format!("names layer {number} a second time")),
                None => {
                    let range = format!("is {number}, but layers are counted from 1 to {layers}");
                    return fault(range);
                }
            }
        }
    }
    let missing = mixers.iter().position(Option::is_none);
    if let Some(missing) = missing {
        let problem =
            format!("names layer {} (counted from 1) neither in kda_layers nor in full_attn_layers", missing + 1);
        return Err(config.fault("linear_attn_config", problem));
    }
    Ok(mixers.into_iter().flatten().collect())
}

/// Returns what a layer of Kimi delta attention keeps. Sizes are in the inner table or next to it.
pub(super) fn page(config: &Config<'_>, linear: Option<&Config<'_>>) -> Result<Vec<Spec>, ConfigError> {
    // Each size may be in either table. The inner one takes precedence.
    let slot = |inner, outer| match linear {
        Some(linear) if linear.get(inner).is_some() => (linear, inner),
        _ => (config, outer),
    };
    let (table, key) = slot("num_heads", "linear_num_heads");
    let heads = table.positive(key)?;
    let (table, key) = slot("head_dim", "linear_head_dim");
    let head_dim = table.positive(key)?;
    let (table, key) = slot("short_conv_kernel_size", "linear_conv_kernel_dim");
    kda(config, heads, head_dim, taps(table, key)?)
}

/// Returns Kimi delta attention with this many heads, whose convolutions keep `conv_states` inputs.
pub(super) fn kda(config: &Config<'_>, heads: u64, head_dim: u64, conv_states: u64) -> Result<Vec<Spec>, ConfigError> {
    let conv = GdnConv {
        key_heads: heads,
        key_head_dim: head_dim,
        value_heads: heads,
        value_head_dim: head_dim,
        conv_states,
        dtype: config.model_dtype()?,
        conv_layout: ConvLayout::Sd,
    };
    let state = GdnSsm { value_heads: heads, value_head_dim: head_dim, key_head_dim: head_dim, dtype: Dtype::F32 };
    Ok(vec![Spec::GdnConv(conv), Spec::GdnSsm(state)])
}
