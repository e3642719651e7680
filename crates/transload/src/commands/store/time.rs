//! Times of a store: ages for people, seconds since 1970 for programs, periods as people type them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::show::number;

/// Seconds since 1970, if the store knows.
pub(super) fn unix(time: Option<SystemTime>) -> Option<u64> {
    let since = time?.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

/// How long ago: `12 s`, `3 min`, `5 h`, `40 d`; a dash where the store does not know.
pub(super) fn age(time: Option<SystemTime>, now: SystemTime) -> String {
    let Some(time) = time else {
        return "-".to_owned();
    };
    // A clock of another machine may be ahead.
    period(now.duration_since(time).unwrap_or_default())
}

/// A time of a file: `2023-11-14 22:13:20 UTC`.
pub(super) fn utc(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    if days > LAST_DAY {
        return format!("{seconds} s after 1970");
    }
    // Days since 0000-03-01, so that the leap day comes last in each cycle of 400 years, of 100, of 4 and of 1.
    let days = days + 719_468;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = days / 146_097 * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// 9999-12-31.
const LAST_DAY: u64 = 2_932_896;

/// A period in the largest unit that it is a whole number of, or has two or more of: `119 s`, `1 h`, `36 h`.
pub(super) fn period(period: Duration) -> String {
    let seconds = period.as_secs();
    let (unit, name) = UNITS
        .iter()
        .rev()
        .find(|(unit, _)| seconds >= 2 * unit || seconds == *unit)
        .unwrap_or(&UNITS[0]);
    format!("{} {name}", number::grouped(seconds / unit))
}

const UNITS: [(u64, &str); 4] = [(1, "s"), (60, "min"), (3600, "h"), (86_400, "d")];

/// A period as people type it: `90s`, `30min`, `1.5h`, `2d`, `0`.
pub(super) fn parse_period(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no period; write it as 90s, 30min, 1h or 2d");
    let (value, name) = number::quantity(text).ok_or_else(wrong)?;
    let seconds = match name {
        "m" => 60,
        "" if value == 0.0 => 1,
        name => {
            UNITS
                .iter()
                .find(|(_, unit)| *unit == name)
                .ok_or_else(wrong)?
                .0
        }
    };
    Duration::try_from_secs_f64(value * seconds as f64).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (3600, "1 h"),
            (7199, "119 min"),
            (7200, "2 h"),
            (86_400 * 2 - 1, "47 h"),
            (86_400 * 2000, "2,000 d"),
        ] {
            assert_eq!(period(Duration::from_secs(seconds)), text);
        }
        let now = SystemTime::now();
        assert_eq!(age(None, now), "-");
        assert_eq!(age(Some(now + Duration::from_secs(9)), now), "0 s");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59:59 UTC"),
            (253_402_300_800, "253402300800 s after 1970"),
            (u64::MAX, "18446744073709551615 s after 1970"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn periods_are_typed_with_their_unit() {
        for (text, seconds) in [
            ("0", 0),
            ("90s", 90),
            ("30 min", 1800),
            ("30m", 1800),
            ("1.5h", 5400),
            ("2d", 172_800),
        ] {
            assert_eq!(parse_period(text), Ok(Duration::from_secs(seconds)));
        }
        for text in [
            "",
            "1",
            "h",
            "-1h",
            "1 week",
            "1e30d",
            "99999999999999999999d",
        ] {
            assert!(parse_period(text).is_err(), "{text}");
        }
    }
}
