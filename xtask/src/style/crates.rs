//! The chart of crates in `docs/architecture.md` shows Cargo's graph.

use std::collections::{BTreeMap, BTreeSet};

use super::{ARCHITECTURE, Fault, Files, text};

/// The names that each name points to.
type Graph<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Returns the crates whose arrows in the chart do not lead to exactly their dependencies. An arrow
/// that follows from others may be left out.
pub(super) fn check(files: &Files) -> Vec<Fault> {
    let cargo = dependencies(files);
    let mut chart = Graph::new();
    let arrows = text(files, ARCHITECTURE).lines();
    for (from, to) in arrows.filter_map(|line| line.split_once(" --> ")) {
        for from in names(from, &cargo) {
            chart.entry(from).or_default().extend(names(to, &cargo));
        }
    }
    let differ = cargo.iter().filter(|(name, needed)| {
        let arrows = chart.get(*name).cloned().unwrap_or_default();
        !arrows.is_subset(&reached(&cargo, name)) || !needed.is_subset(&reached(&chart, name))
    });
    let differ = differ.map(|(name, needed)| (0, format!("{name} depends on {needed:?}")));
    differ.collect()
}

/// Returns the dependencies of each crate on other crates of this checkout.
fn dependencies(files: &Files) -> Graph<'_> {
    let is_manifest = |path: &str| path.starts_with("crates/") && path.ends_with("/Cargo.toml");
    let manifests = files.iter().filter(|(path, _)| is_manifest(path));
    let named = manifests.filter_map(|(_, text)| Some((text.split('"').nth(1)?, text)));
    let manifests: BTreeMap<&str, &String> = named.collect();
    let needed = |text: &String| {
        let lines = text.lines().skip_while(|line| *line != "[dependencies]");
        let lines = lines.skip(1).take_while(|line| !line.starts_with('['));
        let names = lines.filter_map(|line| line.split(['.', ' ']).next());
        let known = names.filter_map(|name| manifests.get_key_value(name));
        known.map(|(name, _)| *name).collect()
    };
    let graph = manifests.iter().map(|(name, text)| (*name, needed(text)));
    graph.collect()
}

fn names<'a>(side: &str, known: &Graph<'a>) -> BTreeSet<&'a str> {
    let words = side.split([' ', '&', '[']);
    let names = words.filter_map(|word| known.get_key_value(word));
    names.map(|(name, _)| *name).collect()
}

/// Returns what a name points to, directly and through others.
fn reached<'a>(graph: &Graph<'a>, from: &str) -> BTreeSet<&'a str> {
    let next = graph.get(from).into_iter().flatten().copied();
    let all = next.flat_map(|name| reached(graph, name).into_iter().chain([name]));
    all.collect()
}

#[test]
fn crates_that_differ_from_the_chart_are_found() {
    let manifest = |name, needs| format!("name = \"{name}\"\n[dependencies]\n{needs}\n[lints]\n");
    let found = |chart: &str| -> usize {
        let files = [
            ("crates/a/Cargo.toml", manifest("a", "libc = 1")),
            ("crates/b/Cargo.toml", manifest("b", "a.workspace = true")),
            ("crates/c/Cargo.toml", manifest("c", "b = 1\na = 1")),
            (ARCHITECTURE, chart.to_owned()),
        ];
        check(&files.map(|(path, text)| (path.to_owned(), text)).into()).len()
    };
    assert_eq!(found("b[words] --> a\nc --> b"), 0);
    assert_eq!(found("b --> a\nc --> a"), 1);
    assert_eq!(found("c --> b & a"), 1);
}
