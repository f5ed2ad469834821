//! The Python wheel: the module, the command and the Unified Runtime adapters in one file.

mod check;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::Result;
use crate::python::{Environment, command};
use crate::step::{Step, say};
use crate::workspace::Workspace;

pub(crate) use check::{python, test, test_with_dpnp};

const PACKAGE: &str = "crates/crosshandle-python";
/// The packages whose programs and libraries the wheel contains, in addition to the module.
const PARTS: [&str; 4] = [
    "crosshandle-cli",
    "crosshandle-ur-adapter-host",
    "crosshandle-ur-adapter-cuda",
    "crosshandle-ur-adapter-level-zero",
];
/// Built files, with their places in the package.
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
/// The profile of a wheel for installation elsewhere.
const RELEASE: Profile = Profile {
    name: "packed",
    directory: "packed",
    wheels: "wheels",
};
/// The profile of a wheel for tests. It uses what the other checks build anyway.
const DEVELOPMENT: Profile = Profile {
    name: "dev",
    directory: "debug",
    wheels: "wheel/wheels",
};
/// Minor versions of glibc 2 for which `auditwheel` has a platform tag, in ascending order.
const TAGS: [u32; 9] = [17, 28, 31, 34, 35, 36, 37, 38, 39];
/// The minor version of glibc 2 that a wheel for another architecture is linked for.
const CROSS_TAG: u32 = 34;
/// Maximum size of a wheel for installation elsewhere, in bytes.
const LARGEST: u64 = 16_000_000;
/// The directory of the Python benchmarks.
pub(crate) const BENCHES: &str = "benches/python";

struct Profile {
    name: &'static str,
    /// Cargo's output directory for the profile.
    directory: &'static str,
    /// The place of the wheel in the target directory.
    wheels: &'static str,
}

/// Another architecture, for which zig links.
pub(crate) struct Cross {
    /// Rust's name of the target.
    triple: &'static str,
    /// The environment with zig.
    tools: Environment,
}

impl Cross {
    /// Returns what builds for aarch64, or the command that installs what is missing.
    pub(crate) fn aarch64(workspace: &Workspace) -> Result<Result<Self, String>> {
        const TRIPLE: &str = "aarch64-unknown-linux-gnu";
        let print = ["--print", "target-libdir", "--target", TRIPLE];
        let directory = Command::new("rustc").args(print).output();
        let directory = directory.map_err(|error| format!("cannot run rustc: {error}"))?;
        let directory = String::from_utf8_lossy(&directory.stdout).trim().to_owned();
        if !Path::new(&directory).is_dir() {
            return Ok(Err(format!("rustup target add {TRIPLE}")));
        }
        let tools = Environment::for_cross(workspace)?;
        Ok(Ok(Self {
            triple: TRIPLE,
            tools,
        }))
    }

    /// Lets a command find zig.
    fn prepare(&self, command: &mut Command) {
        let path = env::var_os("PATH").unwrap_or_default();
        let own = [self.tools.programs()].into_iter();
        let path = env::join_paths(own.chain(env::split_paths(&path)));
        command.envs(path.ok().map(|path| ("PATH", path)));
        command.env("CARGO_ZIGBUILD_PYTHON_PATH", self.tools.python());
    }
}

/// Builds the wheel in `target/wheels`, and prints its size, its platform tag and its path. It is
/// for this machine's architecture or for aarch64.
pub(crate) fn build(workspace: &Workspace, for_aarch64: bool) -> Result<()> {
    let environment = Environment::for_wheel(workspace)?;
    let cross = match for_aarch64 {
        true => Some(Cross::aarch64(workspace)??),
        false => None,
    };
    let wheel = make(workspace, &environment, &RELEASE, &[], cross.as_ref())?;
    let size = fs::metadata(&wheel)
        .map_err(|error| format!("cannot read {}: {error}", wheel.display()))?
        .len();
    let megabytes = size as f64 / 1e6;
    if size > LARGEST {
        let most = LARGEST / 1_000_000;
        return Err(format!("the wheel has {megabytes:.1} MB, over {most} MB"));
    }
    say(&format!("the wheel has {megabytes:.1} MB"));
    println!("{}", wheel.display());
    Ok(())
}

/// Builds the parts of the wheel and the wheel of a release, and returns its path. `lists` are the
/// lists of dependencies that it contains.
pub(crate) fn for_release(
    workspace: &Workspace,
    environment: &Environment,
    lists: &[PathBuf],
    cross: Option<&Cross>,
) -> Result<PathBuf> {
    make(workspace, environment, &RELEASE, lists, cross)
}

/// Builds the wheel, installs it for benchmarks, and returns the directory of the module.
pub(crate) fn measured(workspace: &Workspace) -> Result<PathBuf> {
    let environment = Environment::for_wheel(workspace)?;
    let wheel = make(workspace, &environment, &RELEASE, &[], None)?;
    let installed = workspace.target.join("wheel").join("measured");
    install(workspace, &environment, &wheel, &installed)?;
    Ok(installed)
}

/// Builds the wheel, and copies it with its tests, the documents and its benchmarks to a directory.
pub(crate) fn pack(workspace: &Workspace, directory: &Path) -> Result<()> {
    let environment = Environment::for_wheel(workspace)?;
    let wheel = make(workspace, &environment, &RELEASE, &[], None)?;
    empty(directory)?;
    let name = wheel.file_name().ok_or("the wheel has no name")?;
    copy(&wheel, &directory.join(name))?;
    let tests = workspace.root.join(PACKAGE).join("tests");
    copy_tree(&tests, &directory.join("tests"))?;
    // The tests run the Python examples in these documents.
    let documents = directory.join("documents");
    for document in ["README.md", "crates/crosshandle-python/README.md"] {
        copy(&workspace.root.join(document), &documents.join(document))?;
    }
    copy_tree(&workspace.root.join("docs"), &documents.join("docs"))?;
    copy_tree(&workspace.root.join(BENCHES), &directory.join("bench"))
}

