//! The terms that `docs/glossary.md` explains occur in the code.

use super::{Fault, Files, GLOSSARY, text};

pub(super) fn check(files: &Files) -> Vec<Fault> {
    let sources = files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let sources: String = sources.map(|(_, text)| plain(text)).collect();
    let lines = text(files, GLOSSARY).lines().zip(1..);
    let terms = lines.flat_map(|(text, line)| terms(text).map(move |term| (line, term)));
    let missing = terms.filter(|(_, term)| !sources.contains(&plain(term)));
    let missing = missing.map(|(line, term)| (line, format!("no code uses the term {term}")));
    missing.collect()
}

/// Returns the terms in bold at the start of a line or of a row.
fn terms(line: &str) -> impl Iterator<Item = &str> {
    let start = line.trim_start_matches(['|', '-', ' ']).strip_prefix("**");
    let terms = start.and_then(|start| start.split_once("**"));
    terms.into_iter().flat_map(|(terms, _)| terms.split(", "))
}

/// Returns a text in lower case, with the words of each identifier apart.
fn plain(text: &str) -> String {
    text.to_lowercase().replace(['_', '-'], " ")
}

#[test]
fn terms_without_code_are_found() {
    let page = "| **wait list**, **fence** |\n| **liveness lock** |\n- **unicorn**: **none**\n";
    let source = "fn wait_list() {} // Liveness locks are fences.";
    let files = [("a.rs", source), (GLOSSARY, page)];
    let found = check(&files.map(|(path, text)| (path.into(), text.into())).into());
    assert_eq!(found, [(3, "no code uses the term unicorn".to_owned())]);
}
