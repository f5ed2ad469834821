//! One row of the table, before it is measured.

pub(crate) use bench_report::Target;
use bench_report::{At, Row, Statistic, Unit, Verdict};

use crate::harness::outcome::Outcome;

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
    /// The size that the row is measured at, if the row belongs to a series.
    pub(crate) at: Option<At>,
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
            at: None,
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

    /// Names the size that the row is measured at, for plots.
    pub(crate) const fn bytes(mut self, bytes: u64) -> Self {
        self.at = Some(At::Bytes(bytes));
        self
    }

    /// Returns the row with the results that the scenario reported under its identifier.
    pub(crate) fn measured(&self, outcome: &Outcome) -> Row {
        let mut row = self.empty(Verdict::Failed, outcome.notes.get(self.id).cloned());
        row.ours = outcome.ours.get(self.id).copied();
        row.raw = outcome.raw.get(self.id).copied();
        if let Some(reason) = outcome.absent.get(self.id) {
            row.verdict = Verdict::Skipped;
            row.note = Some(reason.clone());
            return row;
        }
        row.judged()
    }

    /// Returns the row without results.
    pub(crate) fn empty(&self, verdict: Verdict, note: Option<String>) -> Row {
        Row {
            id: self.id.to_owned(),
            what: self.what.to_owned(),
            raw_technique: self.raw.to_owned(),
            unit: self.unit,
            statistic: self.statistic,
            ours: None,
            raw: None,
            ratio: None,
            overhead: None,
            target: self.target,
            verdict,
            note,
            at: self.at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_skipped() {
        let spec = RowSpec::time("a", "", "", Target::AtMostTimesRaw(1.0));
        let mut outcome = Outcome::default();
        outcome.absent.insert("a".to_owned(), "no GPU".to_owned());
        let row = spec.measured(&outcome);
        assert_eq!(row.verdict, Verdict::Skipped);
        assert_eq!(row.note.as_deref(), Some("no GPU"));
    }
}
