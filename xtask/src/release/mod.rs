//! Builds the files of a release, installs each of them, and compares them with a second build.

mod deb;
mod install;
mod prepare;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::python::Environment;
use crate::step::{Step, report_skipped, say};
use crate::workspace::Workspace;
use crate::{Result, packages, tools, wheel};

/// The version of every crate of this workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Cargo's profile of everything that a release contains, and its output directory.
const PROFILE: &str = "packed";
/// The crates whose list of dependencies a release contains, with their directories.
const LISTED: [(&str, &str); 6] = [
    ("crosshandle-c", "crates/crosshandle-c"),
    ("crosshandle-cli", "crates/crosshandle-cli"),
    ("crosshandle-python", "crates/crosshandle-python"),
    ("crosshandle-ur-adapter-cuda", "crates/ur-adapter-cuda"),
    ("crosshandle-ur-adapter-host", "crates/ur-adapter-host"),
    (
        "crosshandle-ur-adapter-level-zero",
        "crates/ur-adapter-level-zero",
    ),
];
/// Time limit of a build. It optimises every dependency.
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Sets the version of the next release in all files.
pub(crate) fn prepare(workspace: &Workspace, version: &str) -> Result<()> {
    prepare::run(workspace, VERSION, version)
}

/// Builds a release in `target/dist`, checks it, and prints the command that tags it.
///
/// # Errors
/// Fails if a part cannot be built, differs in the second build, or does not work where it was
/// installed. Also fails if the checkout is not ready for a release, unless this is a `rehearsal`.
pub(crate) fn run(workspace: &Workspace, rehearsal: bool) -> Result<()> {
    let mut missing = missing(workspace)?;
    if !missing.is_empty() && !rehearsal {
        let list = missing.join("\n  ");
        return Err(format!(
            "this checkout is not ready for a release (--rehearsal builds it anyway):\n  {list}"
        ));
    }
    packages::check(workspace)?;
    let mut skipped = Vec::new();
    match interfaces(workspace)? {
        Interfaces::Compatible => {}
        Interfaces::Skipped(reason) => skipped.push(reason),
        Interfaces::Incompatible(changes) if rehearsal => missing.push(changes),
        Interfaces::Incompatible(changes) => return Err(changes),
    }
    skipped.extend(oldest_rust(workspace)?);
    let arguments = ["publish", "--workspace", "--dry-run", "--locked"];
    let mut publish = workspace.cargo(&arguments);
    if rehearsal {
        publish.arg("--allow-dirty");
    }
    Step::new(workspace, "cargo publish, without upload", publish)
        .limit(BUILD_LIMIT)
        .run()?;

    let environment = Environment::for_wheel(workspace)?;
    let dist = workspace.target.join("dist");
    build(workspace, &environment, "release-build/first", &dist)?;
    skipped.extend(install::check(workspace, &environment, &dist)?);
    let again = workspace.target.join("dist-again");
    build(
        workspace,
        &environment,
        "release-build/second-build",
        &again,
    )?;
    same(&checksums(&dist)?, &checksums(&again)?)?;
    say("ok     both builds have the same bytes");
    skipped.extend(aarch64(workspace, &environment, &dist)?);
    let sums = checksums(&dist)?;
    let text: String = sums
        .iter()
        .map(|(name, sum)| format!("{sum}  {name}\n"))
        .collect();
    wheel::write(&dist.join("SHA256SUMS"), text.as_bytes())?;
    report_skipped(skipped);
    for reason in &missing {
        say(&format!("before the release: {reason}"));
    }
    print!("{text}");
    println!("{}", dist.display());
    println!("git tag --annotate v{VERSION} --message 'Crosshandle {VERSION}'");
    Ok(())
}

/// Returns what a release needs and this checkout lacks.
fn missing(workspace: &Workspace) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    let changes = fs::read_to_string(workspace.root.join("CHANGELOG.md"));
    let changes = changes.map_err(|error| format!("cannot read CHANGELOG.md: {error}"))?;
    missing.extend(changelog(&changes, VERSION));
    if !git(workspace, &["status", "--porcelain"])?.is_empty() {
        missing.push("some files have changes without a commit".to_owned());
    }
    if !packages::have_a_repository(workspace)? {
        missing.push("`repository` is not set in Cargo.toml".to_owned());
    }
    Ok(missing)
}

/// Returns what the list of changes lacks for a release.
fn changelog(text: &str, version: &str) -> Option<String> {
    let headings: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("## ["))
        .collect();
    let heading = format!("## [{version}] - ");
    let Some(found) = headings.iter().find(|line| line.starts_with(&heading)) else {
        return Some(format!(
            "CHANGELOG.md has no heading \"{heading}YYYY-MM-DD\""
        ));
    };
    let date = &found[heading.len()..];
    let is_date = date.len() == 10 && date.split('-').all(|part| part.parse::<u16>().is_ok());
    if !is_date {
        return Some(format!("CHANGELOG.md: {date} is not a date"));
    }
    let after = text.split_once("## [Unreleased]").map(|(_, after)| after);
    let unreleased = after.and_then(|after| after.split("\n## [").next());
    let is_empty = unreleased.is_none_or(|entries| entries.trim().is_empty());
    (!is_empty).then(|| "CHANGELOG.md has unreleased changes".to_owned())
}

