//! Links of pages to headings lead to a heading.

use std::collections::BTreeMap;

use super::{Fault, Files};

/// Returns the links of a page to headings that do not exist. Missing pages are
/// [another check's](super::paths) subject.
pub(super) fn check(path: &str, text: &str, files: &Files) -> Vec<Fault> {
    if !path.ends_with(".md") {
        return Vec::new();
    }
    let lines = outside_of_listings(text);
    let links = lines.flat_map(|(text, line)| links(text).map(move |link| (link, line)));
    let found = links.filter_map(|((page, heading), line)| {
        let page = match page {
            "" => path.to_owned(),
            page => joined(path, page),
        };
        let exists = files.get(&page).is_none_or(|text| has(text, heading));
        (!exists).then(|| (line, format!("{page} has no heading {heading}")))
    });
    found.collect()
}

/// Returns the links of a line with a heading: the page, which may be empty, and the heading.
fn links(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let targets = line.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split(')').next()?.split_once('#'));
    targets.filter(|(page, _)| !page.contains("://") && !page.ends_with('/'))
}

/// Resolves a link of the page `from`.
pub(crate) fn joined(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Returns the lines that are not code, with their numbers from 1.
fn outside_of_listings(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let mut is_listing = false;
    text.lines().zip(1..).filter(move |(line, _)| {
        let is_fence = line.trim_start().starts_with("```");
        is_listing ^= is_fence;
        !is_listing && !is_fence
    })
}

/// Returns whether a page has a heading with this anchor. Repeated headings get a number.
fn has(text: &str, anchor: &str) -> bool {
    let mut counts = BTreeMap::new();
    let headings = outside_of_listings(text).filter(|(line, _)| line.starts_with('#'));
    let mut anchors = headings.map(|(line, _)| {
        let name = slug(line.trim_start_matches('#').trim());
        let count = counts.entry(name.clone()).or_insert(0);
        *count += 1;
        match *count {
            1 => name,
            count => format!("{name}-{}", count - 1),
        }
    });
    anchors.any(|found| found == anchor)
}

/// Returns the anchor of a heading, as GitHub and mdBook form it.
fn slug(heading: &str) -> String {
    // A link is replaced by its text.
    let (mut plain, mut rest) = (String::new(), heading);
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    let kept = plain
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_to_missing_headings_are_found() {
    let page =
        "# A page\n\n## What `x` does, and why\n\n## Twice\n## Twice\n```\n# no heading\n```\n";
    let files: Files = [("docs/b.md".to_owned(), page.to_owned())].into();
    let fine =
        "[a](b.md#what-x-does-and-why) [b](../docs/b.md#twice-1) [c](b.md) [d](#here)\n# Here";
    assert_eq!(check("docs/a.md", fine, &files), []);
    let gone = "[a](b.md#no-heading)\n[b](b.md#twice-2)\n[c](#nowhere)";
    let files: Files = [
        ("docs/b.md".to_owned(), page.to_owned()),
        ("docs/a.md".to_owned(), gone.to_owned()),
    ]
    .into();
    assert_eq!(check("docs/a.md", gone, &files).len(), 3);
}
