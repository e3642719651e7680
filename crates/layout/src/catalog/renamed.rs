//! Families that cache keys and values of every token in every layer, `[layers, B, S, kv_heads, [K, V]]` as `attn`, and
//! have other names for their sizes.

use super::Kin;
use super::attention::{attention, in_every_layer};
use super::config::Preset::{Flag, Number};
use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;

pub(super) const KINS: &[Kin] = &[
    Kin {
        members: &[("dbrx", DBRX)],
        caches: |config| {
            let attention = config.inside("attn_config")?;
            let heads = match &attention {
                Some(attention) if attention.get("kv_n_heads").is_some() => attention.positive("kv_n_heads")?,
                _ => 1,
            };
            caches(config, ["n_layers", "d_model", "n_heads"], heads)
        },
    },
    Kin { members: &[("falcon", FALCON)], caches: falcon },
    Kin {
        members: &[("gpt2", GPT2), ("gptj", GPTJ)],
        caches: |config| caches(config, GPT, config.positive("n_head")?),
    },
    Kin {
        members: &[("gpt_bigcode", GPT_BIGCODE)],
        caches: |config| {
            let heads = match config.flag("multi_query")? {
                true => 1,
                false => config.positive("n_head")?,
            };
            caches(config, GPT, heads)
        },
    },
];

const DBRX: Presets = &[("n_layers", Number(24)), ("d_model", Number(2048)), ("n_heads", Number(16))];

const FALCON: Presets = &[
    ("num_hidden_layers", Number(32)),
    ("hidden_size", Number(4544)),
    ("num_attention_heads", Number(71)),
    ("multi_query", Flag(true)),
];

const GPT: [&str; 3] = ["n_layer", "n_embd", "n_head"];

const GPT2: Presets = &[("n_layer", Number(12)), ("n_embd", Number(768)), ("n_head", Number(12))];

const GPTJ: Presets = &[("n_layer", Number(28)), ("n_embd", Number(4096)), ("n_head", Number(16))];

const GPT_BIGCODE: Presets =
    &[("n_layer", Number(12)), ("n_embd", Number(768)), ("n_head", Number(12)), ("multi_query", Flag(true))];

/// Returns the caches of Falcon: one head for all queries, unless the new architecture has groups.
fn falcon(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let grouped = config.flag("new_decoder_architecture")?;
    let heads = match (grouped, config.flag("multi_query")?) {
        (false, true) => 1,
        _ if config.optional("num_kv_heads")?.is_some() => config.positive("num_kv_heads")?,
        _ => config.positive("num_attention_heads")?,
    };
    let hidden = match config.optional("n_embed")? {
        Some(_) => "n_embed",
        None => "hidden_size",
    };
    caches(config, ["num_hidden_layers", hidden, "num_attention_heads"], heads)
}

fn caches(config: &Config<'_>, [layers, hidden, heads]: [&str; 3], kv_heads: u64) -> Result<Layers, ConfigError> {
    let layers = config.layers(layers)?;
    let attention = attention(config, kv_heads, config.share(hidden, heads)?)?;
    in_every_layer(config, layers, &attention)
}
