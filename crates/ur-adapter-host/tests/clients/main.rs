//! Programs as users write them, unmodified, on the stock loader and the stock SYCL runtime, with
//! this adapter beneath: each in several processes, under each of the loader's settings.
//!
//! Their sources are in `clients/` and `examples/`. They need the stock runtime, its headers and
//! dpctl, which `cargo xtask test` installs and names in the environment; a plain `cargo test`
//! leaves them out.

mod build;
mod library;
mod process;
mod runtime;

use build::Source;
use process::{Program, run_in_a_loop};
use runtime::{Runtime, Setting};

/// Builds a client and runs it; it starts its second processes itself.
fn run(source: Source, setting: Setting) {
    let runtime = Runtime::find();
    let mut program = Program::new(&source.build(&runtime), &runtime);
    program.set(setting);
    program.run();
}

/// Runs a Python program, which expects to find the device in dpctl's lists if it is `listed`.
fn run_python(script: &str, setting: Setting, reported_backend: Option<&str>) {
    let runtime = Runtime::find();
    let mut program = Program::new(&runtime.python, &runtime);
    program.set(setting);
    program.argument(build::client(script));
    if let Some(backend) = reported_backend {
        program.variable("CROSSHANDLE_UR_BACKEND", backend);
        program.argument("listed");
    }
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
    memory: |setting| run(Source::C("memory.c"), setting);
    events: |setting| run(Source::C("events.c"), setting);
    physical_memory: |setting| run(Source::C("physical_memory.c"), setting);
    memory_handles: |setting| run(Source::C("memory_handles.c"), setting);
    hostile_handles: |setting| run(Source::C("hostile_handles.c"), setting);
    sycl_commands: |setting| run(Source::Sycl("clients/sycl_commands.cpp"), setting);
    sycl_sharing: |setting| run(Source::Sycl("clients/sycl_sharing.cpp"), setting);
    dpctl: |setting| run_python("arrays.py", setting, None);
}

tests! {
    // Where it intercepts and doesn't validate, the loader itself follows the null handles.
    null_arguments: run(Source::C("null_arguments.c"), Setting::default());
    null_arguments_validated: {
        run(Source::C("null_arguments.c"), Setting { validated: true, ..Setting::default() });
    };
    nothing_leaks: run(Source::C("leaks.c"), Setting::default());
    freeing_waits_for_commands: run(Source::C("free.c"), Setting::default());
    what_is_pending_still_runs: run(Source::C("pending.c"), Setting::default());
    dpctl_lists_it_as_opencl: run_python("arrays.py", Setting::default(), Some("opencl"));
    dpctl_lists_it_as_cuda: run_python("arrays.py", Setting::default(), Some("cuda"));
    dpctl_lists_it_as_hip: run_python("arrays.py", Setting::default(), Some("hip"));
    the_library_opens_what_a_ur_program_shares: library::opens_what_a_ur_program_shares();
    the_example_prints_what_it_should: example();
}

/// The program of the README, connected as its first comment tells.
fn example() {
    let runtime = Runtime::find();
    let ipc = Source::Sycl("examples/ipc.cpp").build(&runtime);
    let mut producer = Program::new(&ipc, &runtime);
    let mut consumer = Program::new(&ipc, &runtime);
    producer.argument("producer");
    consumer.argument("consumer");
    let (produced, consumed) = run_in_a_loop(producer, consumer);
    assert_eq!(produced, "producer: pong\n");
    assert_eq!(consumed, "consumer: ping\n");
}
