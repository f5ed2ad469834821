//! Kernels in OpenCL C on the host signal events and wait for them, with `crosshandle.clh`.

use crosshandle::kernel::{KernelArguments, LaunchShape, Program, ProgramImage, ProgramOptions};
use crosshandle::{Command, Context, Device, Error, EventOptions};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const HEADER: &str = include_str!("../../crosshandle-c/include/crosshandle.clh");
const SOURCE: &str = "
    // Waits, writes twice the input to the output, and signals, again and again. The last signal
    // fails.
    kernel void turns(
        crosshandle_device_event full, crosshandle_device_event empty, global const ulong *input,
        global ulong *output, ulong rounds, ulong polls, global uint *result)
    {
        for (ulong round = 1; round <= rounds; round++) {
            *result = crosshandle_wait_next(full, polls);
            if (*result != CROSSHANDLE_COMPLETE)
                return;
            *output = 2 * *input;
            if (round < rounds)
                crosshandle_signal(empty);
            else
                crosshandle_fail(empty);
        }
    }
";
const TIMED_OUT: u32 = 1;
const FAILED: u32 = 3;
const ABORTED: u32 = 4;

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn kernels_in_opencl_c_signal_and_wait() {
    const ROUNDS: u64 = 200;
    let context = Context::new(&Device::find("host").unwrap()).unwrap();
    let source = format!("{HEADER}{SOURCE}");
    let options = ProgramOptions::new().compiler("-cl-std=CL3.0");
    let images = [ProgramImage::text(&source)];
    let program = Program::with_options(&context, &images, &options).unwrap();
    let kernel = program.kernel("turns").unwrap();
    let full = context.create_event().unwrap();
    let single = EventOptions::new().single_signaller(true);
    let empty = context.create_event_with(single).unwrap();
    let (device_full, device_empty) = (
        context.device_event(&full).unwrap(),
        context.device_event(&empty).unwrap(),
    );
    let memory = context.allocate(3 * 8).unwrap();
    let queue = context.create_queue().unwrap();
    let start = |rounds: u64, polls: u64| {
        let arguments = KernelArguments::new()
            .with(&device_full)
            .with(&device_empty)
            .with(&memory.range(..8).unwrap())
            .with(&memory.range(8..16).unwrap())
            .value(rounds)
            .value(polls)
            .with(&memory.range(16..).unwrap());
        let shape = LaunchShape::covering(1, 1).unwrap();
        // SAFETY: the kernel accesses only the events and the memory, which the command keeps.
        let launch = unsafe { Command::launch(&kernel, shape, arguments) };
        queue.submit(launch.unwrap()).unwrap();
    };
    let read = |offset| {
        let mut bytes = [0; 8];
        memory.read(offset, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    };
    let result = || {
        queue.finish_timeout(TIMEOUT).unwrap();
        read(16) as u32
    };
    start(ROUNDS, u64::MAX);
    for round in 1..=ROUNDS {
        memory.write(0, &(round + 7).to_ne_bytes()).unwrap();
        full.signal().unwrap();
        match (round == ROUNDS, empty.wait_value_timeout(round, TIMEOUT)) {
            (false, Ok(())) | (true, Err(Error::CommandFailed(_))) => {}
            (_, other) => panic!("round {round}: {other:?}"),
        }
        assert_eq!(read(8), 2 * (round + 7));
    }
    assert_eq!((result(), empty.completed()), (0, ROUNDS));
    // A wait that reaches its limit does not count.
    start(1, 1000);
    assert_eq!(result(), TIMED_OUT);
    full.fail_value(ROUNDS + 1, "on purpose").unwrap();
    start(1, u64::MAX);
    assert_eq!(result(), FAILED);
    start(1, u64::MAX);
    context.abort_device_code().unwrap();
    assert_eq!(result(), ABORTED);
}
