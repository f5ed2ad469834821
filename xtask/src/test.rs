//! Runs every check, the cheapest first. The test runner comes last, so that its summary ends the
//! output.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{fs, iter};

use crate::python::Environment;
use crate::step::{Step, report_skipped, say, seconds};
use crate::workspace::Workspace;
use crate::{
    Result, bindings, c_install, clients, debian, fuzz, needs, packages, progress, soak,
    supply_chain, tools, ucx, wheel,
};

/// Environment variable with the directories of Level Zero's stock loaders, the newest last.
const LOADERS: &str = "ZE_LOADER_LIB_DIRS";
/// Tests that are `#[ignore]`d because a machine may lack what they need, as filters of nextest.
const ON_A_GPU: &str = "(package(crosshandle-cuda)&test(/^tests::/))|test(/::on_a_gpu::/)";
const OVER_LEVEL_ZERO: &str = "binary_id(crosshandle-conformance::level_zero)\
    |(package(crosshandle-level-zero)&test(/^tests::/))\
    |binary_id(crosshandle-ur-adapter-level-zero::clients)\
    |test(/^simulated::/)|test(/^devices::memory_of_devices/)|test(/^over_the_simulated_driver/)";
/// The stock Unified Runtime comes with the OpenCL runtime and the Python that these tests use.
const WITH_THE_STOCK_RUNTIME: &str = "binary_id(crosshandle::kernels)|binary_id(crosshandle::images)\
    |binary_id(crosshandle::parts)|(binary_id(crosshandle::pages)&test(/^with_opencl::/))|binary_id(crosshandle::beneath_python)\
    |binary_id(opencl-cpu::runtime)|binary_id(crosshandle-ur-adapter-host::clients)\
    |binary_id(crosshandle-ur-adapter-level-zero::clients)\
    |(binary_id(crosshandle-conformance::host)&test(/(^kernels::|::kernels_)/))\
    |(binary_id(crosshandle-conformance::level_zero)&test(/kernel/))";
const OVER_UCX: &str = "package(crosshandle-link)&(test(/_over_ucx$/)|test(/^endpoints::/)\
    |test(/^ucx::/)|test(/^link::data::tests::/)|binary_id(crosshandle-link::ucx)\
    |test(=devices::on_a_gpu::memory_is_moved_by_ucx_alone))";
/// Duration of each fuzz target, in seconds.
const FUZZ_SECONDS: u64 = 20;

