//! One row of the table, with its target, its results and its verdict.

use serde::Serialize;

use super::unit::Unit;
use crate::harness::outcome::{Outcome, Summary};

/// The statistic of a series that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Statistic {
    P50,
    P99,
}

/// The target for the library's value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", content = "bound", rename_all = "snake_case")]
pub(crate) enum Target {
    /// At most this value, in the row's unit.
    AtMost(f64),
    /// At most this multiple of the raw technique's value.
    AtMostTimesRaw(f64),
    /// At most the raw technique's value plus this constant, in the row's unit.
    AtMostOverRaw(f64),
    /// No target. The row explains other rows.
    None,
}

/// A row before it is measured.
#[derive(Clone, Copy)]
pub(crate) struct RowSpec {
    /// A unique and stable identifier without special characters of a shell.
    pub(crate) id: &'static str,
    /// Description of the operation.
    pub(crate) what: &'static str,
    /// The technique in the raw column, or "none".
    pub(crate) raw: &'static str,
    pub(crate) unit: Unit,
    pub(crate) statistic: Statistic,
    pub(crate) target: Target,
}

/// Lists the rows of a scenario. Each has its identifier, a description, the raw technique, a
/// [`Target`] and, if it differs from [`RowSpec::time`], a method of [`RowSpec`].
macro_rules! rows {
    ($($id:expr => $what:expr, $raw:expr, $target:expr $(, $method:ident)?;)*) => {
        &{
            #[allow(unused_imports)]
            use $crate::report::row::{RowSpec, Target::*};
            [$(RowSpec::time($id, $what, $raw, $target)$(.$method())?),*]
        }
    };
}
pub(crate) use rows;

/// Whether a row's result reaches its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Reached,
    Missed,
    /// The row has no target.
    Information,
    /// This machine cannot measure the row. The note gives the reason.
    Skipped,
    /// The measurement failed. The note contains the error.
    Failed,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Reached => "ok",
            Self::Missed => "MISSED",
            Self::Information => "–",
            Self::Skipped => "skipped",
            Self::Failed => "FAILED",
        }
    }
}

/// A row after it was measured.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) raw_technique: &'static str,
    pub(crate) unit: Unit,
    pub(crate) statistic: Statistic,
    pub(crate) ours: Option<Summary>,
    pub(crate) raw: Option<Summary>,
    /// The library's value divided by the raw one, if both were measured and the raw one is not
    /// zero.
    pub(crate) ratio: Option<f64>,
    /// The library's value minus the raw one, in the row's unit, if both were measured.
    pub(crate) overhead: Option<f64>,
    pub(crate) target: Target,
    pub(crate) verdict: Verdict,
    pub(crate) note: Option<String>,
}

impl RowSpec {
    /// Describes a row that compares the median of times.
    pub(crate) const fn time(
        id: &'static str,
        what: &'static str,
        raw: &'static str,
        target: Target,
    ) -> Self {
        Self {
            id,
            what,
            raw,
            unit: Unit::Nanoseconds,
            statistic: Statistic::P50,
            target,
        }
    }

    /// Compares the 99th percentile instead of the median.
    pub(crate) const fn p99(mut self) -> Self {
        self.statistic = Statistic::P99;
        self
    }

    /// Compares a ratio of two times instead of a time.
    pub(crate) const fn quotient(mut self) -> Self {
        self.unit = Unit::Times;
        self
    }

    /// Returns the row with the results that the scenario reported under its identifier.
    pub(crate) fn measured(&self, outcome: &Outcome) -> Row {
        let ours = outcome.ours.get(self.id).copied();
        let raw = outcome.raw.get(self.id).copied();
        let mut row = self.empty(Verdict::Failed, outcome.notes.get(self.id).cloned());
        (row.ours, row.raw) = (ours, raw);
        if let Some(reason) = outcome.absent.get(self.id) {
            row.verdict = Verdict::Skipped;
            row.note = Some(reason.clone());
            return row;
        }
        let Some(ours) = ours.map(|summary| self.statistic.of(&summary)) else {
            row.note
                .get_or_insert_with(|| "the scenario reported no figure".to_owned());
            return row;
        };
        row.ratio = raw
            .map(|summary| self.statistic.of(&summary))
            .filter(|&raw| raw != 0.0)
            .map(|raw| ours / raw);
        row.overhead = raw.map(|summary| ours - self.statistic.of(&summary));
        row.verdict = match (self.target, row.ratio) {
            (Target::None, _) => Verdict::Information,
            (Target::AtMost(bound), _) => reached(ours <= bound),
            (Target::AtMostTimesRaw(bound), Some(ratio)) => reached(ratio <= bound),
            (Target::AtMostOverRaw(bound), _) => match row.overhead {
                Some(over) => reached(over <= bound),
                // Without a raw value, the library's whole value is treated as overhead.
                None => reached(ours <= bound),
            },
            (Target::AtMostTimesRaw(_), None) => {
                row.note
                    .get_or_insert_with(|| "the raw technique has no figure".to_owned());
                Verdict::Failed
            }
        };
        row
    }

