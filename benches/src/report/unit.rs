//! Units of the results.

use serde::Serialize;

/// The unit of a row's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    Nanoseconds,
    /// 10⁹ bytes per second.
    GigabytesPerSecond,
    Bytes,
    Count,
    /// The ratio of two values of the same unit.
    Times,
}

impl Unit {
    /// Formats a value with its unit, with three or four digits.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Nanoseconds => scaled(value, 1000.0, &["ns", "µs", "ms", "s"]),
            Self::GigabytesPerSecond => format!("{value:.2} GB/s"),
            Self::Bytes => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB"]),
            Self::Count => format!("{value}"),
            Self::Times => format!("{value:.2} ×"),
        }
    }
}

/// Formats a value in the largest of `units` in which it is at least 1. Each unit is `step` times
/// the previous one.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for next in units {
        if value.abs() < step {
            break;
        }
        value /= step;
        unit = next;
    }
    let decimals = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::Unit;

    #[test]
    fn shown() {
        let ns = |value| Unit::Nanoseconds.show(value);
        assert_eq!(ns(1.234), "1.23 ns");
        assert_eq!(ns(10.0), "10 ns");
        assert_eq!(ns(221.6), "222 ns");
        assert_eq!(ns(1840.0), "1.84 µs");
        assert_eq!(ns(1.06e9), "1.06 s");
        assert_eq!(Unit::Bytes.show(0.0), "0 B");
        assert_eq!(Unit::Bytes.show(-131_072.0), "-128 KiB");
    }
}
