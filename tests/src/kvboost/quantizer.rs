//! KVBoost's symmetric quantizer: a scale for each token of keys and each channel of values, whole rows long.
//!
//! Its scales are rounded to f16 after they have made the codes, and calculations are those of torch: in f32, and each result
//! rounded to the tensor's type.

use serde_json::Value;

use super::Agreement;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    /// Makes the type that the name of a case ends with: `ties_float16.b8`.
    fn of(case: &str) -> Option<Self> {
        let types = [("_float32", Self::F32), ("_bfloat16", Self::Bf16), ("_float16", Self::F16)];
        let named = types.into_iter().find(|(name, _)| case.contains(name));
        named.map(|(_, float)| float)
    }

    /// Returns the nearest number of the type, ties to even.
    fn round(self, number: f32) -> f32 {
        // Bits behind the first, exponent of the least number, and what is infinite.
        let (bits, least, too_great) = match self {
            Self::F32 => return number,
            Self::F16 => (10, -24, 65_520.0),
            Self::Bf16 => (7, -133, 2_f64.powi(128) - 2_f64.powi(119)),
        };
        let exact = f64::from(number);
        if number == 0.0 || !number.is_finite() {
            return number;
        }
        if exact.abs() >= too_great {
            return f32::INFINITY.copysign(number);
        }
        let exponent = (number.abs().log2().floor() as i32 - bits).max(least);
        // The logarithm may be one too many right below a power of two: another try does not change the nearest one.
        let exponent = match exact.abs() < 2_f64.powi(exponent + bits) {
            true => (exponent - 1).max(least),
            false => exponent,
        };
        let unit = 2_f64.powi(exponent);
        ((exact / unit).round_ties_even() * unit) as f32
    }
}

#[derive(Debug, PartialEq)]
struct Quantized {
    codes: Vec<i8>,
    scales: Vec<f32>,
    dequantized: Vec<f32>,
}

/// Quantizes values with a scale for each group. `group` tells which one the value at an index is in.
fn quantize(float: Float, bits: u64, values: &[f32], groups: usize, group: impl Fn(usize) -> usize) -> Quantized {
    let (least, most) = if bits == 8 { (-128.0, 127.0) } else { (-8.0, 7.0) };
    let floor = float.round(1e-8);
    let mut greatest = vec![0.0_f32; groups];
    for (at, value) in values.iter().enumerate() {
        let greatest = &mut greatest[group(at)];
        if value.is_nan() || value.abs() > *greatest {
            *greatest = if greatest.is_nan() { *greatest } else { value.abs() };
        }
    }
    let scale = |greatest: f32| {
        let greatest = if greatest < floor { floor } else { greatest };
        float.round(greatest / most)
    };
    let scales: Vec<f32> = greatest.into_iter().map(scale).collect();
    let code = |(at, value): (usize, &f32)| {
        let code = float.round(value / scales[group(at)]).round_ties_even();
        // What is no number is 0.
        code.clamp(least, most) as i8
    };
    let codes: Vec<i8> = values.iter().enumerate().map(code).collect();
    let scales: Vec<f32> = scales.into_iter().map(|scale| Float::F16.round(scale)).collect();
    let value = |(at, code): (usize, &i8)| float.round(f32::from(*code) * float.round(scales[group(at)]));
    let dequantized = codes.iter().enumerate().map(value).collect();
    Quantized { codes, scales, dequantized }
}

/// Packs two codes of 4 bits into each byte, the first in the low half.
fn pack(codes: &[i8], last_dim: usize) -> Result<Vec<i8>, (&'static str, String)> {
    if !last_dim.is_multiple_of(2) {
        let message = format!("Last dim must be even, got {last_dim}");
        return Err(("AssertionError", message));
    }
    let pairs = codes.chunks_exact(2);
    Ok(pairs.map(|pair| pair[0] & 15 | pair[1] << 4).collect())
}

fn unpack(packed: &[i8]) -> Vec<i8> {
    let pair = |byte: &i8| [byte << 4 >> 4, byte >> 4];
    packed.iter().flat_map(pair).collect()
}

/// Gives KVBoost's error for other numbers of bits than 8 and 4.
fn check_bits(bits: u64) -> Result<(), (&'static str, String)> {
    match bits {
        8 | 4 => Ok(()),
        _ => {
            let message = format!("Unsupported quantization bits={bits}. Use 8 or 4.");
            Err(("ValueError", message))
        }
    }
}

/// Replays a file `quant_small.json`: each case by itself.
///
/// # Errors
/// If it has another form.
pub fn replay(recorded: &Value) -> Result<Agreement, String> {
    let cases = recorded.as_object().ok_or("no object of cases")?;
    let mut all = Agreement::default();
    for (name, case) in cases {
        let agrees = agrees(name, case).map_err(|what| format!("{name}: {what}"))?;
        all.count(agrees);
    }
    Ok(all)
}

