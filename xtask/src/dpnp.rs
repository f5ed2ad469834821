//! Runs dpnp's own tests, and this project's tests that need dpnp: `cargo xtask dpnp-tests`. dpnp
//! uses oneMKL's SYCL libraries, over the host's adapter or the stock OpenCL adapter. The tests
//! take minutes and need additional packages, so they are not part of `cargo xtask test`.

use std::path::PathBuf;
use std::time::Duration;

use crate::python::{self, Environment};
use crate::step::{Finished, Step};
use crate::workspace::Workspace;
use crate::{Result, wheel};

/// The directory of the programs that are run.
const CLIENTS: &str = "crates/ur-adapter/clients/python";
/// Time limit of a sample of one test in a hundred. The sample takes 4 minutes on two idle cores,
/// and took 11 minutes on busy ones.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// One test in this many is run in the sample that [`LIMIT`] is for. Larger samples have
/// proportionally more time.
const PART: u32 = 100;

/// Runs the Python package's tests with dpnp, and one in `every` of dpnp's own tests.
///
/// # Errors
/// Fails if a test fails that is not known to fail over the stock adapter too.
pub(crate) fn run(workspace: &Workspace, every: u32, stock: bool) -> Result<()> {
    let environment = Environment::for_dpnp(workspace)?;
    if !stock {
        wheel::test_with_dpnp(workspace, &environment)?;
    }
    let adapter = match stock {
        true => None,
        false => Some(adapter(workspace)?),
    };
    let client = |file: &str| {
        let mut client = python::command(&environment.python());
        client
            .arg(workspace.root.join(CLIENTS).join(file))
            .env("LD_LIBRARY_PATH", environment.library_dir())
            .env("OCL_ICD_FILENAMES", environment.opencl());
        match &adapter {
            None => client
                .env_remove("UR_ADAPTERS_FORCE_LOAD")
                .env("ONEAPI_DEVICE_SELECTOR", "opencl:cpu"),
            Some(adapter) => client
                .env("UR_ADAPTERS_FORCE_LOAD", adapter)
                .env("CROSSHANDLE_OPENCL", environment.opencl())
                .env("CROSSHANDLE_UR_BACKEND", "opencl"),
        };
        client
    };
    let over = if stock { " over the stock adapter" } else { "" };
    let name = format!("oneMKL{over}");
    Step::new(workspace, name, client("onemkl.py")).run_noting(last_line)?;
    let mut tests = client("dpnp_tests.py");
    tests.arg(every.to_string());
    let limit = LIMIT * PART.div_ceil(every);
    let name = format!("tests of dpnp{over}");
    Step::new(workspace, name, tests)
        .limit(limit)
        .run_noting(counts)?;
    Ok(())
}

/// Builds the host's adapter, and returns its path.
fn adapter(workspace: &Workspace) -> Result<PathBuf> {
    let build = workspace.cargo(&[
        "build",
        "--locked",
        "--package",
        "crosshandle-ur-adapter-host",
    ]);
    Step::new(workspace, "build the adapter", build).run()?;
    Ok(workspace
        .target
        .join("debug/libur_adapter_crosshandle_host.so"))
}

/// Returns the last line, which contains the counts of the results.
fn last_line(finished: &Finished) -> Result<Option<String>> {
    Ok(finished.output()?.lines().last().map(str::to_owned))
}

/// Returns the line with the counts of the tests.
fn counts(finished: &Finished) -> Result<Option<String>> {
    let output = finished.output()?;
    let line = output.lines().rev().find(|line| line.ends_with(" skipped"));
    line.map(|line| Some(line.to_owned()))
        .ok_or_else(|| "the tests' counts are missing".to_owned())
}
