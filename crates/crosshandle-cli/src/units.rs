//! Parsing and formatting of sizes and times.

use std::time::Duration;

/// Parses a size, such as `4096`, `64KiB`, `1.5GiB` or `10MB`.
///
/// `K`, `M`, `G` and `T` alone are powers of 1024, as in most shell tools.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        other => {
            return Err(format!(
                "'{other}' is not a unit of bytes; use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB"
            ));
        }
    };
    let too_large = || format!("{text} is too large");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(too_large);
    }
    let number: f64 = number
        .parse()
        .map_err(|_| "a size starts with a number, as in 64MiB".to_owned())?;
    let bytes = (number * factor as f64).round();
    if bytes >= u64::MAX as f64 {
        return Err(too_large());
    }
    Ok(bytes as u64)
}

/// Formats a number of bytes in the most suitable unit.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Formats nanoseconds in the most suitable unit, with three digits.
pub(crate) fn nanoseconds(count: f64) -> String {
    let (value, unit) = match count {
        count if count < 1e3 => (count, "ns"),
        count if count < 1e6 => (count / 1e3, "µs"),
        count if count < 1e9 => (count / 1e6, "ms"),
        count => (count / 1e9, "s"),
    };
    let decimals = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// Formats an elapsed time in its two largest units, such as `2m 5s`.
pub(crate) fn age(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        return nanoseconds(time.as_nanos() as f64);
    }
    let whole = humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
    let parts: Vec<_> = whole.split(' ').take(2).collect();
    parts.join(" ")
}

/// Parses a duration, such as `5s`, `250ms` or `1m 30s`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; use a form such as 5s, 250ms or 1m30s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 64 << 10),
            ("64 kib", 64 << 10),
            ("1.5G", 3 << 29),
            ("10MB", 10_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "MiB",
            "12q",
            "-1",
            "1.2.3M",
            "99999999TiB",
            "99999999.5TiB",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_and_times_are_written() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(1536 << 10), "1.5 MiB");
        assert_eq!(nanoseconds(7.123), "7.12 ns");
        assert_eq!(nanoseconds(1840.0), "1.84 µs");
        assert_eq!(nanoseconds(230e6), "230 ms");
        assert_eq!(age(Duration::from_millis(230)), "230 ms");
        assert_eq!(age(Duration::from_millis(35_900)), "35s");
        assert_eq!(age(Duration::from_secs(7_325)), "2h 2m");
    }
}
