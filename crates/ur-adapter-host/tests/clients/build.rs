//! Compiles clients with the system's compilers, once for all tests.

use crate::runtime::Runtime;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The source of a client.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// In `clients/`, for the stock loader.
    C(&'static str),
    /// In this package, for the stock SYCL runtime, which has a loader of its own.
    Sycl(&'static str),
}

/// A file in `clients/`.
pub(crate) fn client(name: &str) -> PathBuf {
    package().join("clients").join(name)
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Source {
    fn path(self) -> PathBuf {
        match self {
            Self::C(name) => client(name),
            Self::Sycl(path) => package().join(path),
        }
    }

    fn command(self, runtime: &Runtime) -> Command {
        let mut command;
        match self {
            Self::C(_) => {
                command = Command::new(compiler("CC", "cc"));
                command.args(["-std=c11", "-D_GNU_SOURCE"]);
            }
            Self::Sycl(_) => {
                command = Command::new(compiler("CXX", "c++"));
                command.args(["-std=c++17", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING"]);
            }
        }
        command.args(["-O1", "-g", "-Wall", "-Wextra", "-pthread", "-isystem"]);
        command.arg(&runtime.include).arg(self.path());
        command.arg("-L").arg(&runtime.libraries);
        // Where the library itself finds what it needs.
        let mut rpath_link = OsString::from("-Wl,-rpath-link,");
        rpath_link.push(&runtime.libraries);
        command.arg(rpath_link);
        command.arg(match self {
            Self::C(_) => "-l:libur_loader.so.0",
            Self::Sycl(_) => "-l:libsycl.so.9",
        });
        command
    }

    /// The program, compiled unless that was done before, from the same sources in the same way.
    pub(crate) fn build(self, runtime: &Runtime) -> PathBuf {
        let mut command = self.command(runtime);
        let mut hasher = DefaultHasher::new();
        format!("{command:?}").hash(&mut hasher);
        read(&self.path()).hash(&mut hasher);
        for header in ["peer.h", "rows.h", "ur.h"] {
            read(&client(header)).hash(&mut hasher);
        }
        let name = self.path().with_extension("");
        let name = name.file_name().expect("a file").to_string_lossy();
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
        let program = directory.join(format!("{name}-{:016x}", hasher.finish()));

        fs::create_dir_all(&directory).expect("a directory for programs");
        let lock = File::create(directory.join(format!("{name}.lock"))).expect("a lock");
        lock.lock().expect("the lock");
        if !program.is_file() {
            let unfinished = program.with_extension("unfinished");
            let output = command.arg("-o").arg(&unfinished).output();
            let output = output.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command:?}\n{errors}");
            fs::rename(&unfinished, &program).expect("a program");
        }
        program
    }
}

fn compiler(variable: &str, default: &str) -> OsString {
    let named = env::var_os(variable).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| default.into())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