/// Installs a wheel into an empty directory.
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

/// Builds a wheel, and returns its path. It contains `lists` of dependencies, or else the one that
/// maturin writes, with paths of this machine. It is for this machine's architecture, or for
/// another one.
fn make(
    workspace: &Workspace,
    environment: &Environment,
    profile: &Profile,
    lists: &[PathBuf],
    cross: Option<&Cross>,
) -> Result<PathBuf> {
    let mut parts = match cross {
        None => workspace.cargo(&["build"]),
        Some(cross) => {
            let mut zig = command(&cross.tools.programs().join("cargo-zigbuild"));
            workspace.prepare(&mut zig);
            let target = format!("{}.2.{}", cross.triple, CROSS_TAG);
            zig.args(["zigbuild", "--target", &target]);
            cross.prepare(&mut zig);
            zig
        }
    };
    parts.args(["--locked", "--profile", profile.name]);
    parts.args(PARTS.iter().flat_map(|part| ["--package", *part]));
    Step::new(workspace, "parts of the wheel", parts).run()?;
    let target = workspace
        .target
        .join(cross.map_or("", |cross| cross.triple));
    let built = target.join(profile.directory);
    let package = workspace.target.join("wheel").join("package");
    empty(&package)?;
    let own = workspace.root.join(PACKAGE);
    copy_tree(&own.join("python"), &package.join("python"))?;
    let project = fs::read_to_string(own.join("pyproject.toml"))
        .map_err(|error| format!("cannot read the package's pyproject.toml: {error}"))?;
    // The files are staged, but the crate is not.
    let manifest = own.join("Cargo.toml").display().to_string();
    let mut project = project.replace(
        "manifest-path = \"Cargo.toml\"",
        &format!("manifest-path = {manifest:?}"),
    );
    if !lists.is_empty() {
        let mut names = Vec::new();
        for list in lists {
            let name = list.file_name().unwrap_or_default().to_string_lossy();
            copy(list, &package.join(&*name))?;
            names.push(format!("{name:?}"));
        }
        let names = names.join(", ");
        project += &format!("\n[tool.maturin.sbom]\nrust = false\ninclude = [{names}]\n");
    }
    write(&package.join("pyproject.toml"), project.as_bytes())?;
    copy(&own.join("README.md"), &package.join("README.md"))?;
    copy(&workspace.root.join("LICENSE"), &package.join("LICENSE"))?;
    let mut oldest = 0;
    for (name, place) in FILES {
        let file = built.join(name);
        oldest = oldest.max(glibc(&file)?);
        copy(
            &file,
            &package.join("python").join("crosshandle").join(place),
        )?;
    }
    let tag = TAGS
        .iter()
        .find(|tag| **tag >= oldest)
        .map(|minor| format!("manylinux_2_{minor}"))
        .ok_or_else(|| format!("no platform tag allows glibc 2.{oldest}, which the wheel needs"))?;
    let out = workspace.target.join(profile.wheels);
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
        .args(["--compatibility", &tag, "--out"])
        .arg(&out);
    match cross {
        None => maturin.arg("--interpreter").arg(environment.python()),
        Some(cross) => {
            cross.prepare(&mut maturin);
            maturin.args(["--target", cross.triple, "--zig"])
        }
    };
    Step::new(workspace, "wheel", maturin).run()?;
    let wheel = fs::read_dir(&out)
        .map_err(|error| format!("cannot read {}: {error}", out.display()))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| format!("maturin left no wheel in {}", out.display()))?;
    audit(environment, &wheel, &tag)?;
    say(&format!(
        "the wheel is for {tag}: glibc 2.{oldest} or newer"
    ));
    Ok(wheel)
}

/// Runs `auditwheel` on every program and library in a wheel. Fails if one of them needs more than
/// the wheel's tag allows.
fn audit(environment: &Environment, wheel: &Path, tag: &str) -> Result<()> {
    let output = command(&environment.python())
        .args(["-m", "auditwheel", "show"])
        .arg(wheel)
        .output()
        .map_err(|error| format!("cannot run auditwheel: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // `auditwheel` may wrap the sentence at any of its spaces.
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let confirmed = format!("consistent with the following platform tag: \"{tag}_");
    if output.status.success() && words.contains(&confirmed) {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "auditwheel does not confirm {tag} for {}:\n{text}{errors}",
        wheel.display()
    ))
}

/// Returns the newest minor version of glibc 2 whose symbols an ELF file needs. The file's table of
/// names contains the versions.
fn glibc(file: &Path) -> Result<u32> {
    let bytes =
        fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let mut newest = 0;
    for start in memchr(&bytes, b"GLIBC_2.") {
        let digits = bytes[start..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let minor = String::from_utf8_lossy(&digits.copied().collect::<Vec<_>>()).parse();
        newest = newest.max(minor.unwrap_or(0));
    }
    Ok(newest)
}

/// Returns the position after each occurrence of `text`.
fn memchr<'a>(bytes: &'a [u8], text: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let windows = bytes.windows(text.len()).enumerate();
    windows
        .filter(move |(_, window)| *window == text)
        .map(move |(place, _)| place + text.len())
}

pub(crate) fn empty(directory: &Path) -> Result<()> {
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

pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
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

pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
