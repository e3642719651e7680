//! DeepSeek V4: one vector is key and value of a token, complete on every rank. Most layers keep it only for the last
//! few tokens, and also keep vectors that each stand for several tokens.
//!
//! | group | layers | content of a state | tokens of a state |
//! |---|---|---|---|
//! | `window` | all | `[[data 576], [scale 8]]` | one of the last 128 |
//! | `c4` | those that compress 4 to 1 | as in `window` | 4 tokens |
//! | `c4-state` | as for `c4` | `[2048]` f32: two rows of values, two of scores | one of the last 8 |
//! | `indexer` | as for `c4` | `[[data 128], [scale 4]]` | 4 tokens |
//! | `indexer-state` | as for `c4` | `[512]` f32 | one of the last 8 |
//! | `c128` | those that compress 128 to 1 | as in `window` | 128 tokens |
//! | `c128-state` | as for `c128` | `[1024]` f32: a row of values, one of scores | one of the last 128 |
//!
//! The `-state` groups are what vLLM's compressors need to continue at any token: tokens that are not compressed yet
//! and, with 4 to 1, the 4 tokens before, because groups of tokens overlap. Data are fp8, except the rotated part in
//! bf16, with a scale of one byte for every 64 elements and one byte of padding. Pages are padded to a multiple of 576
//! bytes, which is a stride of the deployment and not part of these shapes. A cache of plain rows (`bf16`) has no
//! scales.

use super::Kin;
use super::config::Preset::Number;
use super::config::{CacheDtype, Config, ConfigError, Presets};
use super::indexer::index_keys;
use super::layers::Layers;
use crate::dtype::Dtype;
use crate::spec::{Mla, Opaque, ScaledLatent, Spec};

pub(super) const KINS: &[Kin] = &[Kin { members: &[("deepseek_v4", PRESETS)], caches }];

const PRESETS: Presets = &[
    ("num_hidden_layers", Number(43)),
    ("head_dim", Number(512)),
    ("qk_rope_head_dim", Number(64)),
    ("sliding_window", Number(128)),
    ("index_head_dim", Number(128)),
    ("num_nextn_predict_layers", Number(1)),
];

/// The compressed vectors that a layer keeps in addition to its window.
#[derive(Clone, Copy)]
enum Compression {
    Nothing,
    FourToOne,
    OneHundredTwentyEightToOne,
}

use Compression::{FourToOne, Nothing, OneHundredTwentyEightToOne};

fn caches(config: &Config<'_>) -> Result<Layers, ConfigError> {
    let mut layers = Layers::of(config.layers("num_hidden_layers")?);
    let row = Row::read(config)?;
    let index_dim = config.positive("index_head_dim")?;
    let window = row.of_window(config.positive("sliding_window")?);
    let (c4, c128) = (row.compressed(4), row.compressed(128));
    let index = Spec::Indexer(index_keys(config, 4)?);
    let state = |rows: u64, elements: u64, tokens| {
        // There are as many rows of scores as of values.
        Spec::Mla(Mla { latent: 2 * rows * elements, dtype: Dtype::F32, sliding_window: Some(tokens) })
    };
    for (layer, compression) in layers.ids().zip(compressions(config, layers.ids().end)?) {
        layers.add(layer, "window", [window.clone()]);
        match compression {
            Nothing => {}
            FourToOne => {
                layers.add(layer, "c4", [c4.clone()]);
                layers.add(layer, "c4-state", [state(2, row.elements, 8)]);
                layers.add(layer, "indexer", [index.clone()]);
                layers.add(layer, "indexer-state", [state(2, index_dim, 8)]);
            }
            OneHundredTwentyEightToOne => {
                layers.add(layer, "c128", [c128.clone()]);
                layers.add(layer, "c128-state", [state(1, row.elements, 128)]);
            }
        }
    }
    Ok(layers)
}

