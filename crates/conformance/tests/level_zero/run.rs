//! Runs programs over every stock loader and the simulated driver.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The directories with a `libze_loader.so.1`, with colons between; `cargo xtask test` sets it.
const LOADERS: &str = "ZE_LOADER_LIB_DIRS";
/// Set in a test's program while it plays a role.
const ROLE: &str = "CROSSHANDLE_TEST_ROLE";

/// What a run has left behind.
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    /// On either stream.
    pub(crate) printed: String,
    /// A line for each wrong use of the driver, by any process.
    pub(crate) misuse: String,
    /// The driver's, of each process that came to its end.
    pub(crate) reports: Vec<String>,
}

impl Outcome {
    pub(crate) fn last_line(&self) -> &str {
        self.printed.lines().next_back().unwrap_or_default()
    }
}

/// Whether this process is to play a role itself.
pub(crate) fn is_role() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Runs the suite's cases that have `filter` in their name, under every loader.
pub(crate) fn suite(filter: &str, switches: &[(&str, &str)]) -> Vec<Outcome> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conformance"));
    let device = "level_zero:0";
    command.args(["--device", device, "--peer-device", device, "--jobs", "2"]);
    command.arg(filter);
    under_all_loaders(&mut command, switches)
}

/// Runs the test `name` of this program as a role, under every loader.
pub(crate) fn role(name: &str, switches: &[(&str, &str)]) -> Vec<Outcome> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([name, "--exact", "--nocapture"])
        .env(ROLE, "1");
    under_all_loaders(&mut command, switches)
}

fn under_all_loaders(command: &mut Command, switches: &[(&str, &str)]) -> Vec<Outcome> {
    let Some(loaders) = std::env::var_os(LOADERS).filter(|value| !value.is_empty()) else {
        eprintln!(
            "SKIPPED: there is no Level Zero loader. Set {LOADERS} to directories with one, or \
             run `cargo xtask test`, which does so"
        );
        return Vec::new();
    };
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

/// The simulated driver, and a copy of it that the loader takes for another one.
pub(crate) fn two_drivers() -> String {
    let first = std::env::current_exe()
        .unwrap()
        .with_file_name("libze_sim.so");
    let second = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libze_sim_two.so");
    fs::copy(&first, &second).unwrap();
    format!("{},{}", first.display(), second.display())
}

/// The driver's switches go by their short names, the loader's variables by their full ones.
fn variable(name: &str) -> String {
    match name.starts_with("ZE_") {
        true => name.to_owned(),
        false => format!("CROSSHANDLE_SIM_{name}"),
    }
}

/// For what a run writes; it goes with this.
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
