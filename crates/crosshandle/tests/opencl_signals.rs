//! Kernels in OpenCL C on the host signal events and wait for them, with `crosshandle.clh`.

use crosshandle::event::DeviceChannel;
use crosshandle::kernel::{KernelArguments, LaunchShape, Program, ProgramImage, ProgramOptions};
use crosshandle::{Command, Context, Device, Error, EventOptions};
use std::sync::Arc;
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
/// A kernel that sends items through a channel, and one that receives them and adds them up.
const CHANNEL: &str = "
    kernel void produce(crosshandle_device_channel channel, ulong items, global uint *result)
    {
        for (ulong item = 1; item <= items; item++) {
            ulong slot;
            *result = crosshandle_reserve(channel, ULONG_MAX, &slot);
            if (*result != CROSSHANDLE_COMPLETE)
                return;
            *(global ulong *)slot = item;
            crosshandle_publish(channel);
        }
    }

    kernel void consume(
        crosshandle_device_channel channel, ulong items, global uint *result, global ulong *sum)
    {
        for (ulong item = 1; item <= items; item++) {
            ulong slot;
            *result = crosshandle_receive(channel, ULONG_MAX, &slot);
            if (*result != CROSSHANDLE_COMPLETE)
                return;
            *sum += *(volatile global ulong *)slot;
            crosshandle_release(channel);
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

/// The producer fills the channel before the consumer starts.
#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn kernels_in_opencl_c_pass_items_through_a_channel() {
    const ITEMS: u64 = 500;
    const DEPTH: u64 = 3;
    let device = Device::find("host").unwrap();
    let [producer, consumer] = [(); 2].map(|()| Context::new(&device).unwrap());
    let single = EventOptions::new().single_signaller(true);
    let full = producer.create_event_with(single).unwrap();
    let empty = consumer.create_event_with(single).unwrap();
    let slots = producer.allocate(DEPTH as usize * 8).unwrap();
    let slots_there = consumer.open_memory(&slots.handle().unwrap()).unwrap();
    let full_there = consumer.open_event(&full.handle().unwrap()).unwrap();
    let empty_here = producer.open_event(&empty.handle().unwrap()).unwrap();
    let theirs =
        DeviceChannel::new(&consumer, &full_there, &empty, Arc::new(slots_there), DEPTH).unwrap();
    let slots = Arc::new(slots);
    let ours =
        DeviceChannel::new(&producer, &full, &empty_here, Arc::clone(&slots), DEPTH).unwrap();
    assert!(DeviceChannel::new(&producer, &full, &empty_here, Arc::clone(&slots), 0).is_err());
    assert!(DeviceChannel::new(&producer, &full, &empty_here, slots, 5).is_err());
    let start = |context: &Context, channel: &DeviceChannel, name: &str| {
        let source = format!("{HEADER}{CHANNEL}");
        let options = ProgramOptions::new().compiler("-cl-std=CL3.0");
        let images = [ProgramImage::text(&source)];
        let program = Program::with_options(context, &images, &options).unwrap();
        let kernel = program.kernel(name).unwrap();
        let memory = Arc::new(context.allocate(2 * 8).unwrap());
        memory.write(0, &[0; 16]).unwrap();
        let mut arguments = KernelArguments::new()
            .with(channel)
            .value(ITEMS)
            .with(&memory.range(..8).unwrap());
        if name == "consume" {
            arguments = arguments.with(&memory.range(8..).unwrap());
        }
        let shape = LaunchShape::covering(1, 1).unwrap();
        let queue = context.create_queue().unwrap();
        // SAFETY: the kernel accesses only the channel and the memory, which the command keeps.
        let launch = unsafe { Command::launch(&kernel, shape, arguments) };
        queue.submit(launch.unwrap()).unwrap();
        (queue, memory)
    };
    let produced = start(&producer, &ours, "produce");
    // The first items fill the channel, whether or not the runtime runs two kernels at a time.
    full.wait_value_timeout(DEPTH, TIMEOUT).unwrap();
    let consumed = start(&consumer, &theirs, "consume");
    for (queue, memory) in [&produced, &consumed] {
        queue.finish_timeout(TIMEOUT).unwrap();
        let mut bytes = [0; 8];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 0);
    }
    let mut bytes = [0; 8];
    consumed.1.read(8, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), ITEMS * (ITEMS + 1) / 2);
    assert_eq!((full.completed(), empty.completed()), (ITEMS, ITEMS));
}
