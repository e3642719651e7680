//! Codecs: lossy compression of keys and values.
//!
//! A codec encodes values in groups of up to 32. A group has a scale s and a minimum lo. Each value becomes a code q of
//! 8 or 4 bits, which decodes to lo + q s. Some elements of keys are large in all tokens, so groups of keys run along
//! tokens, and groups of values along elements. docs/src/reference/archive.md specifies every byte.
//!
//! **The bound.** Before the decoded value x' is rounded to the type of x, |x - x'| <= s/2 + 2^-10 (|lo| + hi - lo),
//! where lo and hi are the smallest and the largest value of the group. That rounding at most doubles the error. The
//! bound holds because a group is stored exactly if s is not a normal f16, or if lo or hi is not finite in f16.
//!
//! **The same on every machine.** Only single operations of IEEE 754 in f32 are used, each rounded to nearest. A
//! product q s has at most 19 bits, so fusing it with the sum does not change the result.

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

/// The way in which values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Codec {
    /// Unchanged.
    #[default]
    Exact,
    /// Encodes each element in 8 bits. The scale and minimum of its group add 1 bit to each element: 0.5625 of the size
    /// of bf16.
    Q8,
    /// Encodes each element in 4 bits, plus 1 bit for scale and minimum: 0.3125 of the size of bf16.
    Q4,
}

impl Codec {
    /// All codecs.
    pub const ALL: &[Self] = &[Self::Exact, Self::Q8, Self::Q4];

    /// Tells whether decoded values equal the encoded ones bit for bit.
    pub fn is_exact(self) -> bool {
        self == Self::Exact
    }

    /// Returns the name in settings and formats.
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

/// The error for a text that is not a codec's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a codec: write exact, q8 or q4")]
pub struct NoCodec(String);

impl FromStr for Codec {
    type Err = NoCodec;

    fn from_str(text: &str) -> Result<Self, NoCodec> {
        let named = Self::ALL.iter().find(|codec| codec.name() == text);
        named.copied().ok_or_else(|| NoCodec(text.to_owned()))
    }
}

/// The content of a run of memory for each token: the elements of a key, followed by those of a value. Either number
/// may be 0, if keys and values are stored apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    float: Float,
    keys: usize,
    values: usize,
}

impl Rows {
    /// Returns the rows of these elements, or `None` for a type that codecs do not support. They support f32, f16 and
    /// bf16.
    pub fn new(dtype: Dtype, keys: usize, values: usize) -> Option<Self> {
        let float = match dtype {
            Dtype::F32 => Float::F32,
            Dtype::F16 => Float::F16,
            Dtype::Bf16 => Float::Bf16,
            _ => return None,
        };
        Some(Self { float, keys, values })
    }

    /// Returns the rows of some components of a spec, by index. Codecs support the keys and values of attention.
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

    /// Returns the bytes of this many tokens before encoding, or `None` if the size overflows.
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

    /// Returns the bytes of codes that [`encode`](Self::encode) makes of this many tokens, or `None` if the size
    /// overflows.
    pub fn encoded_bytes(self, rows: Rows, tokens: usize) -> Option<usize> {
        let bytes = rows.bytes(tokens)?;
        // Nothing grows by more than a factor of 2.5, so the sum below cannot overflow.
        bytes.checked_mul(3)?;
        let Some(form) = self.form() else {
            return Some(bytes);
        };
        Some(rows.tiles(form, tokens).map(|tile| tile.bytes()).sum())
    }

    /// Appends the codes of the values in `from`, a whole number of rows, to `codes`. Values of groups that are stored
    /// exactly are appended to `exact`.
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

    /// Decodes what [`encode`](Self::encode) made into whole rows in `to`. It uses all of `codes` and removes what it
    /// needs from the front of `exact`.
    ///
    /// # Errors
    /// Returns an error if the codes are invalid. The content of `to` is then undefined.
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
    fn tokens(self, bytes: usize) -> usize {
        let row = self.bytes(1).unwrap_or(usize::MAX);
        match bytes.checked_rem(row) {
            Some(0) => bytes / row,
            None if bytes == 0 => 0,
            _ => panic!("{bytes} bytes are no whole number of rows of {row} bytes"),
        }
    }

    /// Returns the tiles of this many tokens in storage order: for each 32 tokens those of keys, then those of values.
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