/// The result of the comparison of interfaces.
enum Interfaces {
    Compatible,
    Skipped(String),
    /// The changes break programs, and the version does not say so.
    Incompatible(String),
}

/// Compares the public interface with that of the previous commit, if cargo-semver-checks is
/// installed.
fn interfaces(workspace: &Workspace) -> Result<Interfaces> {
    let Some(program) = tools::SEMVER.find(workspace) else {
        let command = tools::SEMVER.install_command();
        let reason = format!("the interface's changes: `{command}` takes minutes");
        return Ok(Interfaces::Skipped(reason));
    };
    let mut compare = Command::new(program);
    workspace.prepare(&mut compare);
    compare.args(["semver-checks", "--baseline-rev", "HEAD~1"]);
    compare.args(["--package", "crosshandle", "--package", "crosshandle-link"]);
    compare.args(["--package", "crosshandle-store"]);
    let step = Step::new(workspace, "changes of the interface", compare).limit(BUILD_LIMIT);
    Ok(match step.run_optional()? {
        None => Interfaces::Compatible,
        Some(problem) => Interfaces::Incompatible(format!(
            "the interface changes by more than the version says: {problem}"
        )),
    })
}

/// Builds everything with the oldest supported compiler. Returns the reason if this is not
/// possible.
fn oldest_rust(workspace: &Workspace) -> Result<Option<String>> {
    let oldest = format!("{}.0", env!("CARGO_PKG_RUST_VERSION"));
    let current = Command::new("rustc").arg("--version").output();
    let current = current.map_err(|error| format!("cannot run rustc: {error}"))?;
    let is_oldest = format!("rustc {oldest} ");
    if String::from_utf8_lossy(&current.stdout).starts_with(&is_oldest) {
        say(&format!(
            "ok     Rust {oldest} is the oldest, and builds everything here"
        ));
        return Ok(None);
    }
    let version = Command::new("rustup")
        .args(["run", &oldest, "cargo", "--version"])
        .output();
    if !version.is_ok_and(|output| output.status.success()) {
        let reason = format!("Rust {oldest}: `rustup toolchain install {oldest}`");
        return Ok(Some(reason));
    }
    let mut check = Command::new("rustup");
    workspace.prepare(&mut check);
    check.args(["run", &oldest, "cargo", "check", "--locked", "--workspace"]);
    check.env("CARGO_TARGET_DIR", workspace.target.join("oldest-rust"));
    // This process may run with the variables of another compiler.
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN"] {
        check.env_remove(name);
    }
    Step::new(workspace, format!("Rust {oldest}"), check).run()?;
    Ok(None)
}

/// Builds all files of a release from a copy of the latest commit, and leaves them in `dist`.
fn build(workspace: &Workspace, python: &Environment, place: &str, dist: &Path) -> Result<()> {
    let copy = copy_of_the_commit(workspace, place)?;
    wheel::empty(dist)?;
    let lists = dependencies(workspace, &copy)?;
    let wheel = wheel::for_release(&copy, python, &lists, None)?;
    let name = wheel.file_name().ok_or("the wheel has no name")?;
    wheel::copy(&wheel, &dist.join(name))?;
    deb::build(&copy, &lists, dist)?;
    for list in lists {
        let name = list.file_name().ok_or("a list has no name")?;
        wheel::copy(&list, &dist.join(name))?;
    }
    for name in ["LICENSE", "packaging/Containerfile"] {
        let from = copy.root.join(name);
        let name = from.file_name().ok_or("a file has no name")?;
        wheel::copy(&from, &dist.join(name))?;
    }
    // The files are in `dist`, and a build takes gigabytes.
    let parent = workspace.target.join(place);
    fs::remove_dir_all(&parent)
        .map_err(|error| format!("cannot remove {}: {error}", parent.display()))
}

/// Builds the wheel for aarch64 in `dist`. Nothing runs it, because this machine cannot. Returns
/// the reason if it cannot be built.
fn aarch64(workspace: &Workspace, python: &Environment, dist: &Path) -> Result<Option<String>> {
    let cross = match wheel::Cross::aarch64(workspace)? {
        Ok(cross) => cross,
        Err(command) => return Ok(Some(format!("the wheel for aarch64: `{command}`"))),
    };
    let place = "release-build/aarch64";
    let copy = copy_of_the_commit(workspace, place)?;
    let lists = dependencies(workspace, &copy)?;
    let wheel = wheel::for_release(&copy, python, &lists, Some(&cross))?;
    let name = wheel.file_name().ok_or("the wheel has no name")?;
    wheel::copy(&wheel, &dist.join(name))?;
    fs::remove_dir_all(&copy.root).map_err(|error| format!("cannot remove {place}: {error}"))?;
    Ok(None)
}

