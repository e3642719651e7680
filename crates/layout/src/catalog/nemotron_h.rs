//! Nemotron-H and Nemotron 3: Mamba2 pages as `mamba` and keys and values as `attn`, each in some of the layers. MLPs
//! and experts count as layers too, and cache nothing.
//!
//! The state is float32 unless `mamba_ssm_cache_dtype` says otherwise, as in vLLM. The number of channels is
//! `mamba_num_heads * mamba_head_dim`; `expand` is not used, and does not always agree. Layers for multi-token
//! prediction (`mtp_*`) are not part of the model.

use super::Kin;
use super::attention::keys_and_values;
use super::config::Preset::{Number, Text};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::mamba2::{self, Inner, Keys};
use super::recurrent::{Mixer, Word, check_count, counted, gather, listed};
use crate::spec::Spec;

const NEMOTRON_H: Presets = &[
    ("hidden_size", Number(4096)),
    ("num_attention_heads", Number(32)),
    ("num_key_value_heads", Number(8)),
    ("head_dim", Number(128)),
    ("mamba_num_heads", Number(128)),
    ("mamba_head_dim", Number(64)),
    ("n_groups", Number(8)),
    ("ssm_state_size", Number(128)),
    ("conv_kernel", Number(4)),
    ("mamba_ssm_cache_dtype", Text("float32")),
];

pub(super) const KIN: Kin = Kin { members: &[("nemotron_h", NEMOTRON_H)], caches };

const WORDS: &[Word] = &[
    ("linear_attention", Mixer::Recurrent),
    ("full_attention", Mixer::Attention),
    ("mlp", Mixer::Nothing),
    ("moe", Mixer::Nothing),
    ("mamba", Mixer::Recurrent),
    ("attention", Mixer::Attention),
];

const DEFAULT: [Mixer; 4] = [Mixer::Recurrent, Mixer::Nothing, Mixer::Attention, Mixer::Nothing];

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    gather(
        config,
        &mixers(config)?,
        ("mamba", || page(config)),
        ("attn", || Ok(Spec::Attention(keys_and_values(config)?))),
    )
}

/// Reads the kind of each layer. A list takes precedence over a pattern. Both determine the number of layers. The class
/// ignores a different `num_hidden_layers` (with a warning); here it is an error, since one of the two must be wrong.
fn mixers(config: &Config<'_>) -> Result<Vec<Mixer>, ConfigError> {
    let (key, mixers) = named(config)?;
    let layers = counted(config, key, &mixers)?;
    match config.optional("num_hidden_layers")? {
        Some(count) if count != layers && config.get(key).is_none() => {
            let problem =
                format!("is missing: num_hidden_layers is {count}, and the class knows of {layers} layers only");
            Err(config.fault(key, problem))
        }
        Some(count) if count != layers => check_count(config, key, mixers, count),
        _ => Ok(mixers),
    }
}

fn named(config: &Config<'_>) -> Result<(&'static str, Vec<Mixer>), ConfigError> {
    for key in ["layers_block_type", "layer_types"] {
        if let Some(mixers) = listed(config, key, WORDS)? {
            return Ok((key, mixers));
        }
    }
    let key = "hybrid_override_pattern";
    match config.text(key)? {
        Some(pattern) => {
            let letters = pattern.chars().enumerate();
            let mixers = letters.map(|(i, letter)| match letter {
                'M' => Ok(Mixer::Recurrent),
                '*' => Ok(Mixer::Attention),
                '-' | 'E' => Ok(Mixer::Nothing),
                other => {
                    let problem = format!(
                        "has {other:?} for layer {i}: it must be of M (mamba), * (attention), \
                         - (mlp) and E (experts)"
                    );
                    Err(config.fault(key, problem))
                }
            });
            Ok((key, mixers.collect::<Result<_, _>>()?))
        }
        None => Ok((key, DEFAULT.to_vec())),
    }
}

fn page(config: &Config<'_>) -> Result<Vec<Spec>, ConfigError> {
    // If an older config has other names for some sizes, those count.
    let renamed = |old, new| match config.get(old) {
        Some(_) => old,
        None => new,
    };
    let keys = Keys {
        heads: "mamba_num_heads",
        head_dim: "mamba_head_dim",
        groups: renamed("mamba_n_groups", "n_groups"),
        state_size: "ssm_state_size",
        conv_kernel: renamed("mamba_d_conv", "conv_kernel"),
    };
    let inner = Inner { size: config.product(keys.heads, keys.head_dim)?, called: "mamba_num_heads * mamba_head_dim" };
    let ssm_dtype = match config.dtype_of("mamba_ssm_cache_dtype")? {
        Some(dtype) => dtype,
        None => config.model_dtype()?,
    };
    mamba2::page(config, &keys, &inner, None, ssm_dtype)
}
