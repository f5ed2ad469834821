//! Searches for an OpenCL runtime.

use crate::{Runtime, library};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::sync::Once;

/// Environment variable with the path of the library to use. If it is empty, no library is used.
pub const LIBRARY_VARIABLE: &str = "CROSSHANDLE_OPENCL";
/// Environment variable that names runtimes for OpenCL's own loader, as paths separated by colons.
const RUNTIMES_VARIABLE: &str = "OCL_ICD_FILENAMES";
/// Environment variable with the directories that the dynamic linker searches first.
const DIRECTORIES_VARIABLE: &str = "LD_LIBRARY_PATH";
/// File names of Intel's runtime, and of the loader that finds other runtimes.
const NAMES: [&str; 2] = ["libintelocl.so", "libOpenCL.so.1"];
/// Maximum number of missing libraries that are loaded first for one library.
const MOST_NEEDED: usize = 8;
/// Advice on how to install a runtime, for messages.
pub const REMEDY: &str = "install one (`pip install intel-opencl-rt intel-cmplr-lib-rt`, or the system's package of PoCL), and name its library in CROSSHANDLE_OPENCL unless the dynamic linker finds it";
/// Libraries of Python packages. Intel's runtime is in the same directory if a package installed it
/// too.
const NEIGHBOURS: [&str; 3] = ["libsycl.so", "libur_loader.so", "libur_adapter_opencl.so"];

/// Returns the first suitable runtime. The error lists what was tried and why it was not suitable.
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

/// Returns the reason why a library is not suitable, with the library's name once. The dynamic
/// linker's messages already begin with the name.
fn with_name(library: &OsStr, reason: String) -> String {
    let name = library.display().to_string();
    if reason.starts_with(&name) {
        return reason;
    }
    format!("{name}: {reason}")
}

/// Returns whether a runtime is probably installed, without loading it. This is so if the
/// environment names one, or if Intel's runtime is where the search would look.
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

/// Returns the paths that a library would have in the directories of libraries that this process
/// has loaded.
fn beside_neighbours(maps: &str, name: &str) -> Vec<OsString> {
    let mut found = Vec::new();
    for line in maps.lines() {
        // The path is the sixth field and starts with a slash.
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

/// Loads OpenCL's own loader if it is installed, and keeps it loaded. Some programs call its
/// functions on native handles, and use it only if it is already loaded. The loader loads no
/// runtime before a program asks it for one.
pub fn load_loader() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let loader = NAMES[1];
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut places = beside_neighbours(&maps, loader);
        places.insert(0, loader.into());
        // If this fails, those programs find no OpenCL, as without this call.
        let _ = places
            .iter()
            .any(|place| keep_with_neighbours(place).is_ok());
    });
}

/// Loads a library together with libraries that it needs from the same directory. Python packages
/// put all libraries into one directory, but not every library has that directory in its search
/// path.
fn keep_with_neighbours(path: &OsStr) -> Result<(), String> {
    let mut result = library::keep(path);
    for _ in 0..MOST_NEEDED {
        let Err(reason) = &result else { break };
        // The dynamic linker's message begins with the name of the missing library.
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
