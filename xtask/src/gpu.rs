//! Packs everything that a machine with GPUs needs into one directory. The machine needs no Rust
//! toolchain.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::clients::NOT_FOR_CUDA;
use crate::python::{Environment, PEER_REQUIREMENTS, requirement, requirement_of};
use crate::step::{Step, say};
use crate::workspace::Workspace;
use crate::{Result, bench, clients, ucx, wheel};

/// The script that runs everything on the machine with GPUs.
const SCRIPT: &str = include_str!("gpu/run.sh");
/// The profile of the packed programs, which optimises and omits debug information.
const PROFILE: &str = "packed";
/// Programs of the workspace, with their names in the pack.
const PROGRAMS: [(&str, &str); 5] = [
    ("conformance", "conformance"),
    ("crosshandle-peer", "crosshandle-peer"),
    ("crosshandle", "crosshandle"),
    ("crosshandle-bench", "bench"),
    ("crosshandle-link-peer", "crosshandle-link-peer"),
];

/// Tests that need a GPU, each with its package, the arguments that select the tests, and the
/// program's name in the pack.
const TESTS: [(&str, &[&str], &str); 6] = [
    ("crosshandle-cuda", &["--lib"], "crosshandle-cuda-units"),
    ("crosshandle-ur-adapter", &["--lib"], "adapter-units"),
    ("crosshandle-store", &["--lib"], "store-units"),
    ("crosshandle", &["--test", "threads"], "crosshandle-threads"),
    ("crosshandle", &["--test", "holder"], "crosshandle-holder"),
    (
        "crosshandle-link",
        &["--test", "two_hosts"],
        "crosshandle-two-hosts",
    ),
];

/// The Unified Runtime adapter and its package.
const ADAPTER: (&str, &str) = (
    "crosshandle-ur-adapter-cuda",
    "libur_adapter_crosshandle_cuda.so",
);
/// Files of the stock runtime: its loader, its SYCL library, and the libraries that they need.
const RUNTIME: [&str; 6] = [
    "libur_loader.so.0",
    "libsycl.so.9",
    "libimf.so",
    "libintlc.so.5",
    "libirng.so",
    "libsvml.so",
];
/// Python versions that the machine may have. dpctl is packed for each of them.
const PYTHONS: [&str; 3] = ["3.11", "3.12", "3.13"];
/// Packages that the benchmark of peers compares with, and the Python version of their wheels. The
/// machine has torch.
const PEERS: [&str; 6] = [
    "cuda-bindings",
    "cuda-core",
    "cuda-pathfinder",
    "fastsafetensors",
    "instanttensor",
    "safetensors",
];
const PEERS_PYTHON: &str = "3.12";
/// NIXL, of which only the files that its use of UCX needs are packed (44 of 238 MB).
const NIXL: &str = "nixl-cu13";
const NIXL_FILES: &str = r"nixl_cu13/|\.nixl_cu13\.mesonpy\.libs/lib(nixl|serdes|stream)[^/]*$
    |nixl_cu13\.libs/(nixl/libplugin_UCX|ucx/lib(uct_cuda|uct_cma|ucm_cuda)\.so
    |lib(uc[mpst]-|absl|grpc|gpr|etcd|protobuf|re2|upb|utf8|address_sorting))";
/// A Python program that archives the files of a directory's only wheel whose names match.
const NIXL_ARCHIVE: &str = "\
import glob, re, sys, tarfile, zipfile
directory, archive, needed = sys.argv[1:]
needed = re.compile(needed, re.VERBOSE)
wheel, = glob.glob(directory + '/*.whl')
with zipfile.ZipFile(wheel) as files, tarfile.open(archive, 'w:xz') as out:
    for info in files.infolist():
        if needed.match(info.filename):
            entry = tarfile.TarInfo(info.filename)
            entry.size, entry.mode = info.file_size, 0o755
            out.addfile(entry, files.open(info))
";
/// The example that shares arrays of torch and CuPy: its package, its library, and the directory of
/// its Python programs.
const INTEROP: (&str, &str, &str) = (
    "crosshandle",
    "beneath_python",
    "crates/crosshandle/examples/beneath_python",
);
/// The example of a holder, with its reader in Python.
const HOLDER: [&str; 2] = ["examples/holder/run.sh", "examples/holder/reader.py"];
/// The example whose kernels pass frames, and the files that it needs. The machine compiles it.
const PIPELINE: [&str; 3] = [
    "crates/crosshandle-c/examples/pipeline.cu",
    "crates/crosshandle-c/include/crosshandle.cuh",
    "crates/crosshandle-c/include/crosshandle.h",
];
/// The library for C, as Cargo names it.
const C_LIBRARY: (&str, &str) = ("crosshandle-c", "libcrosshandle_c.so");
/// The kernels that the clients run on GPUs.
const KERNELS: [&str; 2] = [
    "crates/crosshandle-cuda/src/kernels.ptx",
    "crates/crosshandle-cuda/src/images.ptx",
];
/// A Python program that compresses files into an archive. It follows links, and omits directory
/// names.
const ARCHIVE: &str = "import os, sys, tarfile
with tarfile.open(sys.argv[1], 'w:xz', dereference=True) as archive:
    for path in sys.argv[2:]:
        archive.add(path, os.path.basename(path))";

