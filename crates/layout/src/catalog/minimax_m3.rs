//! MiniMax M3: keys and values in every layer, `[layers, B, S, kv_heads, [K, V]]` as `attn`. Layers with sparse
//! attention also have keys that choose blocks of tokens, `[layers, B, S, 1, [key]]` as `indexer`.
//!
//! An index key is bf16, whatever type the cache has (vLLM has a separate option for fp8).

use super::Kin;
use super::attention::{in_every_layer, keys_and_values};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::presets::class;
use crate::dtype::Dtype;
use crate::spec::{Mla, Spec};

const PRESETS: Presets = &class(60, 6144, 64).kv(4).dim(128).and("index_head_dim", 128).presets;

pub(super) const KIN: Kin = Kin { members: &[("minimax_m3_vl_text", PRESETS), ("minimax_m3_text", PRESETS)], caches };

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let count = config.layers("num_hidden_layers")?;
    let mut layers = in_every_layer(config, count, &keys_and_values(config)?)?;
    // Published configs have it in a separate table, and those written by `transformers` next to it.
    let published = config.inside("sparse_attention_config")?;
    let latent = match &published {
        Some(table) if table.get("sparse_index_dim").is_some() => table.positive("sparse_index_dim")?,
        _ => config.positive("index_head_dim")?,
    };
    let index = Spec::Mla(Mla { latent, dtype: Dtype::Bf16, sliding_window: None });
    for (layer, sparse) in layers.ids().zip(sparse(config, published.as_ref(), count)?) {
        if sparse {
            layers.add(layer, "indexer", [index.clone()]);
        }
    }
    Ok(layers)
}

fn sparse(config: &Config<'_>, published: Option<&Config<'_>>, layers: u64) -> Result<Vec<bool>, ConfigError> {
    let known = [("full_attention", false), ("minimax_m3_sparse", true), ("indexed_attention", true)];
    if let Some(listed) = config.words_by_layer("layer_types", layers, &known)? {
        return Ok(listed);
    }
    if let Some(table) = published
        && (table.get("use_sparse_attention").is_none() || table.flag("use_sparse_attention")?)
        && let Some(listed) = table.numbers_by_layer("sparse_attention_freq", layers)?
    {
        return Ok(listed.iter().map(|sparse| *sparse != 0).collect());
    }
    Ok(vec![false; layers as usize])
}
