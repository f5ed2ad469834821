//! Runs fuzz targets on the stable toolchain: libFuzzer with coverage, without sanitizers.
//!
//! `cargo fuzz` would need a nightly compiler only for its sanitizers. The coverage that guides the
//! search comes from an LLVM pass, which stable compilers have too.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Result;
use crate::step::{Step, say};
use crate::workspace::Workspace;

/// Flags for coverage counters and traced comparisons on every edge, and for the checks of a debug
/// build.
const RUSTFLAGS: &str = "--cfg fuzzing \
    -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
    -Ccodegen-units=1 \
    -Cdebug-assertions=on \
    -Coverflow-checks=on";

/// Number of targets that run at the same time.
const SEARCHERS: usize = 2;
/// Time after which an input is treated as a hang, in seconds.
const INPUT_SECONDS: u64 = 10;

pub(crate) fn manifest(workspace: &Workspace) -> PathBuf {
    workspace.root.join("fuzz").join("Cargo.toml")
}

/// Returns the sorted names of the targets, which may be none.
pub(crate) fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let directory = workspace.root.join("fuzz").join("fuzz_targets");
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for path in files(&directory)? {
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(
                path.file_stem()
                    .map(|stem| stem.to_string_lossy().into_owned()),
            );
        }
    }
    Ok(names)
}

/// Prints the names of the targets.
pub(crate) fn list(workspace: &Workspace) -> Result<()> {
    for name in targets(workspace)? {
        say(&name);
    }
    Ok(())
}

/// Searches for a failing input for `seconds`, and shows libFuzzer's own output.
pub(crate) fn run(workspace: &Workspace, name: &str, seconds: u64) -> Result<()> {
    let target = Target::build_one(workspace, name)?;
    finish(name, target.search(seconds)?)
}

/// Runs one input, to reproduce a failure.
pub(crate) fn reproduce(workspace: &Workspace, name: &str, input: &Path) -> Result<()> {
    let input = std::path::absolute(input).map_err(|error| error.to_string())?;
    if !input.is_file() {
        return Err(format!("there is no file {}", input.display()));
    }
    let target = Target::build_one(workspace, name)?;
    let mut command = target.command()?;
    command.arg(input);
    finish(name, command)
}

fn finish(name: &str, mut command: Command) -> Result<()> {
    let status = command
        .status()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("fuzz target {name}: {status}"))
    }
}