/// Returns the compression of each layer: from `layer_types`, or `compress_ratios` of published configs, or the class's
/// pattern (two layers 128 to 1, then alternately 128 to 1 and 4 to 1).
fn compressions(config: &Config<'_>, layers: u64) -> Result<Vec<Compression>, ConfigError> {
    let known = [
        ("sliding_attention", Nothing),
        ("compressed_sparse_attention", FourToOne),
        ("heavily_compressed_attention", OneHundredTwentyEightToOne),
    ];
    rates(config)?;
    if let Some(listed) = config.words_by_layer("layer_types", layers, &known)? {
        return Ok(listed);
    }
    let Some(mut ratios) = config.numbers("compress_ratios")? else {
        let pattern = |layer: u64| match layer >= 2 && !layer.is_multiple_of(2) {
            true => FourToOne,
            false => OneHundredTwentyEightToOne,
        };
        return Ok((0..layers).map(pattern).collect());
    };
    // Published lists continue with any number of layers that only draft.
    ratios.truncate(layers as usize);
    let ratios = config.by_layer("compress_ratios", layers, ratios)?;
    let ratios = ratios.iter().enumerate().map(|(layer, ratio)| match ratio {
        0 | 1 => Ok(Nothing),
        4 => Ok(FourToOne),
        128 => Ok(OneHundredTwentyEightToOne),
        _ => {
            let key = format!("compress_ratios[{layer}]");
            Err(config.fault(&key, format!("must be 0, 4 or 128, not {ratio}")))
        }
    });
    ratios.collect()
}

/// Checks the rates of the names in `layer_types`. Engines support only 4 and 128.
fn rates(config: &Config<'_>) -> Result<(), ConfigError> {
    let Some(rates) = config.inside("compress_rates")? else {
        return Ok(());
    };
    for (key, rate) in [("compressed_sparse_attention", 4), ("heavily_compressed_attention", 128)] {
        match rates.optional(key)? {
            Some(found) if found != rate => {
                return Err(rates.fault(key, format!("must be {rate}, not {found}")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A vector that is both key and value.
struct Row {
    elements: u64,
    /// The bytes of data and of scales, if it is packed. Otherwise all elements are bf16.
    packed: Option<(u64, u64)>,
}

impl Row {
    fn read(config: &Config<'_>) -> Result<Self, ConfigError> {
        let elements = config.positive("head_dim")?;
        let rotated = config.positive("qk_rope_head_dim")?;
        let packed = match config.cache_dtype {
            None | Some(CacheDtype::Fp8DsMla | CacheDtype::Plain(Dtype::F8E4M3)) => true,
            Some(CacheDtype::Plain(Dtype::Bf16)) => false,
            Some(other) => {
                let name = other.name();
                return Err(ConfigError::Dtype(format!(
                    "{name}: DeepSeek V4 caches in fp8_ds_mla (fp8 is the same) or in bf16"
                )));
            }
        };
        match elements.checked_sub(rotated) {
            Some(plain) if plain.is_multiple_of(64) => {
                Ok(Self { elements, packed: packed.then_some((plain + 2 * rotated, plain / 64 + 1)) })
            }
            _ => {
                let problem = format!("is {rotated}, but head_dim = {elements} less that must be a multiple of 64");
                Err(config.fault("qk_rope_head_dim", problem))
            }
        }
    }

    fn of_window(&self, tokens: u64) -> Spec {
        match self.packed {
            Some((data_bytes, scale_bytes)) => Spec::Compressed(ScaledLatent {
                data_bytes,
                scale_bytes,
                tokens_per_state: 1,
                sliding_window: Some(tokens),
            }),
            None => Spec::Mla(Mla { latent: self.elements, dtype: Dtype::Bf16, sliding_window: Some(tokens) }),
        }
    }

    fn compressed(&self, tokens_per_state: u64) -> Spec {
        match self.packed {
            Some((data_bytes, scale_bytes)) => {
                Spec::Compressed(ScaledLatent { data_bytes, scale_bytes, tokens_per_state, sliding_window: None })
            }
            None => Spec::Opaque(Opaque {
                heads: 1,
                entry_bytes: self.elements * Dtype::Bf16.bytes(),
                tokens_per_state,
                packed_heads: None,
            }),
        }
    }
}
