//! Parsing of periods: `90s`, `30min`.

use std::time::Duration;

use thiserror::Error;

/// Says why a text is not a period.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum PeriodError {
    /// The text is a number without a unit. People mean minutes by it as often as seconds.
    #[error("{text} has no unit; write {text}s, {text}min or {text}ms (milliseconds)")]
    NoUnit { text: String },
    /// The unit is not known.
    #[error("{unit:?} is not a unit of time; the units are ns, us, ms, s, min (or m), h and d")]
    NoSuchUnit { unit: String },
    /// The text is not a number with a unit, or the number is too large.
    #[error("{text:?} is not a duration; write a number and a unit, for example 90s, 30min or 1h")]
    NoPeriod { text: String },
    /// The period is 0, but a limit has to be longer.
    #[error("the duration {text} must be more than zero; write, for example, 1ms")]
    NoTime { text: String },
}

/// Reads a period: `200ms`, `90s`, `30 min`, `1.5h`, `2d`. Only 0 needs no unit.
///
/// # Errors
/// [`PeriodError`] says what to write.
///
/// ```
/// use std::time::Duration;
/// use transload_store::internal::period::parse;
///
/// assert_eq!(parse("1.5h"), Ok(Duration::from_secs(5400)));
/// assert_eq!(
///     parse("5").unwrap_err().to_string(),
///     "5 has no unit; write 5s, 5min or 5ms (milliseconds)"
/// );
/// ```
pub fn parse(text: &str) -> Result<Duration, PeriodError> {
    let text = text.trim();
    let no_period = || PeriodError::NoPeriod { text: text.into() };
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &text[..text.len() - unit.len()];
    let value: f64 = number.parse().map_err(|_| no_period())?;
    let seconds = match unit.trim() {
        "" if value == 0.0 => 1.0,
        "" => return Err(PeriodError::NoUnit { text: text.into() }),
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" | "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        unit => return Err(PeriodError::NoSuchUnit { unit: unit.into() }),
    };
    Duration::try_from_secs_f64(value * seconds).map_err(|_| no_period())
}

/// Reads a time limit: a period that is not 0.
///
/// # Errors
/// The errors of [`parse`], and [`PeriodError::NoTime`].
pub fn parse_limit(text: &str) -> Result<Duration, PeriodError> {
    match parse(text)? {
        Duration::ZERO => Err(PeriodError::NoTime { text: text.into() }),
        limit => Ok(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_have_units() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("0.0", 0),
            ("400 ns", 400),
            ("3.9us", 3900),
            ("3.9µs", 3900),
            ("200ms", 200_000_000),
            ("90s", 90 * 1_000_000_000),
            (" 30 min ", 1800 * 1_000_000_000),
            ("30m", 1800 * 1_000_000_000),
            ("1.5h", 5400 * 1_000_000_000),
            ("2d", 172_800 * 1_000_000_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for (text, told) in [
            ("5", "write 5s, 5min or 5ms"),
            ("0.5", "write 0.5s, 0.5min"),
            ("1 week", "\"week\" is not a unit of time"),
            ("1M", "is not a unit of time"),
            ("1e30d", "is not a unit of time"),
            ("1m30s", "is not a unit of time"),
            ("", "for example 90s"),
            ("h", "for example 90s"),
            (".s", "for example 90s"),
            ("-1h", "for example 90s"),
            ("1.2.3s", "for example 90s"),
            ("inf", "for example 90s"),
            ("99999999999999999999d", "for example 90s"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(told), "{text}: {error}");
            assert_eq!(parse_limit(text), parse(text));
        }
        for text in ["0", "0h", "0.1ns"] {
            let error = parse_limit(text).expect_err(text).to_string();
            assert!(error.contains("more than zero"), "{text}: {error}");
        }
        assert_eq!(parse_limit("1ms"), parse("1ms"));
    }
}
