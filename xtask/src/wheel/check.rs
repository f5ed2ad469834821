//! The tests of the wheel: the tour, the types, and the package's tests with the libraries whose
//! arrays it shares.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{DEVELOPMENT, PACKAGE, copy_tree, empty, install, make, write};
use crate::python::{Environment, command};
use crate::step::{Step, say};
use crate::workspace::Workspace;
use crate::{Result, debian};

/// Time limit of the package's tests. They take about a minute on an idle machine.
const TEST_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Time limit of the tour, which takes seconds.
const TOUR_LIMIT: Duration = Duration::from_secs(2 * 60);
/// The files with the tests over the Unified Runtime adapter: those of memory, and of events.
const USM_TESTS: &str = "test_usm.py";
const EVENT_TESTS: &str = "test_dpctl_events.py";
/// Libraries that the package uses if they are installed. Pyright gets stubs instead, in which
/// every name has any type.
const STUBBED: [&str; 13] = [
    "cupy",
    "dpctl",
    "dpnp",
    "lmcache",
    "pandas",
    "polars",
    "pyarrow",
    "ray",
    "sglang",
    "torch",
    "transformers",
    "vllm",
    "xarray",
];
const STUB: &str = "from typing import Any\n\ndef __getattr__(name: str) -> Any: ...\n";

/// A wheel that was built for tests, and installed into an empty directory.
struct Installed<'a> {
    workspace: &'a Workspace,
    environment: Environment,
    directory: PathBuf,
}

/// Builds a wheel, installs it into an empty directory, and runs its tests. Returns the skipped
/// tests with their reasons.
pub(crate) fn test(workspace: &Workspace) -> Result<Vec<String>> {
    let installed = Installed::of(workspace)?;
    let mut skipped = Vec::new();
    installed.tour(&installed.environment, "python tour, module alone", true)?;
    installed.types_by_mypy()?;
    skipped.extend(installed.types_by_pyright()?);
    installed.tests(&installed.environment, "python tests", None)?;
    if cfg!(target_arch = "x86_64") {
        let dpctl = Environment::ensure(workspace)?;
        for (name, file) in [("memory", USM_TESTS), ("events", EVENT_TESTS)] {
            installed.tests(
                &dpctl,
                &format!("python tests with dpctl, {name}"),
                Some(file),
            )?;
        }
        match debian::loader(workspace) {
            Ok(loader) => installed.tests_on_level_zero(&dpctl, &loader)?,
            Err(reason) => skipped.push(format!("dpctl over Level Zero: {reason}")),
        }
        installed.tour(&dpctl, "python tour with dpctl", false)?;
    } else {
        skipped.push("arrays of dpctl: its packages are for x86-64".to_owned());
    }
    Ok(skipped)
}

/// Builds and installs a wheel as [`test()`] does, and returns a command of an environment's
/// interpreter that finds it.
pub(crate) fn python(workspace: &Workspace, environment: &Environment) -> Result<Command> {
    Ok(Installed::of(workspace)?.python(environment))
}

/// Builds and installs a wheel as [`test()`] does, and runs the tests that need dpnp.
pub(crate) fn test_with_dpnp(workspace: &Workspace, dpnp: &Environment) -> Result<()> {
    Installed::of(workspace)?.tests(dpnp, "python tests with dpnp", Some(USM_TESTS))
}

impl<'a> Installed<'a> {
    fn of(workspace: &'a Workspace) -> Result<Self> {
        let environment = Environment::for_wheel(workspace)?;
        let wheel = make(workspace, &environment, &DEVELOPMENT, &[], None)?;
        let directory = workspace.target.join("wheel").join("installed");
        install(workspace, &environment, &wheel, &directory)?;
        Ok(Self {
            workspace,
            environment,
            directory,
        })
    }

    /// Returns a command of an environment's interpreter that finds the package.
    fn python(&self, environment: &Environment) -> Command {
        let mut python = command(&environment.python());
        python
            .env("PYTHONPATH", &self.directory)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        python
    }

    /// Runs the tour. If `alone` is true, no other package is available to it.
    fn tour(&self, environment: &Environment, name: &str, alone: bool) -> Result<()> {
        let mut tour = self.python(environment);
        if alone {
            tour.arg("-S");
        }
        tour.args(["-m", "crosshandle.tour"]);
        Step::new(self.workspace, name, tour)
            .limit(TOUR_LIMIT)
            .run()
    }

    /// Runs the package's tests, or one file of them.
    fn tests(&self, environment: &Environment, name: &str, file: Option<&str>) -> Result<()> {
        self.run(self.pytest(environment, file), name)
    }

