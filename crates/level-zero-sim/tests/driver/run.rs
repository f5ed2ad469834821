//! Runs scenarios, once under every stock loader.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Variable with the directories that contain a `libze_loader.so.1`, separated by colons.
/// `cargo xtask test` sets it.
const LOADERS: &str = "ZE_LOADER_LIB_DIRS";
/// Time limit of a scenario. No scenario takes that long.
const DEADLINE: Duration = Duration::from_secs(60);

/// The results of a scenario.
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    /// The output of all processes on both streams.
    pub(crate) printed: String,
    /// One report for each process that ended normally.
    pub(crate) reports: Vec<String>,
    log: String,
}

impl Outcome {
    /// Returns the checks that found something, in the order of time.
    pub(crate) fn misuse(&self) -> Vec<String> {
        let check = |line: &str| {
            line.split_once("MISUSE ")?
                .1
                .split(':')
                .next()
                .map(str::to_owned)
        };
        self.log.lines().filter_map(check).collect()
    }

    /// Returns the checks that the scenario announced before it provoked them.
    pub(crate) fn expected(&self) -> Vec<String> {
        let lines = self.printed.lines();
        lines
            .filter_map(|line| line.strip_prefix("expect "))
            .map(str::to_owned)
            .collect()
    }
}

/// Runs a scenario under every loader, and checks that it succeeds. Returns nothing if no loader is
/// installed.
pub(crate) fn run(scenario: &str, switches: &[(&str, &str)]) -> Vec<Outcome> {
    let outcomes = run_to_its_end(scenario, switches);
    for outcome in &outcomes {
        assert!(
            outcome.succeeded,
            "{scenario} failed and printed:\n{}",
            outcome.printed
        );
    }
    outcomes
}

/// Runs a scenario under every loader, whether it succeeds or not.
pub(crate) fn run_to_its_end(scenario: &str, switches: &[(&str, &str)]) -> Vec<Outcome> {
    let Some(loaders) = std::env::var_os(LOADERS).filter(|value| !value.is_empty()) else {
        eprintln!(
            "SKIPPED {scenario}: there is no Level Zero loader. Set {LOADERS} to directories with \
             one, or run `cargo xtask test`, which does so"
        );
        return Vec::new();
    };
    let run = |loader: PathBuf| run_with(&loader, scenario, switches);
    std::env::split_paths(&loaders).map(run).collect()
}

fn run_with(loader: &Path, scenario: &str, switches: &[(&str, &str)]) -> Outcome {
    let directory = Directory::new();
    let at = |name: &str| directory.0.join(name);
    let driver = std::env::current_exe()
        .unwrap()
        .with_file_name("libze_sim.so");
    assert!(driver.is_file(), "there is no {}", driver.display());
    let output = File::create(at("printed")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ze-sim-client"));
    command
        .arg(scenario)
        .env("LD_LIBRARY_PATH", loader)
        .env("ZE_ENABLE_ALT_DRIVERS", driver)
        .env("CROSSHANDLE_SIM_LOG", at("log"))
        .env("CROSSHANDLE_SIM_REPORT", at("report"))
        .env("RUST_BACKTRACE", "0")
        .envs(
            switches
                .iter()
                .map(|&(name, value)| (variable(name), value)),
        )
        .stdin(Stdio::null())
        .stderr(output.try_clone().unwrap())
        .stdout(output);
    let status = end(command.spawn().unwrap());
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let files = fs::read_dir(&directory.0).unwrap();
    let names = files.map(|entry| entry.unwrap().path());
    Outcome {
        succeeded: status.success(),
        printed: read(at("printed")),
        reports: names
            .filter(|path| path.file_stem().is_some_and(|stem| stem == "report"))
            .map(read)
            .collect(),
        log: read(at("log")),
    }
}

/// Returns the full name of a variable. Switches are given by their short names, the loader's
/// variables by their full names.
fn variable(name: &str) -> String {
    match name.starts_with("ZE_") {
        true => name.to_owned(),
        false => format!("CROSSHANDLE_SIM_{name}"),
    }
}

/// Waits for a process to end, and kills it at the deadline.
fn end(mut child: Child) -> ExitStatus {
    let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    let limit = Timespec::try_from(DEADLINE).unwrap();
    if poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit)).unwrap() == 0 {
        let _ = child.kill();
    }
    child.wait().unwrap()
}

/// A directory for the files of a scenario, which is removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("scenario-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
