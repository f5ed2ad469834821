//! Runs unmodified user programs on the stock loader and the stock SYCL runtime with this adapter.
//! Each uses several processes, and runs under each setting of the loader.
//!
//! The sources are in `clients/` of the package `crosshandle-ur-adapter`, and in `examples/`. The
//! programs need the stock runtime and dpctl. `cargo xtask test` installs these, compiles the
//! programs, and sets the environment variables that name them. A plain `cargo test` skips these
//! tests.

mod library;
mod process;
mod runtime;

use process::{Program, run_in_a_loop};
use runtime::{Runtime, Setting};

/// Runs a client. The client starts its second processes itself.
fn run(client: &str, setting: Setting) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.client(client), &runtime);
    program.set(setting);
    program.run();
}

/// Runs a client with kernels, on the OpenCL runtime next to the stock loader.
fn run_with_kernels(client: &str, setting: Setting) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.client(client), &runtime);
    program.set(setting);
    program.variable("KERNELS_PTX", runtime::KERNELS);
    program.run();
}

/// Runs the client with images, on the OpenCL runtime next to the stock loader.
fn run_with_images(setting: Setting) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.client("images"), &runtime);
    program.set(setting);
    program.variable("IMAGES_SPV", runtime::IMAGES);
    program.run();
}

/// Runs a client without any OpenCL runtime, so nothing may require one.
fn run_without_runtime(client: &str) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.client(client), &runtime);
    program.variable("CROSSHANDLE_OPENCL", "");
    program.run();
}

/// Runs a client with kernels as an OpenCL adapter, because SYCL accepts some kernels only for
/// OpenCL.
fn run_as_opencl(client: &str, setting: Setting) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.client(client), &runtime);
    program.set(setting);
    program.variable("KERNELS_PTX", runtime::KERNELS);
    program.variable("CROSSHANDLE_UR_BACKEND", "opencl");
    program.run();
}

/// Runs a Python program. If it is `listed`, it expects the device in dpctl's lists.
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

/// Runs dpctl's own tests with the adapter as an OpenCL adapter, which most kernel tests require.
fn run_dpctl_tests() {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.python, &runtime);
    program.variable("CROSSHANDLE_UR_BACKEND", "opencl");
    program.takes_long();
    program.argument(runtime::script("dpctl_tests.py"));
    // About 35 tests need two compute units.
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
    hostile_handles: |setting| run("hostile_handles", setting);
    sycl_bindless: |setting| run("sycl_bindless", setting);
    sycl_commands: |setting| run("sycl_commands", setting);
    sycl_graph_kernels: |setting| run_as_opencl("sycl_graph_kernels", setting);
    sycl_graphs: |setting| run("sycl_graphs", setting);
    sycl_sharing: |setting| run("sycl_sharing", setting);
    dpctl: |setting| run_python("arrays.py", setting, None);
}

tests! {
    // `error_table` passes null handles, which an intercepting loader dereferences unless it also
    // validates calls. Interception is therefore not tested here.
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

/// Runs the program of the README, connected as its first comment says.
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
