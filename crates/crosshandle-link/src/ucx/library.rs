//! Finds the UCX library, and loads it when a link first needs it.

use super::sys::*;
use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, c_int, c_uint};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

/// The environment variable that contains the path of UCX's library `libucp.so.0`, or of its
/// directory.
pub const UCX_VARIABLE: &str = "CROSSHANDLE_UCX";
const FILE: &str = "libucp.so.0";

/// The loaded library, which is never unloaded.
pub(crate) struct Ucx {
    pub(crate) call: Functions,
    version: (u32, u32, u32),
    path: PathBuf,
}

static LOADED: OnceLock<Result<Ucx, String>> = OnceLock::new();

/// Returns the UCX library, and loads it on first use.
pub(crate) fn get() -> Result<&'static Ucx> {
    let loaded = LOADED.get_or_init(load);
    loaded
        .as_ref()
        .map_err(|why| Error::NoUcx(why.clone().into()))
}

impl Ucx {
    pub(crate) fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    /// Returns the library's path that was passed to the dynamic loader.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Converts a status to a result. The error contains the name of the call and UCX's error code.
    pub(crate) fn check(&self, call: &'static str, status: ucs_status_t) -> Result<()> {
        match status {
            UCS_OK => Ok(()),
            code => Err(self.error(call, code)),
        }
    }

    pub(crate) fn error(&self, call: &'static str, code: ucs_status_t) -> Error {
        // SAFETY: `ucs_status_string` accepts any code, and returns a static C string.
        let text = unsafe { CStr::from_ptr((self.call.ucs_status_string)(code)) };
        Error::Ucx {
            call,
            code: code.into(),
            text: text.to_string_lossy().into(),
        }
    }
}

fn load() -> Result<Ucx, String> {
    let path = match std::env::var_os(UCX_VARIABLE).filter(|value| !value.is_empty()) {
        Some(named) if Path::new(&named).is_dir() => Path::new(&named).join(FILE),
        Some(named) => PathBuf::from(named),
        None => PathBuf::from(FILE),
    };
    let cannot = |why: &dyn std::fmt::Display| {
        format!(
            "{} cannot be loaded ({why}); install UCX 1.22 or newer, or name the library in {UCX_VARIABLE}: \
             the Python packages libucx-cu12 and libucx-cu13 have it in libucx/lib",
            path.display()
        )
    };
    // SAFETY: UCX's initialisers may run in any thread. If the user's environment selects another
    // library, the user is responsible for its initialisers.
    let library = with_own_signal_handlers(|| unsafe { Library::new(&path) })
        .map_err(|error| cannot(&error))?;
    type GetVersion = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
    // SAFETY: each version of the library has this function with this type. The function fills in
    // three numbers.
    let version = unsafe {
        let get: libloading::Symbol<'_, GetVersion> = library
            .get("ucp_get_version\0")
            .map_err(|error| cannot(&error))?;
        let (mut major, mut minor, mut release) = (0, 0, 0);
        get(&mut major, &mut minor, &mut release);
        (major, minor, release)
    };
    if version.0 != UCP_API_MAJOR || version.1 < UCP_API_MINOR {
        let (major, minor, release) = version;
        return Err(cannot(&format!("it is version {major}.{minor}.{release}")));
    }
    // SAFETY: the version was checked above. Later minor versions keep the functions that `sys`
    // declares.
    let call = unsafe { Functions::from_library(library) }.map_err(|error| cannot(&error))?;
    Ok(Ucx {
        call,
        version,
        path,
    })
}

/// Calls `load`, and then restores the process's signal handlers. Loading UCX installs a handler
/// for `SIGHUP`, and handlers for other signals depending on UCX's settings. But only the program
/// may choose its handlers.
fn with_own_signal_handlers<R>(load: impl FnOnce() -> R) -> R {
    const LAST_SIGNAL: c_int = 31;
    let mut before = Vec::new();
    for signal in 1..=LAST_SIGNAL {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: without a new action, `sigaction` only writes the current action to `action`.
        if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } == 0 {
            // SAFETY: `sigaction` has succeeded, so it has filled in `action`.
            before.push((signal, unsafe { action.assume_init() }));
        }
    }
    let loaded = load();
    for (signal, action) in before {
        // SAFETY: the process had this action before. The kernel does not permit setting the
        // actions for SIGKILL and SIGSTOP, which cannot have changed.
        unsafe { libc::sigaction(signal, &action, ptr::null_mut()) };
    }
    loaded
}

#[cfg(test)]
mod tests {
    /// Returns a bit mask of the signals for which the process has handlers, except for the C
    /// library's internal signals.
    fn caught() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap() & 0x7fff_ffff
    }

    #[test]
    #[ignore = "needs UCX; `cargo xtask test` runs it"]
    fn loading_leaves_the_process_its_signal_handlers() {
        let before = caught();
        super::get().expect("UCX");
        assert_eq!(caught(), before);
    }
}
