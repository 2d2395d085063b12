//! Moments as text.

/// `unix_s` seconds after 1970-01-01T00:00:00Z as `2026-11-21 20:49 UTC`.
///
/// Source: the Gregorian calendar repeats every 400 years, 146 097 days. Years are counted from
/// March, so that the leap day is the last day of its year.
pub(crate) fn utc(unix_s: u64) -> String {
    const DAYS_IN_400_YEARS: u64 = 146_097;
    // From the 1st of March of year 0 to the 1st of January 1970.
    const DAYS_BEFORE_1970: u64 = 719_468;
    let minute = unix_s / 60 % 60;
    let hour = unix_s / 3600 % 24;
    let days = unix_s / 86_400 + DAYS_BEFORE_1970;
    let cycle = days / DAYS_IN_400_YEARS;
    let day_of_cycle = days % DAYS_IN_400_YEARS;
    let leap_days = day_of_cycle / 1460 - day_of_cycle / 36_524 + day_of_cycle / 146_096;
    let year_of_cycle = (day_of_cycle - leap_days) / 365;
    let day_of_year =
        day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    // From March on, the lengths of months repeat every five months: 153 days.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = cycle * 400 + year_of_cycle + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn known_moments() {
        // The output of `date -u -d @N`.
        for (unix_s, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(unix_s), text);
        }
    }
}