    /// Runs the tests of events over the simulated Level Zero driver, as
    /// `docs/integrations.md` describes.
    fn tests_on_level_zero(&self, environment: &Environment, loader: &Path) -> Result<()> {
        let build = self
            .workspace
            .cargo(&["build", "--locked", "--package", "level-zero-sim"]);
        Step::new(self.workspace, "the simulated driver", build).run()?;
        let driver = self.workspace.target.join("debug").join("libze_sim.so");
        let mut pytest = self.pytest(environment, Some(EVENT_TESTS));
        pytest
            .env("CROSSHANDLE_TEST_ADAPTER", "level_zero")
            .env("ZE_ENABLE_ALT_DRIVERS", driver)
            .env("LD_LIBRARY_PATH", loader);
        self.run(pytest, "python tests with dpctl, events on Level Zero")
    }

    fn pytest(&self, environment: &Environment, file: Option<&str>) -> Command {
        let tests = self.workspace.root.join(PACKAGE).join("tests");
        let mut pytest = self.python(environment);
        pytest
            .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
            .arg(file.map_or(tests.clone(), |file| tests.join(file)))
            .env("JAX_PLATFORMS", "cpu");
        pytest
    }

    fn run(&self, pytest: Command, name: &str) -> Result<()> {
        Step::new(self.workspace, name, pytest)
            .limit(TEST_LIMIT)
            .run()
    }

    fn types_by_mypy(&self) -> Result<()> {
        let mut types = command(&self.environment.python());
        types
            .args(["-m", "mypy", "--strict", "--no-error-summary"])
            .arg("--cache-dir")
            .arg(self.workspace.target.join("wheel").join("mypy"))
            .args(["-p", "crosshandle", "--config-file"])
            .arg(self.workspace.root.join(PACKAGE).join("pyproject.toml"))
            .env("MYPYPATH", &self.directory);
        Step::new(self.workspace, "python types", types).run()
    }

    /// Checks the types at pyright's default level. Returns the reason if pyright is not available.
    fn types_by_pyright(&self) -> Result<Option<String>> {
        let pyright = match Environment::for_pyright(self.workspace) {
            Ok(environment) => environment,
            Err(reason) => {
                say("skip   python types by pyright");
                let reason = reason.lines().last().unwrap_or_default();
                return Ok(Some(format!("python types by pyright: {reason}")));
            }
        };
        let project = self.workspace.target.join("wheel").join("pyright");
        empty(&project)?;
        copy_tree(
            &self.directory.join("crosshandle"),
            &project.join("crosshandle"),
        )?;
        write_stubs(&project.join("crosshandle"), &project.join("stubs"))?;
        let config = project.join("pyrightconfig.json");
        write(
            &config,
            br#"{"include": ["crosshandle"], "stubPath": "stubs"}"#,
        )?;
        let mut types = command(&pyright.python());
        types
            .args(["-m", "pyright", "--project"])
            .args([config.as_os_str(), OsStr::new("--pythonpath")])
            .arg(self.environment.python())
            // Otherwise pyright would print a note about newer versions.
            .env("PYRIGHT_PYTHON_IGNORE_WARNINGS", "1");
        Step::new(self.workspace, "python types by pyright", types).run()?;
        Ok(None)
    }
}

/// Writes a stub for each module of [`STUBBED`] libraries that the sources in a directory import,
/// and for its parent packages.
fn write_stubs(sources: &Path, stubs: &Path) -> Result<()> {
    let cannot =
        |what: &str, path: &Path, error| format!("cannot {what} {}: {error}", path.display());
    let entries = fs::read_dir(sources).map_err(|error| cannot("read", sources, error))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            write_stubs(&path, stubs)?;
        }
        if path.extension() != Some(OsStr::new("py")) {
            continue;
        }
        let source = fs::read_to_string(&path).map_err(|error| cannot("read", &path, error))?;
        for module in source.lines().filter_map(imported) {
            let mut package = stubs.to_owned();
            for part in module.split('.') {
                package.push(part);
                fs::create_dir_all(&package).map_err(|error| cannot("create", &package, error))?;
                write(&package.join("__init__.pyi"), STUB.as_bytes())?;
            }
        }
    }
    Ok(())
}

/// Returns the module of a stubbed library that a line of Python imports.
fn imported(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let is_import = matches!(words.next(), Some("from" | "import"));
    let module = words.next().filter(|_| is_import)?;
    let (library, _) = module.split_once('.').unwrap_or((module, ""));
    STUBBED.contains(&library).then_some(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_of_stubbed_libraries_are_found() {
        assert_eq!(imported("    import torch"), Some("torch"));
        assert_eq!(imported("from vllm.utils.a import b"), Some("vllm.utils.a"));
        assert_eq!(imported("from .torch import load"), None);
        assert_eq!(imported("torch = 1"), None);
        assert_eq!(imported("import numpy"), None);
    }
}
