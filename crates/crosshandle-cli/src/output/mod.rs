//! Writes lines, tables and JSON to standard output.

pub(crate) mod clean;
pub(crate) mod html;
pub(crate) mod log;

use crate::failure::{Failure, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};

/// Prints a line without characters that a terminal would interpret. Flushes it, so that the reader
/// of a pipe sees it at once.
pub(crate) fn line(line: impl Display) -> Result<()> {
    print(&clean::line(&line.to_string()))
}

/// Prints several lines, each like [`line`].
pub(crate) fn lines(lines: impl Display) -> Result<()> {
    lines.to_string().split('\n').try_for_each(line)
}

fn print(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{text}")
        .and_then(|()| output.flush())
        .map_err(|error| Failure::output(&error))
}

pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::error(format!("making JSON: {error}")))?;
    print(&clean::json(&text))
}

/// Returns an empty table with columns and without a frame.
pub(crate) fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

/// Adds a row to a table. Line feeds in cells are replaced, because they would start a new row.
pub(crate) fn add_row(table: &mut Table, cells: impl IntoIterator<Item = impl AsRef<str>>) {
    let cells = cells.into_iter();
    table.add_row(cells.map(|cell| clean::line(cell.as_ref()).into_owned()));
}

/// Prints a table without blanks at the margins.
pub(crate) fn print_table(table: &mut Table) -> Result<()> {
    if let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    table.lines().try_for_each(|row| line(row.trim_end()))
}

pub(crate) fn align_right(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
