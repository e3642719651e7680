//! Moments.

/// A moment, in seconds since 1970: `2023-11-14 22:13:20 UTC`.
pub(crate) fn utc(seconds: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
