//! Rules of text and structure that Cargo, rustfmt and Clippy do not check.

mod anchors;
mod crates;
mod evidence;
mod glossary;
mod paths;
mod prose;
mod sizes;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

pub(crate) use anchors::joined;

use crate::workspace::Workspace;
use crate::{Result, figures};

/// A line, from 1, and what is wrong there. Line 0 is the whole file.
type Fault = (usize, String);
/// The contents of the tracked files, by path from the root. A file that is no text is empty.
type Files = BTreeMap<String, String>;

const ARCHITECTURE: &str = "docs/architecture.md";
const GLOSSARY: &str = "docs/glossary.md";
const SECURITY: &str = "docs/security.md";
/// Switches of tests, which readers of the published crates would take for back doors.
const SWITCHES: [&str; 3] = ["is_planted", "feature = \"planted", "fault-steps"];

/// Checks the tracked files.
///
/// # Errors
/// A file breaks a rule. The error lists each place.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let files = read(workspace)?;
    let mut places = Vec::new();
    let mut add = |path: &str, faults: Vec<Fault>| {
        let faults = faults.into_iter();
        places.extend(faults.map(|(line, what)| format!("{path}:{line}: {what}")));
    };
    for (path, text) in &files {
        add(path, prose::check(path, text));
        add(path, paths::check(path, text, &files));
        add(path, anchors::check(path, text, &files));
        add(path, sizes::check(path, text));
        add(path, switches(path, text));
        add(path, kinds(path, text, self::text(&files, ARCHITECTURE)));
    }
    add(ARCHITECTURE, crates::check(&files));
    add(SECURITY, evidence::check(&files));
    add(GLOSSARY, glossary::check(&files));
    add("xtask/src/style/sizes.rs", sizes::unused(&files));
    places.extend(figures::faults(&files));
    match places.len() {
        0 => Ok(()),
        count => Err(format!("{count} faults\n{}", places.join("\n"))),
    }
}

pub(crate) fn read(workspace: &Workspace) -> Result<Files> {
    let mut git = Command::new("git");
    let listed = git.arg("ls-files").current_dir(&workspace.root).output();
    let listed = listed.map_err(|error| format!("cannot run git: {error}"))?;
    let paths = String::from_utf8_lossy(&listed.stdout);
    // A tracked file may have been deleted.
    let files = paths.lines().filter_map(|path| {
        let bytes = fs::read(workspace.root.join(path)).ok()?;
        Some((
            path.to_owned(),
            String::from_utf8(bytes).unwrap_or_default(),
        ))
    });
    Ok(files.collect())
}

fn text<'a>(files: &'a Files, path: &str) -> &'a str {
    files.get(path).map_or("", String::as_str)
}

/// Returns the pieces of a line that are marked as code.
fn codes(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn switches(path: &str, text: &str) -> Vec<Fault> {
    let lines = text
        .lines()
        .zip(1..)
        .filter(|_| path.starts_with("crates/"));
    let found = lines.filter(|(text, _)| SWITCHES.iter().any(|switch| text.contains(switch)));
    let found = found.map(|(_, line)| (line, "use a patch in xtask/bugs or a `--cfg`".to_owned()));
    found.collect()
}

#[test]
fn switches_of_tests_are_found() {
    let text = "#[cfg(fault_steps)]\nif key != other && !is_planted(\"key\") {\nfault-steps = []\n";
    let found = switches("crates/a/src/lib.rs", text).into_iter();
    assert!(found.map(|(line, _)| line).eq([2, 3]));
}

/// Returns the lines that name one kind of backend, in a place that `docs/architecture.md` does not
/// list.
fn kinds(path: &str, text: &str, architecture: &str) -> Vec<Fault> {
    let section = architecture.split("### The kind of a backend").nth(1);
    let section = section.unwrap_or_default().split("\n## ").next();
    let mut listed = section.unwrap_or_default().lines().flat_map(codes);
    let of_tests = ["/tests/", "/tests.rs", "/testing.rs", "/examples/"];
    if !path.starts_with("crates/")
        || of_tests.iter().any(|part| path.contains(part))
        || listed.any(|listed| listed == path)
    {
        return Vec::new();
    }
    let lines = text.lines().zip(1..);
    let shipped = lines.take_while(|(text, _)| text.trim() != "#[cfg(test)]");
    let found = shipped.filter(|(text, _)| {
        let kinds = text.split("BackendKind::").skip(1);
        let mut kinds = kinds.map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
        kinds.any(|kind| {
            let kind = kind.unwrap_or_default();
            // A constant or a function is no kind.
            let is_kind = kind.starts_with(char::is_uppercase) && kind.contains(char::is_lowercase);
            let own = kind.replace("LevelZero", "level-zero").to_lowercase();
            is_kind && !path.starts_with(&format!("crates/crosshandle-{own}/"))
        })
    });
    let found = found.map(|(_, line)| (line, "ask the backend instead of its kind".to_owned()));
    found.collect()
}

#[test]
fn kinds_of_backends_are_found_where_they_decide() {
    let text = "if kind == BackendKind::Cuda {\nfor kind in BackendKind::ALL {\n#[cfg(test)]\nBackendKind::Host\n";
    let page =
        "### The kind of a backend\n- `crates/a/src/listed.rs`\n## Next\n`crates/a/src/other.rs`\n";
    let at = |path| {
        kinds(path, text, page)
            .into_iter()
            .map(|(line, _)| line)
            .collect::<Vec<_>>()
    };
    assert_eq!(at("crates/a/src/other.rs"), [1]);
    for path in [
        "crates/a/src/listed.rs",
        "crates/crosshandle-cuda/src/device.rs",
        "crates/a/tests/b.rs",
    ] {
        assert!(at(path).is_empty(), "{path}");
    }
}
