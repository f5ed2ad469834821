//! Tables and plots of benchmark results in pages, generated from files in `benches/results`.
//!
//! A page names the suite, and the rows by the starts of their identifiers:
//!
//! ```text
//! <!-- figures host.json handles. events. -->
//! <!-- end of figures -->
//! ```
//!
//! `cargo xtask figures` writes between the two lines what the first word asks for:
//!
//! - `figures`: a table
//! - `faster`, `slower`: a list of the rows that are clearly faster or slower than their raw
//!   technique. Several suites may be named.
//! - `bars`, `lines`, `bandwidth`: a plot of the results, or of the results against the size
//!
//! The newest file of the suite is used. If there is none, the page says how to record one.
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
        let found = marker.records(files)?;
        let nothing = || {
            let marker = line.trim_end();
            format!("{path}: {RESULTS} has nothing that `{marker}` can show")
        };
        text.push('\n');
        let mut chosen = Vec::new();
        for (suite, found) in &found {
            let Some((file, record)) = found else {
                if !matches!(marker.kind, Kind::Plot(_)) {
                    let command = match *suite {
                        "peers-gpu" => "peers --only gpu".to_owned(),
                        _ => suite.replace('-', " "),
                    };
                    let _ = writeln!(
                        text,
                        "- No run is recorded yet: `cargo xtask bench {command} --record 3`."
                    );
                }
                continue;
            };
            let rows = marker.rows(record);
            if rows.is_empty() {
                return Err(nothing());
            }
            match marker.kind {
                Kind::Table => text.push_str(&table(path, record, file, &rows)),
                Kind::Faster | Kind::Slower => chosen.push((*file, record, rows)),
                Kind::Plot(kind) => {
                    let name = marker.image(suite);
                    let drawn = plot::svgs(kind, record, &rows).ok_or_else(nothing)?;
                    for (theme, svg) in drawn {
                        images.insert(format!("{PLOTS}/{name}-{theme}.svg"), svg);
                    }
                    let place = format!("{}{name}", relative(path, "docs/plots/"));
                    let _ = writeln!(
                        text,
                        "<picture>\n<source media=\"(prefers-color-scheme: dark)\"\n\
                         srcset=\"{place}-dark.svg\">\n<img alt=\"{}\"\n\
                         src=\"{place}-light.svg\">\n</picture>",
                        kind.describes(),
                    );
                }
            }
        }
        if !chosen.is_empty() {
            if chosen.len() < found.len() {
                text.push('\n');
            }
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

/// A suite, and its newest file with the results, if there is one.
type Newest<'a, 'f> = (&'a str, Option<(&'f str, Record)>);

/// A line of a page that asks for figures.
struct Marker<'a> {
    kind: Kind,
    suites: Vec<&'a str>,
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
        let (files, starts): (Vec<_>, _) = words.partition(|word| word.ends_with(".json"));
        let suites = files.iter().map(|file| file.trim_end_matches(".json"));
        Some(Self {
            kind,
            suites: suites.collect(),
            starts,
        })
    }

    /// Reads the newest results of each suite that the marker names, if there are any.
    fn records<'f>(&self, files: &'f Files) -> Result<Vec<Newest<'a, 'f>>> {
        let newest = |suite: &&'a str| {
            let mut found: Option<(&str, Record)> = None;
            for (path, json) in files {
                let name = path
                    .strip_prefix(RESULTS)
                    .and_then(|name| name.strip_prefix('/'));
                let Some(name) = name.filter(|name| is_of(suite, name)) else {
                    continue;
                };
                let record = Record::parse(json).map_err(|error| format!("{path}: {error}"))?;
                if found
                    .as_ref()
                    .is_none_or(|(_, other)| other.date <= record.date)
                {
                    found = Some((name, record));
                }
            }
            Ok((*suite, found))
        };
        self.suites.iter().map(newest).collect()
    }

    /// Returns each row of the results that the marker names, as it was measured in each run.
    fn rows<'r>(&self, record: &'r Record) -> Vec<Vec<&'r Row>> {
        record.rows(|row| {
            self.starts.is_empty() || self.starts.iter().any(|start| row.id.starts_with(start))
        })
    }

    /// Returns the name of the marker's image, without the theme.
    fn image(&self, suite: &str) -> String {
        let kind = match self.kind {
            Kind::Plot(plot::Kind::Lines) => "lines",
            Kind::Plot(plot::Kind::Bandwidth) => "bandwidth",
            _ => "bars",
        };
        let parts = [suite, kind];
        let parts = parts.iter().chain(&self.starts);
        let parts: Vec<_> = parts.map(|part| part.trim_matches(['.', '-'])).collect();
        parts.join("-")
    }
}

/// Returns whether a file has results of a suite. Its name is DATE-COMMIT-SUITE.json.
fn is_of(suite: &str, file: &str) -> bool {
    file.trim_end_matches(".json").splitn(5, '-').nth(4) == Some(suite)
}

/// Ratios between these are neither faster nor slower.
const SAME: [f64; 2] = [0.91, 1.1];

/// Returns a list of the rows that are faster, or slower, than their raw technique.
fn list(page: &str, marker: &Marker<'_>, chosen: &[(&str, &Record, Vec<Vec<&Row>>)]) -> String {
    let mut found = Vec::new();
    for runs in chosen.iter().flat_map(|(.., rows)| rows) {
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
    for (file, record, _) in chosen {
        text.push_str(&origin(page, record, file));
    }
    text
}

/// Describes where results come from.
fn origin(page: &str, record: &Record, file: &str) -> String {
    let mut text = format!(
        "`{}`, {}, commit {}, {} runs\\\n{}\\\n[all rows]({}{file})\n\n",
        record.command,
        record.date,
        record.commit,
        record.runs.len(),
        // A line of a page has at most 100 columns.
        record.machine().replacen("; ", ";\n", 1),
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
