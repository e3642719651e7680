//! Sizes as people write them: `500GiB`.

use crate::error::StoreError;

/// The size that an environment variable names, if it is set.
///
/// # Errors
/// [`StoreError::Unsupported`] if it is set to what is no size.
pub(super) fn from_env(variable: &str) -> Result<Option<u64>, StoreError> {
    let Some(text) = std::env::var_os(variable) else {
        return Ok(None);
    };
    let size = text.to_str().and_then(parse);
    size.map(Some).ok_or_else(|| StoreError::Unsupported {
        what: "a cap from the environment",
        why: format!(
            "{variable}={} is no size; write it as 500GiB",
            text.to_string_lossy()
        ),
    })
}

/// `500GiB`, `1.5 TiB`, `4096`: bytes.
pub(super) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    let digits = digits.trim();
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let size = digits.parse::<f64>().ok()? * unit as f64;
    (size.is_finite() && (0.0..2f64.powi(63)).contains(&size)).then_some(size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse("500GiB"), Some(500 << 30));
        assert_eq!(parse(" 1.5 KiB"), Some(1536));
        assert_eq!(parse("18446744073709551615"), Some(u64::MAX));
        for wrong in [
            "",
            "GiB",
            "-1",
            "1GB?",
            "1 parsec",
            "1e400",
            "99999999999TiB",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
