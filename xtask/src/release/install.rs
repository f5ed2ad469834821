//! Installs the files of a release into empty places, and uses them there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::python::{Environment, command};
use crate::step::Step;
use crate::workspace::Workspace;
use crate::{Result, debian, wheel};

/// Time limit of a program that was installed. Each takes seconds.
const LIMIT: Duration = Duration::from_secs(2 * 60);
/// The packages of Debian that the Debian package needs.
const BASE: [&str; 2] = ["libc6", "libgcc-s1"];

/// Installs the wheel into a new environment, and the Debian package into a root that has only its
/// needed packages. Returns what could not be checked, with reasons.
pub(super) fn check(
    workspace: &Workspace,
    python: &Environment,
    dist: &Path,
) -> Result<Vec<String>> {
    let directory = workspace.target.join("release-check");
    wheel::empty(&directory)?;
    python_package(workspace, python, dist, &directory.join("environment"))?;
    let mut skipped = Vec::new();
    let root = directory.join("root");
    match base(workspace, &root) {
        Ok(container) => debian_package(workspace, dist, &root, &container)?,
        Err(reason) => skipped.push(format!("installing the Debian package: {reason}")),
    }
    Ok(skipped)
}

/// Installs the wheel into a new environment, and runs its tour and its command there.
fn python_package(
    workspace: &Workspace,
    python: &Environment,
    dist: &Path,
    environment: &Path,
) -> Result<()> {
    let mut create = command(&python.python());
    create.args(["-m", "venv"]).arg(environment);
    Step::new(workspace, "new python environment", create).run()?;
    let programs = environment.join("bin");
    let mut install = command(&programs.join("python"));
    install.args(["-m", "pip", "install", "--quiet", "--no-index"]);
    install.arg("--disable-pip-version-check");
    install.arg(file(dist, "_x86_64.whl")?);
    Step::new(workspace, "install the released wheel", install).run()?;
    let mut tour = command(&programs.join("python"));
    tour.args(["-m", "crosshandle.tour"]);
    let demo = command(&programs.join("crosshandle"));
    let steps = [("tour", tour), ("demo", demo)];
    for (name, mut run) in steps {
        if name == "demo" {
            run.arg("demo");
        }
        Step::new(workspace, format!("released wheel: {name}"), run)
            .limit(LIMIT)
            .run()?;
    }
    Ok(())
}

/// Installs the Debian package into `root`, runs its command there, and builds and runs a C program
/// on its library.
fn debian_package(workspace: &Workspace, dist: &Path, root: &Path, container: &Path) -> Result<()> {
    unpack(workspace, &file(dist, ".deb")?, root)?;
    let compile = "cc -std=c11 -D_GNU_SOURCE -o \"$1/share\" \"$2\" \
        $(pkg-config --cflags --libs crosshandle)";
    let mut build = Command::new("sh");
    build.args(["-c", compile, "sh"]).arg(root);
    build.arg(workspace.root.join("crates/crosshandle-c/examples/share.c"));
    build.env("PKG_CONFIG_LIBDIR", root.join("usr/lib/pkgconfig"));
    build.env("PKG_CONFIG_SYSROOT_DIR", root);
    // These directories are the system's only inside of the root.
    build.env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1");
    build.env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
    Step::new(workspace, "C program on the Debian package", build).run()?;
    let programs: [&[&str]; 4] = [
        &["/usr/bin/crosshandle", "--version"],
        &["/usr/bin/crosshandle", "doctor"],
        &["/usr/bin/crosshandle", "demo"],
        &["/share"],
    ];
    for program in programs {
        let mut run = Command::new(container);
        run.arg("--bind").arg(root).arg("/");
        run.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
        run.args([
            "--unshare-pid",
            "--unshare-net",
            "--unshare-ipc",
            "--clearenv",
        ]);
        run.args(program);
        let name = format!("Debian package: {}", program.join(" "));
        Step::new(workspace, name, run).limit(LIMIT).run()?;
    }
    Ok(())
}

/// Creates a root with only the packages that the Debian package needs. Returns the program that
/// runs commands in it.
fn base(workspace: &Workspace, root: &Path) -> Result<PathBuf> {
    let container = debian::BUBBLEWRAP.ensure(workspace)?.join("usr/bin/bwrap");
    debian::loads(&container)?;
    let packages = root.with_extension("packages");
    wheel::empty(&packages)?;
    wheel::empty(root)?;
    let mut download = Command::new("apt-get");
    download.current_dir(&packages).arg("download").args(BASE);
    let step = Step::new(workspace, "download the base packages", download);
    if let Some(reason) = step.run_optional()? {
        return Err(format!("apt-get download: {reason}"));
    }
    let files =
        fs::read_dir(&packages).map_err(|error| format!("cannot read packages: {error}"))?;
    for entry in files.flatten() {
        unpack(workspace, &entry.path(), root)?;
    }
    Ok(container)
}

fn unpack(workspace: &Workspace, package: &Path, root: &Path) -> Result<()> {
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("--extract").arg(package).arg(root);
    let name = package.file_stem().unwrap_or_default().to_string_lossy();
    Step::new(workspace, format!("unpack {name}"), unpack).run()
}

/// Returns the file in a directory whose name ends with a text.
fn file(directory: &Path, ending: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory);
    let entries =
        entries.map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths
        .find(|path| path.to_string_lossy().ends_with(ending))
        .ok_or_else(|| format!("{} has no file *{ending}", directory.display()))
}
