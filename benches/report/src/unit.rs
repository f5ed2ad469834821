//! Units of the results.

use serde::{Deserialize, Serialize};

/// The unit of a row's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A time.
    Nanoseconds,
    /// The ratio of two times.
    Times,
}

impl Unit {
    /// Formats a value with its unit, with three or four digits.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Nanoseconds => scaled(value),
            Self::Times => times(value),
        }
    }
}

/// Formats a ratio.
#[must_use]
pub fn times(ratio: f64) -> String {
    match ratio.abs() < 0.1 {
        true => format!("{ratio:.4} ×"),
        false => format!("{ratio:.2} ×"),
    }
}

/// Formats a time, given in nanoseconds, in the largest unit in which it is at least 1.
fn scaled(mut value: f64) -> String {
    let mut unit = "ns";
    for next in ["µs", "ms", "s"] {
        if value.abs() < 1000.0 {
            break;
        }
        value /= 1000.0;
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
    use super::*;

    #[test]
    fn shown() {
        assert_eq!(scaled(1.234), "1.23 ns");
        assert_eq!(scaled(10.0), "10 ns");
        assert_eq!(scaled(221.6), "222 ns");
        assert_eq!(scaled(1840.0), "1.84 µs");
        assert_eq!(scaled(1.06e9), "1.06 s");
        assert_eq!(scaled(-131_072.0), "-131 µs");
        assert_eq!(
            (times(0.05), times(1.0)),
            ("0.0500 ×".into(), "1.00 ×".into())
        );
    }
}
