//! Compares codecs with an independent reader in f64, written from the reference page, and checks the bound stated
//! there.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use transload_layout::Dtype;

use super::bits::{from_f16, to_f16};
use super::*;

/// Returns the value of an f16, by its definition.
fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => mantissa * 2_f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + mantissa / 1024.0) * 2_f64.powi(exponent - 15),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// Returns the nearest number with this many bits after the first, all worth at least 2^`least`. Ties go to even.
fn nearest(number: f64, bits: i32, least: i32) -> f64 {
    let unit = 2_f64.powi((number.abs().log2().floor() as i32 - bits).max(least));
    (number / unit).round_ties_even() * unit
}

fn value(dtype: Dtype, bytes: &[u8]) -> f64 {
    match dtype {
        Dtype::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        Dtype::Bf16 => f64::from(f32::from_le_bytes([0, 0, bytes[0], bytes[1]])),
        _ => half(u16::from_le_bytes(bytes.try_into().unwrap())),
    }
}

fn rounded(dtype: Dtype, decoded: f64) -> f64 {
    if decoded == 0.0 {
        return 0.0;
    }
    let decoded = f64::from(decoded as f32);
    match dtype {
        Dtype::F32 => decoded,
        Dtype::Bf16 => nearest(decoded, 7, -133),
        _ => nearest(decoded, 10, -24).clamp(-65_504.0, 65_504.0),
    }
}

/// A group as the reference page describes it.
struct Group {
    /// The token and element of each value.
    at: Vec<(usize, usize)>,
    scale: f64,
    minimum: f64,
    /// `None` if they are stored exactly.
    codes: Option<Vec<u8>>,
}

impl Group {
    fn code(&self, value: f64, most: f64) -> u8 {
        if self.scale == 0.0 {
            return 0;
        }
        let above = value as f32 - self.minimum as f32;
        let code = above * (1.0 / self.scale as f32);
        f64::from(code).round_ties_even().clamp(0.0, most) as u8
    }
}

fn read(codec: Codec, (keys, values, tokens): (usize, usize, usize), codes: &[u8]) -> Vec<Group> {
    let mut codes: VecDeque<u8> = codes.iter().copied().collect();
    let mut take = |count: usize| codes.drain(..count).collect::<Vec<u8>>();
    let mut groups = Vec::new();
    let cut = |from: usize, to: usize| {
        let starts = (from..to).step_by(32);
        starts.map(move |start| start..to.min(start + 32)).collect::<Vec<_>>()
    };
    for block in cut(0, tokens) {
        let keys_first = cut(0, keys).into_iter().map(|tile| (true, tile));
        let then = cut(keys, keys + values);
        for (is_key, tile) in keys_first.chain(then.into_iter().map(|tile| (false, tile))) {
            let count = if is_key { tile.len() } else { block.len() };
            let mut halves = || {
                let bytes = take(2 * count);
                let halves = bytes.chunks(2).map(|two| u16::from(two[0]) | u16::from(two[1]) << 8);
                halves.collect::<Vec<u16>>()
            };
            let (scales, minima) = (halves(), halves());
            let rows = if codec == Codec::Q8 { block.len() } else { block.len().div_ceil(2) };
            let codes = take(rows * tile.len());
            let code = |token: usize, element: usize| match codec {
                Codec::Q8 => codes[token * tile.len() + element],
                _ => codes[token / 2 * tile.len() + element] >> (4 * (token % 2)) & 15,
            };
            for group in 0..count {
                let at: Vec<(usize, usize)> = if is_key {
                    (0..block.len()).map(|token| (token, group)).collect()
                } else {
                    (0..tile.len()).map(|element| (group, element)).collect()
                };
                let codes = at.iter().map(|&(token, element)| code(token, element));
                let codes = (scales[group] != 0xffff).then(|| codes.collect());
                let at = at.into_iter();
                let at = at.map(|(token, element)| (block.start + token, tile.start + element));
                groups.push(Group {
                    at: at.collect(),
                    scale: half(scales[group]),
                    minimum: half(minima[group]),
                    codes,
                });
            }
        }
    }
    assert!(codes.is_empty(), "{} bytes are left", codes.len());
    groups
}