/// Returns a copy of the latest commit, whose builds do not depend on the time or on paths.
fn copy_of_the_commit(workspace: &Workspace, place: &str) -> Result<Workspace> {
    let root = workspace.target.join(place);
    wheel::empty(&root)?;
    let archive = root.with_extension("tar");
    let mut export = Command::new("git");
    export.current_dir(&workspace.root);
    export
        .args(["archive", "--output"])
        .arg(&archive)
        .arg("HEAD");
    Step::new(workspace, "export the commit", export).run()?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xf").arg(&archive).arg("-C").arg(&root);
    Step::new(workspace, "unpack the commit", unpack).run()?;
    let time = git(workspace, &["log", "-1", "--format=%ct"])?;
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").unwrap_or_default();
    let cargo_home = cargo_home.unwrap_or_else(|| Path::new(&home).join(".cargo"));
    let prefixes = [(&root, "/crosshandle"), (&cargo_home, "/cargo")];
    let options = |option: &str, separator: &str| -> OsString {
        let named = prefixes.map(|(path, name)| format!("{option}={}={name}", path.display()));
        named.join(separator).into()
    };
    let settings = vec![
        ("SOURCE_DATE_EPOCH", time.trim().into()),
        ("CARGO_INCREMENTAL", "0".into()),
        (
            "CARGO_ENCODED_RUSTFLAGS",
            options("--remap-path-prefix", "\x1f"),
        ),
        ("CFLAGS", options("-ffile-prefix-map", " ")),
    ];
    Ok(Workspace {
        target: root.join("target"),
        root,
        settings,
    })
}

/// Writes the lists of dependencies (CycloneDX), and returns their paths.
fn dependencies(workspace: &Workspace, copy: &Workspace) -> Result<Vec<PathBuf>> {
    let program = tools::CYCLONEDX.get(workspace)?;
    let mut list = Command::new(program);
    copy.prepare(&mut list);
    list.args(["cyclonedx", "--format", "json", "--quiet"]);
    Step::new(workspace, "lists of dependencies", list).run()?;
    let root = format!("{}/", copy.root.display());
    let lists = copy.target.join("sbom");
    wheel::empty(&lists)?;
    let write = |(name, directory): (&str, &str)| {
        let file = format!("{name}.cdx.json");
        let written = copy.root.join(directory).join(&file);
        let text = fs::read_to_string(&written)
            .map_err(|error| format!("cannot read {}: {error}", written.display()))?;
        let kept = lists.join(file);
        // The tool names the packages of the workspace by their paths on this machine.
        wheel::write(&kept, text.replace(&root, "").as_bytes())?;
        Ok(kept)
    };
    LISTED.into_iter().map(write).collect()
}

/// Returns the SHA-256 of each file in a directory, by its name.
fn checksums(directory: &Path) -> Result<BTreeMap<String, String>> {
    let cannot = |error| format!("cannot read {}: {error}", directory.display());
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let output = Command::new("sha256sum").arg(&path).output();
        let output = output.map_err(|error| format!("cannot run sha256sum: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let sum = text.split_whitespace().next().filter(|sum| sum.len() == 64);
        let sum = sum.ok_or_else(|| format!("sha256sum fails for {}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        sums.insert(name.into_owned(), sum.to_owned());
    }
    Ok(sums)
}

/// Fails if the files of two builds differ.
fn same(first: &BTreeMap<String, String>, second: &BTreeMap<String, String>) -> Result<()> {
    let names: Vec<_> = first.keys().chain(second.keys()).collect();
    let differ: Vec<_> = names
        .iter()
        .filter(|name| first.get(**name) != second.get(**name))
        .map(|name| name.as_str())
        .collect();
    match differ.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "these files differ in the second build (target/dist, target/dist-again): {}",
            differ.join(", ")
        )),
    }
}

/// Returns what git prints.
fn git(workspace: &Workspace, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(&workspace.root)
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_needs_a_dated_heading_and_nothing_unreleased() {
        let ready = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-29\n\n- All.\n";
        assert_eq!(changelog(ready, "0.2.0"), None);
        assert!(changelog(ready, "0.3.0").unwrap().contains("no heading"));
        let pending = ready.replace("[Unreleased]", "[Unreleased]\n\n- More.");
        assert!(changelog(&pending, "0.2.0").unwrap().contains("unreleased"));
        let undated = ready.replace("2026-11-29", "soon");
        assert!(changelog(&undated, "0.2.0").unwrap().contains("date"));
    }

    #[test]
    fn files_that_differ_or_are_missing_are_named() {
        let of = |entries: &[(&str, &str)]| -> BTreeMap<String, String> {
            let owned = entries.iter().map(|(a, b)| ((*a).into(), (*b).into()));
            owned.collect()
        };
        let first = of(&[("a", "1"), ("b", "2")]);
        assert!(same(&first, &first).is_ok());
        let error = same(&first, &of(&[("a", "1"), ("c", "2")])).unwrap_err();
        assert!(error.ends_with(": b, c"), "{error}");
    }
}
