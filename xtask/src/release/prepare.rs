//! Sets the version of the next release in all files that name it, and dates the list of changes.

use std::fs;
use std::process::Command;

use crate::Result;
use crate::step::{Step, say};
use crate::workspace::Workspace;

/// A file, and a text in it with the version. `{}` is the whole version, `{minor}` its second part,
/// and `{short}` its first two parts.
const PLACES: [(&str, &str); 6] = [
    ("Cargo.toml", "version = \"{}\""),
    (CMAKE, "set(PACKAGE_VERSION \"{}\")"),
    (CMAKE, "PACKAGE_FIND_VERSION_MINOR EQUAL {minor}"),
    ("docs/c.md", "find_package(crosshandle {short} REQUIRED)"),
    ("docs/support.md", "The version is {short}"),
    ("examples/holder/kubernetes.yaml", "crosshandle:{}"),
];
const CMAKE: &str = "crates/crosshandle-c/cmake/crosshandle-config-version.cmake";
/// The README's words for a version without a release. Its last word goes when there is one.
const STATUS: &str = "**Version {short}, not released.**";
const UNRELEASED: &str = "## [Unreleased]\n";

/// Sets the version to `new`. The changes are left without a commit, to be looked at.
pub(super) fn run(workspace: &Workspace, old: &str, new: &str) -> Result<()> {
    let (old, new) = (Version::parse(old)?, Version::parse(new)?);
    if new <= old {
        return Err(format!("{} does not follow {}", new.text(), old.text()));
    }
    let date = Command::new("date").arg("+%F").output();
    let date = date.map_err(|error| format!("cannot run date: {error}"))?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    for (path, text) in PLACES {
        change(workspace, path, &old.fill(text), &new.fill(text))?;
    }
    let released = new.fill(STATUS).replace(", not released", "");
    change(workspace, "README.md", &old.fill(STATUS), &released)?;
    let dated = format!("{UNRELEASED}\n## [{}] - {date}\n", new.text());
    change(workspace, "CHANGELOG.md", UNRELEASED, &dated)?;
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let lock = workspace.cargo(&[
            "update",
            "--workspace",
            "--offline",
            "--manifest-path",
            manifest,
        ]);
        Step::new(workspace, format!("lock file of {manifest}"), lock).run()?;
    }
    let new = new.text();
    say(&format!(
        "commit this as the release {new}, and run `cargo xtask release`"
    ));
    Ok(())
}

/// Replaces a text in a file, which must have it.
fn change(workspace: &Workspace, path: &str, old: &str, new: &str) -> Result<()> {
    let file = workspace.root.join(path);
    let cannot = |error| format!("cannot change {path}: {error}");
    let text = fs::read_to_string(&file).map_err(cannot)?;
    if !text.contains(old) {
        return Err(format!("{path} lacks the text `{}`", old.trim_end()));
    }
    fs::write(&file, text.replace(old, new)).map_err(cannot)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version([u32; 3]);

impl Version {
    fn parse(text: &str) -> Result<Self> {
        let parts: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        let parts = parts.and_then(|parts| parts.try_into().ok());
        parts
            .map(Self)
            .ok_or_else(|| format!("{text} is not a version, such as 1.2.3"))
    }

    fn text(self) -> String {
        self.fill("{}")
    }

    fn fill(self, text: &str) -> String {
        let [major, minor, patch] = self.0;
        text.replace("{}", &format!("{major}.{minor}.{patch}"))
            .replace("{short}", &format!("{major}.{minor}"))
            .replace("{minor}", &minor.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_order_and_fill_texts() {
        let parse = |text| Version::parse(text).unwrap();
        assert!(parse("0.2.0") > parse("0.1.9") && parse("0.10.0") > parse("0.9.0"));
        assert!(Version::parse("1.2").is_err() && Version::parse("1.2.x").is_err());
        assert_eq!(parse("0.2.1").fill("{}, {short}, {minor}"), "0.2.1, 0.2, 2");
    }

    /// The next release finds every text.
    #[test]
    fn every_file_names_the_version() {
        let workspace = Workspace::find().unwrap();
        let version = Version::parse(super::super::VERSION).unwrap();
        let places = PLACES
            .iter()
            .chain(&[("README.md", STATUS), ("CHANGELOG.md", UNRELEASED)]);
        for (path, text) in places {
            let file = fs::read_to_string(workspace.root.join(path)).unwrap();
            let text = version.fill(text);
            // After the release, the README no longer says that there is none.
            let released = text.replace(", not released", "");
            assert!(
                file.contains(&text) || file.contains(&released),
                "{path}: {text}"
            );
        }
    }
}
