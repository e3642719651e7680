//! Packing of rows of keys, values and latents in less than a byte for an element, or with scales in each row.
//!
//! The size of a packed row is in bytes (`u8`), with one row for the key and one for the value of each token and head.
//! So it is divided by heads and by tokens, never inside a row. NVFP4 keeps elements and scales apart, so its page has
//! four parts: elements and scales of the keys, and elements and scales of the values, each `[heads, S, [bytes]]`.
//!
//! The sizes are vLLM 0.32's: `nvfp4_kv_cache_full_dim`,
//! `TritonAttentionBackend.customize_spec`, `MLACommonBackend.customize_spec`, `TurboQuantConfig.slot_size_aligned`
//! and UltraQuant's `slot_size`.

use super::config::{CacheDtype, ConfigError};
use super::layers::Layers;
use super::{Model, Packed};
use crate::dtype::Dtype;
use crate::spec::{Opaque, Spec};

/// The number of layers at either end of a model that TurboQuant and UltraQuant do not pack.
const ENDS: u64 = 2;

impl Packed {
    pub(super) fn applied(self, layers: Layers) -> Result<Layers, ConfigError> {
        let count = layers.ids().end;
        // Models with recurrent states have too few attention layers to leave any unpacked.
        let ends = match self {
            Self::TurboQuant { .. } | Self::UltraQuant if !layers.any(Spec::is_recurrent) => ENDS.min(count / 2),
            _ => 0,
        };
        layers.mapped(|layer, name, specs| {
            match &mut specs[..] {
                [Spec::Attention(attention)] if (ends..count - ends).contains(&layer) => {
                    let elements = attention.head_dim;
                    let (key, value) = self.rows(elements, attention.v_head_dim)?;
                    (attention.head_dim, attention.v_head_dim) = (key, value);
                    attention.dtype = Dtype::U8;
                    let heads = attention.heads;
                    // The spec of such a part has no window. So a windowed cache stays a row of bytes, of which only
                    // the size is right.
                    let all = (attention.sliding_window, attention.chunk_size) == (None, None);
                    if self == Self::Nvfp4 && all {
                        let part = |entry_bytes| {
                            Spec::Opaque(Opaque { heads, entry_bytes, tokens_per_state: 1, packed_heads: None })
                        };
                        let side = [part(elements / 2), part(elements / 16)];
                        *specs = [side.clone(), side].concat();
                    }
                }
                // An indexer's keys have their own type.
                [Spec::Mla(mla)] if name != "indexer" => {
                    mla.latent = self.latent(mla.latent)?;
                    mla.dtype = Dtype::U8;
                }
                _ => {}
            }
            Ok(())
        })
    }

    /// Returns why a model in this format cannot be divided for a transfer, if it cannot.
    pub fn uncut(self, model: &Model) -> Option<&'static str> {
        let attention = |spec: &Spec| matches!(spec, Spec::Attention(spec) if spec.dtype == Dtype::U8);
        let specs = model.groups.iter().flat_map(|group| &group.specs);
        (self == Self::Nvfp4 && specs.into_iter().any(attention)).then_some(
            "nvfp4 keeps the scales of a block behind its elements, so what a window or a chunk needs of a block \
             is not one run of bytes",
        )
    }

    fn rows(self, key: u64, value: u64) -> Result<(u64, u64), ConfigError> {
        let multiple = |of: u64| match [key, value].iter().find(|size| !size.is_multiple_of(of)) {
            Some(size) => Err(self.misfit(format!("heads of {size} elements are not a multiple of {of}"))),
            None => Ok(()),
        };
        let bits = |elements: u64, bits: u64| (elements * bits).div_ceil(8);
        match self {
            Self::Nvfp4 if key != value => Err(self.misfit(format!(
                "keys of {key} elements and values of {value} have rows of different sizes, which it has not"
            ))),
            Self::Nvfp4 => {
                multiple(16)?;
                Ok((key / 2 + key / 16, value / 2 + value / 16))
            }
            Self::Int8PerTokenHead | Self::Fp8PerTokenHead => Ok((key + 4, value + 4)),
            Self::Int4PerTokenHead => {
                multiple(2)?;
                Ok((key / 2 + 4, value / 2 + 4))
            }
            Self::TurboQuant { key_bits, value_bits } => {
                let key = bits(key, key_bits) + if key_bits == 8 { 0 } else { 2 };
                let value = bits(value, value_bits) + 4;
                // A slot has an even number of bytes.
                Ok((key, value + (key + value) % 2))
            }
            Self::UltraQuant => {
                multiple(32)?;
                Ok((key / 2 + key / 32, value / 2 + value / 32))
            }
        }
    }

    fn latent(self, elements: u64) -> Result<u64, ConfigError> {
        match self {
            Self::Int8PerTokenHead | Self::Fp8PerTokenHead => Ok(elements + 8),
            Self::Int4PerTokenHead if elements.is_multiple_of(2) => Ok(elements / 2 + 8),
            _ => Err(self.misfit("this model caches latents, which the format does not pack".to_owned())),
        }
    }

    fn misfit(self, problem: String) -> ConfigError {
        ConfigError::Dtype(format!("{}: {problem}", CacheDtype::Packed(self).name()))
    }
}