fn agrees(name: &str, case: &Value) -> Result<bool, String> {
    let float = Float::of(name).ok_or("its name has no type")?;
    let bits = name.rsplit_once(".b").and_then(|(_, bits)| bits.parse().ok());
    let bits: u64 = bits.ok_or("its name has no bits")?;
    check_bits(bits).map_err(|(_, message)| message)?;
    let list = |key: &str, read: fn(Float, &Value) -> Option<f32>, float| {
        let list = case[key].as_array().ok_or(format!("no {key}"))?;
        let numbers = list.iter().map(|number| read(float, number));
        let numbers: Option<Vec<f32>> = numbers.collect();
        numbers.ok_or(format!("{key} has what is no number"))
    };
    let (k, v) = (list("k", number, float)?, list("v", number, float)?);
    let (ks, vs) = (list("ks", number, Float::F32)?, list("vs", number, Float::F32)?);
    let dim = k.len().checked_div(ks.len()).ok_or("no scales")?;
    let tokens = v.len().checked_div(vs.len()).ok_or("no scales")?;
    let go_together = dim * ks.len() == k.len()
        && tokens * vs.len() == v.len()
        && k.len() == v.len()
        && k.len().checked_rem(tokens * dim) == Some(0);
    if !go_together {
        return Err("its lists do not go together".to_owned());
    }
    // [H, S, D]: a scale for each [H, S] of keys and each [H, D] of values.
    let keys = quantize(float, bits, &k, ks.len(), |at| at / dim);
    let values = quantize(float, bits, &v, vs.len(), |at| at / (tokens * dim) * dim + at % dim);
    let mut agrees = true;
    for (own, [codes, scales, dequantized]) in [(keys, ["kq", "ks", "kd"]), (values, ["vq", "vs", "vd"])] {
        let stored = match bits {
            8 => own.codes.clone(),
            _ => pack(&own.codes, dim).map_err(|(_, message)| message)?,
        };
        let back = bits == 8 || unpack(&stored) == own.codes;
        let stored: Vec<f32> = stored.into_iter().map(f32::from).collect();
        agrees &= back
            && same(&stored, &list(codes, number, Float::F32)?)
            && same(&own.scales, &list(scales, number, Float::F32)?)
            && same(&own.dequantized, &list(dequantized, number, float)?);
    }
    Ok(agrees)
}

/// Compares bit for bit, except that all NaNs are equal.
fn same(own: &[f32], recorded: &[f32]) -> bool {
    let equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    own.len() == recorded.len() && own.iter().zip(recorded).all(equal)
}

/// Returns a number as it is recorded: in hexadecimal, or, where it is of bf16, its bits.
fn number(float: Float, recorded: &Value) -> Option<f32> {
    match recorded {
        Value::String(text) => hexadecimal(text),
        bits if float == Float::Bf16 => {
            let bits = u16::try_from(bits.as_u64()?).ok()?;
            Some(f32::from_bits(u32::from(bits) << 16))
        }
        code => Some(code.as_i64()? as f32),
    }
}

/// Parses `-0x1.8p-3`, `inf` or `nan`.
fn hexadecimal(text: &str) -> Option<f32> {
    let (sign, magnitude) = match text.strip_prefix('-') {
        Some(magnitude) => (-1.0, magnitude),
        None => (1.0, text),
    };
    let Some(digits) = magnitude.strip_prefix("0x") else {
        return magnitude.parse::<f32>().ok().map(|number| sign * number);
    };
    let (mantissa, exponent) = digits.split_once('p')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = u64::from_str_radix(&format!("{whole}{fraction}"), 16).ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let exponent = exponent.parse::<i32>().ok()?.checked_sub(4 * places)?;
    Some(sign * (digits as f64 * 2_f64.powi(exponent)) as f32)
}

/// Replays a file `int4_pack.json`: each pair of codes by itself.
///
/// # Errors
/// If it has another form, or an error that it records is another one here.
pub fn replay_packing(recorded: &Value) -> Result<Agreement, String> {
    let rows = |key: &str| recorded[key].as_array().ok_or(format!("no {key}"));
    let code = |value: &Value| value.as_i64().and_then(|code| i8::try_from(code).ok());
    let pair = |row: &Value| -> Option<Vec<i8>> { row.as_array()?.iter().map(code).collect() };
    let (pairs, packed, unpacked) = (rows("pairs")?, rows("packed_i8")?, rows("unpacked")?);
    if pairs.len() != packed.len() || pairs.len() != unpacked.len() {
        return Err("its lists are not equally long".to_owned());
    }
    let mut all = Agreement::default();
    for ((codes, packed), unpacked) in pairs.iter().zip(packed).zip(unpacked) {
        let codes = pair(codes).ok_or("a pair is none of codes")?;
        let own = pack(&codes, codes.len()).map_err(|(_, message)| message)?;
        let back = pair(unpacked).ok_or("a pair is none of codes")?;
        all.count(own.len() == 1 && code(packed) == own.first().copied() && unpack(&own) == back);
    }
    for (key, own) in
        [("odd_last_dim", pack(&[1, 2, 3], 3).map(drop)), ("bits_2", check_bits(2)), ("bits_16", check_bits(16))]
    {
        let Some(error) = recorded.get(key) else {
            continue;
        };
        let own = own.err().map(|(kind, message)| (kind.into(), message.into()));
        if own != Some((error["error"].clone(), error["msg"].clone())) {
            return Err(format!("{key} is another error here: {own:?}"));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_rounded() {
        for (text, number) in [
            ("0x1.c211200000000p+1", f32::from_bits(0x4061_0890)),
            ("-0x1.8p-3", -0.1875),
            ("-0x0.0p+0", -0.0),
            ("0x1.0000000000000p-24", 5.960_464_5e-8),
            ("-inf", f32::NEG_INFINITY),
        ] {
            assert_eq!(hexadecimal(text).map(f32::to_bits), Some(f32::to_bits(number)), "{text}");
        }
        assert!(hexadecimal("nan").unwrap().is_nan());
        assert_eq!(hexadecimal("0x1"), None);
        assert_eq!(Float::F16.round(1e-8), 0.0);
        assert_eq!(Float::F16.round(65_519.0), 65_504.0);
        assert_eq!(Float::F16.round(65_520.0), f32::INFINITY);
        assert_eq!(Float::F16.round(2049.0), 2048.0);
        assert_eq!(Float::F16.round(0.999_999_9), 1.0);
        assert_eq!(Float::Bf16.round(1.003_906_3), 1.0);
        assert_eq!(Float::Bf16.round(-1.011_718_8), -1.015_625);
    }
}
