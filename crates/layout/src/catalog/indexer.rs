//! Families with sparse attention over latents: `[layers, B, S, 1, [latent]]` as `mla`, and the keys that choose
//! tokens, `[layers, B, S, 1, [data], [scale]]` as `indexer`.
//!
//! The index keys are fp8 with a float32 scale for every 128 elements, whatever type the latents have. In a block all
//! data precede all scales. Layers that use the choice of an earlier layer have no indexer.

use super::Kin;
use super::config::Preset::Number;
use super::config::{CacheDtype, Config, ConfigError, Presets};
use super::layers::Layers;
use super::mla::{latent, packed};
use crate::document::Value;
use crate::dtype::Dtype;
use crate::spec::{Opaque, ScaledLatent, Spec};

pub(super) const KINS: &[Kin] = &[
    Kin {
        members: &[("deepseek_v32", DEEPSEEK_V32), ("glm_moe_dsa", GLM_MOE_DSA)],
        caches: |config| {
            let count = config.layers("num_hidden_layers")?;
            caches(config, &choosing(config, count)?)
        },
    },
    Kin {
        // The first layer chooses, and then one in four.
        members: &[("hy_v4", HY_V4), ("hy_v4_vl_text", GLM_MOE_DSA)],
        caches: |config| {
            let count = config.layers("num_hidden_layers")?;
            let listed = config.words_by_layer("indexer_types", count, &WORDS)?;
            let rule = |layer: u64| layer == 0 || layer % 4 == 1;
            caches(config, &listed.unwrap_or_else(|| (0..count).map(rule).collect()))
        },
    },
];

const WORDS: [(&str, bool); 2] = [("full", true), ("shared", false)];

const HY_V4: Presets = &[
    ("num_hidden_layers", Number(34)),
    ("kv_lora_rank", Number(512)),
    ("qk_rope_head_dim", Number(64)),
    ("index_head_dim", Number(128)),
];

const DEEPSEEK_V32: Presets = &[
    ("num_hidden_layers", Number(61)),
    ("kv_lora_rank", Number(512)),
    ("qk_rope_head_dim", Number(64)),
    ("index_head_dim", Number(128)),
];

const GLM_MOE_DSA: Presets = &[
    ("num_hidden_layers", Number(78)),
    ("kv_lora_rank", Number(512)),
    ("qk_rope_head_dim", Number(64)),
    ("index_head_dim", Number(128)),
];

fn caches(config: &Config<'_>, choosing: &[bool]) -> Result<Layers, ConfigError> {
    let mut layers = Layers::of(choosing.len() as u64);
    let latent = match config.cache_dtype()? {
        // Sparse kernels have their own fp8 format, which vLLM uses when fp8 is requested.
        CacheDtype::Plain(Dtype::F8E4M3) => packed(config)?,
        CacheDtype::Nvfp4DsMla => packed_in_nvfp4(config)?,
        _ => latent(config)?,
    };
    let index = Spec::Indexer(index_keys(config, 1)?);
    for (layer, chooses) in layers.ids().zip(choosing) {
        layers.add(layer, "mla", [latent.clone()]);
        if *chooses {
            layers.add(layer, "indexer", [index.clone()]);
        }
    }
    Ok(layers)
}

/// Returns the packed spec: the latent in 4 bits with an fp8 scale for every 16 elements, and the rotated part in fp8.
/// 512 + 64 elements take 352 bytes.
fn packed_in_nvfp4(config: &Config<'_>) -> Result<Spec, ConfigError> {
    let (rank, rotated) = (config.positive("kv_lora_rank")?, config.positive("qk_rope_head_dim")?);
    if !rank.is_multiple_of(16) {
        let problem = format!("is {rank}, which nvfp4_ds_mla cannot scale 16 by 16");
        return Err(config.fault("kv_lora_rank", problem));
    }
    Ok(Spec::Opaque(Opaque {
        heads: 1,
        entry_bytes: rank / 2 + rank / 16 + rotated,
        tokens_per_state: 1,
        packed_heads: None,
    }))
}

/// Returns the spec of an indexer's keys: 128 bytes and 4 bytes of scale for 128 elements.
pub(super) fn index_keys(config: &Config<'_>, tokens_per_state: u64) -> Result<ScaledLatent, ConfigError> {
    let elements = config.positive("index_head_dim")?;
    if !elements.is_multiple_of(128) {
        let problem = format!("is {elements}, which cannot be scaled 128 by 128");
        return Err(config.fault("index_head_dim", problem));
    }
    Ok(ScaledLatent { data_bytes: elements, scale_bytes: elements / 128 * 4, tokens_per_state, sliding_window: None })
}

/// Returns which layers have an indexer: by name, by letter (F full, S shared), or one in every `index_topk_freq` from
/// `index_skip_topk_offset` on. By default all of them have one.
pub(super) fn choosing(config: &Config<'_>, layers: u64) -> Result<Vec<bool>, ConfigError> {
    const PATTERN: &str = "index_topk_pattern";
    if let Some(listed) = config.words_by_layer("indexer_types", layers, &WORDS)? {
        return Ok(listed);
    }
    if let Some(Value::List(_)) = config.get(PATTERN) {
        let known = [WORDS[0], WORDS[1], ("F", true), ("S", false)];
        return Ok(config.words_by_layer(PATTERN, layers, &known)?.unwrap_or_default());
    }
    if let Some(letters) = config.text(PATTERN)? {
        let letters = letters.chars().map(|letter| match letter {
            'F' => Ok(true),
            'S' => Ok(false),
            _ => Err(config.fault(PATTERN, "must be a letter for each layer, F or S")),
        });
        return config.by_layer(PATTERN, layers, letters.collect::<Result<_, _>>()?);
    }
    let every = config.optional("index_topk_freq")?.unwrap_or(1).max(1);
    let offset = config.optional("index_skip_topk_offset")?.unwrap_or(2);
    let chooses = |layer: u64| (layer + 1).saturating_sub(offset).is_multiple_of(every);
    Ok((0..layers).map(chooses).collect())
}
