//! The results of the demo as a page for browsers, without scripts.

use super::report::Report;
use crate::failure::{ErrorContext as _, Failure, Result};
use crate::new_file::NewFile;
use crate::output::html::{STYLE, escape};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// The longest time that a bar can show, in nanoseconds. Each factor of ten is as long as the next.
const LONGEST: f64 = 1e8;

const BARS: &str = "td.bar{width:40%}td.bar div{height:.7rem;border-radius:.2rem;background:#0f766e}\
@media (prefers-color-scheme:dark){td.bar div{background:#2dd4bf}}";

/// Writes the page into a file, which replaces an older one when it is complete.
pub(super) fn write(report: &Report, path: &Path) -> Result<()> {
    let doing = format!("writing {}", path.display());
    let page = page(report);
    let file = NewFile::create(path, page.len() as u64).context(&doing)?;
    let written = file.file().write_all(page.as_bytes());
    written.map_err(|error| Failure::error(format!("{doing}: {error}")))?;
    file.finish().context(&doing)
}

fn page(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html><html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>crosshandle demo</title><style>{STYLE}{BARS}</style></head>\
         <body><main><h1>crosshandle demo</h1><p>{}</p><p class=good>verified: {}</p>\
         <table><tr><th>what<th class=n>p50 or mean<th class=n>p99\
         <th>time (logarithmic)<th></tr>",
        escape(&report.begin()),
        escape(&report.verified()),
    );
    for row in report.rows() {
        let share = |time: f64| (time.max(1.0).ln() / LONGEST.ln()).clamp(0.0, 1.0);
        let bar = row.nanoseconds.map_or_else(String::new, |time| {
            format!("<div style=\"width:{:.0}%\"></div>", 100.0 * share(time))
        });
        let _ = write!(
            page,
            "<tr><td>{}<td class=n>{}<td class=n>{}<td class=bar>{bar}<td class=soft>{}</tr>",
            escape(row.what),
            escape(&row.value),
            escape(&row.p99),
            escape(&row.note),
        );
    }
    let _ = writeln!(
        page,
        "</table><p class=soft>crosshandle {}, on this machine at this time. The bars have a \
         logarithmic scale, from 1 ns to 100 ms.</p></main></body></html>",
        env!("CARGO_PKG_VERSION"),
    );
    page
}
