//! Formats and parses numbers for people: grouped digits, bytes and times.

use std::time::Duration;

/// Formats with grouped digits: `1,310,720`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.char_indices() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats with grouped digits, or as a power of ten above 64 bits.
pub(crate) fn grouped_wide(n: u128) -> String {
    u64::try_from(n).map_or_else(|_| format!("{:.3e}", n as f64), grouped)
}

/// Formats a number that is usually whole: `131,072`, `146.25`.
pub(crate) fn broken(n: f64) -> String {
    // The fraction may round up to a whole.
    match (n.fract() * 100.0).round() {
        0.0 => grouped_wide(n as u128),
        100.0 => grouped_wide(n as u128 + 1),
        part => format!("{}.{part:02}", grouped_wide(n as u128)),
    }
}

/// Formats a count of things: `1 chunk`, `1,024 chunks`.
pub(crate) fn count(n: u64, thing: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", grouped(n))
}

const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/// Formats a length in bytes with at most three figures: `512 B`, `8 KiB`, `1.25 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1000.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let text = figures(value);
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text} {unit}")
}

/// Formats like [`bytes`] a number of bytes that may have a fraction.
pub(crate) fn bytes_in_parts(n: f64) -> String {
    match n < 1024.0 && n.fract() != 0.0 {
        true => format!("{} B", figures(n)),
        false => bytes_wide(n as u128),
    }
}

/// Formats like [`bytes`] a number that may exceed 64 bits.
pub(crate) fn bytes_wide(n: u128) -> String {
    bytes(u64::try_from(n).unwrap_or(u64::MAX))
}

/// Parses a number of tokens: `2000`, `128k` (128,000), `128Ki` (131,072), `1.5M`.
pub(crate) fn parse_tokens(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "{text:?} is not a number of tokens; write, for example, 2000, 128k (128,000), 128Ki \
                            (131,072) or 1M"
        )
    };
    let (digits, unit) = parts(text).ok_or_else(wrong)?;
    let scale: u64 = match unit {
        "" => 1,
        "k" | "K" => 1000,
        "Ki" | "ki" => 1 << 10,
        "M" | "m" => 1_000_000,
        "Mi" | "mi" => 1 << 20,
        _ => return Err(wrong()),
    };
    // The result has to be whole: 1.5k is 1,500 tokens, but 1.5 is an error.
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let part = part.trim_end_matches('0');
    let all: u128 = format!("{whole}{part}").parse().map_err(|_| wrong())?;
    let below = 10u128.checked_pow(part.len() as u32).ok_or_else(wrong)?;
    let all = all.checked_mul(scale.into()).ok_or_else(wrong)?;
    match all % below {
        0 => u64::try_from(all / below).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

/// Parses a number and its unit, which may be empty: `12.5GB/s`, `4 us`.
pub(crate) fn quantity(text: &str) -> Option<(f64, &str)> {
    let (value, unit) = parts(text)?;
    Some((value.parse().ok()?, unit))
}

/// Splits a quantity into its digits and its unit.
fn parts(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.'));
    let (value, unit) = text.split_at(digits.unwrap_or(text.len()));
    (!value.is_empty()).then_some((value, unit.trim()))
}

/// Formats bytes exactly, in the largest unit without a fraction: `1,280 KiB`, `2,046,820 B`.
pub(crate) fn exact_bytes(n: u64) -> String {
    let (mut value, mut unit) = (n, "B");
    for next in UNITS {
        if value == 0 || value % 1024 != 0 {
            break;
        }
        value /= 1024;
        unit = next;
    }
    format!("{} {unit}", grouped(value))
}

/// Formats a time: `640 ns`, `4.20 us`, `38.1 ms`, `2.05 s`.
pub(crate) fn time(t: Duration) -> String {
    let ns = t.as_nanos() as f64;
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{} us", figures(ns / 1e3)),
        _ if ns < 1e9 => format!("{} ms", figures(ns / 1e6)),
        _ => format!("{} s", figures(ns / 1e9)),
    }
}

/// Formats a rate: `1.83 GB/s`.
pub(crate) fn rate(bytes: u64, t: Duration) -> String {
    format!("{} GB/s", figures(gigabytes_per_second(bytes, t)))
}

/// Returns a rate in GB/s, with 10^9 bytes to the GB.
pub(crate) fn gigabytes_per_second(bytes: u64, t: Duration) -> f64 {
    bytes as f64 / t.as_nanos().max(1) as f64
}

/// Formats three significant figures, including zeros, so that columns align; digits of large numbers are grouped.
pub(crate) fn figures(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 1000.0 => return grouped(value.round() as u64),
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_310_720, "1,310,720")] {
            assert_eq!(grouped(n), text);
        }
    }

    #[test]
    fn tokens_are_counted_in_thousands_or_in_1024s() {
        for (text, tokens) in [
            ("0", 0),
            ("2000", 2000),
            ("128k", 128_000),
            ("128 K", 128_000),
            ("128Ki", 131_072),
            ("1.5k", 1500),
            ("0.5Ki", 512),
            ("1M", 1_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_tokens(text), Ok(tokens), "{text}");
        }
        for text in ["", "k", "-5", "1e6", "1.5", "0.0001k", "128kb", "1..2k", "128,000", "99999999999999M"] {
            let error = parse_tokens(text).expect_err(text);
            assert!(error.contains("128k (128,000)"), "{text}: {error}");
        }
    }

    #[test]
    fn parts_are_told_in_hundredths() {
        for (n, text) in
            [(0.0, "0"), (131_072.0, "131,072"), (3850.25, "3,850.25"), (4.5625, "4.56"), (1.04, "1.04"), (5.996, "6")]
        {
            assert_eq!(broken(n), text);
        }
    }

    #[test]
    fn lengths_keep_three_figures() {
        let cases = [
            (0, "0 B"),
            (512, "512 B"),
            (8192, "8 KiB"),
            (640 << 10, "640 KiB"),
            (1000 << 10, "0.98 MiB"),
            (5 << 18, "1.25 MiB"),
            (u64::MAX, "16,384 PiB"),
        ];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn exact_lengths_have_no_fraction() {
        let cases =
            [(0, "0 B"), (512, "512 B"), (1 << 20, "1 MiB"), (5 << 18, "1,280 KiB"), (2_046_820, "2,046,820 B")];
        for (n, text) in cases {
            assert_eq!(exact_bytes(n), text);
        }
    }

    #[test]
    fn times_carry_their_units() {
        assert_eq!(time(Duration::from_nanos(640)), "640 ns");
        assert_eq!(time(Duration::from_nanos(4200)), "4.20 us");
        assert_eq!(time(Duration::from_micros(38_120)), "38.1 ms");
        assert_eq!(time(Duration::from_millis(2050)), "2.05 s");
    }
}
