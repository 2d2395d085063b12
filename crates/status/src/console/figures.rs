//! Quantities for people: three significant digits, and a unit.

/// Unit: bit/s.
pub(super) fn rate(bits_per_s: f64) -> String {
    scaled(bits_per_s, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// Unit: bytes.
pub(super) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// Unit: seconds. Of a round trip.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.01 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

/// Unit: seconds. Of an age: the two largest units.
pub(super) fn age(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole} s"),
        (0, 0, _) => format!("{minutes} min {} s", whole % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// A part of one.
pub(super) fn percent(part: f64) -> String {
    match part * 100.0 {
        0.0 => "0 %".to_owned(),
        p if p < 1.0 => format!("{p:.2} %"),
        p if p < 10.0 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

fn scaled(value: f64, units: &[&str]) -> String {
    let (mut value, mut index) = (value, 0);
    // 999.5 would be shown as 1000.
    while value >= 999.5 && index + 1 < units.len() {
        value /= 1000.0;
        index += 1;
    }
    let digits = match (index, value) {
        (0, _) => 0,
        (_, value) if value < 9.995 => 2,
        (_, value) if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        for (bits, shown) in [
            (0.0, "0 bit/s"),
            (999.0, "999 bit/s"),
            (999.6, "1.00 kbit/s"),
            (19_876_000.0, "19.9 Mbit/s"),
        ] {
            assert_eq!(rate(bits), shown);
        }
        assert_eq!((bytes(5_000_000), bytes(512)), ("5.00 MB".to_owned(), "512 B".to_owned()));
        assert_eq!(
            (time(0.6), time(0.0042), time(0.00005)),
            ("600 ms".to_owned(), "4.2 ms".to_owned(), "50 us".to_owned())
        );
        assert_eq!(
            (age(59.9), age(61.0), age(7260.0), age(90_000.0)),
            (
                "59 s".to_owned(),
                "1 min 1 s".to_owned(),
                "2 h 1 min".to_owned(),
                "1 d 1 h".to_owned()
            )
        );
        assert_eq!(
            (percent(0.0), percent(0.0012), percent(0.5)),
            ("0 %".to_owned(), "0.12 %".to_owned(), "50 %".to_owned())
        );
    }
}