/// Packages whose tests belong to the quick check.
const QUICK_PACKAGES: [&str; 10] = [
    "crosshandle",
    "crosshandle-conformance",
    "crosshandle-events",
    "crosshandle-hal",
    "crosshandle-handle",
    "crosshandle-holder",
    "crosshandle-host",
    "crosshandle-ipc",
    "crosshandle-os",
    "crosshandle-types",
];

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let started = Instant::now();
    let progress = progress::start(workspace, false);
    prerequisites(workspace)?;
    let mut skipped = Vec::new();
    let fuzzed = !fuzz::targets(workspace)?.is_empty();

    format(workspace, fuzzed)?;
    Step::new(workspace, "style", workspace.cargo(&["xtask", "style"])).run()?;
    let fetch = workspace.cargo(&["fetch", "--locked"]);
    Step::new(workspace, "lock file", fetch).run()?;
    packages::check(workspace)?;
    bindings::run_c_header(workspace, true)?;
    // The stock Unified Runtime is published for x86-64 only.
    let runtime = if cfg!(target_arch = "x86_64") {
        let runtime = Environment::ensure(workspace)?;
        declarations(workspace, &mut skipped)?;
        Some(runtime)
    } else {
        skipped.push("generated declarations: their generator needs x86-64".to_owned());
        skipped.push("clients of the Unified Runtime adapter: they need x86-64".to_owned());
        None
    };
    let level_zero = level_zero(workspace, &mut skipped);
    let containers = containers(workspace, &mut skipped);
    let ucx = ucx::variable(workspace);
    let lints = [
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    Step::new(workspace, "lints", workspace.cargo(&lints)).run()?;
    features(workspace)?;
    documentation(workspace)?;
    skipped.extend(supply_chain::check(workspace)?);
    let examples = workspace.cargo(&["build", "--locked", "--workspace", "--examples"]);
    Step::new(workspace, "examples", examples).run()?;
    let doc_tests = workspace.cargo(&["test", "--locked", "--workspace", "--doc"]);
    Step::new(workspace, "doc tests", doc_tests).run()?;
    let unchanged = fuzz::check(workspace, FUZZ_SECONDS)?;
    if !fuzzed {
        skipped.push("fuzzing: there are no targets".to_owned());
    } else if !unchanged.is_empty() {
        let names = unchanged.join(", ");
        skipped.push(format!("fuzzing: unchanged since it last passed: {names}"));
    }
    soak::sample(workspace)?;
    if let Some(loader) = newest_loader(&level_zero.1) {
        soak::sample_on_level_zero(workspace, &loader)?;
    }

    let has_gpu = Path::new("/dev/nvidiactl").exists();
    let mut variables = match &runtime {
        Some(runtime) => variables(workspace, runtime)?.to_vec(),
        None => Vec::new(),
    };
    let runner = tools::NEXTEST.get(workspace)?;
    // This is a separate run, so that all other runs test the library with its default features.
    let mut counted = Command::new(&runner);
    workspace.prepare(&mut counted);
    counted.args(["nextest", "run", "--locked", "--package", "crosshandle"]);
    counted.args(["--features", "metrics", "--test", "observing"]);
    Step::new(workspace, "tests with metrics", counted).run()?;
    let mut build = Command::new(&runner);
    workspace.prepare(&mut build);
    build.args(["nextest", "run", "--locked", "--workspace", "--no-run"]);
    Step::new(workspace, "build the tests", build).run()?;

    c_install::check(workspace, &mut skipped)?;
    skipped.extend(wheel::test(workspace)?);

    let mut left_out = Vec::new();
    if !has_gpu {
        let reason = "there is no NVIDIA GPU here (`cargo xtask gpu-pack` packs them for a machine that has one)";
        left_out.push((ON_A_GPU, reason.to_owned()));
    }
    if level_zero.1.as_os_str().is_empty() {
        left_out.push((OVER_LEVEL_ZERO, "there is no Level Zero loader".to_owned()));
    }
    if runtime.is_none() {
        left_out.push((
            WITH_THE_STOCK_RUNTIME,
            "there is no stock runtime".to_owned(),
        ));
    }
    variables.push(level_zero);
    variables.extend(containers);
    match ucx {
        Ok(variable) => variables.push(variable),
        Err(reason) => left_out.push((OVER_UCX, format!("there is no UCX: {reason}"))),
    }
    left_out.extend(needs::missing(&variables));
    for (filter, reason) in &left_out {
        let count = count(workspace, &runner, filter)?;
        skipped.push(format!("{count} tests: {reason}"));
    }

    say(&format!("checks passed in {}", seconds(started.elapsed())));
    report_skipped(skipped);
    let mut tests = Command::new(&runner);
    workspace.prepare(&mut tests);
    // Ignored tests need the paths in `variables`.
    let all = "nextest run --locked --workspace --run-ignored all";
    tests.args(all.split(' ')).envs(variables.clone());
    let filters: Vec<_> = left_out.iter().map(|(filter, _)| *filter).collect();
    let filter = match filters.is_empty() {
        true => "all()".to_owned(),
        false => format!("not({})", filters.join("|")),
    };
    tests.args(["-E", &filter]);
    // `.config/nextest.toml` contains the time limits of each test and of the whole run.
    let status = tests
        .status()
        .map_err(|error| format!("cannot run cargo nextest: {error}"))?;
    if status.success() {
        progress.passed();
        return Ok(());
    }
    let named: String = variables
        .iter()
        .map(|(name, path)| format!("{name}={} ", path.display()))
        .collect();
    Err(format!(
        "tests: failed\n  repeat it with: {named}cargo {all} -E '{filter}'"
    ))
}

