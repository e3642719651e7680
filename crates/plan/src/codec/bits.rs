//! Conversion of f16 and bf16 to f32 and back. The operations vectorize, and do not depend on whether the processor
//! flushes subnormal numbers to zero.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Converts values to f32, as many as fit into `to`. A value that is not finite in f16 becomes 65,536 or more, or
    /// stays an infinity or NaN. Different values stay different.
    pub(super) fn widen(self, from: &[u8], to: &mut [f32]) {
        match self {
            Self::F32 => {
                for (from, to) in from.as_chunks().0.iter().zip(to) {
                    *to = f32::from_le_bytes(*from);
                }
            }
            Self::F16 => {
                for (from, to) in from.as_chunks().0.iter().zip(to) {
                    *to = from_f16(u16::from_le_bytes(*from));
                }
            }
            Self::Bf16 => {
                for (from, to) in from.as_chunks().0.iter().zip(to) {
                    *to = f32::from_bits(u32::from(u16::from_le_bytes(*from)) << 16);
                }
            }
        }
    }

    /// Rounds finite values to the nearest one of the type (ties to even), at most its largest one.
    pub(super) fn narrow(self, from: &[f32], to: &mut [u8]) {
        match self {
            Self::F32 => {
                for (from, to) in from.iter().zip(to.as_chunks_mut().0) {
                    *to = from.to_le_bytes();
                }
            }
            Self::F16 => {
                for (from, to) in from.iter().zip(to.as_chunks_mut().0) {
                    *to = to_f16(from.clamp(-F16_MAX, F16_MAX)).to_le_bytes();
                }
            }
            Self::Bf16 => {
                for (from, to) in from.iter().zip(to.as_chunks_mut().0) {
                    let bits = from.to_bits();
                    let rounded = bits + 0x7fff + (bits >> 16 & 1);
                    *to = ((rounded >> 16) as u16).to_le_bytes();
                }
            }
        }
    }
}

const F16_MAX: f32 = 65_504.0;

pub(super) const F16_NORMAL: u16 = 0x0400;

/// The bits of an infinity. Those of finite positive numbers are smaller.
pub(super) const F16_INFINITY: u16 = 0x7c00;

/// The smallest number that is too large for an f16.
pub(super) const F16_OVERFLOW: f32 = 65_520.0;

/// Converts an f16. A value that is not finite becomes 65,536 or more.
#[inline(always)]
pub(super) fn from_f16(half: u16) -> f32 {
    const REBIAS: u32 = (127 - 15) << 23;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let normal = f32::from_bits(magnitude + REBIAS);
    // 2^-14 (1 + m) - 2^-14, computed in normal numbers.
    let subnormal = f32::from_bits(magnitude + REBIAS + (1 << 23)) - 6.103_515_6e-5;
    let value = if half & 0x7c00 == 0 { subnormal } else { normal };
    f32::from_bits(value.to_bits() | u32::from(half & 0x8000) << 16)
}

/// Rounds a number below 65,520 to the nearest f16, ties to even.
#[inline(always)]
pub(super) fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Near 0.5 the last bit of an f32 is 2^-24, so the addition rounds.
    let shifted = f32::from_bits(magnitude) + 0.5;
    let subnormal = shifted.to_bits().wrapping_sub(0.5_f32.to_bits());
    let rebiased = magnitude.wrapping_sub((127 - 15) << 23);
    let normal = rebiased.wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    let is_subnormal = magnitude < 113 << 23;
    sign | if is_subnormal { subnormal } else { normal } as u16
}