/// Builds every target and runs each for `seconds`, as steps of the test command. A target is
/// skipped if its program and seeds are those that passed before. Returns the names of the skipped
/// targets.
pub(crate) fn check(workspace: &Workspace, seconds: u64) -> Result<Vec<String>> {
    let names = targets(workspace)?;
    if names.is_empty() {
        return Ok(names);
    }
    let triple = workspace.host_triple()?;
    let build = cargo(workspace, &triple, &["build"], &[]);
    Step::new(workspace, "fuzz targets: build", build).run()?;

    let unchanged = Mutex::new(Vec::new());
    let waiting = Mutex::new(names.into_iter());
    // A search uses one processor.
    let searcher = || -> Result<()> {
        loop {
            let name = lock(&waiting).next();
            let Some(name) = name else {
                return Ok(());
            };
            let target = Target {
                workspace,
                name,
                triple: triple.clone(),
            };
            if !target.check(seconds)? {
                lock(&unchanged).push(target.name);
            }
        }
    };
    std::thread::scope(|scope| {
        let searchers = [(); SEARCHERS].map(|()| scope.spawn(searcher));
        searchers.into_iter().try_for_each(|searcher| {
            let ended = searcher.join();
            ended.map_err(|_| "a search panicked".to_owned())?
        })
    })?;
    Ok(std::mem::take(&mut lock(&unchanged)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that coverage guided libFuzzer and that it ran the target. Returns the number of runs.
fn searched(output: &str) -> Result<String> {
    if !output.contains("inline 8-bit counters") {
        return Err("the program has no coverage counters, so nothing guided the search".into());
    }
    let runs = output
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .and_then(|count| count.trim().parse::<u64>().ok());
    match runs {
        Some(runs) if runs > 0 => Ok(format!("{runs} inputs")),
        _ => Err("the target ran no input".into()),
    }
}

fn cargo(workspace: &Workspace, triple: &str, task: &[&str], rest: &[&str]) -> Command {
    let mut command = workspace.cargo(task);
    command.args([
        "--locked",
        "--release",
        "--target",
        triple,
        "--manifest-path",
    ]);
    command.arg(manifest(workspace)).args(rest);
    // With an explicit target, cargo does not apply the flags to build scripts and procedural
    // macros.
    command
        .env("RUSTFLAGS", RUSTFLAGS)
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    // The target directory differs from the workspace's, so that neither build waits for the
    // other's lock.
    command.env("CARGO_TARGET_DIR", workspace.target.join("fuzz"));
    command
}

/// A target whose program is built.
struct Target<'a> {
    workspace: &'a Workspace,
    name: String,
    triple: String,
}

impl<'a> Target<'a> {
    fn build_one(workspace: &'a Workspace, name: &str) -> Result<Self> {
        let known = targets(workspace)?;
        if !known.iter().any(|target| target == name) {
            let known = known.join(", ");
            return Err(format!(
                "there is no fuzz target {name:?}; there are: {known}"
            ));
        }
        let triple = workspace.host_triple()?;
        let mut build = cargo(workspace, &triple, &["build"], &["--bin", name]);
        let status = build
            .status()
            .map_err(|error| format!("cannot run cargo: {error}"))?;
        if !status.success() {
            return Err(format!("the fuzz target {name} does not build"));
        }
        Ok(Self {
            workspace,
            name: name.to_owned(),
            triple,
        })
    }

    /// Runs the target for `seconds`, unless its program and seeds are those that passed before.
    /// Returns whether it ran.
    fn check(&self, seconds: u64) -> Result<bool> {
        let file = format!("fuzz-{}.passed", self.name);
        let stamp = self.workspace.target.join("xtask").join(file);
        let print = format!("{:016x} {seconds}", self.fingerprint()?);
        if fs::read_to_string(&stamp).is_ok_and(|passed| passed == print) {
            return Ok(false);
        }
        let name = format!("fuzz {}", self.name);
        Step::new(self.workspace, name, self.search(seconds)?)
            .limit(Duration::from_secs(seconds + 3 * INPUT_SECONDS + 30))
            .repeat(format!(
                "cargo xtask fuzz {} --input FILE, with the file that it names above",
                self.name
            ))
            .run_noting(|finished| searched(&finished.output()?).map(Some))?;
        fs::write(&stamp, print)
            .map_err(|error| format!("cannot write {}: {error}", stamp.display()))?;
        Ok(true)
    }

    fn program(&self) -> PathBuf {
        self.workspace
            .target
            .join("fuzz")
            .join(&self.triple)
            .join("release")
            .join(&self.name)
    }

    /// Returns the directory of the committed seeds.
    fn seeds(&self) -> PathBuf {
        self.workspace
            .root
            .join("fuzz")
            .join("corpus")
            .join(&self.name)
    }

    /// Returns a command that runs the program with the limits of one input and the directory for
    /// failing inputs.
    fn command(&self) -> Result<Command> {
        let artifacts = self.made(&["fuzz", "artifacts", &self.name])?;
        let mut command = Command::new(self.program());
        command.current_dir(&self.workspace.root);
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.arg(format!("-timeout={INPUT_SECONDS}"));
        command.args(["-rss_limit_mb=2048", "-print_final_stats=1"]);
        Ok(command)
    }

    /// Returns a command that searches for new inputs. It stores found inputs in the target
    /// directory, so a run does not change the checkout.
    fn search(&self, seconds: u64) -> Result<Command> {
        let found = self.made(&["fuzz", "corpus", &self.name])?;
        let mut command = self.command()?;
        command.arg(format!("-max_total_time={seconds}")).arg(found);
        if self.seeds().is_dir() {
            command.arg(self.seeds());
        }
        Ok(command)
    }

    fn made(&self, parts: &[&str]) -> Result<PathBuf> {
        let path = parts
            .iter()
            .fold(self.workspace.target.clone(), |path, part| path.join(part));
        fs::create_dir_all(&path)
            .map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(path)
    }

    /// Returns a hash that changes whenever the program or a seed changes.
    fn fingerprint(&self) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        let mut inputs = vec![self.program()];
        if self.seeds().is_dir() {
            inputs.extend(files(&self.seeds())?);
        }
        for path in inputs {
            let bytes = fs::read(&path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            bytes.hash(&mut hasher);
        }
        Ok(hasher.finish())
    }
}

/// Returns the files directly in `directory`, sorted.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let cannot = |error| format!("cannot list {}: {error}", directory.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::searched;

    #[test]
    fn a_search_counts_only_when_guided_and_run() {
        let guided = "INFO: Loaded 1 modules   (151 inline 8-bit counters)";
        let ran = "stat::number_of_executed_units: 42";
        assert_eq!(
            searched(&format!("{guided}\n{ran}\n")).unwrap(),
            "42 inputs"
        );
        assert!(searched(ran).is_err());
        assert!(searched(guided).is_err());
        assert!(searched(&format!("{guided}\nstat::number_of_executed_units: 0")).is_err());
    }
}