/// Runs the checks that need only Rust: format, style, lints, and the unit tests and conformance
/// tests of the host device.
pub(crate) fn run_quick(workspace: &Workspace) -> Result<()> {
    let progress = progress::start(workspace, true);
    prerequisites(workspace)?;
    format(workspace, !fuzz::targets(workspace)?.is_empty())?;
    Step::new(workspace, "style", workspace.cargo(&["xtask", "style"])).run()?;
    let lints = ["clippy", "--locked", "--workspace", "--", "-D", "warnings"];
    Step::new(workspace, "lints", workspace.cargo(&lints)).run()?;
    let runner = tools::NEXTEST.get(workspace)?;
    let run = |what: &str| {
        let mut tests = Command::new(&runner);
        workspace.prepare(&mut tests);
        tests.args(["nextest", "run", "--locked", what]);
        for package in QUICK_PACKAGES {
            tests.args(["--package", package]);
        }
        tests.args(["--lib", "--test", "host"]);
        tests
    };
    Step::new(workspace, "build the tests", run("--no-run")).run()?;
    say(
        "the rest is left to `cargo xtask test`: other devices and languages, documentation, fuzzing, faults",
    );
    let status = run("--no-tests=fail").status();
    let status = status.map_err(|error| format!("cannot run cargo nextest: {error}"))?;
    if !status.success() {
        return Err("tests: failed".to_owned());
    }
    progress.passed();
    Ok(())
}

/// Returns the number of tests that a filter selects.
fn count(workspace: &Workspace, runner: &Path, filter: &str) -> Result<usize> {
    let mut list = Command::new(runner);
    workspace.prepare(&mut list);
    list.args([
        "nextest",
        "list",
        "--locked",
        "--workspace",
        "-T",
        "oneline",
    ]);
    list.args(["--run-ignored", "all", "-E", filter]);
    let listed = list
        .output()
        .map_err(|error| format!("cannot list tests: {error}"))?;
    match listed.status.success() {
        true => Ok(listed.stdout.iter().filter(|byte| **byte == b'\n').count()),
        false => Err(String::from_utf8_lossy(&listed.stderr).into_owned()),
    }
}

/// Returns the variables through which tests find the stock runtime and the programs that run on
/// it.
fn variables(workspace: &Workspace, runtime: &Environment) -> Result<[(&'static str, PathBuf); 4]> {
    Ok([
        ("CROSSHANDLE_OPENCL", runtime.opencl()),
        (
            "UR_CLIENTS_DIR",
            clients::build(workspace, runtime)?.directory,
        ),
        ("UR_RUNTIME_LIB_DIR", runtime.library_dir()),
        ("UR_PYTHON", runtime.python()),
    ])
}

/// Returns the variable through which tests find Level Zero's stock loaders. The value is empty if
/// there are no stock loaders.
fn level_zero(workspace: &Workspace, skipped: &mut Vec<String>) -> (&'static str, PathBuf) {
    let mut loaders = Vec::new();
    for package in [&debian::OLD_LOADER, &debian::LOADER] {
        let directory = package.ensure(workspace).and_then(|package| {
            let directory = debian::library_dir(&package);
            debian::loads(&directory.join("libze_loader.so.1")).map(|()| directory)
        });
        match directory {
            Ok(directory) => loaders.push(directory),
            Err(reason) => skipped.push(format!(
                "the simulated Level Zero driver under {package}: {reason}"
            )),
        }
    }
    // The value is empty if there is no loader, or if a path contains a colon.
    let joined = std::env::join_paths(loaders).unwrap_or_default();
    (LOADERS, joined.into())
}

/// Returns the last of these directories, which has the newest of Level Zero's stock loaders.
fn newest_loader(directories: &Path) -> Option<PathBuf> {
    let newest = std::env::split_paths(directories).last();
    newest.filter(|loader| !loader.as_os_str().is_empty())
}

/// Checks that the generated declarations are those of the headers.
fn declarations(workspace: &Workspace, skipped: &mut Vec<String>) -> Result<()> {
    let headers = debian::HEADERS.ensure(workspace);
    match headers.and_then(|_| ucx::include(workspace)) {
        Ok(_) => bindings::run(workspace, true),
        Err(reason) => {
            skipped.push(format!("generated declarations: {reason}"));
            Ok(())
        }
    }
}

/// Returns the variable through which tests find a program that creates containers, if `PATH` has
/// none.
fn containers(workspace: &Workspace, skipped: &mut Vec<String>) -> Option<(&'static str, PathBuf)> {
    let name = "bwrap";
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&paths).any(|directory| directory.join(name).is_file()) {
        return None;
    }
    let program = debian::BUBBLEWRAP.ensure(workspace).and_then(|package| {
        let program = package.join("usr/bin").join(name);
        debian::loads(&program).map(|()| program)
    });
    match program {
        Ok(program) => Some(("BWRAP", program)),
        Err(reason) => {
            let package = &debian::BUBBLEWRAP;
            skipped.push(format!("sharing between containers of {package}: {reason}"));
            None
        }
    }
}

