//! Checks what the packages of the workspace contain, before a registry or a user does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::Result;
use crate::step::say;
use crate::workspace::Workspace;

/// Maximum number of keywords and of categories that a registry takes for a package.
const LABELS: usize = 5;
/// Maximum length of a keyword, in bytes.
const KEYWORD_BYTES: usize = 20;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    description: Option<String>,
    license: Option<String>,
    readme: Option<PathBuf>,
    rust_version: Option<String>,
    repository: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    /// The registries that may have the package, or `None` for all.
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    /// `dev`, `build`, or `None` for a normal dependency.
    kind: Option<String>,
    path: Option<PathBuf>,
}

/// Checks the metadata and the list of files of every published package. It builds nothing.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let packages = published(workspace)?;
    let names: BTreeSet<&str> = packages.iter().map(|package| &*package.name).collect();
    let mut faults = Vec::new();
    for package in &packages {
        let found = metadata_faults(package, &names)
            .into_iter()
            .chain(file_faults(workspace, package)?);
        faults.extend(found.map(|fault| format!("{}: {fault}", package.name)));
    }
    if !faults.is_empty() {
        return Err(format!("packages: {}", faults.join("\n  ")));
    }
    say(&format!(
        "ok     packages ({} that a registry would take)",
        packages.len()
    ));
    Ok(())
}

/// Returns whether the packages say where their repository is.
pub(crate) fn have_a_repository(workspace: &Workspace) -> Result<bool> {
    let packages = published(workspace)?;
    Ok(packages.iter().all(|package| package.repository.is_some()))
}

/// Returns the packages that are not marked with `publish = false`.
fn published(workspace: &Workspace) -> Result<Vec<Package>> {
    let mut command = workspace.cargo(&["metadata", "--locked", "--no-deps"]);
    command.args(["--format-version", "1"]);
    let output = command.output();
    let output = output.map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cannot read the output of cargo metadata: {error}"))?;
    let is_published = |package: &Package| package.publish.as_ref().is_none_or(|to| !to.is_empty());
    Ok(metadata.packages.into_iter().filter(is_published).collect())
}

/// Returns what a registry would refuse or a user would miss in the metadata of a package. `names`
/// are the published packages.
fn metadata_faults(package: &Package, names: &BTreeSet<&str>) -> Vec<String> {
    let mut faults = Vec::new();
    let present = [
        ("description", package.description.is_some()),
        ("license", package.license.is_some()),
        ("readme", package.readme.is_some()),
        ("rust-version", package.rust_version.is_some()),
        ("keywords", (1..=LABELS).contains(&package.keywords.len())),
        (
            "categories",
            (1..=LABELS).contains(&package.categories.len()),
        ),
    ];
    let missing = present.iter().filter(|(_, is_present)| !is_present);
    faults.extend(missing.map(|(name, _)| format!("`{name}` is missing, or has too many entries")));
    for keyword in &package.keywords {
        if keyword.len() > KEYWORD_BYTES {
            faults.push(format!(
                "the keyword {keyword} has over {KEYWORD_BYTES} bytes"
            ));
        }
    }
    for needed in package
        .dependencies
        .iter()
        .filter(|needed| needed.path.is_some())
    {
        // Cargo leaves a development dependency without a version out of the package.
        if needed.req == "*" && needed.kind.as_deref() == Some("dev") {
            continue;
        }
        if needed.req == "*" {
            faults.push(format!("the dependency {} has no version", needed.name));
        }
        if !names.contains(&*needed.name) {
            faults.push(format!("the dependency {} is not published", needed.name));
        }
    }
    faults
}

/// Returns the files that a package lacks: the licence, the readme, and what its sources include.
fn file_faults(workspace: &Workspace, package: &Package) -> Result<Vec<String>> {
    let arguments = [
        "package",
        "--list",
        "--locked",
        "--allow-dirty",
        "--package",
    ];
    let mut command = workspace.cargo(&arguments);
    let output = command.arg(&package.name).output();
    let output = output.map_err(|error| format!("cannot run cargo package: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let files: BTreeSet<&Path> = listed.lines().map(Path::new).collect();
    let mut faults = Vec::new();
    for needed in ["LICENSE", "README.md", "Cargo.toml"] {
        if !files.contains(Path::new(needed)) {
            faults.push(format!("the package lacks {needed}"));
        }
    }
    let directory = package.manifest_path.parent().unwrap_or(Path::new(""));
    // The tests need the whole checkout anyway.
    let sources = files.iter().filter(|file| !file.starts_with("tests"));
    for file in sources.filter(|file| file.extension().is_some_and(|ending| ending == "rs")) {
        let text = std::fs::read_to_string(directory.join(file))
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        for included in included(&text) {
            let resolved = resolve(file, included);
            if !resolved.is_some_and(|path| files.contains(&*path)) {
                let file = file.display();
                faults.push(format!(
                    "{file} includes {included}, which the package lacks"
                ));
            }
        }
    }
    Ok(faults)
}

/// Returns the paths that a source includes as text or bytes.
fn included(text: &str) -> impl Iterator<Item = &str> {
    let starts = ["include_str!(\"", "include_bytes!(\""];
    let after = starts.into_iter().flat_map(move |start| {
        text.match_indices(start)
            .map(move |(place, _)| &text[place + start.len()..])
    });
    after.filter_map(|rest| rest.split('"').next())
}

/// Returns the path in the package of a file that `source` includes, or `None` if it is outside.
fn resolve(source: &Path, included: &str) -> Option<PathBuf> {
    let mut path = source.parent()?.to_path_buf();
    for part in included.split('/') {
        match part {
            ".." => path.pop().then_some(())?,
            part => path.push(part),
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_a_source_includes_are_found() {
        let text = "a(include_str!(\"b.txt\")); include_bytes!(\"../c/d.ptx\")";
        assert_eq!(included(text).collect::<Vec<_>>(), ["b.txt", "../c/d.ptx"]);
        let source = Path::new("src/x/mod.rs");
        assert_eq!(resolve(source, "b.txt"), Some("src/x/b.txt".into()));
        assert_eq!(resolve(source, "../c/d.ptx"), Some("src/c/d.ptx".into()));
        assert_eq!(resolve(source, "../../../other/e"), None);
    }

    #[test]
    fn faults_in_metadata_are_found() {
        let json = r#"{"name": "a", "manifest_path": "/a/Cargo.toml", "description": "d",
            "license": "Apache-2.0", "readme": "README.md", "rust_version": null,
            "repository": null, "keywords": ["a-keyword-that-is-too-long"],
            "categories": ["concurrency"], "publish": null, "dependencies": [
            {"name": "b", "req": "*", "kind": null, "path": "/b"},
            {"name": "c", "req": "^1", "kind": null, "path": "/c"},
            {"name": "e", "req": "*", "kind": "dev", "path": "/e"}]}"#;
        let package: Package = serde_json::from_str(json).unwrap();
        let faults = metadata_faults(&package, &BTreeSet::from(["b"]));
        let expected = [
            "`rust-version`",
            "the keyword",
            "b has no version",
            "c is not",
        ];
        assert_eq!(faults.len(), expected.len(), "{faults:?}");
        for (fault, expected) in faults.iter().zip(expected) {
            assert!(fault.contains(expected), "{fault}");
        }
    }
}
