//! The locations of the stock runtime, the clients and the adapter, and the settings of the loader.

use std::env;
use std::path::{Path, PathBuf};

/// The path of the conformance suite's kernels, which are a SPIR-V module.
pub(crate) const KERNELS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../conformance/kernels/kernels.spv"
);

/// The path of the conformance suite's image kernel, which is a SPIR-V module.
pub(crate) const IMAGES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../conformance/kernels/images.spv"
);

/// The stock runtime that `cargo xtask test` has installed, and the adapter that was built with
/// this test.
pub(crate) struct Runtime {
    /// The directory with the compiled clients.
    clients: PathBuf,
    /// The directory that contains `libur_loader.so.0` and `libsycl.so.9`.
    pub(crate) libraries: PathBuf,
    /// The path of a Python interpreter that can import dpctl.
    pub(crate) python: PathBuf,
    pub(crate) adapter: PathBuf,
}

impl Runtime {
    pub(crate) fn find() -> Self {
        Self {
            clients: directory("UR_CLIENTS_DIR"),
            libraries: directory("UR_RUNTIME_LIB_DIR"),
            python: directory("UR_PYTHON"),
            adapter: adapter(),
        }
    }

    /// Returns the path of a compiled client. Panics if the file does not exist.
    pub(crate) fn client(&self, name: &str) -> PathBuf {
        let path = self.clients.join(name);
        assert!(path.is_file(), "there is no {}", path.display());
        path
    }
}

/// Returns the path of a client that is written in Python.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../ur-adapter/clients/python")
        .join(name)
}

fn directory(variable: &str) -> PathBuf {
    let value = env::var_os(variable).unwrap_or_else(|| {
        panic!("{variable} is not set: run these tests with `cargo xtask test`, which sets it")
    });
    let path = PathBuf::from(value);
    assert!(path.exists(), "{variable}: there is no {}", path.display());
    path
}

/// Returns the path of the adapter, which is in the directory of this test program.
fn adapter() -> PathBuf {
    let program = env::current_exe().expect("this program");
    let adapter = program.with_file_name("libur_adapter_crosshandle_host.so");
    assert!(adapter.is_file(), "there is no {}", adapter.display());
    adapter
}

/// The settings of the loader that a test may change.
#[derive(Clone, Copy, Default)]
pub(crate) struct Setting {
    /// Whether the loader intercepts calls. It then finds the adapter's functions through each
    /// handle, which it normally does only if several adapters are loaded.
    pub(crate) intercepted: bool,
    /// Whether the loader's validation layer checks all arguments and the lifetimes of objects.
    pub(crate) validated: bool,
}