    /// Returns the row without results.
    pub(crate) fn empty(&self, verdict: Verdict, note: Option<String>) -> Row {
        Row {
            id: self.id,
            what: self.what,
            raw_technique: self.raw,
            unit: self.unit,
            statistic: self.statistic,
            ours: None,
            raw: None,
            ratio: None,
            overhead: None,
            target: self.target,
            verdict,
            note,
        }
    }
}

impl Row {
    /// Formats the compared statistic of `summary` with its unit.
    pub(crate) fn show(&self, summary: Option<Summary>) -> String {
        summary.map_or_else(
            || "–".to_owned(),
            |summary| self.unit.show(self.statistic.of(&summary)),
        )
    }

    pub(crate) fn show_ratio(&self) -> String {
        if let (Target::AtMostOverRaw(_), Some(overhead)) = (self.target, self.overhead) {
            let sign = if overhead < 0.0 { "−" } else { "+" };
            return format!("{sign}{}", self.unit.show(overhead.abs()));
        }
        match self.ratio {
            None => "–".to_owned(),
            Some(ratio) if ratio.abs() < 0.1 => format!("{ratio:.4} ×"),
            Some(ratio) => format!("{ratio:.2} ×"),
        }
    }

    pub(crate) fn show_target(&self) -> String {
        match self.target {
            Target::AtMost(bound) => format!("≤ {}", self.unit.show(bound)),
            Target::AtMostTimesRaw(bound) => format!("≤ {bound} × raw"),
            Target::AtMostOverRaw(bound) => format!("≤ raw + {}", self.unit.show(bound)),
            Target::None => "–".to_owned(),
        }
    }
}

impl Statistic {
    pub(crate) fn of(self, summary: &Summary) -> f64 {
        match self {
            Self::P50 => summary.p50,
            Self::P99 => summary.p99,
        }
    }
}

fn reached(yes: bool) -> Verdict {
    if yes {
        Verdict::Reached
    } else {
        Verdict::Missed
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::*;
    use super::*;

    fn verdict(target: Target, ours: Option<f64>, raw: Option<f64>) -> Verdict {
        let spec = RowSpec::time("a", "", "", target);
        let mut outcome = Outcome::default();
        let series = |value: Option<f64>| Some(("a".to_owned(), Summary::of(&[value?])?));
        outcome.ours.extend(series(ours));
        outcome.raw.extend(series(raw));
        spec.measured(&outcome).verdict
    }

    #[test]
    fn what_is_absent_is_skipped() {
        let spec = RowSpec::time("a", "", "", Target::AtMostTimesRaw(1.0));
        let mut outcome = Outcome::default();
        outcome.absent.insert("a".to_owned(), "no GPU".to_owned());
        let row = spec.measured(&outcome);
        assert_eq!(row.verdict, Skipped);
        assert_eq!(row.note.as_deref(), Some("no GPU"));
    }

    #[test]
    fn verdicts() {
        assert_eq!(verdict(Target::AtMost(10.0), Some(10.0), None), Reached);
        assert_eq!(verdict(Target::AtMost(10.0), Some(10.1), None), Missed);
        assert_eq!(
            verdict(Target::AtMostTimesRaw(1.5), Some(3.0), Some(2.0)),
            Reached
        );
        assert_eq!(
            verdict(Target::AtMostTimesRaw(1.5), Some(3.1), Some(2.0)),
            Missed
        );
        assert_eq!(
            verdict(Target::AtMostTimesRaw(1.5), Some(3.0), None),
            Failed
        );
        assert_eq!(
            verdict(Target::AtMostOverRaw(1.0), Some(3.0), Some(2.0)),
            Reached
        );
        assert_eq!(
            verdict(Target::AtMostOverRaw(1.0), Some(3.1), Some(2.0)),
            Missed
        );
        assert_eq!(
            verdict(Target::AtMostTimesRaw(1.5), None, Some(2.0)),
            Failed
        );
        assert_eq!(verdict(Target::None, Some(1.0), None), Information);
        assert_eq!(verdict(Target::None, None, Some(1.0)), Failed);
    }
}
