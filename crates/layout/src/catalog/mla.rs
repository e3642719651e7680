//! Families that cache one latent vector of every token in every layer, complete on every rank: `[layers, B, S, 1,
//! [latent]]` as `mla`.
//!
//! The latent consists of the compressed keys and values (`kv_lora_rank`) and the key's rotated part
//! (`qk_rope_head_dim`): 512 + 64 elements in DeepSeek V3. LongCat-Flash has two attention blocks in a layer, whose
//! caches are `mla` and `mla-b`, both under the layer's id.

use super::Kin;
use super::attention::{in_every_layer, keys_and_values};
use super::config::Preset::Number;
use super::config::{CacheDtype, Config, ConfigError, Presets};
use super::layers::Layers;
use crate::document::Value;
use crate::spec::{Mla, Opaque, Spec};

pub(super) const KINS: &[Kin] = &[
    Kin {
        members: &[
            ("deepseek_v2", &presets(32, 512, 64)),
            ("deepseek_v3", &presets(61, 512, 64)),
            // Its class is that of DeepSeek V3 under another name.
            ("kimi_k2", &presets(61, 512, 64)),
            ("axk1", &presets(61, 512, 64)),
            ("glm4_moe_lite", &presets(47, 512, 64)),
            ("mistral4", &presets(36, 256, 64)),
        ],
        caches: |config| {
            let mut layers = Layers::of(config.layers("num_hidden_layers")?);
            if without_latents(config)? {
                return in_every_layer(config, layers.ids().end, &keys_and_values(config)?);
            }
            let latent = latent(config)?;
            for layer in layers.ids() {
                layers.add(layer, "mla", [latent.clone()]);
            }
            Ok(layers)
        },
    },
    Kin {
        members: &[("longcat_flash", LONGCAT_FLASH)],
        caches: |config| {
            let mut layers = Layers::of(config.layers("num_layers")?);
            let latent = latent(config)?;
            for name in ["mla", "mla-b"] {
                for layer in layers.ids() {
                    layers.add(layer, name, [latent.clone()]);
                }
            }
            Ok(layers)
        },
    },
];

const LONGCAT_FLASH: Presets =
    &[("num_layers", Number(28)), ("kv_lora_rank", Number(512)), ("qk_rope_head_dim", Number(64))];

pub(super) const fn presets(layers: u64, rank: u64, rotated: u64) -> [(&'static str, super::config::Preset); 3] {
    [("num_hidden_layers", Number(layers)), ("kv_lora_rank", Number(rank)), ("qk_rope_head_dim", Number(rotated))]
}

pub(super) fn latent(config: &Config<'_>) -> Result<Spec, ConfigError> {
    match config.cache_dtype()? {
        CacheDtype::Plain(dtype) => Ok(Spec::Mla(Mla {
            latent: config.positive("kv_lora_rank")? + config.positive("qk_rope_head_dim")?,
            dtype,
            sliding_window: None,
        })),
        CacheDtype::Fp8DsMla => packed(config),
        // `cache_dtype` returns no others. Packed rows are packed later.
        CacheDtype::Nvfp4DsMla | CacheDtype::Packed(_) => Err(ConfigError::Dtype(
            "nvfp4_ds_mla is a format of sparse attention's latents; this model's attention is none".to_owned(),
        )),
    }
}

/// Tells whether a model of this shape caches keys and values instead (DeepSeek-OCR, small DeepSeek-VL2): the config
/// says so, or its heads have no rotated part, which is how engines tell.
fn without_latents(config: &Config<'_>) -> Result<bool, ConfigError> {
    let disabled = config.get("use_mla").is_some() && !config.flag("use_mla")?;
    let zero = |key| match config.get(key) {
        Some(Value::Null) | None => Ok(false),
        Some(_) => Ok::<bool, ConfigError>(config.number(key)? == 0),
    };
    Ok(disabled || zero("qk_rope_head_dim")? && zero("qk_nope_head_dim")?)
}

/// Returns the packed spec: the latent in fp8 with a float32 scale for every 128 elements, and the rotated part in
/// bf16. 512 + 64 elements take 656 bytes.
pub(super) fn packed(config: &Config<'_>) -> Result<Spec, ConfigError> {
    let (rank, rotated) = (config.positive("kv_lora_rank")?, config.positive("qk_rope_head_dim")?);
    if !rank.is_multiple_of(128) {
        let problem = format!("is {rank}, which fp8_ds_mla cannot scale 128 by 128");
        return Err(config.fault("kv_lora_rank", problem));
    }
    Ok(Spec::Opaque(Opaque {
        heads: 1,
        entry_bytes: rank + rank / 128 * 4 + rotated * 2,
        tokens_per_state: 1,
        packed_heads: None,
    }))
}
