//! Builds C and C++ programs that run on the Unified Runtime adapters. The system's compilers build
//! them against the stock runtime.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::python::Environment;
use crate::step::Step;
use crate::workspace::Workspace;

/// The directory that contains the sources.
pub(crate) const SOURCES: &str = "crates/ur-adapter/clients";
/// Headers that several programs include.
const HEADERS: [&str; 8] = [
    "include/events.h",
    "include/kernels.h",
    "include/native.h",
    "include/peer.h",
    "include/refusals.h",
    "include/rows.h",
    "include/ur.h",
    "include/ze.h",
];
/// C programs for the stock loader.
pub(crate) const FOR_LOADER: [&str; 21] = [
    "bindless",
    "command_buffers",
    "dynamic_link",
    "error_table",
    "events",
    "free",
    "graphs",
    "hostile_handles",
    "images",
    "kernel_answers",
    "kernels",
    "leaks",
    "memory",
    "memory_handles",
    "native",
    "native_level_zero",
    "native_opencl",
    "pending",
    "physical_memory",
    "sub_devices",
    "two_devices",
];
/// C++ programs for the stock SYCL runtime, which has its own loader.
pub(crate) const FOR_SYCL: [&str; 7] = [
    "sycl_bindless",
    "sycl_buffers",
    "sycl_commands",
    "sycl_graph_kernels",
    "sycl_graphs",
    "sycl_native",
    "sycl_sharing",
];
/// Programs that CUDA cannot run. Some use Level Zero or OpenCL directly, and some bring SPIR-V
/// kernels.
pub(crate) const NOT_FOR_CUDA: [&str; 5] = [
    "native_level_zero",
    "native_opencl",
    "sycl_buffers",
    "sycl_graph_kernels",
    "sycl_native",
];
const EXAMPLE: &str = "crates/ur-adapter-host/examples/ipc.cpp";

/// Compiled programs. Each has the name of its source without the extension.
pub(crate) struct Clients {
    pub(crate) directory: PathBuf,
    pub(crate) names: Vec<String>,
}

/// Compiles the programs that have changed since the last compilation.
pub(crate) fn build(workspace: &Workspace, runtime: &Environment) -> Result<Clients> {
    let sources = workspace.root.join(SOURCES);
    let directory = workspace.target.join("ur-clients");
    let cannot = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(&directory).map_err(|error| cannot(&directory, error))?;
    let mut headers = DefaultHasher::new();
    for header in HEADERS {
        let header = sources.join(header);
        let text = fs::read(&header).map_err(|error| cannot(&header, error))?;
        text.hash(&mut headers);
    }
    let c = FOR_LOADER.map(|name| (sources.join("ur").join(name).with_extension("c"), false));
    let cpp = FOR_SYCL.map(|name| (sources.join("sycl").join(name).with_extension("cpp"), true));
    let example = [(workspace.root.join(EXAMPLE), true)];
    let mut names = Vec::new();
    for (source, is_sycl) in c.into_iter().chain(cpp).chain(example) {
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        let program = directory.join(&*name);
        let mut command = compile(&source, is_sycl, runtime);
        command.arg("-I").arg(sources.join("include"));
        command.arg("-o").arg(&program);
        let text = fs::read(&source).map_err(|error| cannot(&source, error))?;
        let mut hasher = headers.clone();
        (format!("{command:?}"), text).hash(&mut hasher);
        let hash = format!("{:016x}", hasher.finish());
        // The stamp is written last, so a program with a stamp is complete.
        let stamp = program.with_extension("stamp");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == hash) && program.is_file() {
            names.push(name.into_owned());
            continue;
        }
        let _ = fs::remove_file(&stamp);
        Step::new(workspace, format!("client {name}"), command).run()?;
        fs::write(&stamp, hash).map_err(|error| cannot(&stamp, error))?;
        names.push(name.into_owned());
    }
    Ok(Clients { directory, names })
}

fn compile(source: &Path, is_sycl: bool, runtime: &Environment) -> Command {
    let mut command;
    if is_sycl {
        command = Command::new(compiler("CXX", "c++"));
        command.args(["-std=c++17", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING"]);
    } else {
        command = Command::new(compiler("CC", "cc"));
        command.args(["-std=c11", "-D_GNU_SOURCE"]);
    }
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-pthread"]);
    command.arg("-isystem").arg(runtime.include()).arg(source);
    command.arg("-L").arg(runtime.library_dir());
    // The linker finds the library's own dependencies in this directory.
    let mut rpath_link = OsString::from("-Wl,-rpath-link,");
    rpath_link.push(runtime.library_dir());
    command.arg(rpath_link);
    command.arg(if is_sycl {
        "-l:libsycl.so.9"
    } else {
        "-l:libur_loader.so.0"
    });
    command
}

fn compiler(variable: &str, default: &str) -> OsString {
    let named = env::var_os(variable).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| default.into())
}
