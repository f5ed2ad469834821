//! Runs the client programs for the host adapter, unmodified, with this adapter. They use the stock
//! runtime, the stock Level Zero loader and the simulated driver.
//!
//! `cargo xtask test` compiles the clients, and sets the environment variables that these tests
//! read. A plain `cargo test` skips the tests.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit for a client. It is a little longer than the limit in the clients.
const DEADLINE: Duration = Duration::from_secs(60);

/// The environment variable for the path of the conformance suite's kernels, and the path. The
/// kernels are a SPIR-V module, although the name of the variable mentions PTX.
const KERNELS: (&str, &str) = (
    "KERNELS_PTX",
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../conformance/kernels/kernels.spv"
    ),
);

/// The environment variable for the path of the conformance suite's image kernel, and the path.
const IMAGES: (&str, &str) = (
    "IMAGES_SPV",
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../conformance/kernels/images.spv"
    ),
);

/// Returns the path that an environment variable contains. Panics if the variable is not set.
fn named(variable: &str) -> PathBuf {
    let value = env::var_os(variable).unwrap_or_else(|| {
        panic!("{variable} is not set: run these tests with `cargo xtask test`, which sets it")
    });
    PathBuf::from(value)
}

/// Returns the path of a shared library in the directory of this test program.
fn library(name: &str) -> PathBuf {
    let path = env::current_exe().unwrap().with_file_name(name);
    assert!(path.is_file(), "there is no {}", path.display());
    path
}

/// Runs a client under each installed Level Zero loader. The client itself starts any further
/// process that it needs.
fn run(client: &str, variables: &[(&str, &str)]) {
    let loaders = env::var_os("ZE_LOADER_LIB_DIRS").unwrap_or_default();
    let loaders: Vec<_> = env::split_paths(&loaders)
        .filter(|path| path.is_dir())
        .collect();
    assert!(
        !loaders.is_empty(),
        "ZE_LOADER_LIB_DIRS is not set: run this test with `cargo xtask test`, which sets it"
    );
    for loader in loaders {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("xhz-{}-{number}", std::process::id());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&unique);
        fs::create_dir_all(&directory).unwrap();
        let log = directory.join("misuse");
        let mut paths = OsString::from(named("UR_RUNTIME_LIB_DIR"));
        paths.push(":");
        paths.push(&loader);
        // A socket path has at most 107 characters, so the socket directory has a short path.
        let sockets = env::temp_dir().join(&unique);
        let mut child = Command::new(named("UR_CLIENTS_DIR").join(client))
            .env("LD_LIBRARY_PATH", paths)
            .env("ZE_ENABLE_ALT_DRIVERS", library("libze_sim.so"))
            .env("CROSSHANDLE_SIM_LOG", &log)
            .env(
                "UR_ADAPTERS_FORCE_LOAD",
                library("libur_adapter_crosshandle_level_zero.so"),
            )
            .env("CROSSHANDLE_SOCKET_DIR", &sockets)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + DEADLINE;
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    child.kill().unwrap();
                    panic!("{client} is late: {}", child.wait().unwrap());
                }
            }
        };
        let misuse = fs::read_to_string(&log).unwrap_or_default();
        let _ = (fs::remove_dir_all(&directory), fs::remove_dir_all(&sockets));
        assert!(status.success(), "{client}: {status}");
        assert_eq!(misuse, "", "{client}");
    }
}

macro_rules! clients {
    ($($name:ident: $client:literal $variables:expr;)*) => {$(
        #[test]
        #[ignore = "needs the stock runtime; `cargo xtask test` runs it"]
        fn $name() {
            run($client, &$variables);
        }
    )*};
}

