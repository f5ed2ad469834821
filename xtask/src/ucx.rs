//! Fetches UCX for the tests of links. It comes from the Python package index, at a fixed version,
//! without the files that are not needed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Result;
use crate::python::{Environment, command};
use crate::step::Step;
use crate::workspace::Workspace;

/// The package of UCX, and its version.
const PACKAGE: &str = "libucx-cu12==1.22.0";
const SHA256: &str = "5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a";
/// A regular expression for the beginnings of the needed files' names: the headers, the libraries
/// and the transports for this machine, each library once (18 of 120 MB).
const NEEDED: &str =
    r"libucx/include/|libucx/lib/(ucx/)?(?!.*perftest)[^/]*\.so\.0$|libucx_cu12\.libs/libcudart";

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
    let package = fetch(workspace)?;
    Ok(("CROSSHANDLE_UCX", package.join("libucx/lib")))
}

/// Returns the directory of UCX's headers. Fetches UCX if necessary.
pub(crate) fn include(workspace: &Workspace) -> Result<PathBuf> {
    Ok(fetch(workspace)?.join("libucx/include"))
}

/// Packs UCX for a machine with GPUs: `ucx.tar.xz`.
pub(crate) fn pack(workspace: &Workspace, directory: &Path) -> Result<()> {
    let mut archive = command(&Environment::for_wheel(workspace)?.python());
    archive
        .args(["-c", ARCHIVE])
        .arg(directory.join("ucx.tar.xz"))
        .arg(fetch(workspace)?)
        .arg("/include(/|$)|^complete$|^requirement");
    Step::new(workspace, "ucx.tar.xz, compressed", archive).run()
}

/// Returns the directory with the needed files of UCX. Fetches them if necessary.
fn fetch(workspace: &Workspace) -> Result<PathBuf> {
    if !cfg!(target_arch = "x86_64") {
        return Err("UCX is fetched for x86-64 alone".into());
    }
    let tools = workspace.target.join("tools");
    let directory = tools.join(PACKAGE.replace("==", "-"));
    let cannot =
        |what: &str, path: &Path, error| format!("cannot {what} {}: {error}", path.display());
    fs::create_dir_all(&tools).map_err(|error| cannot("create", &tools, error))?;
    // Closing the file unlocks it, even if this process is killed.
    let lock = File::create(directory.with_added_extension("lock"))
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| cannot("lock", &directory, error))?;
    let stamp = directory.join("complete");
    let complete = format!("{SHA256} {NEEDED}");
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
    fs::write(&required, format!("{PACKAGE} --hash=sha256:{SHA256}\n"))
        .map_err(|error| cannot("write", &required, error))?;
    let mut download = environment.pip();
    download
        .args(["download", "--no-deps", "--only-binary", ":all:"])
        .arg("--dest")
        .arg(&directory)
        .args(["--require-hashes", "--requirement"])
        .arg(&required);
    let step = Step::new(workspace, format!("download {PACKAGE}"), download)
        .limit(Duration::from_secs(5 * 60));
    if let Some(problem) = step.run_optional()? {
        return Err(problem);
    }
    let entries = fs::read_dir(&directory).map_err(|error| cannot("read", &directory, error))?;
    let mut files = entries.flatten().map(|entry| entry.path());
    let wheel = files
        .find(|path| path.extension().is_some_and(|end| end == "whl"))
        .ok_or_else(|| format!("{PACKAGE} was downloaded but is not there"))?;
    let mut unpack = command(&environment.python());
    unpack
        .args(["-c", UNPACK])
        .arg(&wheel)
        .arg(&directory)
        .arg(NEEDED);
    Step::new(workspace, format!("unpack {PACKAGE}"), unpack)
        .limit(Duration::from_secs(60))
        .run()?;
    fs::remove_file(&wheel).map_err(|error| cannot("remove", &wheel, error))?;
    fs::write(&stamp, complete).map_err(|error| cannot("finish", &directory, error))?;
    drop(lock);
    Ok(directory)
}
