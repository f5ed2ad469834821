//! The table of all rows, as Markdown and as JSON.

pub(crate) mod machine;
pub(crate) mod row;
pub(crate) mod unit;

use std::io::{self, Write};

use serde::Serialize;

use machine::Machine;
use row::{Row, Statistic, Target, Verdict};

/// All results of one run.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// Whether this is a quick run, whose results must not be quoted.
    pub(crate) quick: bool,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    /// Returns the identifiers of the rows that miss their target. Rows with a target whose
    /// measurement failed are included.
    pub(crate) fn missed(&self) -> Vec<&'static str> {
        self.rows
            .iter()
            .filter(|row| match row.verdict {
                Verdict::Missed => true,
                Verdict::Failed => row.target != Target::None,
                Verdict::Reached | Verdict::Information | Verdict::Skipped => false,
            })
            .map(|row| row.id)
            .collect()
    }

    pub(crate) fn failed(&self) -> bool {
        self.rows.iter().any(|row| row.verdict == Verdict::Failed)
    }

    pub(crate) fn print_json(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, self)?;
        writeln!(out)
    }

    pub(crate) fn print_table(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "| what | ours | raw | ratio | target | verdict | raw technique |\n\
             |---|---:|---:|---:|---:|---|---|"
        )?;
        for row in &self.rows {
            let p99 = match row.statistic {
                Statistic::P50 => "",
                Statistic::P99 => ", p99",
            };
            writeln!(
                out,
                "| {}{p99} | {} | {} | {} | {} | {} | {} |",
                row.what,
                row.show(row.ours),
                row.show(row.raw),
                row.show_ratio(),
                row.show_target(),
                row.verdict.word(),
                row.raw_technique
            )?;
        }
        writeln!(out)?;
        self.print_notes(&mut out)?;
        writeln!(out, "\n{}{}", self.machine, self.warning())
    }

    /// Prints each note once, because the rows of one scenario may have the same note.
    fn print_notes(&self, out: &mut impl Write) -> io::Result<()> {
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

    fn warning(&self) -> &'static str {
        if self.quick {
            "\nA quick run: not to be quoted."
        } else {
            ""
        }
    }
}
