//! dots3.note: latents as `mla` and an indexer's keys as `indexer` in some layers, and wider latents of a window's
//! tokens as `window` in the others.
//!
//! vLLM makes the rows of `mla` as long as those of `window`, so that all layers have pages of one size: of 1024 + 64
//! elements, 512 + 64 are written. This module describes what vLLM keeps. vLLM's kernels for such rows read only the
//! model's own type.
//!
//! The keys are those of published configs (`swa_kv_lora_rank`, …), which vLLM reads.

use super::Kin;
use super::config::Preset::{Flag, Number};
use super::config::{CacheDtype, Config, ConfigError, Presets};
use super::indexer::{choosing, index_keys};
use super::layers::Layers;
use crate::dtype::Dtype;
use crate::spec::{Mla, Spec};

const PRESETS: Presets = &[
    ("num_hidden_layers", Number(46)),
    ("kv_lora_rank", Number(512)),
    ("qk_rope_head_dim", Number(64)),
    ("swa_kv_lora_rank", Number(1024)),
    ("swa_head_dim", Number(256)),
    ("swa_qk_nope_head_dim", Number(192)),
    ("sliding_window", Number(512)),
    ("use_sliding_window", Flag(true)),
    ("index_head_dim", Number(128)),
];

pub(super) const KIN: Kin = Kin { members: &[("dots3_note_text", PRESETS)], caches };

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let count = config.layers("num_hidden_layers")?;
    known_to_vllm(config)?;
    let (latent, window) = rows(config)?;
    let index = Spec::Indexer(index_keys(config, 1)?);
    let mut layers = Layers::of(count);
    let kinds = windowed(config, count)?.into_iter();
    for (layer, (windowed, chooses)) in layers.ids().zip(kinds.zip(choosing(config, count)?)) {
        if windowed {
            layers.add(layer, "window", [window.clone()]);
            continue;
        }
        layers.add(layer, "mla", [latent.clone()]);
        if chooses {
            layers.add(layer, "indexer", [index.clone()]);
        }
    }
    Ok(layers)
}

/// Refuses layers without an indexer or with sizes of their own, which the config class has and vLLM does not read.
fn known_to_vllm(config: &Config<'_>) -> Result<(), ConfigError> {
    if config.get("use_dsa").is_some() && !config.flag("use_dsa")? {
        let problem = "cannot be false: in vLLM 0.32 every layer without a window has an indexer";
        return Err(config.fault("use_dsa", problem));
    }
    match config.inside("per_layer_config")? {
        Some(_) => Err(config.fault(
            "per_layer_config",
            "is not what vLLM 0.32 reads of this model: sizes of layers with a window are swa_kv_lora_rank and swa_qk_rope_head_dim",
        )),
        None => Ok(()),
    }
}

/// Returns which layers have a window: from `layer_types`, or else all except the first two and every fourth.
fn windowed(config: &Config<'_>, layers: u64) -> Result<Vec<bool>, ConfigError> {
    let known = [("indexed_attention", false), ("full_attention", false), ("sliding_attention", true)];
    if let Some(listed) = config.words_by_layer("layer_types", layers, &known)? {
        return Ok(listed);
    }
    let any = config.flag("use_sliding_window")?;
    Ok((0..layers).map(|layer| any && layer >= 2 && layer % 4 != 1).collect())
}

fn rows(config: &Config<'_>) -> Result<(Spec, Spec), ConfigError> {
    const ROTATED: &str = "swa_qk_rope_head_dim";
    let rotated = match config.get(ROTATED) {
        Some(_) => config.positive(ROTATED)?,
        None => {
            let (whole, plain) = (config.positive("swa_head_dim")?, config.positive("swa_qk_nope_head_dim")?);
            let rest = whole.checked_sub(plain).filter(|rest| *rest > 0);
            rest.ok_or_else(|| {
                let problem = format!("is {whole}, of which swa_qk_nope_head_dim = {plain} leaves nothing to rotate");
                config.fault("swa_head_dim", problem)
            })?
        }
    };
    let row = config.positive("swa_kv_lora_rank")? + rotated;
    let written = config.positive("kv_lora_rank")? + config.positive("qk_rope_head_dim")?;
    if written > row {
        let problem = format!(
            "makes rows of {written} elements, and vLLM 0.32 has none longer than the {row} of layers with a window"
        );
        return Err(config.fault("kv_lora_rank", problem));
    }
    let tokens = match config.get("sliding_window_size") {
        Some(_) => config.positive("sliding_window_size")?,
        None => config.positive("sliding_window")?,
    };
    let dtype = match config.wanted_cache()? {
        None => config.model_dtype()?,
        Some(CacheDtype::Plain(dtype @ (Dtype::Bf16 | Dtype::F16))) => dtype,
        Some(other) => {
            return Err(ConfigError::Dtype(format!(
                "{}: vLLM 0.32 keeps the latents of dots3.note in bf16 or f16",
                other.name()
            )));
        }
    };
    let latent = |sliding_window| Spec::Mla(Mla { latent: row, dtype, sliding_window });
    Ok((latent(None), latent(Some(tokens))))
}
