//! The Python wheel: the module, the command and the Unified Runtime adapters in one file.

mod check;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::python::{Environment, command};
use crate::step::{Step, say};
use crate::workspace::Workspace;

pub(crate) use check::{test, test_with_dpnp};

/// The package's own files.
const PACKAGE: &str = "crates/crosshandle-python";
/// The packages whose programs and libraries the wheel has, beside the module.
const PARTS: [&str; 4] = [
    "crosshandle-cli",
    "crosshandle-ur-adapter-host",
    "crosshandle-ur-adapter-cuda",
    "crosshandle-ur-adapter-level-zero",
];
/// Built files, and where the package has them.
const FILES: [(&str, &str); 4] = [
    ("crosshandle", "_bin/crosshandle"),
    (
        "libur_adapter_crosshandle_host.so",
        "_lib/libur_adapter_crosshandle_host.so",
    ),
    (
        "libur_adapter_crosshandle_cuda.so",
        "_lib/libur_adapter_crosshandle_cuda.so",
    ),
    (
        "libur_adapter_crosshandle_level_zero.so",
        "_lib/libur_adapter_crosshandle_level_zero.so",
    ),
];
/// The profile of a wheel to be installed elsewhere.
const RELEASE: Profile = Profile {
    name: "packed",
    directory: "packed",
};
/// The profile of a wheel to be tested: what the other checks build anyway.
const DEVELOPMENT: Profile = Profile {
    name: "dev",
    directory: "debug",
};
/// The benchmarks in Python.
const BENCHES: &str = "benches/python";

struct Profile {
    name: &'static str,
    /// Cargo's directory for it.
    directory: &'static str,
}

/// Builds the wheel in `target/wheels`, and says what it needs.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    let environment = Environment::for_wheel(workspace)?;
    let wheel = make(workspace, &environment, &RELEASE)?;
    println!("{}", wheel.display());
    Ok(())
}

/// Builds the wheel, and returns a command that runs the benchmarks with it.
pub(crate) fn bench(workspace: &Workspace) -> Result<Command> {
    let environment = Environment::for_wheel(workspace)?;
    let wheel = make(workspace, &environment, &RELEASE)?;
    let installed = workspace.target.join("wheel").join("measured");
    install(workspace, &environment, &wheel, &installed)?;
    let mut bench = command(&environment.python());
    bench
        .arg(workspace.root.join(BENCHES).join("bench.py"))
        .env("PYTHONPATH", &installed)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(bench)
}

/// Builds the wheel, and copies it, its tests and its benchmarks to a directory.
pub(crate) fn pack(workspace: &Workspace, directory: &Path) -> Result<()> {
    let environment = Environment::for_wheel(workspace)?;
    let wheel = make(workspace, &environment, &RELEASE)?;
    empty(directory)?;
    let name = wheel.file_name().ok_or("the wheel has no name")?;
    copy(&wheel, &directory.join(name))?;
    let tests = workspace.root.join(PACKAGE).join("tests");
    copy_tree(&tests, &directory.join("tests"))?;
    copy_tree(&workspace.root.join(BENCHES), &directory.join("bench"))
}

/// Installs a wheel where nothing else is.
fn install(
    workspace: &Workspace,
    environment: &Environment,
    wheel: &Path,
    directory: &Path,
) -> Result<()> {
    empty(directory)?;
    let mut install = environment.pip();
    install.args(["install", "--no-index", "--no-deps", "--target"]);
    install.arg(directory).arg(wheel);
    Step::new(workspace, "install the wheel", install).run()
}

/// Builds a wheel, and returns its path.
fn make(workspace: &Workspace, environment: &Environment, profile: &Profile) -> Result<PathBuf> {
    let mut args = vec!["build", "--locked", "--profile", profile.name];
    args.extend(PARTS.iter().flat_map(|part| ["--package", *part]));
    Step::new(workspace, "parts of the wheel", workspace.cargo(&args)).run()?;
    let built = workspace.target.join(profile.directory);
    let package = workspace.target.join("wheel").join("package");
    empty(&package)?;
    let own = workspace.root.join(PACKAGE);
    copy_tree(&own.join("python"), &package.join("python"))?;
    let project = fs::read_to_string(own.join("pyproject.toml"))
        .map_err(|error| format!("cannot read the package's pyproject.toml: {error}"))?;
    // The files are staged, the crate is not.
    let manifest = own.join("Cargo.toml").display().to_string();
    let project = project.replace(
        "manifest-path = \"Cargo.toml\"",
        &format!("manifest-path = {manifest:?}"),
    );
    write(&package.join("pyproject.toml"), project.as_bytes())?;
    copy(
        &workspace.root.join(PACKAGE).join("README.md"),
        &package.join("README.md"),
    )?;
    let mut oldest = (2, 0);
    for (name, place) in FILES {
        let file = built.join(name);
        oldest = oldest.max(glibc(&file)?);
        copy(
            &file,
            &package.join("python").join("crosshandle").join(place),
        )?;
    }
    let out = workspace.target.join("wheels").join(profile.directory);
    empty(&out)?;
    let mut maturin = command(&environment.python());
    workspace.prepare(&mut maturin);
    maturin
        .current_dir(&package)
        .args([
            "-m",
            "maturin",
            "build",
            "--locked",
            "--profile",
            profile.name,
        ])
        .args(["--compatibility", "linux", "--out"])
        .arg(&out)
        .arg("--interpreter")
        .arg(environment.python());
    Step::new(workspace, "wheel", maturin).run()?;
    oldest = oldest.max(glibc(&built.join("lib_crosshandle.so"))?);
    let wheel = fs::read_dir(&out)
        .map_err(|error| format!("cannot read {}: {error}", out.display()))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| format!("maturin left no wheel in {}", out.display()))?;
    say(&format!(
        "the wheel needs glibc {}.{} or newer",
        oldest.0, oldest.1
    ));
    Ok(wheel)
}

/// Returns the newest version of glibc of which an ELF file wants a symbol: the versions stand in its
/// table of names.
fn glibc(file: &Path) -> Result<(u32, u32)> {
    let bytes =
        fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let mut newest = (2, 0);
    for start in memchr(&bytes, b"GLIBC_2.") {
        let digits = bytes[start..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let minor = String::from_utf8_lossy(&digits.copied().collect::<Vec<_>>()).parse();
        newest = newest.max((2, minor.unwrap_or(0)));
    }
    Ok(newest)
}

/// Returns the places after each occurrence of `text`.
fn memchr<'a>(bytes: &'a [u8], text: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let windows = bytes.windows(text.len()).enumerate();
    windows
        .filter(move |(_, window)| *window == text)
        .map(move |(place, _)| place + text.len())
}

fn empty(directory: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory)
        .map_err(|error| format!("cannot create {}: {error}", directory.display()))
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let entries =
        fs::read_dir(from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if name != "__pycache__" {
                copy_tree(&path, &to.join(name))?;
            }
        } else {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let directory = to.parent().unwrap_or(to);
    fs::create_dir_all(directory)
        .and_then(|()| fs::copy(from, to))
        .map(drop)
        .map_err(|error| {
            format!(
                "cannot copy {} to {}: {error}",
                from.display(),
                to.display()
            )
        })
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
