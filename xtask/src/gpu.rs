//! Everything that a machine with GPUs needs, in one directory: such a machine need have no Rust.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::Result;
use crate::step::say;
use crate::workspace::Workspace;

/// Runs all of it there.
const SCRIPT: &str = include_str!("gpu/run.sh");
/// Optimised, and without what only a debugger needs.
const PROFILE: &str = "packed";
/// Programs of the workspace, and the names they get.
const PROGRAMS: [(&str, &str); 4] = [
    ("conformance", "conformance"),
    ("crosshandle-peer", "crosshandle-peer"),
    ("crosshandle", "crosshandle"),
    ("crosshandle-bench", "bench"),
];

/// Builds `target/gpu`.
pub(crate) fn pack(workspace: &Workspace) -> Result<()> {
    let packages = [
        "crosshandle-conformance",
        "crosshandle-cli",
        "crosshandle-bench",
    ];
    let mut build = workspace.cargo(&["build", "--locked", "--bins", "--profile", PROFILE]);
    for package in packages {
        build.args(["--package", package]);
    }
    let status = build
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !status.success() {
        return Err("the programs don't build".into());
    }
    let built = workspace.target.join(PROFILE);
    let directory = workspace.target.join("gpu");
    // What an earlier version packed must not be taken for this one's.
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).map_err(|error| cannot("create", &directory, &error))?;
    let mut total = 0;
    for (program, name) in PROGRAMS {
        total += copy(&built.join(program), &directory.join(name))?;
    }
    total += copy(
        &unit_tests(workspace)?,
        &directory.join("crosshandle-units"),
    )?;
    let script = directory.join("run.sh");
    fs::write(&script, SCRIPT).map_err(|error| cannot("write", &script, &error))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .map_err(|error| cannot("make executable", &script, &error))?;
    say(&format!(
        "{}: {:.1} MiB; run ./run.sh there",
        directory.display(),
        total as f64 / f64::from(1 << 20)
    ));
    Ok(())
}

/// The library's unit tests, some of which only a GPU can run.
fn unit_tests(workspace: &Workspace) -> Result<PathBuf> {
    let args = [
        "test",
        "--locked",
        "--lib",
        "--no-run",
        "--package",
        "crosshandle",
        "--profile",
        PROFILE,
        "--message-format",
        "json",
    ];
    let output = workspace
        .cargo(&args)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err("the unit tests don't build".into());
    }
    // Each artifact is a line, with the path of its program or null.
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_once(r#""executable":""#)?.1.split_once('"'))
        .map(|(path, _)| PathBuf::from(path))
        .next_back()
        .ok_or_else(|| "cargo names no program with the unit tests".into())
}

fn copy(from: &Path, to: &Path) -> Result<u64> {
    fs::copy(from, to).map_err(|error| cannot("copy", from, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}
