//! Faults in a workload's processes: the fixed sample of every check, and the soak.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Result;
use crate::step::Step;
use crate::workspace::Workspace;

/// Builds the harness. It has a target directory of its own: the library is another one there.
fn build(workspace: &Workspace) -> Result<()> {
    let directory = directory(workspace);
    let mut command = workspace.cargo(&["build", "--locked", "--package"]);
    command
        .args(["crosshandle-conformance", "--bins", "--features"])
        .args(["fault-steps", "--target-dir"])
        .arg(&directory);
    Step::new(workspace, "build the fault harness", command).run()
}

fn directory(workspace: &Workspace) -> std::path::PathBuf {
    workspace.target.join("faults")
}

fn harness(workspace: &Workspace, words: &[&str]) -> Command {
    let mut command = Command::new(directory(workspace).join("debug").join("conformance"));
    command.args(words);
    command
}

/// Plays the fixed sample of faults at every step on the host.
pub(crate) fn sample(workspace: &Workspace) -> Result<()> {
    build(workspace)?;
    let command = harness(workspace, &["faults", "--sample", "--jobs", "2"]);
    Step::new(workspace, "faults at every step", command).run_noting(|finished| {
        let output = finished.output()?;
        Ok(output.lines().next_back().map(str::to_owned))
    })
}

/// Replaces this process by a soak of so many minutes.
pub(crate) fn run(workspace: &Workspace, minutes: u64, device: &str) -> Result<()> {
    build(workspace)?;
    let minutes = minutes.to_string();
    let words = ["soak", "--minutes", &minutes, "--device", device];
    let error = harness(workspace, &words).args(["--jobs", "2"]).exec();
    Err(format!("cannot run the soak: {error}"))
}
