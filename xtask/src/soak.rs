//! Faults in the processes of a workload: the fixed sample of every check, the soak, and the
//! planted bugs that they and the tests must find.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::step::{Finished, Step};
use crate::workspace::Workspace;

/// The programs of the fault harness.
const PROGRAMS: [&str; 3] = ["conformance", "crosshandle-peer", "crosshandle"];
/// Number of cases that a sample runs at a time. They mostly wait, so it may exceed the number of
/// processors.
const JOBS: &str = "6";
/// Number of cases in the sample on Level Zero.
const LEVEL_ZERO_CASES: &str = "80";
/// Time after which the sample on Level Zero ends, in minutes, even if cases remain.
const LEVEL_ZERO_MINUTES: &str = "1";
/// Approximate number of attacks in a whole siege of a holder.
const SIEGE_ATTACKS: u64 = 60;
/// Longest time of each of them, in milliseconds.
const MAX_ATTACK_MILLIS: u64 = 5_000;

/// Builds the harness with `--cfg fault_steps`, and keeps its programs in a directory of their own,
/// because other builds replace them.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.cargo(&["build", "--locked", "--bins"]);
    // Together, so that the command announces its stores, too.
    command.args(["--package", "crosshandle-conformance"]);
    command.args(["--package", "crosshandle-cli"]);
    command.env("RUSTC_WORKSPACE_WRAPPER", wrapper(workspace)?);
    Step::new(workspace, "build the fault harness", command).run()?;
    let directory = directory(workspace);
    let copied = fs::create_dir_all(&directory).and_then(|()| {
        PROGRAMS.iter().try_for_each(|program| {
            let built = workspace.target.join("debug").join(program);
            let kept = directory.join(program);
            // A process may still run the old program.
            let _ = fs::remove_file(&kept);
            fs::copy(built, kept).map(drop)
        })
    });
    copied.map_err(|error| format!("cannot keep the fault harness: {error}"))
}

/// The name by which this program, called by cargo, is a compiler with `--cfg fault_steps`.
const WRAPPER: &str = "rustc-with-fault-steps";

/// Makes the name that the compiler is called by. Cargo calls it for the packages of the workspace
/// alone, so that their dependencies are not built again, as `RUSTFLAGS` would have it.
fn wrapper(workspace: &Workspace) -> Result<PathBuf> {
    let cannot = |error| format!("cannot make a compiler for the fault harness: {error}");
    let directory = workspace.target.join("xtask");
    fs::create_dir_all(&directory).map_err(cannot)?;
    let wrapper = directory.join(WRAPPER);
    let _ = fs::remove_file(&wrapper);
    let this = env::current_exe().map_err(cannot)?;
    std::os::unix::fs::symlink(this, &wrapper).map_err(cannot)?;
    Ok(wrapper)
}

/// Replaces this process by the compiler, if cargo has called it as one.
pub(crate) fn compile_if_asked() {
    let mut words = env::args_os();
    let name = words.next().map(PathBuf::from);
    if name.is_some_and(|name| name.ends_with(WRAPPER))
        && let Some(rustc) = words.next()
    {
        let error = Command::new(rustc)
            .args(words)
            .args(["--cfg", "fault_steps"])
            .exec();
        eprintln!("cannot run the compiler: {error}");
        std::process::exit(1);
    }
}

fn directory(workspace: &Workspace) -> PathBuf {
    workspace.target.join("fault-harness")
}

pub(crate) fn harness(workspace: &Workspace, words: &[&str]) -> Command {
    let mut command = Command::new(directory(workspace).join(PROGRAMS[0]));
    command.args(words);
    command
}

/// Runs the fixed sample of faults at every step on the host.
pub(crate) fn sample(workspace: &Workspace) -> Result<()> {
    build(workspace)?;
    let command = harness(workspace, &["faults", "--sample", "--jobs", JOBS]);
    Step::new(workspace, "faults at every step", command).run_noting(last_line)?;
    let words = ["faults", "--programs", "--sample", "--jobs", JOBS];
    let command = harness(workspace, &words);
    Step::new(workspace, "faults of holders, models and links", command).run_noting(last_line)?;
    let command = harness(workspace, &["holders", "--sample"]);
    Step::new(workspace, "holders under siege", command).run_noting(last_line)?;
    let command = harness(workspace, &["links"]);
    Step::new(workspace, "linked hosts that lie", command).run_noting(last_line)
}

/// Runs a smaller sample on the simulated Level Zero driver, with the stock loader in the directory
/// `loader`. [`sample`] must run first, because it builds the harness.
pub(crate) fn sample_on_level_zero(workspace: &Workspace, loader: &Path) -> Result<()> {
    let build = workspace.cargo(&["build", "--locked", "--package", "level-zero-sim"]);
    Step::new(workspace, "build the simulated driver", build).run()?;
    let driver = workspace.target.join("debug/libze_sim.so");
    let words = [
        "faults",
        "--sample",
        "--jobs",
        JOBS,
        "--device",
        "level_zero:0",
    ];
    let mut command = harness(workspace, &words);
    command.args(["--cases", LEVEL_ZERO_CASES, "--minutes", LEVEL_ZERO_MINUTES]);
    command
        .env("LD_LIBRARY_PATH", loader)
        .env("ZE_ENABLE_ALT_DRIVERS", driver);
    Step::new(workspace, "faults on Level Zero", command).run_noting(last_line)
}

fn last_line(finished: &Finished) -> Result<Option<String>> {
    let output = finished.output()?;
    Ok(output.lines().next_back().map(str::to_owned))
}

/// Besieges a holder for at most a third of this many minutes, and links for at most a tenth. Then
/// replaces this process by a soak of this many minutes.
pub(crate) fn run(workspace: &Workspace, minutes: u64, device: &str) -> Result<()> {
    build(workspace)?;
    let length = (minutes * 60_000 / 3 / SIEGE_ATTACKS).clamp(300, MAX_ATTACK_MILLIS);
    for (siege, length) in [("holders", length), ("links", minutes * 60_000 / 10)] {
        let status = harness(workspace, &[siege, "--millis", &length.to_string()]).status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(format!("{siege} under siege: {status}")),
            Err(error) => return Err(format!("cannot besiege {siege}: {error}")),
        }
    }
    let minutes = minutes.to_string();
    let words = ["soak", "--minutes", &minutes, "--device", device];
    let error = harness(workspace, &words).args(["--jobs", "2"]).exec();
    Err(format!("cannot run the soak: {error}"))
}
