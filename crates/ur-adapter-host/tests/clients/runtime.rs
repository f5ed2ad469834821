//! Where the stock runtime and the adapter are, and how the loader is set.

use std::env;
use std::path::PathBuf;

/// The stock runtime, as `cargo xtask test` names it, and the adapter that was built with this
/// test.
pub(crate) struct Runtime {
    /// Holds `unified-runtime/` and `sycl/`.
    pub(crate) include: PathBuf,
    /// Holds `libur_loader.so.0` and `libsycl.so.9`.
    pub(crate) libraries: PathBuf,
    /// An interpreter that finds dpctl.
    pub(crate) python: PathBuf,
    pub(crate) adapter: PathBuf,
}

impl Runtime {
    pub(crate) fn find() -> Self {
        Self {
            include: directory("UR_INCLUDE_DIR"),
            libraries: directory("UR_RUNTIME_LIB_DIR"),
            python: directory("UR_PYTHON"),
            adapter: adapter(),
        }
    }
}

fn directory(variable: &str) -> PathBuf {
    let value = env::var_os(variable).unwrap_or_else(|| {
        panic!("{variable} is not set: run these tests with `cargo xtask test`, which sets it")
    });
    let path = PathBuf::from(value);
    assert!(path.exists(), "{variable}: there is no {}", path.display());
    path
}

/// Cargo puts it beside this very program.
fn adapter() -> PathBuf {
    let program = env::current_exe().expect("this program");
    let adapter = program.with_file_name("libur_adapter_crosshandle_host.so");
    assert!(adapter.is_file(), "there is no {}", adapter.display());
    adapter
}

/// How the loader treats the adapter.
#[derive(Clone, Copy, Default)]
pub(crate) struct Setting {
    /// It finds the adapter's functions through each handle, as with several adapters.
    pub(crate) intercepted: bool,
    /// It checks all arguments, and the lives of objects, by itself.
    pub(crate) validated: bool,
}
