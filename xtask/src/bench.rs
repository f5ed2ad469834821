//! Runs the benchmarks. They are a separate package, so that no other program builds their
//! dependencies.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::figures::RESULTS;
use crate::figures::record::Record;
use crate::python::Environment;
use crate::step::Step;
use crate::workspace::Workspace;
use crate::{Result, wheel};

/// Replaces this process by the benchmark program, which then owns the terminal and receives
/// Ctrl-C. With `--record RUNS`, runs it several times instead, and keeps the results in a file.
pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    if let Some(place) = args.iter().position(|arg| arg == "--record") {
        let runs = args
            .get(place + 1)
            .and_then(|runs| runs.to_str()?.parse().ok());
        let runs = runs.filter(|runs| *runs > 0);
        let runs: usize = runs.ok_or("--record needs a number of runs, such as --record 5")?;
        let rest = [&args[..place], &args[place + 2..]].concat();
        return record(workspace, &rest, runs);
    }
    if args.first().is_some_and(|suite| suite == "python") {
        let error = wheel::bench(workspace)?.args(&args[1..]).exec();
        return Err(format!("cannot run python: {error}"));
    }
    let error = program(workspace, args)?.exec();
    Err(format!("cannot run cargo: {error}"))
}

/// Runs a suite several times, and writes the reports to one file in `benches/results`.
fn record(workspace: &Workspace, args: &[OsString], runs: usize) -> Result<()> {
    let suite = args.first().and_then(|suite| suite.to_str());
    let suite = suite.filter(|suite| *suite != "python");
    let suite = suite.ok_or("--record needs a suite of the benchmark program, such as host")?;
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let mut record = Record {
        command: format!("cargo xtask bench {} --record {runs}", words.join(" ")),
        date: output(workspace, "date", &["-u", "+%F"])?,
        commit: commit(workspace)?,
        peers: peers(workspace, suite)?,
        runs: Vec::new(),
    };
    for number in 1..=runs {
        eprintln!("run {number} of {runs}");
        let mut command = program(workspace, args)?;
        command.arg("--json").stderr(Stdio::inherit());
        let output = command.output();
        let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
        let report = serde_json::from_slice(&output.stdout);
        let report = report.map_err(|error| format!("the report of run {number}: {error}"))?;
        record.runs.push(report);
    }
    let name = format!(
        "{RESULTS}/{}-{}-{suite}.json",
        record.date,
        record.commit.trim_end_matches('+')
    );
    let json = serde_json::to_string_pretty(&record).map_err(|error| error.to_string())?;
    let place = workspace.root.join(&name);
    fs::create_dir_all(workspace.root.join(RESULTS))
        .and_then(|()| fs::write(place, json + "\n"))
        .map_err(|error| format!("cannot write {name}: {error}"))?;
    println!("wrote {name}; add it to git, name it in a page, and run `cargo xtask figures`");
    Ok(())
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
fn commit(workspace: &Workspace) -> Result<String> {
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

/// Returns the versions of the programs that a suite compares with.
fn peers(workspace: &Workspace, suite: &str) -> Result<BTreeMap<String, String>> {
    let mut peers = BTreeMap::new();
    if suite == "channel" {
        let lock = fs::read_to_string(workspace.root.join("Cargo.lock"));
        let lock = lock.map_err(|error| format!("cannot read Cargo.lock: {error}"))?;
        let version = lock.split("name = \"iceoryx2\"\nversion = \"").nth(1);
        let version = version.and_then(|rest| rest.split('"').next());
        let version = version.ok_or("Cargo.lock has no version of iceoryx2")?;
        peers.insert("iceoryx2".to_owned(), version.to_owned());
    }
    Ok(peers)
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
    command.args(args);
    Ok(command)
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