/// Encodes and decodes rows, and compares both results with the reference page.
fn check(codec: Codec, dtype: Dtype, (keys, values): (usize, usize), from: &[u8]) {
    let rows = Rows::new(dtype, keys, values).unwrap();
    let (one, width) = (dtype.bytes() as usize, keys + values);
    let tokens = from.len().checked_div(width * one).unwrap_or(0);
    let (mut codes, mut exact) = (vec![7], vec![8, 9]);
    codec.encode(rows, from, &mut codes, &mut exact);
    let (codes, exact) = (&codes[1..], &exact[2..]);
    assert_eq!(codec.encoded_bytes(rows, tokens), Some(codes.len()));
    let mut to = vec![0xaa; from.len()];
    let mut rest = exact;
    codec.decode(rows, codes, &mut rest, &mut to).unwrap();
    assert!(rest.is_empty(), "{} bytes are left", rest.len());

    let most = if codec == Codec::Q8 { 255.0 } else { 15.0 };
    let mut stored = Vec::new();
    for group in read(codec, (keys, values, tokens), codes) {
        let place = |(token, element): (usize, usize)| {
            let start = (token * width + element) * one;
            start..start + one
        };
        let bytes = |of: &[u8]| -> Vec<u8> { group.at.iter().flat_map(|at| of[place(*at)].to_vec()).collect() };
        let (own, back) = (bytes(from), bytes(&to));
        let numbers = |of: &[u8]| -> Vec<f64> { of.chunks(one).map(|bytes| value(dtype, bytes)).collect() };
        let (all, back_all) = (numbers(&own), numbers(&back));
        let lo = all.iter().copied().fold(f64::INFINITY, f64::min);
        let hi = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (step, least) = ((hi - lo) / most, 2_f64.powi(-14));
        let fits = all.iter().all(|x| x.is_finite() && x.abs() < 65_520.0);
        let is_constant = own.chunks(one).all(|bytes| *bytes == own[..one])
            && fits
            && (lo == 0.0 && lo.is_sign_positive() || lo != 0.0 && nearest(lo, 10, -24) == lo);
        let Some(codes) = &group.codes else {
            // A step just below the smallest normal scale may be rounded up to it. Then there are codes.
            assert!(!fits || step < least && !is_constant, "{codec} {dtype} {all:?}");
            assert!(own == back);
            stored.extend(own);
            continue;
        };
        assert!(fits && (step > least * 0.999 || is_constant), "{codec} {dtype} {all:?}");
        let bound = step / 2.0 + 2_f64.powi(-10) * (lo.abs() + hi - lo);
        for ((x, code), back) in all.iter().zip(codes).zip(back_all) {
            assert_eq!(*code, group.code(*x, most), "{codec} {dtype} {x}");
            let read = group.minimum + f64::from(*code) * group.scale;
            assert!((x - read).abs() <= bound, "{codec} {dtype} {x} {read} {bound}");
            assert_eq!(back, rounded(dtype, read), "{codec} {dtype} {x}");
            assert!((x - back).abs() <= 2.0 * bound);
        }
        assert!(!is_constant || own == back);
    }
    assert!(stored == exact, "what is stored exactly, in the order of groups");
}

/// Returns values of all magnitudes, with some that are not numbers.
fn numbers() -> impl Strategy<Value = Vec<f32>> {
    let odd = prop_oneof![
        Just(0.0_f32),
        Just(-0.0),
        Just(f32::NAN),
        Just(-f32::INFINITY),
        Just(65_504.0),
        Just(-65_519.996),
        Just(65_520.0),
        Just(1e-7),
        Just(1e-40),
        any::<u32>().prop_map(f32::from_bits),
    ];
    let shape = (-26..20_i32, -20..17_i32, any::<u64>(), 0..40_u64);
    let odd = prop::collection::vec((any::<prop::sample::Index>(), odd), 0..4);
    (shape, odd).prop_map(|((size, middle, seed, equal), odd)| {
        let mut state = seed;
        let mut numbers: Vec<f32> = (0..70 * 150)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let uniform = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
                let uniform = if equal == 0 { 0.25 } else { uniform };
                uniform * 2_f32.powi(size) + if seed % 3 == 0 { 2_f32.powi(middle) } else { 0.0 }
            })
            .collect();
        for (at, odd) in odd {
            let len = numbers.len();
            numbers[at.index(len)] = odd;
        }
        numbers
    })
}

#[test]
fn what_is_decoded_is_what_the_page_says_and_within_its_bound() {
    let codecs = prop_oneof![Just(Codec::Q8), Just(Codec::Q4)];
    let dtypes = prop_oneof![Just(Dtype::F32), Just(Dtype::F16), Just(Dtype::Bf16)];
    let sizes = (0..75_usize, 0..75_usize, 0..70_usize);
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(7);
    }
    let run = TestRunner::new(config).run(
        &(codecs, dtypes, sizes, numbers()),
        |(codec, dtype, (keys, values, tokens), numbers)| {
            let numbers = numbers.iter().take(tokens * (keys + values));
            let bytes: Vec<u8> = match dtype {
                Dtype::F32 => numbers.flat_map(|x| x.to_le_bytes()).collect(),
                Dtype::Bf16 => {
                    let high = numbers.map(|x| (x.to_bits() >> 16) as u16);
                    high.flat_map(u16::to_le_bytes).collect()
                }
                _ => {
                    let half = |x: &f32| match x.abs() < 65_520.0 {
                        true => to_f16(*x),
                        false => x.to_bits() as u16 | 0x7c00,
                    };
                    numbers.map(half).flat_map(u16::to_le_bytes).collect()
                }
            };
            check(codec, dtype, (keys, values), &bytes);
            Ok(())
        },
    );
    run.unwrap_or_else(|fault| panic!("{fault}"));
}

