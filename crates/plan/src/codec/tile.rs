//! Tiles: up to 32 tokens of up to 32 elements, each encoded independently.

use super::bits::{F16_INFINITY, F16_NORMAL, F16_OVERFLOW, Float, from_f16, to_f16};
use super::error::Undecodable;

/// The maximum number of values in a group, which is also that of tokens and of elements in a tile.
pub(super) const GROUP: usize = 32;

/// The scale of a group that is stored exactly. No other group can have this value.
const MARK: u16 = 0xffff;

/// 2^23. An f32 of this size has no fractional bits, so adding it rounds, with ties to even.
const ROUND: f32 = 8_388_608.0;

type Lanes<T> = [T; GROUP];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    /// The values of one element over all tokens. Used for keys, some of whose elements are large in all tokens.
    Tokens,
    /// The values of one token over all elements.
    Elements,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One byte for each code.
    Bytes,
    /// One byte for two tokens of one element.
    Nibbles,
}

impl Form {
    fn most(self) -> f32 {
        match self {
            Self::Bytes => 255.0,
            Self::Nibbles => 15.0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub(super) form: Form,
    pub(super) float: Float,
    pub(super) along: Along,
    /// The number of tokens, 1 to 32. That of elements has the same range.
    pub(super) tokens: usize,
    pub(super) elements: usize,
    /// The offset of its first token's first element, and the distance to the next token's.
    pub(super) offset: usize,
    pub(super) stride: usize,
}

impl Tile {
    pub(super) fn bytes(&self) -> usize {
        let rows = match self.form {
            Form::Bytes => self.tokens,
            Form::Nibbles => self.tokens.div_ceil(2),
        };
        4 * self.groups() + rows * self.elements
    }

    fn groups(&self) -> usize {
        match self.along {
            Along::Tokens => self.elements,
            Along::Elements => self.tokens,
        }
    }

    fn row(&self, token: usize) -> std::ops::Range<usize> {
        let start = self.offset + token * self.stride;
        start..start + self.elements * self.float.bytes()
    }

    fn runs(&self, group: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let one = self.float.bytes();
        let (tokens, element) = match self.along {
            Along::Tokens => (0..self.tokens, Some(group)),
            Along::Elements => (group..group + 1, None),
        };
        tokens.map(move |token| {
            let row = self.row(token);
            match element {
                Some(element) => row.start + element * one..row.start + (element + 1) * one,
                None => row,
            }
        })
    }

    /// Encodes a tile of `from` into [`bytes`](Self::bytes) bytes. Groups without a scale are appended to `exact`.
    pub(super) fn encode(&self, from: &[u8], to: &mut [u8], exact: &mut Vec<u8>) {
        let mut values = [[0.0; GROUP]; GROUP];
        for (token, values) in values[..self.tokens].iter_mut().enumerate() {
            let row = &from[self.row(token)];
            match row.len() == GROUP * self.float.bytes() {
                true => self.float.widen(row, values),
                false => {
                    self.float.widen(row, &mut values[..self.elements]);
                    // Fill the rest with a value that does not change any range.
                    let (own, rest) = values.split_at_mut(self.elements);
                    rest.fill(own[0]);
                }
            }
        }
        let values = &values[..self.tokens];
        let ranges = match self.along {
            Along::Tokens => across(values),
            Along::Elements => within(values),
        };
        let groups = self.groups();
        let constant = |group| self.constant(values, group);
        let scales = Scales::of(&ranges, groups, self.form, constant);

        let (stored, codes) = to.split_at_mut(4 * groups);
        let (scale, minimum) = stored.split_at_mut(2 * groups);
        for group in 0..groups {
            scale[2 * group..][..2].copy_from_slice(&scales.scale[group].to_le_bytes());
            minimum[2 * group..][..2].copy_from_slice(&scales.minimum[group].to_le_bytes());
            if scales.scale[group] == MARK {
                self.runs(group).for_each(|run| exact.extend_from_slice(&from[run]));
            }
        }
        let most = self.form.most();
        let code = |token: usize| match self.along {
            Along::Tokens => quantize(&values[token], &scales.lo, &scales.inverse, most),
            Along::Elements => {
                let (lo, inverse) = (scales.lo[token], scales.inverse[token]);
                quantize(&values[token], &[lo; GROUP], &[inverse; GROUP], most)
            }
        };
        for (row, stored) in codes.chunks_exact_mut(self.elements).enumerate() {
            let codes = match self.form {
                Form::Bytes => code(row),
                Form::Nibbles if 2 * row + 1 < self.tokens => {
                    let (low, high) = (code(2 * row), code(2 * row + 1));
                    std::array::from_fn(|lane| low[lane] | high[lane] << 4)
                }
                Form::Nibbles => code(2 * row),
            };
            match stored.first_chunk_mut() {
                Some(stored) => *stored = codes,
                None => stored.copy_from_slice(&codes[..self.elements]),
            }
        }
    }

    fn constant(&self, values: &[Lanes<f32>], group: usize) -> Option<f32> {
        let value = match self.along {
            Along::Tokens => values[0][group],
            Along::Elements => values[group][0],
        };
        let is_it = |other: &f32| other.to_bits() == value.to_bits();
        let is_constant = match self.along {
            Along::Tokens => values.iter().all(|row| is_it(&row[group])),
            Along::Elements => values[group].iter().all(is_it),
        };
        is_constant.then_some(value)
    }

    /// Decodes [`bytes`](Self::bytes) bytes into a tile of `to`. Groups without a scale come from the front of `exact`.
    pub(super) fn decode(&self, from: &[u8], exact: &mut &[u8], to: &mut [u8]) -> Result<(), Undecodable> {
        let groups = self.groups();
        let (stored, codes) = from.split_at(4 * groups);
        let (scale, minimum) = stored.split_at(2 * groups);
        let scales = Scales::read(scale, minimum)?;
        let value = |token: usize, codes: &Lanes<u8>| match self.along {
            Along::Tokens => restore(codes, &scales.lo, &scales.step),
            Along::Elements => {
                let (lo, step) = (scales.lo[token], scales.step[token]);
                restore(codes, &[lo; GROUP], &[step; GROUP])
            }
        };
        for (row, stored) in codes.chunks_exact(self.elements).enumerate() {
            let mut codes = [0; GROUP];
            match stored.first_chunk() {
                Some(stored) => codes = *stored,
                None => codes[..self.elements].copy_from_slice(stored),
            }
            match self.form {
                Form::Bytes => self.put(row, &value(row, &codes), to),
                Form::Nibbles => {
                    let low = codes.map(|code| code & 15);
                    self.put(2 * row, &value(2 * row, &low), to);
                    if 2 * row + 1 < self.tokens {
                        let high = codes.map(|code| code >> 4);
                        self.put(2 * row + 1, &value(2 * row + 1, &high), to);
                    }
                }
            }
        }
        for group in (0..groups).filter(|&group| scales.scale[group] == MARK) {
            for run in self.runs(group) {
                let (here, rest) = exact.split_at_checked(run.len()).ok_or(Undecodable::Exact)?;
                to[run].copy_from_slice(here);
                *exact = rest;
            }
        }
        Ok(())
    }

    fn put(&self, token: usize, values: &Lanes<f32>, to: &mut [u8]) {
        let row = &mut to[self.row(token)];
        match row.len() == GROUP * self.float.bytes() {
            true => self.float.narrow(values, row),
            false => self.float.narrow(&values[..self.elements], row),
        }
    }
}

/// The smallest and the largest value of each group. `finite` is 0 if all values are finite, and NaN otherwise.
struct Ranges {
    lo: Lanes<f32>,
    hi: Lanes<f32>,
    finite: Lanes<f32>,
}

fn across(values: &[Lanes<f32>]) -> Ranges {
    let mut ranges = Ranges { lo: values[0], hi: values[0], finite: [0.0; GROUP] };
    /// The number of lanes that are kept in registers.
    const LANES: usize = 16;
    for lanes in (0..GROUP).step_by(LANES) {
        let lanes = lanes..lanes + LANES;
        let mut lo: [f32; LANES] = *values[0][lanes.clone()].first_chunk().expect("so many");
        let (mut hi, mut finite) = (lo, [0.0; LANES]);
        for row in values {
            let row: &[f32; LANES] = row[lanes.clone()].first_chunk().expect("so many");
            for lane in 0..LANES {
                lo[lane] = least(row[lane], lo[lane]);
                hi[lane] = greatest(row[lane], hi[lane]);
                finite[lane] += zero(row[lane]);
            }
        }
        ranges.lo[lanes.clone()].copy_from_slice(&lo);
        ranges.hi[lanes.clone()].copy_from_slice(&hi);
        ranges.finite[lanes].copy_from_slice(&finite);
    }
    ranges
}

fn within(values: &[Lanes<f32>]) -> Ranges {
    let mut ranges = Ranges { lo: [0.0; GROUP], hi: [0.0; GROUP], finite: [0.0; GROUP] };
    for (token, row) in values.iter().enumerate() {
        let zeros = row.map(zero);
        ranges.lo[token] = fold(row, least);
        ranges.hi[token] = fold(row, greatest);
        ranges.finite[token] = fold(&zeros, |a, b| a + b);
    }
    ranges
}

/// Reduces the lanes in halves.
#[inline(always)]
fn fold(row: &Lanes<f32>, with: impl Fn(f32, f32) -> f32) -> f32 {
    let row: [f32; 16] = std::array::from_fn(|lane| with(row[lane], row[lane + 16]));
    let row: [f32; 8] = std::array::from_fn(|lane| with(row[lane], row[lane + 8]));
    let row: [f32; 4] = std::array::from_fn(|lane| with(row[lane], row[lane + 4]));
    with(with(row[0], row[2]), with(row[1], row[3]))
}

/// Returns zero of either sign for a finite value, and NaN for any other.
#[inline(always)]
fn zero(value: f32) -> f32 {
    value * 0.0
}

#[inline(always)]
fn least(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

#[inline(always)]
fn greatest(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

struct Scales {
    scale: Lanes<u16>,
    minimum: Lanes<u16>,
    /// The scale, and its inverse. Both are 0 if codes are not used.
    step: Lanes<f32>,
    inverse: Lanes<f32>,
    lo: Lanes<f32>,
}

impl Scales {
    const NONE: Self =
        Self { scale: [MARK; GROUP], minimum: [0; GROUP], step: [0.0; GROUP], inverse: [0.0; GROUP], lo: [0.0; GROUP] };

    /// `constant` returns the value of a group whose values are all equal.
    fn of(ranges: &Ranges, groups: usize, form: Form, constant: impl Fn(usize) -> Option<f32>) -> Self {
        let mut scales = Self::NONE;
        for group in 0..groups {
            let (lo, hi) = (ranges.lo[group], ranges.hi[group]);
            let fits = lo > -F16_OVERFLOW && hi < F16_OVERFLOW && ranges.finite[group] == 0.0;
            if !fits {
                continue;
            }
            // Adding 0.0 turns minus zero into zero.
            let (scale, minimum) = (to_f16((hi - lo) / form.most()), to_f16(lo + 0.0));
            if scale >= F16_NORMAL {
                scales.scale[group] = scale;
                scales.minimum[group] = minimum;
                scales.inverse[group] = 1.0 / from_f16(scale);
                scales.lo[group] = from_f16(minimum);
            } else if constant(group).is_some_and(|it| it.to_bits() == from_f16(minimum).to_bits()) {
                scales.scale[group] = 0;
                scales.minimum[group] = minimum;
            }
        }
        scales
    }

    fn read(scale: &[u8], minimum: &[u8]) -> Result<Self, Undecodable> {
        let mut scales = Self::NONE;
        let stored = scale.as_chunks().0.iter().zip(minimum.as_chunks().0);
        for (group, (scale, minimum)) in stored.enumerate() {
            let scale = u16::from_le_bytes(*scale);
            let minimum = u16::from_le_bytes(*minimum);
            let has_scale = scale == 0 || (F16_NORMAL..F16_INFINITY).contains(&scale);
            if has_scale && minimum & 0x7fff < F16_INFINITY {
                scales.scale[group] = scale;
                scales.step[group] = from_f16(scale);
                scales.lo[group] = from_f16(minimum);
            } else if (scale, minimum) != (MARK, 0) {
                return Err(Undecodable::Group { scale, minimum });
            }
        }
        Ok(scales)
    }
}

#[inline(always)]
fn quantize(values: &Lanes<f32>, lo: &Lanes<f32>, inverse: &Lanes<f32>, most: f32) -> Lanes<u8> {
    std::array::from_fn(|lane| {
        let code = (values[lane] - lo[lane]) * inverse[lane];
        // NaN becomes 0.
        let code = least(greatest(code, 0.0), most);
        (code + ROUND).to_bits() as u8
    })
}

#[inline(always)]
fn restore(codes: &Lanes<u8>, lo: &Lanes<f32>, step: &Lanes<f32>) -> Lanes<f32> {
    std::array::from_fn(|lane| lo[lane] + f32::from(codes[lane]) * step[lane])
}
