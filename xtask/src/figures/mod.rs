//! Tables and plots of benchmark results in pages, generated from files in `benches/results`.
//!
//! A page names the file, and the rows by the starts of their identifiers:
//!
//! ```text
//! <!-- figures 2026-11-28-0123abcd-host.json handles. events. -->
//! <!-- end of figures -->
//! ```
//!
//! `cargo xtask figures` writes the table between the two lines. A line `plot` in place of
//! `figures` writes an image next to the pages, and a reference to it. `cargo xtask style` fails if
//! a page or an image differs from the files.

mod plot;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use crate::Result;
use crate::workspace::Workspace;
use bench_report::{Record, Row, Unit, spread, verdict};

/// The directory of the results, from the root of the checkout.
pub(crate) const RESULTS: &str = "benches/results";
/// The directory of the images, from the root of the checkout.
pub(crate) const PLOTS: &str = "docs/plots";

const END: &str = "<!-- end of figures -->";

/// Files by path from the root.
type Files = BTreeMap<String, String>;

/// Writes all generated tables and images.
///
/// # Errors
/// A page names results that do not exist, or a file cannot be written.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let files = crate::style::read(workspace)?;
    let written = generate(&files)?;
    for (path, text) in &written {
        let place = workspace.root.join(path);
        let directory = place.parent().unwrap_or(&workspace.root);
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&place, text))
            .map_err(|error| format!("cannot write {path}: {error}"))?;
        println!("wrote {path}");
    }
    Ok(())
}

/// Returns a description of each page or image that differs from the results.
pub(crate) fn faults(files: &Files) -> Vec<String> {
    match generate(files) {
        Ok(changed) => changed
            .keys()
            .map(|path| format!("{path}:0: its figures differ from the files in {RESULTS}; run `cargo xtask figures`"))
            .collect(),
        Err(error) => vec![error],
    }
}

/// Returns the pages and images that change, with their new contents.
fn generate(files: &Files) -> Result<Files> {
    let mut changed = Files::new();
    for (path, page) in files.iter().filter(|(path, _)| path.ends_with(".md")) {
        let (text, images) = page_with_figures(path, page, files)?;
        changed.extend(images);
        changed.insert(path.clone(), text);
    }
    changed.retain(|path, text| files.get(path) != Some(text));
    Ok(changed)
}

/// Returns a page with its generated parts, and the images that these refer to.
fn page_with_figures(path: &str, page: &str, files: &Files) -> Result<(String, Files)> {
    let (mut text, mut images) = (String::new(), Files::new());
    let mut lines = page.split_inclusive('\n');
    let mut is_code = false;
    while let Some(line) = lines.next() {
        text.push_str(line);
        is_code ^= line.starts_with("```");
        if is_code {
            continue;
        }
        let Some(marker) = Marker::of(line) else {
            continue;
        };
        if !lines.by_ref().any(|line| line.trim_end() == END) {
            return Err(format!("{path}: `{}` has no line `{END}`", line.trim_end()));
        }
        let file = format!("{RESULTS}/{}", marker.file);
        let json = files
            .get(&file)
            .ok_or_else(|| format!("{path}: there is no tracked file {file}"))?;
        let record = Record::parse(json).map_err(|error| format!("{file}: {error}"))?;
        let rows = marker.rows(&record);
        if rows.is_empty() {
            return Err(format!(
                "{path}: {file} has none of the rows that `{}` names",
                line.trim_end()
            ));
        }
        text.push('\n');
        match marker.is_plot {
            false => text.push_str(&table(&record, &marker, &rows)),
            true => {
                let name = format!("{}.svg", marker.file.trim_end_matches(".json"));
                let _ = writeln!(
                    text,
                    "![Ratios to the raw technique]({}{name})",
                    relative(path)
                );
                images.insert(format!("{PLOTS}/{name}"), plot::svg(&record, &rows));
            }
        }
        let _ = writeln!(text, "\n{END}");
    }
    Ok((text, images))
}

/// Returns the path from a page to the directory of the images.
fn relative(page: &str) -> &'static str {
    match page.starts_with("docs/") {
        true => "plots/",
        false => "docs/plots/",
    }
}

/// A line of a page that asks for figures.
struct Marker<'a> {
    file: &'a str,
    /// Starts of the identifiers of rows. If there are none, all rows are shown.
    starts: Vec<&'a str>,
    is_plot: bool,
}

impl<'a> Marker<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let inside = line
            .trim_end()
            .strip_prefix("<!-- ")?
            .strip_suffix(" -->")?;
        let mut words = inside.split_whitespace();
        let is_plot = match words.next()? {
            "figures" => false,
            "plot" => true,
            _ => return None,
        };
        Some(Self {
            file: words.next()?,
            starts: words.collect(),
            is_plot,
        })
    }

    /// Returns each row of the results that the marker names, as it was measured in each run.
    fn rows<'r>(&self, record: &'r Record) -> Vec<Vec<&'r Row>> {
        record.rows(|row| {
            self.starts.is_empty() || self.starts.iter().any(|start| row.id.starts_with(start))
        })
    }
}

/// Returns a table with its date, commit and machine.
fn table(record: &Record, marker: &Marker<'_>, rows: &[Vec<&Row>]) -> String {
    let mut text = format!(
        "`{}`, {}, commit {}, {} runs\\\n{} ([all rows]({}))\n\n",
        record.command,
        record.date,
        record.commit,
        record.runs.len(),
        record.machine(),
        format_args!("../{RESULTS}/{}", marker.file),
    );
    for (name, version) in &record.peers {
        let _ = writeln!(text, "- {name} {version}");
    }
    if !record.peers.is_empty() {
        text.push('\n');
    }
    text.push_str(
        "| what | ours | raw | ratio | lowest to highest run | target | verdict | raw technique |\n\
         |---|---:|---:|---:|---:|---:|---|---|\n",
    );
    for runs in rows {
        let Some(row) = runs.first() else { continue };
        let ours = spread(runs.iter().filter_map(|row| row.value(row.ours)));
        let raw = spread(runs.iter().filter_map(|row| row.value(row.raw)));
        let ratio = spread(runs.iter().filter_map(|row| row.ratio));
        let show = |values: Option<[f64; 3]>, unit: Unit| {
            values.map_or_else(|| "–".to_owned(), |[_, middle, _]| unit.show(middle))
        };
        let range = |values: Option<[f64; 3]>, unit: Unit| {
            values.map_or_else(
                || "–".to_owned(),
                |[low, _, high]| format!("{} to {}", unit.show(low), unit.show(high)),
            )
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            row.title(),
            show(ours, row.unit),
            show(raw, row.unit),
            show(ratio, Unit::Times),
            match ratio {
                Some(_) => range(ratio, Unit::Times),
                None => range(ours, row.unit),
            },
            row.show_target(),
            verdict(runs),
            row.raw_technique,
        );
    }
    text
}

#[cfg(test)]
mod tests;
