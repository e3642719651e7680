//! MiniMax Text-01 and M1: lightning attention keeps one state `[heads, head_dim, head_dim]` a layer as `linear`. The
//! other layers have keys and values as `attn`.
//!
//! The state has a head for each *query* head, in the model's type. Published configs list the layers as numbers
//! (`attn_type_list`: 0 linear, 1 full), and the class of `transformers` as `layer_types`. If both are absent, every
//! second layer is linear, from the second on.

use super::Kin;
use super::attention::{head_dim, keys_and_values};
use super::config::Preset::Number;
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::recurrent::{Mixer, WORDS, check_count, gather, listed_all};
use crate::spec::{Linear, Spec};

const MINIMAX: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(4096)),
    ("num_attention_heads", Number(32)),
    ("num_key_value_heads", Number(8)),
];

pub(super) const KIN: Kin = Kin {
    members: &[("minimax", MINIMAX)],
    caches: |config| match mixers(config)? {
        Some(mixers) => hybrid(config, &mixers),
        None => {
            let layers = config.layers("num_hidden_layers")?;
            hybrid(config, &Mixer::each(layers, |layer| (layer + 1) % 2 == 1))
        }
    },
};

/// The names in the original checkpoints. Their classes are not in `transformers`, so nothing is assumed.
pub(super) const ORIGINAL_KIN: Kin = Kin {
    members: &[("minimax_text_01", &[]), ("minimax_m1", &[])],
    caches: |config| match mixers(config)? {
        Some(mixers) => hybrid(config, &mixers),
        None => Err(config.fault(TYPES, "is missing: it must list 0 (linear) or 1 (full) for each layer")),
    },
};

const TYPES: &str = "attn_type_list";

fn hybrid(config: &Config<'_>, mixers: &[Mixer]) -> Result<Layers, ConfigError> {
    gather(
        config,
        mixers,
        ("linear", || Ok(vec![Spec::Linear(state(config)?)])),
        ("attn", || Ok(Spec::Attention(keys_and_values(config)?))),
    )
}

fn state(config: &Config<'_>) -> Result<Linear, ConfigError> {
    let head_dim = head_dim(config)?;
    Ok(Linear {
        heads: config.positive("num_attention_heads")?,
        head_dim,
        v_head_dim: head_dim,
        dtype: config.model_dtype()?,
    })
}

fn mixers(config: &Config<'_>) -> Result<Option<Vec<Mixer>>, ConfigError> {
    if let Some(mixers) = listed_all(config, "layer_types", WORDS)? {
        return Ok(Some(mixers));
    }
    let Some(types) = config.numbers(TYPES)? else {
        return Ok(None);
    };
    let mixers = types.iter().enumerate().map(|(layer, kind)| match kind {
        0 => Ok(Mixer::Recurrent),
        1 => Ok(Mixer::Attention),
        other => {
            let problem = format!("must be 0 (linear) or 1 (full), not {other}");
            Err(config.fault(&format!("{TYPES}[{layer}]"), problem))
        }
    });
    let mixers = mixers.collect::<Result<_, _>>()?;
    check_count(config, TYPES, mixers, config.layers("num_hidden_layers")?).map(Some)
}
