//! The checkout, its build directory, and cargo commands in it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

/// The checkout that this program was built from.
pub(crate) struct Workspace {
    /// The directory of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's target directory, as an absolute path.
    pub(crate) target: PathBuf,
    /// Additional environment variables of all commands.
    pub(crate) settings: Vec<(&'static str, OsString)>,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().unwrap_or(manifest).to_path_buf();
        if !root.join("Cargo.toml").is_file() {
            return Err(format!(
                "the checkout is no longer at {}; run `cargo xtask` inside of it again",
                root.display()
            ));
        }
        let target = target_directory(&root)?;
        Ok(Self {
            root,
            target,
            settings: Vec::new(),
        })
    }

    /// Returns a cargo command that runs in the root of the checkout and builds into the target
    /// directory.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(program);
        command.args(args);
        self.prepare(&mut command);
        command
    }

    /// Gives `command` the directory and the environment of a cargo that was started from a shell.
    /// `cargo run` adds variables that describe only this package.
    pub(crate) fn prepare(&self, command: &mut Command) {
        command.current_dir(&self.root);
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        command.env("CARGO_TARGET_DIR", &self.target);
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
    }

    /// Returns the target triple that the installed compiler builds for by default.
    pub(crate) fn host_triple(&self) -> Result<String> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .arg("-vV")
            .current_dir(&self.root)
            .output()
            .map_err(|error| format!("cannot run rustc: {error}"))?;
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
            .ok_or_else(|| "`rustc -vV` does not name its host".to_owned())
    }
}

fn target_directory(root: &Path) -> Result<PathBuf> {
    let named = ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR"]
        .iter()
        .find_map(|name| env::var_os(name).filter(|value| !value.is_empty()));
    if let Some(directory) = named {
        return std::path::absolute(directory)
            .map_err(|error| format!("cannot resolve CARGO_TARGET_DIR: {error}"));
    }
    // A configuration file may have moved the directory. Cargo marks each target directory that it
    // creates.
    let marked = env::current_exe().ok().and_then(|program| {
        let mut above = program.ancestors().skip(1);
        above
            .find(|directory| directory.join("CACHEDIR.TAG").is_file())
            .map(Path::to_path_buf)
    });
    Ok(marked.unwrap_or_else(|| root.join("target")))
}
