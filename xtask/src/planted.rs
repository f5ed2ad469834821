//! Puts bugs into a copy of the sources, one at a time, and shows which check finds each.
//!
//! `xtask/bugs` has a patch for each bug. Its first line describes the bug, and its second line
//! names the check that finds it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::step::{say, seconds};
use crate::workspace::Workspace;
use crate::{Result, process, soak, tools};

/// Longest time of one check, with the build of the copy.
const CHECK_LIMIT: Duration = Duration::from_secs(20 * 60);

/// A patch that makes the library wrong.
struct Bug {
    patch: PathBuf,
    description: String,
    /// The kind of the check: the fault harness with the cases of one workload (`faults`), a case
    /// of the conformance suite (`case`), or a test of the library (`test`).
    kind: String,
    /// The workload, the case or the test.
    check: String,
}

/// Returns the bugs in the directory `xtask/bugs` of a checkout.
fn bugs(root: &Path) -> Result<Vec<Bug>> {
    let cannot = |error| format!("cannot read xtask/bugs: {error}");
    let mut bugs = Vec::new();
    for entry in fs::read_dir(root.join("xtask/bugs")).map_err(cannot)? {
        let patch = entry.map_err(cannot)?.path();
        let text = fs::read_to_string(&patch).map_err(cannot)?;
        let mut lines = text.lines();
        let description = lines.next().and_then(|line| line.strip_prefix("bug: "));
        let check = lines.next().and_then(|line| line.strip_prefix("check: "));
        let (Some(description), Some((kind, check))) =
            (description, check.and_then(|check| check.split_once(' ')))
        else {
            return Err(format!("{} lacks a bug or a check", patch.display()));
        };
        bugs.push(Bug {
            description: description.to_owned(),
            kind: kind.to_owned(),
            check: check.to_owned(),
            patch,
        });
    }
    bugs.sort_by(|a, b| a.patch.cmp(&b.patch));
    Ok(bugs)
}

/// Applies a patch to the sources at `root`, with options of `git apply`.
fn apply(bug: &Bug, root: &Path, options: &[&str]) -> Result<()> {
    let mut git = Command::new("git");
    // The copy lies in the checkout's target directory, but it is no part of the checkout.
    git.env("GIT_CEILING_DIRECTORIES", root.parent().unwrap_or(root));
    git.arg("apply").args(options).arg(&bug.patch);
    match git.current_dir(root).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(format!("cannot run git: {error}")),
    }
}

/// Plants each bug whose description contains `filter`, and prints a row of a table for each: the
/// bug, the check that finds it, and how soon.
///
/// # Errors
/// A check does not find its bug, or fails without it.
pub(crate) fn run(workspace: &Workspace, filter: &str) -> Result<()> {
    let copy = copy(workspace)?;
    let mut missed = Vec::new();
    let mut bugs = bugs(&workspace.root)?;
    bugs.retain(|bug| bug.description.contains(filter));
    println!("| bug | found by | after |\n|---|---|---|");
    for bug in &bugs {
        let is_sound = passes(&copy, bug)?;
        apply(bug, &copy.root, &[])?;
        let started = Instant::now();
        let passed = passes(&copy, bug);
        apply(bug, &copy.root, &["--reverse"])?;
        let after = match (is_sound, passed?) {
            (true, false) => seconds(started.elapsed()),
            (true, true) => "never".to_owned(),
            (false, _) => "never: the check fails without the bug, too".to_owned(),
        };
        if after.starts_with("never") {
            missed.push(bug.description.as_str());
        }
        let (bug, kind, check) = (&bug.description, &bug.kind, &bug.check);
        say(&format!("| {bug} | {kind} `{check}` | {after} |"));
    }
    match missed.is_empty() {
        true => Ok(()),
        false => Err(format!("not found: {}", missed.join(", "))),
    }
}

/// Returns whether a bug's check passes in the copy. A check that is late does not.
fn passes(copy: &Workspace, bug: &Bug) -> Result<bool> {
    let check = bug.check.as_str();
    let mut command = match bug.kind.as_str() {
        "faults" => {
            soak::build(copy)?;
            soak::harness(copy, &["faults", "--workload", check, "--jobs", "2"])
        }
        "case" => {
            let words = ["run", "--locked", "--package", "crosshandle-conformance"];
            let mut command = copy.cargo(&words);
            command.args(["--bin", "conformance", "--", check]);
            command
        }
        "test" => {
            let mut command = Command::new(tools::NEXTEST.get(copy)?);
            copy.prepare(&mut command);
            command.args(["nextest", "run", "--locked", "--retries", "0"]);
            command.args(["--package", "crosshandle*"]);
            command.args(["-E", &format!("test(/(^|::){check}$/)")]);
            command
        }
        kind => return Err(format!("{}: no check is a {kind}", bug.patch.display())),
    };
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command
        .spawn()
        .map_err(|error| format!("cannot run a check: {error}"))?;
    let ended = process::wait(&mut child, CHECK_LIMIT)?;
    Ok(ended.is_some_and(|status| status.success()))
}

/// Copies the tracked files into the target directory. Files that did not change keep their times,
/// so that they are not built again.
fn copy(workspace: &Workspace) -> Result<Workspace> {
    let cannot = |error| format!("cannot copy the sources: {error}");
    let directory = workspace.target.join("planted");
    let root = directory.join("sources");
    let mut list = Command::new("git");
    let listed = list.arg("ls-files").current_dir(&workspace.root).output();
    for name in String::from_utf8_lossy(&listed.map_err(cannot)?.stdout).lines() {
        let to = root.join(name);
        // A tracked file that was deleted.
        let Ok(bytes) = fs::read(workspace.root.join(name)) else {
            continue;
        };
        if !fs::read(&to).is_ok_and(|old| old == bytes) {
            fs::create_dir_all(to.parent().unwrap_or(&root)).map_err(cannot)?;
            fs::write(&to, bytes).map_err(cannot)?;
        }
    }
    let target = directory.join("target");
    Ok(Workspace {
        root,
        target,
        settings: Vec::new(),
    })
}

#[test]
fn every_bug_applies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for bug in bugs(root).unwrap() {
        apply(&bug, root, &["--check"]).unwrap();
        assert!(["faults", "case", "test"].contains(&bug.kind.as_str()));
    }
}
