//! The search for a runtime.

use crate::{Runtime, library};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::sync::Once;

/// The environment variable with the path of the library to use. Empty: none is used.
pub const LIBRARY_VARIABLE: &str = "CROSSHANDLE_OPENCL";
/// The variable by which OpenCL's own loader is told of runtimes: paths with colons between them.
const RUNTIMES_VARIABLE: &str = "OCL_ICD_FILENAMES";
/// The variable with the directories that the dynamic linker searches first.
const DIRECTORIES_VARIABLE: &str = "LD_LIBRARY_PATH";
/// Intel's runtime, and the loader that finds others.
const NAMES: [&str; 2] = ["libintelocl.so", "libOpenCL.so.1"];
/// Libraries that a loader may need.
const MOST_NEEDED: usize = 8;
/// What brings a runtime, for messages.
pub const REMEDY: &str = "install one (`pip install intel-opencl-rt intel-cmplr-lib-rt`, or the system's package of PoCL), and name its library in CROSSHANDLE_OPENCL unless the dynamic linker finds it";
/// Libraries of Python packages, beside which Intel's runtime lies if it was installed there too.
const NEIGHBOURS: [&str; 3] = ["libsycl.so", "libur_loader.so", "libur_adapter_opencl.so"];

/// Returns the first runtime that serves, or what was looked for and why nothing serves.
pub(crate) fn find() -> Result<Runtime, String> {
    let mut reasons = Vec::new();
    if let Some(named) = env::var_os(LIBRARY_VARIABLE) {
        if named.is_empty() {
            return Err(format!(
                "{LIBRARY_VARIABLE} is set to nothing, so that no OpenCL runtime is looked for"
            ));
        }
        return Runtime::load(&named).map_err(|reason| {
            format!(
                "the OpenCL library that {LIBRARY_VARIABLE} names does not serve: {}: {reason}",
                named.display()
            )
        });
    }
    for library in candidates() {
        match Runtime::load(&library) {
            Ok(runtime) => return Ok(runtime),
            Err(reason) => reasons.push(with_name(&library, reason)),
        }
    }
    Err(format!(
        "no OpenCL runtime for the CPU was found ({}); {REMEDY}",
        reasons.join("; ")
    ))
}

/// Returns why a library does not serve, with the library's name, which the dynamic linker says too.
fn with_name(library: &OsStr, reason: String) -> String {
    let name = library.display().to_string();
    if reason.starts_with(&name) {
        return reason;
    }
    format!("{name}: {reason}")
}

/// Returns whether there is a runtime, as far as can be said without loading it: the environment names
/// one, or Intel's lies where it would be looked for.
pub fn is_at_hand() -> bool {
    if let Some(named) = env::var_os(LIBRARY_VARIABLE) {
        return Path::new(&named).is_file();
    }
    let directories = env::var_os(DIRECTORIES_VARIABLE).unwrap_or_default();
    let mut in_directories = env::split_paths(&directories).map(|path| path.join(NAMES[0]));
    in_directories.any(|path| path.is_absolute() && path.is_file())
        || candidates().iter().any(|path| {
            let path = Path::new(path);
            path.is_absolute() && path.is_file()
        })
}

/// Returns the libraries to try, in order.
fn candidates() -> Vec<OsString> {
    let listed = env::var_os(RUNTIMES_VARIABLE).unwrap_or_default();
    let mut all: Vec<OsString> = env::split_paths(&listed)
        .map(OsString::from)
        .filter(|path| !path.is_empty())
        .collect();
    let (intel, loader) = (NAMES[0], NAMES[1]);
    all.push(intel.into());
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    all.extend(beside_neighbours(&maps, intel));
    all.push(loader.into());
    all
}

/// Returns the paths at which a library would lie beside those that the process has loaded.
fn beside_neighbours(maps: &str, name: &str) -> Vec<OsString> {
    let mut found = Vec::new();
    for line in maps.lines() {
        // The path is the sixth field, and begins at a slash.
        let Some(start) = line.find('/') else {
            continue;
        };
        let path = Path::new(&line[start..]);
        let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if !NEIGHBOURS.iter().any(|known| file.starts_with(known)) {
            continue;
        }
        let Some(beside) = path.parent().map(|parent| parent.join(name)) else {
            continue;
        };
        let beside = beside.into_os_string();
        if !found.contains(&beside) && Path::new(&beside).is_file() {
            found.push(beside);
        }
    }
    found
}

/// Loads OpenCL's own loader, if it is installed, and keeps it: some programs use its functions on native
/// handles, and look only for one that is loaded already. It loads no runtime before it is asked for
/// one.
pub fn load_loader() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let loader = NAMES[1];
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut places = beside_neighbours(&maps, loader);
        places.insert(0, loader.into());
        // Without it, those programs find no OpenCL, as before.
        let _ = places
            .iter()
            .any(|place| keep_with_neighbours(place).is_ok());
    });
}

/// Loads a library and those that it needs and that lie beside it: Python packages put all into one
/// directory, but not every library says that the others are there.
fn keep_with_neighbours(path: &OsStr) -> Result<(), String> {
    let mut result = library::keep(path);
    for _ in 0..MOST_NEEDED {
        let Err(reason) = &result else { break };
        // The dynamic linker names what is missing first.
        let missing = reason.split(':').next().map(Path::new);
        let Some(directory) = Path::new(path).parent() else {
            break;
        };
        let Some(missing) = missing.filter(|missing| missing.is_relative()) else {
            break;
        };
        if library::keep(directory.join(missing).as_os_str()).is_err() {
            break;
        }
        result = library::keep(path);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_looked_for_beside_sycl() {
        let directory = env::temp_dir().join(format!("opencl-cpu-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let runtime = directory.join("libintelocl.so");
        fs::write(&runtime, "").unwrap();
        let at = directory.display();
        let maps = format!(
            "00400000-00452000 r-xp 00000000 08:02 1 {at}/libsycl.so.9\n\
             00452000-00453000 r-xp 00000000 08:02 1 {at}/libsycl.so.9\n\
             00600000-00700000 r-xp 00000000 08:02 1 {at}/elsewhere/libur_loader.so.0\n\
             00700000-00800000 rw-p 00000000 00:00 0 \n\
             00800000-00900000 rw-p 00000000 00:00 0 [heap]\n"
        );
        let found = beside_neighbours(&maps, "libintelocl.so");
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found, [runtime.into_os_string()]);
    }
}
