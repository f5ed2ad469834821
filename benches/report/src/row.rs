//! One row of a report, with its target, its results and its verdict.

use serde::{Deserialize, Serialize};

use super::unit::{Unit, times};

/// The statistic of a series that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// The median.
    P50,
    /// The 99th percentile.
    P99,
}

/// The target for the library's value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "bound", rename_all = "snake_case")]
pub enum Target {
    /// At most this value, in the row's unit.
    AtMost(f64),
    /// At most this multiple of the raw technique's value.
    AtMostTimesRaw(f64),
    /// At most this multiple of the raw technique's value plus a constant, in the row's unit.
    AtMostTimesRawPlus(f64, f64),
    /// At most the raw technique's value plus this constant, in the row's unit.
    AtMostOverRaw(f64),
    /// No target. The row explains other rows.
    None,
}

/// Whether a row's result reaches its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The result reaches the target.
    Reached,
    /// The result misses the target.
    Missed,
    /// The row has no target.
    Information,
    /// This machine cannot measure the row. The note gives the reason.
    Skipped,
    /// The measurement failed. The note contains the error.
    Failed,
}

impl Verdict {
    /// Returns the word in the table.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Reached => "ok",
            Self::Missed => "MISSED",
            Self::Information => "–",
            Self::Skipped => "skipped",
            Self::Failed => "FAILED",
        }
    }
}

/// The size that a row was measured at, for plots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum At {
    /// Number of bytes.
    Bytes(u64),
    /// Number of objects.
    Objects(u64),
}

/// Order statistics of one series, in the unit of the series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// Number of samples.
    pub samples: usize,
}

impl Summary {
    /// Computes the statistics of a series. Returns `None` if it has no samples.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (sorted.len() as f64 * share) as usize;
            sorted
                .get(index.min(sorted.len().saturating_sub(1)))
                .copied()
        };
        Some(Self {
            p50: at(0.5)?,
            p99: at(0.99)?,
            samples: sorted.len(),
        })
    }
}

/// A row after it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// A unique and stable identifier without special characters of a shell.
    pub id: String,
    /// Description of the operation.
    pub what: String,
    /// The technique in the raw column, or "none".
    pub raw_technique: String,
    /// The unit of both results.
    pub unit: Unit,
    /// The statistic that is compared.
    pub statistic: Statistic,
    /// The result of the library.
    pub ours: Option<Summary>,
    /// The result of the raw technique.
    pub raw: Option<Summary>,
    /// The library's value divided by the raw one, if both were measured and the raw one is not
    /// zero.
    pub ratio: Option<f64>,
    /// The library's value minus the raw one, in the row's unit, if both were measured.
    pub overhead: Option<f64>,
    /// The target for the library.
    pub target: Target,
    /// Whether the library reaches the target.
    pub verdict: Verdict,
    /// A note for readers, such as the reason of a failure.
    pub note: Option<String>,
    /// The size that the row was measured at, if the row belongs to a series.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<At>,
}

impl Row {
    /// Computes the ratio, the overhead and the verdict from both results.
    #[must_use]
    pub fn judged(mut self) -> Self {
        let Some(ours) = self.value(self.ours) else {
            self.verdict = Verdict::Failed;
            self.note
                .get_or_insert_with(|| "the scenario reported no figure".to_owned());
            return self;
        };
        let raw = self.value(self.raw);
        self.ratio = raw.filter(|&raw| raw != 0.0).map(|raw| ours / raw);
        self.overhead = raw.map(|raw| ours - raw);
        self.verdict = match (self.target, self.ratio) {
            (Target::None, _) => Verdict::Information,
            (Target::AtMost(bound), _) => reached(ours <= bound),
            (Target::AtMostTimesRaw(bound), Some(ratio)) => reached(ratio <= bound),
            (Target::AtMostOverRaw(bound), _) => match self.overhead {
                Some(over) => reached(over <= bound),
                // Without a raw value, the library's whole value is treated as overhead.
                None => reached(ours <= bound),
            },
            (Target::AtMostTimesRawPlus(times, plus), Some(ratio)) => {
                reached(ours <= times * ours / ratio + plus)
            }
            (Target::AtMostTimesRaw(_) | Target::AtMostTimesRawPlus(..), None) => {
                self.note
                    .get_or_insert_with(|| "the raw technique has no figure".to_owned());
                Verdict::Failed
            }
        };
        self
    }

