//! Samples of a measurement, and their summaries.

use std::collections::BTreeMap;

use bench_report::Summary;
use serde::{Deserialize, Serialize};

/// One of the two techniques that a row compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The library.
    Ours,
    Raw,
}

impl Side {
    /// Returns the order in which both sides are measured in `round`.
    ///
    /// The order alternates, so that each side equally often finds the caches as the other side
    /// left them.
    pub(crate) fn order(round: usize) -> [Self; 2] {
        if round.is_multiple_of(2) {
            [Self::Raw, Self::Ours]
        } else {
            [Self::Ours, Self::Raw]
        }
    }
}

/// The samples of all rows, collected during a measurement.
#[derive(Default)]
pub(crate) struct Recorder {
    ours: BTreeMap<&'static str, Vec<f64>>,
    raw: BTreeMap<&'static str, Vec<f64>>,
    notes: BTreeMap<&'static str, String>,
    absent: BTreeMap<&'static str, String>,
}

impl Recorder {
    pub(crate) fn push(&mut self, row: &'static str, side: Side, sample: f64) {
        self.series(row, side).push(sample);
    }

    pub(crate) fn extend(
        &mut self,
        row: &'static str,
        side: Side,
        samples: impl IntoIterator<Item = f64>,
    ) {
        self.series(row, side).extend(samples);
    }

    /// Adds a note for readers of the row.
    pub(crate) fn note(&mut self, row: &'static str, text: impl Into<String>) {
        self.notes.insert(row, text.into());
    }

    /// Records why this machine cannot measure a row, or only a part of it.
    pub(crate) fn absent(&mut self, row: &'static str, reason: impl Into<String>) {
        self.absent.insert(row, reason.into());
    }

    /// Adds the samples of another recorder, which were measured later.
    pub(crate) fn absorb(&mut self, other: Self) {
        for (row, samples) in other.ours {
            self.extend(row, Side::Ours, samples);
        }
        for (row, samples) in other.raw {
            self.extend(row, Side::Raw, samples);
        }
        self.notes.extend(other.notes);
        self.absent.extend(other.absent);
    }

    fn series(&mut self, row: &'static str, side: Side) -> &mut Vec<f64> {
        match side {
            Side::Ours => &mut self.ours,
            Side::Raw => &mut self.raw,
        }
        .entry(row)
        .or_default()
    }

    /// Summarises the samples.
    pub(crate) fn finish(self) -> Outcome {
        let summarise = |series: BTreeMap<&'static str, Vec<f64>>| {
            series
                .into_iter()
                .filter_map(|(row, samples)| Some((row.to_owned(), Summary::of(&samples)?)))
                .collect()
        };
        let texts = |texts: BTreeMap<&'static str, String>| {
            let owned = |(row, text): (&str, String)| (row.to_owned(), text);
            texts.into_iter().map(owned).collect()
        };
        Outcome {
            ours: summarise(self.ours),
            raw: summarise(self.raw),
            notes: texts(self.notes),
            absent: texts(self.absent),
        }
    }
}

/// Summaries by row identifier, as a child process sends them to the parent process.
#[derive(Default, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) ours: BTreeMap<String, Summary>,
    pub(crate) raw: BTreeMap<String, Summary>,
    pub(crate) notes: BTreeMap<String, String>,
    /// Reasons by row identifier, for rows that this machine cannot measure, or only in part.
    pub(crate) absent: BTreeMap<String, String>,
}

impl Outcome {
    /// Adds the outcome of another process of the scenario.
    pub(crate) fn merge(&mut self, other: Self) {
        self.ours.extend(other.ours);
        self.raw.extend(other.raw);
        self.notes.extend(other.notes);
        self.absent.extend(other.absent);
    }
}
