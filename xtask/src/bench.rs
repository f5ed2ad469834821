//! Runs the benchmarks. They are a separate package, so that no other program builds their
//! dependencies.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::figures::RESULTS;
use crate::python::Environment;
use crate::step::Step;
use crate::workspace::Workspace;
use crate::{Result, ucx, wheel};

/// Replaces this process by the benchmark program, which then owns the terminal and receives
/// Ctrl-C. With `--record RUNS`, the program keeps the results in `benches/results`.
pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    let mut command = program(workspace, args)?;
    if args.iter().any(|arg| arg == "--record") {
        command
            .arg("--into")
            .arg(workspace.root.join(RESULTS))
            .args(["--commit", &commit(workspace)?]);
    }
    let error = command.exec();
    Err(format!("cannot run cargo: {error}"))
}

/// Runs a program, and returns the line that it prints.
fn output(workspace: &Workspace, program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    let output = command.args(args).current_dir(&workspace.root).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{program} failed")),
    }
}

/// Returns the commit that is measured, with a `+` if tracked files differ from it.
pub(crate) fn commit(workspace: &Workspace) -> Result<String> {
    let commit = output(workspace, "git", &["rev-parse", "--short=8", "HEAD"])?;
    let changes = output(
        workspace,
        "git",
        &["status", "--porcelain", "--untracked-files=no"],
    )?;
    Ok(match changes.is_empty() {
        true => commit,
        false => commit + "+",
    })
}

/// Returns the command that builds and runs the benchmark program.
fn program(workspace: &Workspace, args: &[OsString]) -> Result<Command> {
    let mut command = workspace.cargo(&[
        "run",
        "--locked",
        "--profile",
        "bench",
        "--package",
        "crosshandle-bench",
    ]);
    let suite = args.first().and_then(|suite| suite.to_str());
    if suite.is_some_and(|suite| ["channel", "peers"].contains(&suite)) {
        command.args(["--features", "iceoryx2"]);
    }
    command.arg("--").args(args);
    match suite {
        Some("ur") => {
            let environment = Environment::ensure(workspace)?;
            let file = "libur_adapter_crosshandle_host.so";
            let adapter = built(workspace, "crosshandle-ur-adapter-host", &["--lib"], file)?;
            let libraries = environment.library_dir();
            command
                .env("UR_ADAPTERS_FORCE_LOAD", adapter)
                // The loader finds its own libraries through this variable.
                .env("LD_LIBRARY_PATH", &libraries)
                .env("UR_RUNTIME_LIB_DIR", libraries);
        }
        Some("kernels") => {
            // The OpenCL runtime is in the same directory as the other libraries.
            let libraries = Environment::ensure(workspace)?.library_dir();
            command
                .env("CROSSHANDLE_OPENCL", libraries.join("libintelocl.so"))
                .env("LD_LIBRARY_PATH", libraries);
        }
        Some("python") => python(workspace, &Environment::for_wheel(workspace)?, &mut command)?,
        Some("peers") => {
            let environment = Environment::for_peers(workspace)?;
            python(workspace, &environment, &mut command)?;
            // UMF's scalable pool loads oneTBB from there.
            command.env("LD_LIBRARY_PATH", environment.library_dir());
            match ucx::variable(workspace) {
                Ok((variable, libraries)) => {
                    let file = "crosshandle-link-peer";
                    let peer = built(workspace, "crosshandle-link", &["--bin", file], file)?;
                    command
                        .env(variable, libraries)
                        .env("CROSSHANDLE_LINK_PEER", peer);
                }
                Err(reason) => eprintln!("no UCX: {reason}"),
            }
        }
        _ => {}
    }
    Ok(command)
}

/// Lets the benchmark program run Python programs with the module.
fn python(workspace: &Workspace, environment: &Environment, command: &mut Command) -> Result<()> {
    command
        .arg("--python")
        .arg(environment.python())
        .arg("--scripts")
        .arg(workspace.root.join(wheel::BENCHES))
        .env("PYTHONPATH", wheel::measured(workspace)?);
    Ok(())
}

/// Builds a library or a program with the profile that is measured, and returns its path.
fn built(workspace: &Workspace, package: &str, what: &[&str], file: &str) -> Result<PathBuf> {
    let args = [
        "build",
        "--locked",
        "--profile",
        "bench",
        "--package",
        package,
    ];
    let mut build = workspace.cargo(&args);
    build.args(what);
    Step::new(workspace, package, build).run()?;
    // The profile `bench` shares the directory of `release`.
    Ok(workspace.target.join("release").join(file))
}