clients! {
    memory: "memory" [];
    memory_intercepted: "memory" [("UR_ENABLE_LOADER_INTERCEPT", "1")];
    events: "events" [];
    command_buffers: "command_buffers" [KERNELS];
    command_buffers_validated: "command_buffers"
        [KERNELS, ("UR_ENABLE_LAYERS", "UR_LAYER_FULL_VALIDATION")];
    graphs: "graphs" [KERNELS];
    graphs_validated: "graphs" [KERNELS, ("UR_ENABLE_LAYERS", "UR_LAYER_FULL_VALIDATION")];
    events_validated: "events" [("UR_ENABLE_LAYERS", "UR_LAYER_FULL_VALIDATION")];
    physical_memory: "physical_memory" [];
    sub_devices: "sub_devices" [];
    memory_handles: "memory_handles" [];
    hostile_handles: "hostile_handles" [];
    error_table: "error_table" [];
    error_table_validated: "error_table" [("UR_ENABLE_LAYERS", "UR_LAYER_FULL_VALIDATION")];
    native: "native" [];
    native_level_zero: "native_level_zero" [];
    native_level_zero_intercepted: "native_level_zero" [("UR_ENABLE_LOADER_INTERCEPT", "1")];
    native_level_zero_with_other_handles: "native_level_zero" [("ZE_ENABLE_LOADER_INTERCEPT", "1")];
    // The following clients need an OpenCL runtime for the CPU, because the simulated driver does.
    kernels: "kernels" [KERNELS];
    kernels_intercepted: "kernels" [KERNELS, ("UR_ENABLE_LOADER_INTERCEPT", "1")];
    kernels_with_other_handles: "kernels" [KERNELS, ("ZE_ENABLE_LOADER_INTERCEPT", "1")];
    images: "images" [IMAGES];
    images_with_other_handles: "images" [IMAGES, ("ZE_ENABLE_LOADER_INTERCEPT", "1")];
    bindless: "bindless" [];
    dynamic_link: "dynamic_link" [KERNELS];
    kernel_answers: "kernel_answers" [KERNELS];
    kernel_answers_validated: "kernel_answers"
        [KERNELS, ("UR_ENABLE_LAYERS", "UR_LAYER_FULL_VALIDATION")];
    nothing_leaks: "leaks" [];
    freeing_waits_for_commands: "free" [];
    what_is_pending_still_runs: "pending" [];
    sycl_native: "sycl_native" [];
    sycl_graph_kernels: "sycl_graph_kernels" [KERNELS];
    sycl_graphs: "sycl_graphs" [];
    // By default, the adapter reports the Level Zero backend, for which SYCL implements fills by
    // kernels. These clients contain no such kernels.
    sycl_commands: "sycl_commands" [("CROSSHANDLE_UR_BACKEND", "opencl")];
    sycl_sharing: "sycl_sharing" [("CROSSHANDLE_UR_BACKEND", "opencl")];
}

/// The clients on a driver with two devices. The SYCL clients use the default context, which
/// contains both. The other clients must not be disturbed by the second device. Clients that take
/// long and use only the first device are left out.
mod on_two_devices {
    use super::{IMAGES, KERNELS, run};

    const TWO: (&str, &str) = ("CROSSHANDLE_SIM_DEVICES", "2");

    clients! {
        buffers_and_images: "two_devices" [TWO, KERNELS, IMAGES];
        buffers_and_images_intercepted: "two_devices"
            [TWO, KERNELS, IMAGES, ("UR_ENABLE_LOADER_INTERCEPT", "1")];
        buffers_and_images_validated: "two_devices"
            [TWO, KERNELS, IMAGES, ("UR_ENABLE_LAYERS", "UR_LAYER_FULL_VALIDATION")];
        buffers_and_images_with_other_handles: "two_devices"
            [TWO, KERNELS, IMAGES, ("ZE_ENABLE_LOADER_INTERCEPT", "1")];
        // The contents are copied through host memory.
        without_peers: "two_devices"
            [TWO, KERNELS, IMAGES, ("CROSSHANDLE_SIM_MISSING", "peer_access")];
        slowly: "two_devices" [TWO, KERNELS, IMAGES, ("CROSSHANDLE_SIM_COMMAND_DELAY_US", "200")];
        sycl_buffers: "sycl_buffers" [TWO, KERNELS];
        sycl_buffers_without_peers: "sycl_buffers"
            [TWO, KERNELS, ("CROSSHANDLE_SIM_MISSING", "peer_access")];
        sycl_native: "sycl_native" [TWO];
        sycl_graph_kernels: "sycl_graph_kernels" [TWO, KERNELS];
        sycl_graphs: "sycl_graphs" [TWO];
        sycl_commands: "sycl_commands" [TWO, ("CROSSHANDLE_UR_BACKEND", "opencl")];
        sycl_sharing: "sycl_sharing" [TWO, ("CROSSHANDLE_UR_BACKEND", "opencl")];
        memory: "memory" [TWO];
        events: "events" [TWO];
        command_buffers: "command_buffers" [TWO, KERNELS];
        graphs: "graphs" [TWO, KERNELS];
        physical_memory: "physical_memory" [TWO];
        memory_handles: "memory_handles" [TWO];
        hostile_handles: "hostile_handles" [TWO];
        error_table: "error_table" [TWO];
        native: "native" [TWO];
        native_level_zero: "native_level_zero" [TWO];
        kernels: "kernels" [TWO, KERNELS];
        images: "images" [TWO, IMAGES];
        bindless: "bindless" [TWO];
        dynamic_link: "dynamic_link" [TWO, KERNELS];
        freeing_waits_for_commands: "free" [TWO];
    }
}
