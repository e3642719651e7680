//! Families that cache keys and values of every token in some layers and of a chunk's tokens in the others: `[layers,
//! B, S, kv_heads, [K, V]]` as `attn` and as `chunk`.
//!
//! A token in a chunked layer attends only to tokens of its own chunk of `attention_chunk_size` positions. The chunked
//! layers are those that rotate positions.

use super::Kin;
use super::attention::{LayerOverrides, Mask, keys_and_values};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;
use super::presets::class;
use super::window::full_every;
use crate::spec::{Attention, Spec};

pub(super) const KINS: &[Kin] = &[Kin { members: &[("llama4_text", LLAMA4)], caches }];

const LLAMA4: Presets =
    &class(48, 5120, 40).kv(8).dim(128).and("attention_chunk_size", 8192).and("no_rope_layer_interval", 4).presets;

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let mut layers = Layers::of(config.layers("num_hidden_layers")?);
    let chunked = chunked(config, layers.ids().end)?;
    let full = keys_and_values(config)?;
    let chunk = Attention {
        chunk_size: match config.optional("attention_chunk_size")? {
            Some(0) => return Err(config.fault("attention_chunk_size", "cannot be 0")),
            size => size,
        },
        ..full.clone()
    };
    let own = LayerOverrides::read(config, layers.ids().end)?;
    for (layer, chunked) in layers.ids().zip(chunked) {
        let (mask, attention) = match chunked {
            true => (Mask::Chunk, &chunk),
            false => (Mask::All, &full),
        };
        let attention = own.applied(layer, mask, attention.clone())?;
        let name = match attention.chunk_size {
            Some(_) => "chunk",
            None => "attn",
        };
        layers.add(layer, name, [Spec::Attention(attention)]);
    }
    Ok(layers)
}

fn chunked(config: &Config<'_>, layers: u64) -> Result<Vec<bool>, ConfigError> {
    let known = [("full_attention", false), ("chunked_attention", true)];
    if let Some(listed) = config.words_by_layer("layer_types", layers, &known)? {
        return Ok(listed);
    }
    // Despite its name, 1 in this list is a layer that rotates. An empty list counts as absent.
    if config.numbers("no_rope_layers")?.is_some_and(|list| !list.is_empty())
        && let Some(rotates) = config.numbers_by_layer("no_rope_layers", layers)?
    {
        return Ok(rotates.iter().map(|rotates| *rotates != 0).collect());
    }
    let rotates = full_every(config.positive("no_rope_layer_interval")?);
    Ok((0..layers).map(rotates).collect())
}
