//! UCX, for the tests of links: out of its package in Python's index, at a fixed version, without what no
//! test needs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Result;
use crate::python::{Environment, command};
use crate::step::Step;
use crate::workspace::Workspace;

const NAME: &str = "libucx-cu12";
const VERSION: &str = "1.22.0";
const SHA256: &str = "5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a";

/// Unpacks the headers, the libraries and the transports of the machine, once under each library's name, out
/// of a wheel: 14 of 120 MB.
const UNPACK: &str = "\
import pathlib, sys, zipfile
wheel, into = sys.argv[1:]
for name in zipfile.ZipFile(wheel).namelist():
    path = pathlib.PurePosixPath(name)
    library = name.startswith('libucx/lib/') and name.endswith('.so.0')
    if name.startswith('libucx/include/') or library and 'perftest' not in name:
        zipfile.ZipFile(wheel).extract(name, into)
";

/// Returns the variables by which tests find UCX and its headers. Fetches UCX if it is not there.
///
/// # Errors
/// Why there is none.
pub(crate) fn variables(workspace: &Workspace) -> Result<[(&'static str, PathBuf); 2]> {
    if !cfg!(target_arch = "x86_64") {
        return Err(format!("{NAME} is fetched for x86-64 alone"));
    }
    let tools = workspace.target.join("tools");
    let directory = tools.join(format!("{NAME}-{VERSION}"));
    let cannot =
        |what: &str, path: &Path, error| format!("cannot {what} {}: {error}", path.display());
    fs::create_dir_all(&tools).map_err(|error| cannot("create", &tools, error))?;
    // Closing the file unlocks it, however this process ends.
    let lock = File::create(directory.with_added_extension("lock"))
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| cannot("lock", &directory, error))?;
    let stamp = directory.join("complete");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == SHA256) {
        drop(lock);
        return Ok(found(&directory));
    }
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(|error| cannot("remove", &directory, error))?;
    }
    fs::create_dir_all(&directory).map_err(|error| cannot("create", &directory, error))?;
    let environment = Environment::for_wheel(workspace)?;
    let required = directory.join("requirement.txt");
    fs::write(
        &required,
        format!("{NAME}=={VERSION} --hash=sha256:{SHA256}\n"),
    )
    .map_err(|error| cannot("write", &required, error))?;
    let mut download = environment.pip();
    download
        .args(["download", "--no-deps", "--only-binary", ":all:", "--dest"])
        .arg(&directory)
        .args(["--require-hashes", "--requirement"])
        .arg(&required);
    let step = Step::new(workspace, format!("download {NAME} {VERSION}"), download)
        .limit(Duration::from_secs(5 * 60));
    if let Some(problem) = step.run_optional()? {
        return Err(problem);
    }
    let entries = fs::read_dir(&directory).map_err(|error| cannot("read", &directory, error))?;
    let mut files = entries.flatten().map(|entry| entry.path());
    let wheel = files
        .find(|path| path.extension().is_some_and(|end| end == "whl"))
        .ok_or_else(|| format!("{NAME} was downloaded but is not there"))?;
    let mut unpack = command(&environment.python());
    unpack.args(["-c", UNPACK]).arg(&wheel).arg(&directory);
    Step::new(workspace, format!("unpack {NAME}"), unpack)
        .limit(Duration::from_secs(60))
        .run()?;
    fs::remove_file(&wheel).map_err(|error| cannot("remove", &wheel, error))?;
    fs::write(&stamp, SHA256).map_err(|error| cannot("finish", &directory, error))?;
    drop(lock);
    Ok(found(&directory))
}

fn found(directory: &Path) -> [(&'static str, PathBuf); 2] {
    let package = directory.join("libucx");
    [
        ("CROSSHANDLE_UCX", package.join("lib")),
        ("LIBUCX_INCLUDE_DIR", package.join("include")),
    ]
}
