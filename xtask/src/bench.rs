//! The benchmarks, in a package of their own so that only they pay for its dependencies.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use crate::Result;
use crate::python::Environment;
use crate::step::Step;
use crate::workspace::Workspace;

/// Becomes the benchmark program: its output, its exit status and Ctrl-C are its own.
pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    let mut command = workspace.cargo(&[
        "run",
        "--locked",
        "--profile",
        "bench",
        "--package",
        "crosshandle-bench",
        "--",
    ]);
    if args.first().is_some_and(|suite| suite == "ur") {
        let environment = Environment::ensure(workspace)?;
        let libraries = environment.library_dir();
        command
            .env("UR_ADAPTERS_FORCE_LOAD", adapter(workspace)?)
            // The loader finds its own libraries by this.
            .env("LD_LIBRARY_PATH", &libraries)
            .env("UR_RUNTIME_LIB_DIR", libraries);
    }
    let error = command.args(args).exec();
    Err(format!("cannot run cargo: {error}"))
}

/// Builds the adapter as it is measured, and says where it is.
fn adapter(workspace: &Workspace) -> Result<OsString> {
    let package = "crosshandle-ur-adapter-host";
    let build = workspace.cargo(&[
        "build",
        "--locked",
        "--profile",
        "bench",
        "--package",
        package,
    ]);
    Step::new(workspace, "adapter", build).run()?;
    // The profile `bench` shares the directory of `release`.
    let library = workspace
        .target
        .join("release")
        .join("libur_adapter_crosshandle_host.so");
    Ok(library.into_os_string())
}