/// Zero, a constant, and values just inside and outside the limits of f16.
#[test]
fn groups_at_the_borders_are_coded_or_stored_exactly() {
    let least = 2_f32.powi(-14);
    for (codec, most) in [(Codec::Q8, 255.0_f32), (Codec::Q4, 15.0)] {
        for (ends, is_exact) in [
            ([0.0, 0.0], false),
            ([-0.0, -0.0], true),
            ([0.1, 0.1], true),
            ([0.25, 0.25], false),
            ([0.0, least * most], false),
            ([0.0, least * most * 0.999], true),
            ([65_519.0, 0.0], false),
            ([-65_520.0, 0.0], true),
            ([-65_504.0, 65_504.0], false),
            ([f32::NAN, 1.0], true),
            ([f32::INFINITY, 1.0], true),
        ] {
            let bytes: Vec<u8> = ends.iter().flat_map(|x| x.to_le_bytes()).collect();
            let (mut codes, mut exact) = (Vec::new(), Vec::new());
            let rows = Rows::new(Dtype::F32, 1, 0).unwrap();
            codec.encode(rows, &bytes, &mut codes, &mut exact);
            assert_eq!(!exact.is_empty(), is_exact, "{codec} {ends:?}");
            check(codec, Dtype::F32, (1, 0), &bytes);
            check(codec, Dtype::F32, (0, 2), &bytes);
        }
    }
}

/// The largest f16 does not become infinite.
#[test]
fn the_greatest_values_of_f16_stay_finite() {
    let bytes: Vec<u8> = [0xfbff_u16, 0x7bff, 0x7bfe, 0x1234].into_iter().flat_map(u16::to_le_bytes).collect();
    check(Codec::Q8, Dtype::F16, (0, 4), &bytes);
    check(Codec::Q4, Dtype::F16, (1, 0), &bytes);
}

#[test]
fn every_f16_is_what_it_should_be() {
    for bits in 0..=u16::MAX {
        let (own, exact) = (f64::from(from_f16(bits)), half(bits));
        if !exact.is_finite() {
            assert!(own.abs() >= 65_536.0);
            continue;
        }
        assert_eq!(own.to_bits(), exact.to_bits());
        assert_eq!(to_f16(exact as f32), bits);
        // Halfway to the next number, which rounds to even, and just above and below that.
        let next = half(bits + 1);
        if next.is_finite() && bits != 0x7fff {
            let middle = ((exact + next) / 2.0) as f32;
            let even = if bits & 1 == 0 { bits } else { bits + 1 };
            assert_eq!(to_f16(middle), even);
            let away = f32::from_bits(middle.to_bits() + 1);
            let nearer = f32::from_bits(middle.to_bits() - 1);
            assert_eq!((to_f16(nearer), to_f16(away)), (bits, bits + 1));
        }
    }
}

#[test]
fn a_decoder_trusts_no_length_and_no_scale() {
    let rows = Rows::new(Dtype::Bf16, 3, 5).unwrap();
    let from: Vec<u8> = (0..16 * 40).map(|at| (at * 7) as u8).collect();
    let (mut codes, mut exact) = (Vec::new(), Vec::new());
    Codec::Q4.encode(rows, &from, &mut codes, &mut exact);
    assert!(!exact.is_empty());
    let mut to = vec![0; from.len()];
    let mut decode = |codes: &[u8], mut exact: &[u8]| {
        let done = Codec::Q4.decode(rows, codes, &mut exact, &mut to);
        done.map(|()| exact.len())
    };
    assert_eq!(decode(&codes, &exact), Ok(0));
    assert_eq!(decode(&codes, &[&exact[..], &[1, 2]].concat()), Ok(2));
    let cut = decode(&codes, &exact[..exact.len() - 1]);
    assert_eq!(cut, Err(Undecodable::Exact));
    let longer = [&codes[..], &[0]].concat();
    for given in [0, 1, codes.len() - 1, longer.len()] {
        let needed = codes.len();
        assert_eq!(decode(&longer[..given], &exact), Err(Undecodable::Length { needed, given }));
    }
    // Invalid groups: an infinite, a negative and a subnormal scale, an infinite minimum, and a mark with a minimum.
    for (scale, minimum) in [(0x7c00, 0), (0x8401, 0), (1, 0), (0x3c00, 0x7c00), (0xffff, 1)] {
        let mut codes = codes.clone();
        codes[..2].copy_from_slice(&u16::to_le_bytes(scale));
        codes[6..8].copy_from_slice(&u16::to_le_bytes(minimum));
        assert_eq!(decode(&codes, &exact), Err(Undecodable::Group { scale, minimum }));
    }
    assert_eq!(Codec::Q8.encoded_bytes(rows, usize::MAX), None);
    assert_eq!(Rows::new(Dtype::F8E4M3, 3, 5), None);
}

#[test]
fn codecs_have_names() {
    for (codec, name) in Codec::ALL.iter().zip(["exact", "q8", "q4"]) {
        assert_eq!(name.parse(), Ok(*codec));
        assert_eq!(codec.to_string(), name);
    }
    let error = "Q4".parse::<Codec>().unwrap_err();
    assert_eq!(error.to_string(), "`Q4` is not a codec: write exact, q8 or q4");
}
