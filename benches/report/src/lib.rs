//! Results of benchmarks. The benchmark program writes them, and `cargo xtask figures` reads them.
//!
//! A [`Report`] has the rows of one run. A [`Record`] has the reports of several runs, with their
//! date, commit, machine and the versions of the compared programs.

mod machine;
mod record;
mod row;
mod unit;

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

pub use machine::Machine;
pub use record::{Record, spread, verdict};
pub use row::{At, Row, Statistic, Summary, Target, Verdict};
pub use unit::{Unit, times};

/// All results of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The machine on which the rows were measured.
    pub machine: Machine,
    /// Whether this is a quick run, whose results must not be quoted.
    pub quick: bool,
    /// The versions of the compared programs, by name.
    #[serde(default)]
    pub peers: BTreeMap<String, String>,
    /// The rows, in the order of the table.
    pub rows: Vec<Row>,
}

impl Report {
    /// Returns the identifiers of the rows that miss their target. Rows with a target whose
    /// measurement failed are included.
    #[must_use]
    pub fn missed(&self) -> Vec<&str> {
        let is_missed = |row: &&Row| match row.verdict {
            Verdict::Missed => true,
            Verdict::Failed => row.target != Target::None,
            Verdict::Reached | Verdict::Information | Verdict::Skipped => false,
        };
        let missed = self.rows.iter().filter(is_missed);
        missed.map(|row| row.id.as_str()).collect()
    }

    /// Returns whether the measurement of a row failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.rows.iter().any(|row| row.verdict == Verdict::Failed)
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    /// Writes the report as a table in Markdown.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "| what | ours | raw | ratio | target | verdict | raw technique |\n\
             |---|---:|---:|---:|---:|---|---|"
        )?;
        for row in &self.rows {
            writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} |",
                row.title(),
                row.show(row.ours),
                row.show(row.raw),
                row.show_ratio(),
                row.show_target(),
                row.verdict.word(),
                row.raw_technique
            )?;
        }
        writeln!(out)?;
        self.write_notes(out)?;
        for (name, version) in &self.peers {
            writeln!(out, "- {name} {version}")?;
        }
        let warning = match self.quick {
            true => "\nA quick run: not to be quoted.",
            false => "",
        };
        writeln!(out, "\n{}{warning}", self.machine)
    }

    /// Writes each note once, because the rows of one scenario may have the same note.
    fn write_notes(&self, out: &mut impl Write) -> io::Result<()> {
        for rows in self.rows.chunk_by(|a, b| a.note == b.note) {
            let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
                continue;
            };
            match &first.note {
                Some(note) if rows.len() > 1 => {
                    writeln!(out, "- {} to {}: {note}", first.id, last.id)?;
                }
                Some(note) => writeln!(out, "- {}: {note}", first.id)?,
                None => {}
            }
        }
        Ok(())
    }
}
