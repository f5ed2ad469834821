//! Tools that are not part of the Rust toolchain, at fixed versions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Result;
use crate::step::Step;
use crate::workspace::Workspace;

/// A program from the package registry.
pub(crate) struct Tool {
    package: &'static str,
    /// The program that the package installs.
    name: &'static str,
    /// The version to install. Newer patch versions of the same series are accepted too.
    version: Version,
    /// Whether exactly this version is required and built here, because its output is committed.
    exact: bool,
    /// Additional arguments for `cargo install`.
    install: &'static [&'static str],
}

type Version = (u64, u64, u64);

pub(crate) const NEXTEST: Tool = Tool {
    // This leaves out the tool's self-update.
    install: &["--no-default-features", "--features", "default-no-update"],
    ..Tool::new("cargo-nextest", "cargo-nextest", (0, 9, 143))
};
pub(crate) const DENY: Tool = Tool::new("cargo-deny", "cargo-deny", (0, 20, 2));
pub(crate) const BINDGEN: Tool = Tool {
    exact: true,
    install: &["--features", "prettyplease"],
    ..Tool::new("bindgen-cli", "bindgen", (0, 73, 2))
};

pub(crate) const CBINDGEN: Tool = Tool {
    exact: true,
    ..Tool::new("cbindgen", "cbindgen", (0, 29, 4))
};

pub(crate) const MDBOOK: Tool = Tool {
    install: &["--no-default-features", "--features", "search"],
    ..Tool::new("mdbook", "mdbook", (0, 5, 4))
};

pub(crate) const CYCLONEDX: Tool = Tool::new("cargo-cyclonedx", "cargo-cyclonedx", (0, 5, 9));

/// Compares public interfaces.
pub(crate) const SEMVER: Tool = Tool {
    package: "cargo-semver-checks",
    name: "cargo-semver-checks",
    version: (0, 51, 0),
    exact: false,
    install: &[],
};

/// Draws the diagrams of the pages in the reader's browser.
pub(crate) const MERMAID: Tool = Tool::new("mdbook-mermaid", "mdbook-mermaid", (0, 17, 1));

impl Tool {
    /// Describes a tool that is built with its default features, and for which newer patch
    /// versions are accepted.
    const fn new(package: &'static str, name: &'static str, version: Version) -> Self {
        Self {
            package,
            name,
            version,
            exact: false,
            install: &[],
        }
    }

    /// Returns the program from `PATH` or from the target directory. Otherwise builds it there.
    pub(crate) fn get(&self, workspace: &Workspace) -> Result<PathBuf> {
        if let Some(program) = self.find(workspace) {
            return Ok(program);
        }
        self.install(workspace, &workspace.target.join("tools"))?;
        self.find(workspace).ok_or_else(|| {
            let (name, wanted) = (self.name, self.wanted());
            format!("{name} was installed but does not report version {wanted}")
        })
    }

    /// Returns the program from `PATH` or from the target directory, if it is there.
    pub(crate) fn find(&self, workspace: &Workspace) -> Option<PathBuf> {
        let on_path = PathBuf::from(self.name);
        if !self.exact && self.serves(&on_path) {
            return Some(on_path);
        }
        let program = workspace.target.join("tools/bin").join(self.name);
        self.serves(&program).then_some(program)
    }

    /// Returns the command with which a user installs the program.
    pub(crate) fn install_command(&self) -> String {
        format!("cargo install --locked {}@{}", self.package, self.wanted())
    }

    fn wanted(&self) -> String {
        let (major, minor, patch) = self.version;
        format!("{major}.{minor}.{patch}")
    }

    fn serves(&self, program: &Path) -> bool {
        let mut command = Command::new(program);
        // Some programs first receive their subcommand's name.
        match self.name {
            "cargo-nextest" => command.arg("nextest"),
            "cargo-cyclonedx" => command.arg("cyclonedx"),
            "cargo-semver-checks" => command.arg("semver-checks"),
            _ => &mut command,
        };
        let Ok(output) = command.arg("--version").output() else {
            return false;
        };
        let found = parse(&String::from_utf8_lossy(&output.stdout));
        let (major, minor, patch) = self.version;
        match found {
            Some(found) if self.exact => found == self.version,
            Some(found) => (found.0, found.1) == (major, minor) && found.2 >= patch,
            None => false,
        }
    }

    fn install(&self, workspace: &Workspace, root: &Path) -> Result<()> {
        let build = root.join("build");
        let package = format!("{}@{}", self.package, self.wanted());
        let mut command = workspace.cargo(&["install", "--locked", "--force", &package, "--root"]);
        // Optimising the tools takes longer than it would ever save.
        command
            .arg(root)
            .arg("--debug")
            .args(self.install)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_TARGET_DIR", &build);
        let minutes = Duration::from_secs(45 * 60);
        Step::new(workspace, format!("build {package}"), command)
            .limit(minutes)
            .run()?;
        // The build directory has half a gigabyte that is not used again.
        std::fs::remove_dir_all(&build)
            .map_err(|error| format!("cannot remove {}: {error}", build.display()))
    }
}

/// Returns the version in "cargo-name 1.2.3 (commit date)" or "name v1.2.3".
fn parse(output: &str) -> Option<Version> {
    let mut numbers = output
        .split_whitespace()
        .nth(1)?
        .trim_start_matches('v')
        .splitn(3, '.')
        .map(str::parse);
    Some((
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn versions_are_read_as_tools_print_them() {
        assert_eq!(parse("cargo-deny 0.20.2"), Some((0, 20, 2)));
        assert_eq!(
            parse("cargo-nextest 0.9.143 (60fa45f63 2026-08-04)\nrelease: 0.9.143"),
            Some((0, 9, 143))
        );
        assert_eq!(parse("mdbook v0.5.4"), Some((0, 5, 4)));
        assert_eq!(parse("cargo-deny 1.0.0-rc.1"), None);
        assert_eq!(parse(""), None);
    }
}