    /// Returns the description with the compared statistic, if that is not the median.
    #[must_use]
    pub fn title(&self) -> String {
        match self.statistic {
            Statistic::P50 => self.what.clone(),
            Statistic::P99 => format!("{}, p99", self.what),
        }
    }

    /// Returns the compared statistic of `summary`.
    #[must_use]
    pub fn value(&self, summary: Option<Summary>) -> Option<f64> {
        summary.map(|summary| match self.statistic {
            Statistic::P50 => summary.p50,
            Statistic::P99 => summary.p99,
        })
    }

    /// Formats the compared statistic of `summary` with its unit.
    #[must_use]
    pub fn show(&self, summary: Option<Summary>) -> String {
        let value = self.value(summary);
        value.map_or_else(|| "–".to_owned(), |value| self.unit.show(value))
    }

    /// Formats the ratio, or the overhead if the target limits that.
    #[must_use]
    pub fn show_ratio(&self) -> String {
        if let (Target::AtMostOverRaw(_), Some(overhead)) = (self.target, self.overhead) {
            let sign = if overhead < 0.0 { "−" } else { "+" };
            return format!("{sign}{}", self.unit.show(overhead.abs()));
        }
        self.ratio.map_or_else(|| "–".to_owned(), times)
    }

    /// Formats the target.
    #[must_use]
    pub fn show_target(&self) -> String {
        match self.target {
            Target::AtMost(bound) => format!("≤ {}", self.unit.show(bound)),
            Target::AtMostTimesRaw(bound) => format!("≤ {bound} × raw"),
            Target::AtMostOverRaw(bound) => format!("≤ raw + {}", self.unit.show(bound)),
            Target::AtMostTimesRawPlus(times, plus) => {
                format!("≤ {times} × raw + {}", self.unit.show(plus))
            }
            Target::None => "–".to_owned(),
        }
    }
}

fn reached(yes: bool) -> Verdict {
    match yes {
        true => Verdict::Reached,
        false => Verdict::Missed,
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::*;
    use super::*;

    fn verdict(target: Target, ours: Option<f64>, raw: Option<f64>) -> Verdict {
        let summary = |value: Option<f64>| Summary::of(&[value?]);
        let row = Row {
            id: "a".to_owned(),
            what: String::new(),
            raw_technique: String::new(),
            unit: Unit::Nanoseconds,
            statistic: Statistic::P50,
            ours: summary(ours),
            raw: summary(raw),
            ratio: None,
            overhead: None,
            target,
            verdict: Failed,
            note: None,
            at: None,
        };
        row.judged().verdict
    }

    #[test]
    fn verdicts() {
        let (over, plus) = (
            Target::AtMostOverRaw(1.0),
            Target::AtMostTimesRawPlus(1.5, 1.0),
        );
        let times = Target::AtMostTimesRaw(1.5);
        for (target, ours, raw, expected) in [
            (Target::AtMost(10.0), Some(10.0), None, Reached),
            (Target::AtMost(10.0), Some(10.1), None, Missed),
            (times, Some(3.0), Some(2.0), Reached),
            (times, Some(3.1), Some(2.0), Missed),
            (times, Some(3.0), None, Failed),
            (over, Some(3.0), Some(2.0), Reached),
            (over, Some(3.1), Some(2.0), Missed),
            (plus, Some(4.0), Some(2.0), Reached),
            (plus, Some(4.1), Some(2.0), Missed),
            (times, None, Some(2.0), Failed),
            (Target::None, Some(1.0), None, Information),
            (Target::None, None, Some(1.0), Failed),
        ] {
            assert_eq!(verdict(target, ours, raw), expected, "{target:?} {ours:?}");
        }
    }

    #[test]
    fn order_statistics() {
        let samples: Vec<f64> = (0..100).rev().map(f64::from).collect();
        let summary = Summary::of(&samples).unwrap();
        let all = (summary.p50, summary.p99, summary.samples);
        assert_eq!(all, (50.0, 99.0, 100));
        assert_eq!(Summary::of(&[]), None);
        let single = Summary::of(&[7.0]).unwrap();
        assert_eq!((single.p50, single.p99, single.samples), (7.0, 7.0, 1));
    }
}
