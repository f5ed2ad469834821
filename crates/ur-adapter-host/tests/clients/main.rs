//! Runs unmodified client programs with this adapter, on the stock loader and the stock SYCL
//! runtime. Each client uses several processes. Most clients run under each setting of the loader.
//!
//! The sources of the clients are in `clients/` of the package `crosshandle-ur-adapter` and in
//! `examples/`. The clients need the stock runtime and dpctl. `cargo xtask test` installs both,
//! compiles the clients, and sets the environment variables that these tests read. A plain `cargo
//! test` skips the tests.

mod library;
mod process;
mod runtime;

use process::{Program, run_in_a_loop};
use runtime::{Runtime, Setting};

/// Runs a client. The client itself starts any further process that it needs.
fn run(client: &str, setting: Setting) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.client(client), &runtime);
    program.set(setting);
    program.run();
}

/// Runs a client that launches kernels. The OpenCL runtime is the one next to the stock loader.
fn run_with_kernels(client: &str, setting: Setting) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.client(client), &runtime);
    program.set(setting);
    program.variable("KERNELS_PTX", runtime::KERNELS);
    program.run();
}

/// Runs the client that uses images. The OpenCL runtime is the one next to the stock loader.
fn run_with_images(setting: Setting) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.client("images"), &runtime);
    program.set(setting);
    program.variable("IMAGES_SPV", runtime::IMAGES);
    program.run();
}

/// Runs a client without an OpenCL runtime, to check that the client does not require one.
fn run_without_runtime(client: &str) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.client(client), &runtime);
    program.variable("CROSSHANDLE_OPENCL", "");
    program.run();
}

/// Runs a client while the adapter reports the OpenCL backend. SYCL accepts some kernels only for
/// OpenCL.
fn run_as_opencl(client: &str, setting: Setting) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.client(client), &runtime);
    program.set(setting);
    program.variable("KERNELS_PTX", runtime::KERNELS);
    program.variable("CROSSHANDLE_UR_BACKEND", "opencl");
    program.run();
}

/// Runs a Python program. If a backend to report is given, the program also checks that dpctl lists
/// the device.
fn run_python(script: &str, setting: Setting, reported_backend: Option<&str>) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.python, &runtime);
    program.set(setting);
    program.argument(runtime::script(script));
    if let Some(backend) = reported_backend {
        program.variable("CROSSHANDLE_UR_BACKEND", backend);
        program.argument("listed");
    }
    program.run();
}

/// Runs the tests of dpctl while the adapter reports the OpenCL backend, which most kernel tests
/// require.
fn run_dpctl_tests() {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.python, &runtime);
    program.variable("CROSSHANDLE_UR_BACKEND", "opencl");
    program.takes_long();
    program.argument(runtime::script("dpctl_tests.py"));
    // About 35 tests need two compute units, so fewer tests pass on a machine with only one.
    let units = std::thread::available_parallelism().map_or(1, usize::from);
    program.argument(if units > 1 { "1400" } else { "1350" });
    program.run();
}

macro_rules! tests {
    ($($name:ident: $run:expr;)*) => {$(
        #[test]
        #[ignore = "needs the stock runtime; `cargo xtask test` runs it"]
        fn $name() {
            $run
        }
    )*};
}

macro_rules! under_each_setting {
    ($($name:ident: $run:expr;)*) => {$(
        mod $name {
            use super::*;

            tests! {
                direct: $run(Setting::default());
                intercepted: $run(Setting { intercepted: true, ..Setting::default() });
                validated: $run(Setting { validated: true, ..Setting::default() });
                intercepted_and_validated: $run(Setting { intercepted: true, validated: true });
            }
        }
    )*};
}

under_each_setting! {
    memory: |setting| run("memory", setting);
    events: |setting| run("events", setting);
    kernels: |setting| run_with_kernels("kernels", setting);
    images: run_with_images;
    bindless: |setting| run("bindless", setting);
    command_buffers: |setting| run_with_kernels("command_buffers", setting);
    graphs: |setting| run_with_kernels("graphs", setting);
    physical_memory: |setting| run("physical_memory", setting);
    sub_devices: |setting| run_with_kernels("sub_devices", setting);
    memory_handles: |setting| run("memory_handles", setting);
    native: |setting| run("native", setting);
    native_opencl: |setting| run_as_opencl("native_opencl", setting);
    hostile_handles: |setting| run("hostile_handles", setting);
    sycl_bindless: |setting| run("sycl_bindless", setting);
    sycl_commands: |setting| run("sycl_commands", setting);
    sycl_graph_kernels: |setting| run_as_opencl("sycl_graph_kernels", setting);
    sycl_graphs: |setting| run("sycl_graphs", setting);
    sycl_sharing: |setting| run("sycl_sharing", setting);
    dpctl: |setting| run_python("arrays.py", setting, None);
}

tests! {
    // `error_table` passes null handles. An intercepting loader dereferences them unless it also
    // validates calls. Interception is therefore not tested.
    error_table: run("error_table", Setting::default());
    error_table_validated: {
        run("error_table", Setting { validated: true, ..Setting::default() });
    };
    dynamic_link: run_with_kernels("dynamic_link", Setting::default());
    dynamic_link_validated: {
        run_with_kernels("dynamic_link", Setting { validated: true, ..Setting::default() });
    };
    kernel_answers: run_with_kernels("kernel_answers", Setting::default());
    kernel_answers_validated: {
        run_with_kernels("kernel_answers", Setting { validated: true, ..Setting::default() });
    };
    without_a_runtime_there_are_no_images: run_without_runtime("images");
    without_a_runtime_there_are_no_sub_devices: run_without_runtime("sub_devices");
    sub_devices_as_opencl: run_as_opencl("sub_devices", Setting::default());
    nothing_leaks: run("leaks", Setting::default());
    freeing_waits_for_commands: run("free", Setting::default());
    what_is_pending_still_runs: run("pending", Setting::default());
    dpctl_lists_it_as_opencl: run_python("arrays.py", Setting::default(), Some("opencl"));
    dpctl_lists_it_as_cuda: run_python("arrays.py", Setting::default(), Some("cuda"));
    dpctl_lists_it_as_hip: run_python("arrays.py", Setting::default(), Some("hip"));
    the_tests_of_dpctl_pass: run_dpctl_tests();
    the_library_opens_what_a_ur_program_shares: library::opens_what_a_ur_program_shares();
    the_example_prints_what_it_should: example();
}

/// Runs the example from `docs/start.md`. Its two processes are connected in the way that its first
/// comment describes.
fn example() {
    let runtime = Runtime::find();
    let ipc = runtime.client("ipc");
    let mut producer = Program::new(&ipc, &runtime);
    let mut consumer = Program::new(&ipc, &runtime);
    producer.argument("producer");
    consumer.argument("consumer");
    let (produced, consumed) = run_in_a_loop(producer, consumer);
    assert_eq!(produced, "producer: pong\n");
    assert_eq!(consumed, "consumer: ping\n");
}
