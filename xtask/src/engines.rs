//! Runs the Python package's tests with real engines: `cargo xtask engine-tests`. The engines need
//! about 8 GB of packages, and minutes to start, so these tests are not part of `cargo xtask test`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::python::Environment;
use crate::step::{Finished, Step};
use crate::workspace::Workspace;
use crate::{Result, wheel};

/// The package that is installed twice, in two versions.
const OLDER: &str = include_str!("../requirements-transformers.txt");
/// Time limit of the tests. They take about 15 minutes on two idle cores.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Runs the tests whose names contain `filter`, or all of them.
///
/// # Errors
/// Fails if a test fails, or if a package cannot be installed.
pub(crate) fn run(workspace: &Workspace, filter: Option<&str>) -> Result<()> {
    let environment = Environment::for_engines(workspace)?;
    let older = older(workspace, &environment)?;
    let mut tests = wheel::python(workspace, &environment)?;
    tests
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"])
        .arg(
            workspace
                .root
                .join("crates/crosshandle-python/engine_tests"),
        )
        .env("CROSSHANDLE_OLDER_TRANSFORMERS", older);
    if let Some(filter) = filter {
        tests.args(["-k", filter]);
    }
    Step::new(workspace, "tests with engines", tests)
        .limit(LIMIT)
        .run_noting(counts)
}

/// Installs the older transformers into a directory of its own, and returns the directory.
fn older(workspace: &Workspace, environment: &Environment) -> Result<PathBuf> {
    let directory = workspace.target.join("python-older-transformers");
    let cannot = |error| format!("cannot install into {}: {error}", directory.display());
    let stamp = directory.join("complete");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == OLDER) {
        return Ok(directory);
    }
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(cannot)?;
    }
    fs::create_dir_all(&directory).map_err(cannot)?;
    let requirements = directory.join("requirements.txt");
    fs::write(&requirements, OLDER).map_err(cannot)?;
    let mut install = environment.pip();
    install
        .args(["install", "--no-deps", "--require-hashes", "--target"])
        .arg(&directory)
        .arg("--requirement")
        .arg(&requirements);
    Step::new(workspace, "older transformers", install).run()?;
    fs::write(&stamp, OLDER).map_err(cannot)?;
    Ok(directory)
}

/// Returns the line with the counts of the tests.
fn counts(finished: &Finished) -> Result<Option<String>> {
    let output = finished.output()?;
    let line = output.lines().rev().find(|line| line.contains(" passed"));
    line.map(|line| Some(line.to_owned()))
        .ok_or_else(|| "the tests' counts are missing".to_owned())
}
