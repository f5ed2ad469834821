//! Every error has a row in `docs/errors.md`.

use super::{ERRORS, Fault, Files, text};

const RUST: &str = "crates/crosshandle-types/src/error.rs";
const PYTHON: &str = "crates/crosshandle-python/python/crosshandle/_errors.py";

/// Returns the errors that the page lacks.
pub(super) fn check(files: &Files) -> Vec<Fault> {
    let page = text(files, ERRORS);
    let missing = variants(text(files, RUST)).chain(classes(text(files, PYTHON)));
    let missing = missing.filter(|name| !page.contains(&format!("`{name}`")));
    missing
        .map(|name| (0, format!("{name} has no row")))
        .collect()
}

/// Returns the variants of `enum Error`.
fn variants(source: &str) -> impl Iterator<Item = &str> {
    let body = source
        .split_once("pub enum Error {")
        .map_or("", |(_, rest)| rest);
    let body = body.lines().take_while(|line| *line != "}");
    let indented = body.filter_map(|line| line.strip_prefix("    "));
    let variants = indented.filter(|line| line.starts_with(char::is_uppercase));
    variants.filter_map(|line| line.split(|c: char| !c.is_alphanumeric()).next())
}

/// Returns the classes that derive from `Error`.
fn classes(source: &str) -> impl Iterator<Item = &str> {
    let classes = source
        .lines()
        .filter_map(|line| line.strip_prefix("class "));
    let derived = classes.filter(|line| !line.starts_with("Error("));
    derived.filter_map(|line| line.split('(').next())
}

#[test]
fn errors_without_a_row_are_found() {
    let rust =
        "pub enum Error {\n    Gone,\n    /// A.\n    Late {\n        Pid: u32,\n    },\n}\nX";
    let python = "class Error(Exception):\nclass LateError(Error):\n    pid = 1";
    let page = "| `Late` | `Pid` |";
    let files = [(RUST, rust), (PYTHON, python), (ERRORS, page)];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let found = check(&files.into()).into_iter().map(|(_, what)| what);
    assert!(found.eq(["Gone has no row", "LateError has no row"]));
}
