//! Paths that pages and comments name exist.

use super::{Fault, Files, codes};

const ROOTS: [&str; 6] = [
    "crates/",
    "docs/",
    "xtask/",
    "fuzz/",
    "benches/",
    "examples/",
];
const ENDS: [&str; 6] = [".rs", ".c", ".cpp", ".h", ".md", "/"];

/// Returns the paths in a page, or in the comments of a source, that do not exist.
pub(super) fn check(path: &str, text: &str, files: &Files) -> Vec<Fault> {
    let (is_page, is_rust) = (path.ends_with(".md"), path.ends_with(".rs"));
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let (mut found, mut is_listing) = (Vec::new(), false);
    for (text, line) in text.lines().zip(1..) {
        is_listing ^= text.trim_start().starts_with("```");
        if !(is_page || is_rust && text.trim_start().starts_with("//")) {
            continue;
        }
        let codes = codes(text).chain(is_listing.then_some(text));
        let words = codes.flat_map(str::split_whitespace);
        let paths = words.filter_map(|word| named(word, is_page && !is_listing));
        let mut paths: Vec<_> = paths.flat_map(alternatives).collect();
        paths.extend(
            links(text)
                .map(|link| joined(directory, link))
                .filter(|_| is_page),
        );
        paths.retain(|path| !exists(path, files));
        let paths = paths.into_iter();
        found.extend(paths.map(|path| (line, format!("there is no {path}"))));
    }
    found
}

/// Returns the targets of a line's links, without links to the web and within the page.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// Returns a path that starts with `/`, for a link in a page of a directory.
fn joined(directory: &str, link: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').collect();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.retain(|part| !["", "."].contains(part));
    format!("/{}", parts.join("/"))
}

/// Returns the path of this checkout that a word in code is, or `None`.
fn named(word: &str, may_be_relative: bool) -> Option<&str> {
    let word = word.trim_end_matches([',', '.', ';', ':', ')']);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./{},*".contains(c);
    let is_ours = word.chars().all(is_plain) && !word.starts_with(['/', '.', '-']);
    let is_rooted = ROOTS.iter().any(|root| word.starts_with(root));
    let is_relative = may_be_relative && ENDS.iter().any(|end| word.ends_with(end));
    (is_ours && (is_rooted || is_relative)).then_some(word)
}

/// Expands braces: `a/{b,c}` is two paths.
fn alternatives(path: &str) -> Vec<String> {
    let braces = path.split_once('{');
    let braces = braces.and_then(|(start, rest)| Some((start, rest.split_once('}')?)));
    let Some((start, (names, end))) = braces else {
        return vec![path.to_owned()];
    };
    let paths = names.split(',').map(|name| format!("{start}{name}{end}"));
    paths.flat_map(|path| alternatives(&path)).collect()
}

/// Returns whether this is the path of a file or directory from the root, or, if it does not start
/// with a root, the end of such a path. A star stands for any name.
fn exists(path: &str, files: &Files) -> bool {
    let is_rooted = path.starts_with('/') || ROOTS.iter().any(|root| path.starts_with(root));
    let path = path.trim_matches('/');
    let wanted = match path.split_once('*') {
        Some((start, _)) => format!("/{start}"),
        None => format!("/{path}/"),
    };
    files.keys().any(|file| match format!("/{file}/") {
        file if is_rooted => file.starts_with(&wanted),
        file => file.contains(&wanted),
    })
}

#[test]
fn paths_that_do_not_exist_are_found() {
    let files = ["README.md", "docs/events.md", "crates/hal/src/host/mod.rs"];
    let files = files.map(|path| (path.to_owned(), String::new())).into();
    let fine = "`host/mod.rs`, `crates/hal/src/{host,host/mod.rs}`, `host/`, [e](events.md#x)\n\
                [all](../README.md), `a / b`, `crates/*/src`, <https://a/b.rs>, `cargo x`";
    assert_eq!(check("docs/a.md", fine, &files), []);
    let gone = "`host/gone.rs`\n`crates/gone`\n[gone](README.md)\n```\ncrates/gone/x.rs\n```";
    let found = check("docs/a.md", gone, &files).into_iter();
    assert_eq!(
        found.map(|(line, _)| line).collect::<Vec<_>>(),
        [1, 2, 3, 5]
    );
    let source = "// `docs/b.md`\nlet text = \"`docs/b.md`\";";
    assert_eq!(check("a.rs", source, &files).len(), 1);
}
