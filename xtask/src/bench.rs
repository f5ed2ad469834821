//! The benchmarks, in a package of their own so that only they pay for its dependencies.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use crate::Result;
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
    let error = command.args(args).exec();
    Err(format!("cannot run cargo: {error}"))
}