/// Builds the pack in `target/gpu`.
pub(crate) fn pack(workspace: &Workspace) -> Result<()> {
    let packages = [
        "crosshandle-conformance",
        "crosshandle-cli",
        "crosshandle-bench",
        "crosshandle-link",
    ];
    build(workspace, "--bins", &packages)?;
    let (package, adapter) = ADAPTER;
    build(workspace, "--lib", &[package])?;
    let built = workspace.target.join(PROFILE);
    let directory = workspace.target.join("gpu");
    // Files of an earlier version must not be mixed with this version's.
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).map_err(|error| cannot("create", &directory, &error))?;
    for (program, name) in PROGRAMS {
        copy(&built.join(program), &directory.join(name))?;
    }
    copy(&built.join(adapter), &directory.join(adapter))?;
    for (package, chosen, name) in TESTS {
        copy(&tests(workspace, package, chosen)?, &directory.join(name))?;
    }
    pack_clients(workspace, &directory)?;
    pack_interop(workspace, &directory)?;
    pack_holder(workspace, &directory)?;
    pack_pipeline(workspace, &directory)?;
    wheel::pack(workspace, &directory.join("python"))?;
    ucx::pack(workspace, &directory)?;
    pack_peers(workspace, &directory)?;
    let commit = directory.join("commit");
    fs::write(&commit, bench::commit(workspace)?)
        .map_err(|error| cannot("write", &commit, &error))?;
    let script = directory.join("run.sh");
    fs::write(&script, SCRIPT).map_err(|error| cannot("write", &script, &error))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .map_err(|error| cannot("make executable", &script, &error))?;
    say(&format!(
        "{}: {:.1} MiB; run ./run.sh there",
        directory.display(),
        size_of(&directory)? as f64 / f64::from(1 << 20)
    ));
    Ok(())
}

fn build(workspace: &Workspace, what: &str, packages: &[&str]) -> Result<()> {
    let mut build = workspace.cargo(&["build", "--locked", what, "--profile", PROFILE]);
    for package in packages {
        build.args(["--package", package]);
    }
    let status = build
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !status.success() {
        return Err("the programs don't build".into());
    }
    Ok(())
}

/// Packs the example whose kernels pass frames, with the library for C.
fn pack_pipeline(workspace: &Workspace, directory: &Path) -> Result<()> {
    let (package, library) = C_LIBRARY;
    build(workspace, "--lib", &[package])?;
    let target = directory.join("pipeline");
    fs::create_dir_all(&target).map_err(|error| cannot("create", &target, &error))?;
    let built = workspace.target.join(PROFILE).join(library);
    copy(&built, &target.join(library))?;
    for file in PIPELINE {
        let source = workspace.root.join(file);
        copy(
            &source,
            &target.join(source.file_name().unwrap_or_default()),
        )?;
    }
    Ok(())
}

/// Packs the adapter's clients, and the files of the stock runtime that they need.
fn pack_clients(workspace: &Workspace, directory: &Path) -> Result<()> {
    let environment = Environment::ensure(workspace)?;
    let clients = clients::build(workspace, &environment)?;
    let programs = directory.join("clients");
    fs::create_dir_all(&programs).map_err(|error| cannot("create", &programs, &error))?;
    let is_for_cuda = |name: &&String| !NOT_FOR_CUDA.contains(&name.as_str());
    for name in clients.names.iter().filter(is_for_cuda) {
        copy(&clients.directory.join(name), &programs.join(name))?;
    }
    let mut archive = Command::new(environment.python());
    archive
        .args(["-c", ARCHIVE])
        .arg(directory.join("runtime.tar.xz"))
        .args(RUNTIME.map(|library| environment.library_dir().join(library)));
    Step::new(workspace, "the stock runtime, compressed", archive).run()?;
    let required = workspace.target.join("dpctl-requirement.txt");
    fs::write(&required, requirement("dpctl")?)
        .map_err(|error| cannot("write", &required, &error))?;
    for python in PYTHONS {
        let mut download = environment.pip();
        download
            .args(["download", "--no-deps", "--only-binary", ":all:"])
            .args(["--python-version", python, "--dest"])
            .arg(directory)
            .args(["--require-hashes", "--requirement"])
            .arg(&required);
        Step::new(workspace, format!("dpctl for Python {python}"), download).run()?;
    }
    let script = workspace
        .root
        .join(clients::SOURCES)
        .join("python/arrays.py");
    copy(&script, &programs.join("arrays.py"))?;
    for kernels in KERNELS {
        let source = workspace.root.join(kernels);
        let name = source.file_name().unwrap_or_default();
        copy(&source, &programs.join(name))?;
    }
    Ok(())
}

