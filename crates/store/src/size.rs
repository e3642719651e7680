//! Parsing of sizes: `500GiB`.

use thiserror::Error;

use crate::error::StoreError;

/// Says why a text is not a size.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum SizeError {
    /// The text is a number without a unit. People mean GiB by it as often as bytes.
    #[error("{text} has no unit; write {text}GiB or {text}MiB, or {text}B for bytes")]
    NoUnit { text: String },
    /// The unit is not known.
    #[error(
        "{unit:?} is not a unit of size; the units are B, KiB, MiB, GiB, TiB (of 1024) and kB, MB, GB, TB (of 1000)"
    )]
    NoSuchUnit { unit: String },
    /// The text is not a number with a unit, or the number does not fit in 64 bits.
    #[error("{text:?} is not a size; write a number and a unit, for example 40GiB")]
    NoSize { text: String },
}

/// Reads a size in bytes: `500GiB`, `1.5 TiB`, `80GB`, `4096B`. Only 0 needs no unit.
///
/// # Errors
/// [`SizeError`] says what to write.
///
/// ```
/// use transload_store::internal::size::parse;
///
/// assert_eq!(parse("1.5KiB"), Ok(1536));
/// assert_eq!(
///     parse("5").unwrap_err().to_string(),
///     "5 has no unit; write 5GiB or 5MiB, or 5B for bytes"
/// );
/// ```
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let no_size = || SizeError::NoSize { text: text.into() };
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let (number, unit) = text.split_at(text.len() - digits.len());
    let value: f64 = number.parse().map_err(|_| no_size())?;
    let scale: u64 = match unit.trim() {
        "" if value == 0.0 => 1,
        "" => return Err(SizeError::NoUnit { text: text.into() }),
        "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        unit => return Err(SizeError::NoSuchUnit { unit: unit.into() }),
    };
    // Integers are exact. Floating point would round large ones.
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).ok_or_else(no_size);
    }
    let size = value * scale as f64;
    match size < u64::MAX as f64 {
        true => Ok(size as u64),
        false => Err(no_size()),
    }
}

/// Reads a size from an environment variable, if it is set.
///
/// # Errors
/// [`StoreError::Unsupported`] if the variable is set to a text that is not a size.
pub(crate) fn from_env(variable: &str) -> Result<Option<u64>, StoreError> {
    let Some(text) = std::env::var_os(variable) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    parse(&text).map(Some).map_err(|why| StoreError::Unsupported {
        what: "a cap from the environment",
        why: format!("{variable}={text}: {why}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("500GiB", 500 << 30),
            (" 1.5 KiB", 1536),
            ("80 GB", 80_000_000_000),
            ("2T", 2 << 40),
            ("18446744073709551615B", u64::MAX),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for (text, told) in [
            ("40", "write 40GiB or 40MiB, or 40B for bytes"),
            ("40Gb", "\"Gb\" is not a unit of size"),
            ("1GB?", "is not a unit of size"),
            ("1e400", "is not a unit of size"),
            ("", "for example 40GiB"),
            ("lots", "for example 40GiB"),
            ("GiB", "for example 40GiB"),
            ("-1", "for example 40GiB"),
            ("1.2.3GiB", "for example 40GiB"),
            ("99999999999TiB", "for example 40GiB"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
