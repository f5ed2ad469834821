//! Runs programs over every stock loader and the simulated driver.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Environment variable with the directories that contain a `libze_loader.so.1`, separated by
/// colons. `cargo xtask test` sets it.
const LOADERS: &str = "ZE_LOADER_LIB_DIRS";
/// Environment variable that is set while the test program plays a role.
const ROLE: &str = "CROSSHANDLE_TEST_ROLE";

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    /// Output on both streams.
    pub(crate) printed: String,
    /// Wrong uses of the driver by any process, one per line.
    pub(crate) misuse: String,
    /// The driver's reports about all processes that exited.
    pub(crate) reports: Vec<String>,
}

impl Outcome {
    pub(crate) fn last_line(&self) -> &str {
        self.printed.lines().next_back().unwrap_or_default()
    }
}

/// Returns whether this process plays a role itself.
pub(crate) fn is_role() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Runs the suite's cases that have `filter` in their name, under every loader.
pub(crate) fn suite(filter: &str, switches: &[(&str, &str)]) -> Vec<Outcome> {
    suite_with_peers_on("level_zero:0", filter, switches)
}

/// Like [`suite`], with peers on the device of this name.
pub(crate) fn suite_with_peers_on(
    device: &str,
    filter: &str,
    switches: &[(&str, &str)],
) -> Vec<Outcome> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conformance"));
    command.args(["--device", "level_zero:0", "--peer-device", device]);
    command.args(["--jobs", "2", filter]);
    under_all_loaders(&mut command, switches)
}

/// Runs the test `name` of this program as a role, under every loader.
pub(crate) fn role(name: &str, switches: &[(&str, &str)]) -> Vec<Outcome> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([name, "--exact", "--include-ignored", "--nocapture"])
        .env(ROLE, "1");
    under_all_loaders(&mut command, switches)
}

fn under_all_loaders(command: &mut Command, switches: &[(&str, &str)]) -> Vec<Outcome> {
    let loaders = std::env::var_os(LOADERS).filter(|value| !value.is_empty());
    let loaders = loaders.unwrap_or_else(|| {
        panic!("{LOADERS} is not set: run these tests with `cargo xtask test`, which sets it")
    });
    let loaders = std::env::split_paths(&loaders);
    loaders
        .map(|loader| under(&loader, command, switches))
        .collect()
}

fn under(loader: &Path, command: &mut Command, switches: &[(&str, &str)]) -> Outcome {
    let directory = Directory::new();
    let at = |name: &str| directory.0.join(name);
    let driver = std::env::current_exe()
        .unwrap()
        .with_file_name("libze_sim.so");
    assert!(driver.is_file(), "there is no {}", driver.display());
    let output = File::create(at("printed")).unwrap();
    let status = command
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
        .stdout(output)
        .status()
        .unwrap();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let files = fs::read_dir(&directory.0).unwrap();
    let names = files.map(|entry| entry.unwrap().path());
    Outcome {
        succeeded: status.success(),
        printed: read(at("printed")),
        misuse: read(at("log")),
        reports: names
            .filter(|path| path.file_stem().is_some_and(|stem| stem == "report"))
            .map(read)
            .collect(),
    }
}

/// Returns the paths of the simulated driver and of a copy, which the loader treats as another
/// driver.
pub(crate) fn two_drivers() -> String {
    let first = std::env::current_exe()
        .unwrap()
        .with_file_name("libze_sim.so");
    let second = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libze_sim_two.so");
    fs::copy(&first, &second).unwrap();
    format!("{},{}", first.display(), second.display())
}

/// Returns the full name of a variable. Switches of the driver are given by their short names, the
/// loader's variables by their full names.
fn variable(name: &str) -> String {
    match name.starts_with("ZE_") {
        true => name.to_owned(),
        false => format!("CROSSHANDLE_SIM_{name}"),
    }
}

/// A temporary directory for a run's files, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("level-zero-{}-{number}", std::process::id());
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