/// Packs the wheels of the benchmark's peers. A wheel that cannot be fetched is left out, and the
/// benchmark skips its rows.
fn pack_peers(workspace: &Workspace, directory: &Path) -> Result<()> {
    let target = directory.join("peers");
    fs::create_dir_all(&target).map_err(|error| cannot("create", &target, &error))?;
    let environment = Environment::for_wheel(workspace)?;
    for package in PEERS {
        download_peer(workspace, &environment, package, &target)?;
    }
    let nixl = workspace.target.join("pack").join("nixl");
    let _ = fs::remove_dir_all(&nixl);
    fs::create_dir_all(&nixl).map_err(|error| cannot("create", &nixl, &error))?;
    if download_peer(workspace, &environment, NIXL, &nixl)? {
        let mut archive = Command::new(environment.python());
        archive
            .args(["-c", NIXL_ARCHIVE])
            .args([&nixl, &directory.join("nixl.tar.xz")])
            .arg(NIXL_FILES);
        Step::new(workspace, "nixl.tar.xz, compressed", archive).run()?;
    }
    Ok(())
}

/// Downloads the wheel of a compared package. Returns whether the index has it.
fn download_peer(
    workspace: &Workspace,
    environment: &Environment,
    package: &str,
    target: &Path,
) -> Result<bool> {
    let required = workspace.target.join("peer-requirement.txt");
    fs::write(&required, requirement_of(PEER_REQUIREMENTS, package)?)
        .map_err(|error| cannot("write", &required, &error))?;
    let mut download = environment.pip();
    download
        .args(["download", "--no-deps", "--only-binary", ":all:"])
        .args(["--python-version", PEERS_PYTHON, "--dest"])
        .arg(target)
        .args(["--require-hashes", "--requirement"])
        .arg(&required);
    let step = Step::new(workspace, format!("{package} for the benchmark"), download);
    let problem = step.run_optional()?;
    if let Some(problem) = &problem {
        say(&format!("{package} is left out: {problem}"));
    }
    Ok(problem.is_none())
}

/// Packs the example that shares arrays of torch and CuPy.
fn pack_interop(workspace: &Workspace, directory: &Path) -> Result<()> {
    let (package, example, sources) = INTEROP;
    build(workspace, &format!("--example={example}"), &[package])?;
    let target = directory.join("interop");
    fs::create_dir_all(&target).map_err(|error| cannot("create", &target, &error))?;
    let library = format!("lib{example}.so");
    let examples = workspace.target.join(PROFILE).join("examples");
    copy(&examples.join(&library), &target.join(&library))?;
    let sources = workspace.root.join(sources);
    let entries = fs::read_dir(&sources).map_err(|error| cannot("read", &sources, &error))?;
    for entry in entries.flatten() {
        if entry.path().extension().is_some_and(|end| end == "py") {
            copy(&entry.path(), &target.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Packs the example of a holder, which only needs the command.
fn pack_holder(workspace: &Workspace, directory: &Path) -> Result<()> {
    let target = directory.join("holder");
    fs::create_dir_all(&target).map_err(|error| cannot("create", &target, &error))?;
    for file in HOLDER.map(|file| workspace.root.join(file)) {
        copy(&file, &target.join(file.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

/// Builds the program with the selected tests of a package, and returns its path.
fn tests(workspace: &Workspace, package: &str, chosen: &[&str]) -> Result<PathBuf> {
    let args = [
        "test",
        "--locked",
        "--no-run",
        "--package",
        package,
        "--profile",
        PROFILE,
        "--message-format",
        "json",
    ];
    let output = workspace
        .cargo(&args)
        .args(chosen)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err("the tests don't build".into());
    }
    // Each line describes an artifact, with the path of its program or null. Programs that the
    // tests start are built too.
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.contains(r#""test":true},"features""#))
        .filter_map(|line| line.split_once(r#""executable":""#)?.1.split_once('"'))
        .map(|(path, _)| PathBuf::from(path))
        .next_back()
        .ok_or_else(|| "cargo names no program with the tests".into())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = fs::copy(from, to).map_err(|error| cannot("copy", from, &error));
    copied.map(drop)
}

/// Returns the total size of the files in a directory, in bytes.
fn size_of(directory: &Path) -> Result<u64> {
    let entries = fs::read_dir(directory).map_err(|error| cannot("read", directory, &error))?;
    let mut total = 0;
    for entry in entries.flatten() {
        let path = entry.path();
        total += match entry.metadata() {
            Ok(data) if data.is_dir() => size_of(&path)?,
            Ok(data) => data.len(),
            Err(error) => return Err(cannot("look at", &path, &error)),
        };
    }
    Ok(total)
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_runs_every_client() {
        let words: Vec<_> = SCRIPT
            .split_ascii_whitespace()
            .map(|word| word.trim_end_matches(';'))
            .collect();
        let mut clients = clients::FOR_LOADER.iter().chain(&clients::FOR_SYCL);
        let missing =
            clients.find(|client| !words.contains(client) && !NOT_FOR_CUDA.contains(client));
        assert_eq!(missing, None);
    }
}
