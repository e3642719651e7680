//! Times of a store: ages and periods for display, and seconds since 1970 for JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::show::number;

pub(super) fn unix(time: Option<SystemTime>) -> Option<u64> {
    let since = time?.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

/// Formats the time since then: `12 s`, `3 min`, `5 h`, `40 d`; a dash if it is unknown.
pub(super) fn age(time: Option<SystemTime>, now: SystemTime) -> String {
    let Some(time) = time else {
        return "-".to_owned();
    };
    // Another machine's clock may be ahead.
    period(now.duration_since(time).unwrap_or_default())
}

/// Formats a period in the largest unit of which it is one or at least two: `119 s`, `1 h`, `36 h`.
pub(super) fn period(period: Duration) -> String {
    let seconds = period.as_secs();
    let (unit, name) =
        UNITS.iter().rev().find(|(unit, _)| seconds >= 2 * unit || seconds == *unit).unwrap_or(&UNITS[0]);
    format!("{} {name}", number::grouped(seconds / unit))
}

const UNITS: [(u64, &str); 4] = [(1, "s"), (60, "min"), (3600, "h"), (86_400, "d")];

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
}
