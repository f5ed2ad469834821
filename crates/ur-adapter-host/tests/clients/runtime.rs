//! The locations of the stock runtime and the adapter, and the settings of the loader.

use std::env;
use std::path::{Path, PathBuf};

/// The kernels of the conformance suite, as a module in SPIR-V.
pub(crate) const KERNELS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../conformance/kernels/kernels.spv"
);

/// The suite's kernel on images.
pub(crate) const IMAGES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../conformance/kernels/images.spv"
);

/// The stock runtime that `cargo xtask test` names, and the adapter that was built with this test.
pub(crate) struct Runtime {
    /// The directory of the compiled clients.
    clients: PathBuf,
    /// The directory of `libur_loader.so.0` and `libsycl.so.9`.
    pub(crate) libraries: PathBuf,
    /// A Python interpreter that can import dpctl.
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

    /// Returns a compiled client.
    pub(crate) fn client(&self, name: &str) -> PathBuf {
        let path = self.clients.join(name);
        assert!(path.is_file(), "there is no {}", path.display());
        path
    }
}

/// Returns the path of a Python client.
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

/// Returns the path of the adapter, which is next to this program.
fn adapter() -> PathBuf {
    let program = env::current_exe().expect("this program");
    let adapter = program.with_file_name("libur_adapter_crosshandle_host.so");
    assert!(adapter.is_file(), "there is no {}", adapter.display());
    adapter
}

/// A setting of the loader.
#[derive(Clone, Copy, Default)]
pub(crate) struct Setting {
    /// Whether the loader finds the adapter's functions through each handle, as with several
    /// adapters.
    pub(crate) intercepted: bool,
    /// Whether the loader itself validates all arguments and the lifetimes of objects.
    pub(crate) validated: bool,
}
