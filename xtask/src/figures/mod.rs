//! Tables and plots of benchmark results in pages, generated from files in `benches/results`.
//!
//! A page names the file, and the rows by the starts of their identifiers:
//!
//! ```text
//! <!-- figures 2026-11-28-0123abcd-host.json handles. events. -->
//! <!-- end of figures -->
//! ```
//!
//! `cargo xtask figures` writes between the two lines what the first word asks for:
//!
//! - `figures`: a table
//! - `faster`, `slower`: a list of the rows that are clearly faster or slower than their raw
//!   technique. Several files may be named.
//! - `bars`, `lines`, `bandwidth`: a plot of the results, or of the results against the size
//!
//! `cargo xtask style` fails if a page or an image differs from the files.

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
        let records = marker.records(path, files)?;
        let chosen: Vec<_> = (records.iter())
            .map(|record| (record, marker.rows(record)))
            .collect();
        let nothing = || {
            let marker = line.trim_end();
            format!("{path}: {RESULTS} has nothing that `{marker}` can show")
        };
        if chosen.iter().any(|(_, rows)| rows.is_empty()) {
            return Err(nothing());
        }
        text.push('\n');
        for (file, (record, rows)) in marker.files.iter().zip(&chosen) {
            match marker.kind {
                Kind::Table => text.push_str(&table(path, record, file, rows)),
                Kind::Faster | Kind::Slower => {}
                Kind::Plot(kind) => {
                    let name = marker.image(file);
                    let drawn = plot::svgs(kind, record, rows).ok_or_else(nothing)?;
                    for (theme, svg) in drawn {
                        images.insert(format!("{PLOTS}/{name}-{theme}.svg"), svg);
                    }
                    let place = format!("{}{name}", relative(path, "docs/plots/"));
                    let _ = writeln!(
                        text,
                        "<picture>\n<source media=\"(prefers-color-scheme: dark)\" \
                         srcset=\"{place}-dark.svg\">\n\
                         <img alt=\"{}\" src=\"{place}-light.svg\">\n</picture>",
                        kind.describes(),
                    );
                }
            }
        }
        if let Kind::Faster | Kind::Slower = marker.kind {
            text.push_str(&list(path, &marker, &chosen));
        }
        let _ = writeln!(text, "\n{END}");
    }
    Ok((text, images))
}

/// Returns the path of a directory from a page.
fn relative(page: &str, directory: &str) -> String {
    let up = "../".repeat(page.matches('/').count());
    match directory.strip_prefix("docs/") {
        Some(below) if page.starts_with("docs/") => below.to_owned(),
        _ => up + directory,
    }
}

/// What a marker asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Table,
    Faster,
    Slower,
    Plot(plot::Kind),
}

/// A line of a page that asks for figures.
struct Marker<'a> {
    kind: Kind,
    files: Vec<&'a str>,
    /// Starts of the identifiers of rows. If there are none, all rows are shown.
    starts: Vec<&'a str>,
}

impl<'a> Marker<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let inside = line
            .trim_end()
            .strip_prefix("<!-- ")?
            .strip_suffix(" -->")?;
        let mut words = inside.split_whitespace();
        let kind = match words.next()? {
            "figures" => Kind::Table,
            "faster" => Kind::Faster,
            "slower" => Kind::Slower,
            "bars" => Kind::Plot(plot::Kind::Bars),
            "lines" => Kind::Plot(plot::Kind::Lines),
            "bandwidth" => Kind::Plot(plot::Kind::Bandwidth),
            _ => return None,
        };
        let (files, starts) = words.partition(|word| word.ends_with(".json"));
        Some(Self {
            kind,
            files,
            starts,
        })
    }

    /// Reads the files of results that the marker names.
    fn records(&self, page: &str, files: &Files) -> Result<Vec<Record>> {
        let read = |name: &&str| {
            let file = format!("{RESULTS}/{name}");
            let json = files.get(&file);
            let json = json.ok_or_else(|| format!("{page}: there is no tracked file {file}"))?;
            Record::parse(json).map_err(|error| format!("{file}: {error}"))
        };
        self.files.iter().map(read).collect()
    }

    /// Returns each row of the results that the marker names, as it was measured in each run.
    fn rows<'r>(&self, record: &'r Record) -> Vec<Vec<&'r Row>> {
        record.rows(|row| {
            self.starts.is_empty() || self.starts.iter().any(|start| row.id.starts_with(start))
        })
    }

    /// Returns the name of the marker's image, without the theme.
    fn image(&self, file: &str) -> String {
        let kind = match self.kind {
            Kind::Plot(plot::Kind::Lines) => "lines",
            Kind::Plot(plot::Kind::Bandwidth) => "bandwidth",
            _ => "bars",
        };
        let parts = [file.trim_end_matches(".json"), kind];
        let parts = parts.iter().chain(&self.starts);
        let parts: Vec<_> = parts.map(|part| part.trim_matches(['.', '-'])).collect();
        parts.join("-")
    }
}

/// Ratios between these are neither faster nor slower.
const SAME: [f64; 2] = [0.91, 1.1];

/// Returns a list of the rows that are faster, or slower, than their raw technique.
fn list(page: &str, marker: &Marker<'_>, chosen: &[(&Record, Vec<Vec<&Row>>)]) -> String {
    let mut found = Vec::new();
    for runs in chosen.iter().flat_map(|(_, rows)| rows) {
        let ratio = spread(runs.iter().filter_map(|row| row.ratio));
        let (Some([_, ratio, _]), Some(row)) = (ratio, runs.first()) else {
            continue;
        };
        let median = |values: Vec<f64>| {
            spread(values.into_iter())
                .map_or_else(String::new, |[_, middle, _]| row.unit.show(middle))
        };
        let ours = median(runs.iter().filter_map(|row| row.value(row.ours)).collect());
        let raw = median(runs.iter().filter_map(|row| row.value(row.raw)).collect());
        let is_listed = match marker.kind {
            Kind::Faster => ratio <= SAME[0],
            _ => ratio >= SAME[1],
        };
        if is_listed {
            let line = format!(
                "| {} | {ours} | {raw} | {} | {} |",
                row.title(),
                Unit::Times.show(ratio),
                row.raw_technique
            );
            found.push((ratio, line));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    if marker.kind == Kind::Slower {
        found.reverse();
    }
    if found.is_empty() {
        return "None of the measured rows.\n".to_owned();
    }
    let mut text = "| what | ours | raw or peer | ratio | compared with |\n\
                    |---|---:|---:|---:|---|\n"
        .to_owned();
    for (_, line) in found {
        text.push_str(&line);
        text.push('\n');
    }
    text.push('\n');
    for (file, (record, _)) in marker.files.iter().zip(chosen) {
        text.push_str(&origin(page, record, file));
    }
    text
}

/// Describes where results come from.
fn origin(page: &str, record: &Record, file: &str) -> String {
    let mut text = format!(
        "`{}`, {}, commit {}, {} runs\\\n{} ([all rows]({}{file}))\n\n",
        record.command,
        record.date,
        record.commit,
        record.runs.len(),
        record.machine(),
        relative(page, "benches/results/"),
    );
    let peers = record.peers.iter();
    let peers: Vec<_> = peers
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    if !peers.is_empty() {
        let _ = writeln!(text, "Versions: {}\n", peers.join(", "));
    }
    text
}

/// Returns a table with its date, commit and machine.
fn table(page: &str, record: &Record, file: &str, rows: &[Vec<&Row>]) -> String {
    let mut text = origin(page, record, file);
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
