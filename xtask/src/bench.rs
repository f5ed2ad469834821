//! Runs the benchmarks. They are a separate package, so that no other program builds their
//! dependencies.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use crate::python::Environment;
use crate::step::Step;
use crate::workspace::Workspace;
use crate::{Result, wheel};

/// Replaces this process by the benchmark program, which then owns the terminal and receives
/// Ctrl-C.
pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    if args.first().is_some_and(|suite| suite == "python") {
        let error = wheel::bench(workspace)?.args(&args[1..]).exec();
        return Err(format!("cannot run python: {error}"));
    }
    let mut command = workspace.cargo(&[
        "run",
        "--locked",
        "--profile",
        "bench",
        "--package",
        "crosshandle-bench",
    ]);
    if args.first().is_some_and(|suite| suite == "channel") {
        command.args(["--features", "iceoryx2"]);
    }
    command.arg("--");
    if args.first().is_some_and(|suite| suite == "ur") {
        let environment = Environment::ensure(workspace)?;
        let file = "libur_adapter_crosshandle_host.so";
        let adapter = built(workspace, "crosshandle-ur-adapter-host", file)?;
        let libraries = environment.library_dir();
        command
            .env("UR_ADAPTERS_FORCE_LOAD", adapter)
            // The loader finds its own libraries through this variable.
            .env("LD_LIBRARY_PATH", &libraries)
            .env("UR_RUNTIME_LIB_DIR", libraries);
    }
    if args.first().is_some_and(|suite| suite == "kernels") {
        // The OpenCL runtime is in the same directory as the other libraries.
        let libraries = Environment::ensure(workspace)?.library_dir();
        command
            .env("CROSSHANDLE_OPENCL", libraries.join("libintelocl.so"))
            .env("LD_LIBRARY_PATH", libraries);
    }
    let error = command.args(args).exec();
    Err(format!("cannot run cargo: {error}"))
}

/// Builds a library with the profile that is measured, and returns its path.
fn built(workspace: &Workspace, package: &str, file: &str) -> Result<PathBuf> {
    let build = workspace.cargo(&[
        "build",
        "--locked",
        "--profile",
        "bench",
        "--package",
        package,
    ]);
    Step::new(workspace, package, build).run()?;
    // The profile `bench` shares the directory of `release`.
    Ok(workspace.target.join("release").join(file))
}
