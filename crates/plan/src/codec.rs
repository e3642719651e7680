//! Codecs store keys and values in less room, and not exactly.
//!
//! A codec encodes values in groups of up to 32. A group has a scale s and a minimum lo, and each of its values a code q of 8 or 4
//! bits, which is read as lo + q s. Some elements of keys are large in all tokens, so that groups of keys run along tokens;
//! groups of values run along elements. What each byte is says docs/src/reference/archive.md.
//!
//! **The bound.** Before x' is rounded to the type of x, |x - x'| <= s/2 + 2^-10 (|lo| + hi - lo), where lo and hi are the least
//! and the greatest value of the group. That rounding at most doubles it. The bound holds since a group is stored exactly
//! where s is no normal f16, or lo or hi is not finite in f16.
//!
//! **The same on every machine.** All that is calculated are single operations of IEEE 754 in f32, each rounded to the nearest.
//! A product q s has 19 bits at most, so that it changes nothing where it is fused with the sum.

mod bits;
mod error;
#[cfg(test)]
mod tests;
mod tile;

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use transload_layout::{Dtype, Spec};

pub use error::Undecodable;

use bits::Float;
use tile::{Along, Form, GROUP, Tile};

/// How values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Codec {
    /// As they are.
    #[default]
    Exact,
    /// Each element in 8 bits; the scale and minimum of its group add 1 bit each element: 0.5625 of bf16.
    Q8,
    /// Each element in 4 bits, and 1 bit likewise: 0.3125 of bf16.
    Q4,
}

impl Codec {
    /// All codecs.
    pub const ALL: &[Self] = &[Self::Exact, Self::Q8, Self::Q4];

    /// Whether what is decoded is what was encoded, bit for bit.
    pub fn is_exact(self) -> bool {
        self == Self::Exact
    }

    /// The name that settings and formats use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no codec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no codec: write exact, q8 or q4")]
pub struct NoCodec(String);

impl FromStr for Codec {
    type Err = NoCodec;

    fn from_str(text: &str) -> Result<Self, NoCodec> {
        let named = Self::ALL.iter().find(|codec| codec.name() == text);
        named.copied().ok_or_else(|| NoCodec(text.to_owned()))
    }
}

/// Tells what a stretch of memory holds, token by token: the elements of a key, and then those of a value. Either may be
/// 0: where keys lie apart from values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    float: Float,
    keys: usize,
    values: usize,
}

impl Rows {
    /// `None` for a type that codecs do not take: they take f32, f16 and bf16.
    pub fn new(dtype: Dtype, keys: usize, values: usize) -> Option<Self> {
        let float = match dtype {
            Dtype::F32 => Float::F32,
            Dtype::F16 => Float::F16,
            Dtype::Bf16 => Float::Bf16,
            _ => return None,
        };
        Some(Self { float, keys, values })
    }

    /// Some components of a spec, counted as it lists them: codecs take the keys and the values of attention.
    pub fn of(spec: &Spec, components: RangeInclusive<usize>) -> Option<Self> {
        let Spec::Attention(spec) = spec else {
            return None;
        };
        let elements = |component, count: u64| match components.contains(&component) {
            true => usize::try_from(count).ok(),
            false => Some(0),
        };
        let (keys, values) = (elements(0, spec.head_dim)?, elements(1, spec.v_head_dim)?);
        Self::new(spec.dtype, keys, values)
    }

    /// Bytes of so many tokens as they are; `None` if that is no size.
    pub fn bytes(self, tokens: usize) -> Option<usize> {
        let elements = self.keys.checked_add(self.values)?;
        elements.checked_mul(self.float.bytes())?.checked_mul(tokens)
    }
}

impl Codec {
    fn form(self) -> Option<Form> {
        match self {
            Self::Exact => None,
            Self::Q8 => Some(Form::Bytes),
            Self::Q4 => Some(Form::Nibbles),
        }
    }

    /// How many bytes of codes [`encode`](Self::encode) makes of so many tokens; `None` if that is no size.
    pub fn encoded_bytes(self, rows: Rows, tokens: usize) -> Option<usize> {
        let bytes = rows.bytes(tokens)?;
        // Nothing becomes more than 2.5 times as long: so the sum below cannot overflow.
        bytes.checked_mul(3)?;
        let Some(form) = self.form() else {
            return Some(bytes);
        };
        Some(rows.tiles(form, tokens).map(|tile| tile.bytes()).sum())
    }

    /// Appends the codes of the values in `from`, a whole number of rows, to `codes`, and the values of groups that are stored
    /// exactly to `exact`.
    ///
    /// # Panics
    /// If `from` ends within a row.
    pub fn encode(self, rows: Rows, from: &[u8], codes: &mut Vec<u8>, exact: &mut Vec<u8>) {
        let Some(form) = self.form() else {
            return codes.extend_from_slice(from);
        };
        for tile in rows.tiles(form, rows.tokens(from.len())) {
            let start = codes.len();
            codes.resize(start + tile.bytes(), 0);
            tile.encode(from, &mut codes[start..], exact);
        }
    }

    /// Writes the values of whole rows into `to`, out of what [`encode`](Self::encode) made of them: all of `codes`, and
    /// the beginning of `exact`, which is taken off it.
    ///
    /// # Errors
    /// If no values are encoded so; what `to` holds then is not defined.
    ///
    /// # Panics
    /// If `to` ends within a row.
    pub fn decode(self, rows: Rows, codes: &[u8], exact: &mut &[u8], to: &mut [u8]) -> Result<(), Undecodable> {
        let tokens = rows.tokens(to.len());
        let needed = self.encoded_bytes(rows, tokens).unwrap_or(usize::MAX);
        if codes.len() != needed {
            let given = codes.len();
            return Err(Undecodable::Length { needed, given });
        }
        let Some(form) = self.form() else {
            to.copy_from_slice(codes);
            return Ok(());
        };
        let mut rest = codes;
        rows.tiles(form, tokens).try_for_each(|tile| {
            let (codes, later) = rest.split_at(tile.bytes());
            rest = later;
            tile.decode(codes, exact, to)
        })
    }
}

impl Rows {
    /// How many tokens so many bytes are of.
    fn tokens(self, bytes: usize) -> usize {
        let row = self.bytes(1).unwrap_or(usize::MAX);
        match bytes.checked_rem(row) {
            Some(0) => bytes / row,
            None if bytes == 0 => 0,
            _ => panic!("{bytes} bytes are no whole number of rows of {row} bytes"),
        }
    }

    /// The tiles of so many tokens, as they are stored: of each 32 tokens those of keys, and then those of values.
    fn tiles(self, form: Form, tokens: usize) -> impl Iterator<Item = Tile> {
        let one = self.float.bytes();
        let stride = (self.keys + self.values) * one;
        let parts = [(Along::Tokens, 0, self.keys), (Along::Elements, self.keys, self.values)];
        (0..tokens).step_by(GROUP).flat_map(move |token| {
            parts.into_iter().flat_map(move |(along, first, count)| {
                (0..count).step_by(GROUP).map(move |element| Tile {
                    form,
                    float: self.float,
                    along,
                    tokens: GROUP.min(tokens - token),
                    elements: GROUP.min(count - element),
                    offset: token * stride + (first + element) * one,
                    stride,
                })
            })
        })
    }
}