fn format(workspace: &Workspace, fuzzed: bool) -> Result<()> {
    let check = workspace.cargo(&["fmt", "--all", "--check"]);
    Step::new(workspace, "format", check)
        .repeat("cargo fmt --all")
        .run()?;
    if fuzzed {
        let args = ["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"];
        let step = Step::new(workspace, "format of fuzz", workspace.cargo(&args));
        step.repeat("cargo fmt --manifest-path fuzz/Cargo.toml")
            .run()?;
    }
    Ok(())
}

/// Checks the library without its optional backends, with each backend alone, and with metrics.
fn features(workspace: &Workspace) -> Result<()> {
    let metrics = ["--package", "crosshandle", "--features", "metrics"];
    let mut args = vec!["clippy", "--locked", "--all-targets"];
    args.extend(metrics);
    args.extend(["--", "-D", "warnings"]);
    Step::new(workspace, "lints with metrics", workspace.cargo(&args)).run()?;
    let manifest = fs::read_to_string(workspace.root.join("crates/crosshandle/Cargo.toml"));
    let manifest = manifest.map_err(|error| format!("cannot read the manifest: {error}"))?;
    let optional = manifest.lines().filter(|line| line.contains("= [\"dep:"));
    let optional = optional.filter_map(|line| line.split(' ').next());
    for features in iter::once("").chain(optional) {
        let mut args = vec![
            "clippy",
            "--locked",
            "--package",
            "crosshandle",
            "--no-default-features",
        ];
        if !features.is_empty() {
            args.extend(["--features", features]);
        }
        args.extend(["--", "-D", "warnings"]);
        let name = match features {
            "" => "lints without features".to_owned(),
            feature => format!("lints with {feature} alone"),
        };
        Step::new(workspace, name, workspace.cargo(&args)).run()?;
    }
    Ok(())
}

fn documentation(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.cargo(&["doc", "--locked", "--workspace", "--no-deps"]);
    command
        .env("RUSTDOCFLAGS", "-D warnings")
        .env_remove("CARGO_ENCODED_RUSTDOCFLAGS");
    let repeat = "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps";
    Step::new(workspace, "documentation", command)
        .repeat(repeat)
        .run()
}

/// Checks that all programs exist before anything is built. Parts of the toolchain are not fetched,
/// because the machine's owner chooses the toolchain.
fn prerequisites(workspace: &Workspace) -> Result<()> {
    let compiler = |variable: &str, default: &str| {
        let named = std::env::var_os(variable).filter(|name| !name.is_empty());
        let mut command = Command::new(named.unwrap_or_else(|| default.into()));
        command.arg("--version");
        command
    };
    let needed = [
        (
            workspace.cargo(&["fmt", "--version"]),
            "rustfmt: rustup component add rustfmt",
        ),
        (
            workspace.cargo(&["clippy", "--version"]),
            "clippy: rustup component add clippy",
        ),
        (
            compiler("CXX", "c++"),
            "a C++ compiler, for clients and fuzz targets: install g++, or name one in CXX",
        ),
        (
            compiler("CC", "cc"),
            "a C compiler, for clients: install gcc, or name one in CC",
        ),
    ];
    for (mut command, what) in needed {
        if !command.output().is_ok_and(|output| output.status.success()) {
            return Err(format!("this machine lacks {what}"));
        }
    }
    Ok(())
}
