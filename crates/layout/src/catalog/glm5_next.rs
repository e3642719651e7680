//! GLM-5.3-Flash (`glm5_next`): pages of Kimi delta attention as `kda` in three layers of four. The fourth has latents
//! without a rotated part as `mla`, and keys that choose groups of `index_kpool` tokens.
//!
//! | group | layers | content of a state | tokens of a state |
//! |---|---|---|---|
//! | `kda` | linear attention | as in [Kimi Linear](super::kimi_linear) | the sequence |
//! | `mla` | the others | `[512]` | one |
//! | `indexer` | as for `mla` | `[[data 128], [scale 4]]` | 16 tokens |
//! | `indexer-state` | as for `mla` | `[[key 128], [score 128]]` bf16 | one of the incomplete group |
//!
//! `indexer-state` is what vLLM's indexer needs to continue at any token. vLLM keeps it in a ring, one block for each
//! request, with all keys before all scores. An engine that decodes speculatively has a longer ring.

use super::Kin;
use super::config::Preset::Number;
use super::config::{CacheDtype, Config, ConfigError, Presets};
use super::indexer::{choosing, index_keys};
use super::kimi_linear::page;
use super::layers::Layers;
use super::recurrent::{Mixer, gather};
use super::window::full_every;
use crate::dtype::Dtype;
use crate::spec::{Attention, Mla, Opaque, Spec};

const PRESETS: Presets = &[
    ("num_hidden_layers", Number(45)),
    ("kv_lora_rank", Number(512)),
    ("qk_rope_head_dim", Number(0)),
    ("index_head_dim", Number(128)),
    ("index_kpool", Number(16)),
    ("linear_head_dim", Number(128)),
    ("linear_num_heads", Number(64)),
    ("linear_conv_kernel_dim", Number(4)),
];

pub(super) const KIN: Kin = Kin { members: &[("glm5_next_text", PRESETS)], caches };

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let count = config.layers("num_hidden_layers")?;
    let known = [
        ("linear_attention", Mixer::Recurrent),
        ("indexed_attention", Mixer::Attention),
        ("full_attention", Mixer::Attention),
    ];
    let mixers = match config.words_by_layer("layer_types", count, &known)? {
        Some(mixers) => mixers,
        None => Mixer::each(count, |layer| !full_every(4)(layer)),
    };
    let linear = config.inside("linear_attn_config")?;
    let mut layers = gather(config, &mixers, ("kda", || page(config, linear.as_ref())), ("mla", || latent(config)))?;
    let pool = config.positive("index_kpool")?;
    if pool == 1 {
        let problem = "must be 2 or more: engines pool keys, and know no other indexer of this family";
        return Err(config.fault("index_kpool", problem));
    }
    let index = Spec::Indexer(index_keys(config, pool)?);
    let width = config.positive("index_head_dim")?;
    let state = Spec::Attention(Attention {
        heads: 1,
        head_dim: width,
        v_head_dim: width,
        dtype: Dtype::Bf16,
        sliding_window: None,
        chunk_size: Some(pool),
    });
    let attends = mixers.iter().zip(choosing(config, count)?);
    for (layer, (mixer, chooses)) in layers.ids().zip(attends) {
        if *mixer != Mixer::Attention {
            continue;
        }
        if !chooses {
            return Err(shared(config, layer));
        }
        layers.add(layer, "indexer", [index.clone()]);
        layers.add(layer, "indexer-state", [state.clone()]);
    }
    Ok(layers)
}

/// Returns the error for a layer that takes over another layer's choice. vLLM ignores that and gives every layer an
/// indexer, so the two would disagree about what is cached.
fn shared(config: &Config<'_>, layer: u64) -> ConfigError {
    let mut keys = ["indexer_types", "index_topk_pattern"].into_iter();
    let key = keys.find(|key| config.get(key).is_some());
    let problem = format!(
        "has layer {layer} take over the tokens that another chose; vLLM 0.32 has an indexer in every layer that attends"
    );
    config.fault(key.unwrap_or("index_topk_freq"), problem)
}

/// Returns the spec of the latents. Here `fp8` means plain fp8. Kernels that read latents in `fp8_ds_mla` need that
/// name, and a rotated part of zeros: 656 bytes.
fn latent(config: &Config<'_>) -> Result<Spec, ConfigError> {
    let (rank, rotated) = (config.positive("kv_lora_rank")?, config.number("qk_rope_head_dim")?);
    let wanted = config.wanted_cache()?;
    match wanted {
        Some(CacheDtype::Fp8DsMla) if (rank, rotated) == (512, 0) => {
            Ok(Spec::Opaque(Opaque { heads: 1, entry_bytes: 656, tokens_per_state: 1, packed_heads: None }))
        }
        None | Some(CacheDtype::Plain(_)) => Ok(Spec::Mla(Mla {
            latent: rank + rotated,
            dtype: match wanted {
                Some(CacheDtype::Plain(dtype)) => dtype,
                _ => config.model_dtype()?,
            },
            sliding_window: None,
        })),
        Some(other) => Err(ConfigError::Dtype(format!(
            "{}: engines keep the latents of this model in its own type, in fp8, or 512 without a rotated part in fp8_ds_mla",
            other.name()
        ))),
    }
}
