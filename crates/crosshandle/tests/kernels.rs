//! Tests of programs on the host, which need an OpenCL runtime. The conformance suite tests
//! kernels across processes.

use crosshandle::kernel::Program;
use crosshandle::{
    Command, Context, Device, Error, Event, QueueOrder,
    kernel::{KernelArguments, LaunchShape, ProgramImage, ProgramOptions},
};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const SPIR_V: &[u8] = include_bytes!("../../conformance/kernels/kernels.spv");
const SOURCE: &str = "
    #ifndef FACTOR
    #define FACTOR 1
    #endif
    kernel void add(global uint *data, uint addend) {
        data[get_global_id(0)] += FACTOR * addend;
    }
    kernel __attribute__((reqd_work_group_size(8, 1, 1))) void eight(global uint *data) {
        data[get_global_id(0)] = get_local_size(0);
    }
";

fn context() -> Context {
    let host = Device::find("host").unwrap();
    let limits = host.kernels().unwrap_or_else(|error| panic!("{error}"));
    assert!(limits.block_threads > 0 && host.kernel_runtime().is_some());
    Context::new(&host).unwrap()
}

fn module() -> ProgramImage<'static> {
    // SAFETY: the module passed the assembler's validator.
    unsafe { ProgramImage::spirv(SPIR_V) }
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn arguments_shapes_and_constants_reach_the_kernel() {
    let context = context();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(4 * 1000).unwrap();
    let run = |kernel: &crosshandle::kernel::Kernel, shape, arguments| {
        // SAFETY: the kernels access only the thousand words.
        let command = unsafe { Command::launch(kernel, shape, arguments) }.unwrap();
        queue.submit(command).unwrap();
        queue.finish_timeout(TIMEOUT).unwrap();
        let words = memory.typed::<u32>().unwrap();
        (0..words.len())
            .map(|at| words.get(at).unwrap())
            .collect::<Vec<_>>()
    };
    let program = Program::new(&context, module()).unwrap();
    let mut names = program.kernel_names().unwrap();
    names.sort();
    assert_eq!(names, ["fill", "number", "reverse", "scale"]);

    let number = program.kernel("number").unwrap();
    let shape = LaunchShape::threads([1000, 1, 1]).offset([5, 0, 0]);
    let words = run(&number, shape, KernelArguments::new().with(&memory.all()));
    assert!(words.iter().copied().eq(5..1005));

    let reverse = program.kernel("reverse").unwrap();
    let arguments = KernelArguments::new().with(&memory.all()).local(4 * 100);
    let words = run(
        &reverse,
        LaunchShape::new([10, 1, 1], [100, 1, 1]),
        arguments,
    );
    let wanted = (0..10).flat_map(|part| (0..100).rev().map(move |at| 100 * part + at + 5));
    assert!(words.iter().copied().eq(wanted));

    // The module multiplies by 3, and by a constant that is 1 by default.
    let constants = [(0, 10_u32.to_le_bytes().to_vec())];
    let more = Program::new(&context, module().specialized(&constants)).unwrap();
    let scale = more.kernel("scale").unwrap();
    let arguments = KernelArguments::new()
        .with(&memory.all())
        .value(1_u32)
        .value(1000_u32);
    let words = run(&scale, LaunchShape::covering(1000, 64).unwrap(), arguments);
    assert_eq!((words[0], words[999]), (30 * 104 + 1, 30 * 905 + 1));

    let options = ProgramOptions::new().compiler("-DFACTOR=2");
    let source = [ProgramImage::text(SOURCE)];
    let program = Program::with_options(&context, &source, &options).unwrap();
    let add = program.kernel("add").unwrap();
    let arguments = KernelArguments::new().with(&memory.all()).value(7_u32);
    let words = run(&add, LaunchShape::threads([1000, 1, 1]), arguments);
    assert_eq!(words[0], 30 * 104 + 1 + 14);

    // A binary from the runtime can be loaded again.
    let binary = program.binary().unwrap().unwrap();
    // SAFETY: the runtime made the binary.
    let again = Program::new(&context, unsafe { ProgramImage::binary(&binary) }).unwrap();
    let eight = again.kernel("eight").unwrap();
    assert_eq!(eight.properties().required_block, Some([8, 1, 1]));
    let arguments = KernelArguments::new().with(&memory.all());
    let words = run(&eight, LaunchShape::new([125, 1, 1], [8, 1, 1]), arguments);
    assert!(words.iter().all(|word| *word == 8));
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn refusals_say_what_is_wrong() {
    let context = context();
    let refused = Program::new(&context, ProgramImage::text("kernel void broken(")).unwrap_err();
    assert!(
        matches!(&refused, Error::Program { log, .. } if !log.is_empty()),
        "{refused}"
    );
    for bytes in [
        &SPIR_V[..10],
        &SPIR_V[..SPIR_V.len() - 16],
        b"not SPIR-V at all...",
    ] {
        // SAFETY: the call refuses the bytes and does not compile them.
        let image = unsafe { ProgramImage::spirv(bytes) };
        let refused = Program::new(&context, image).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    }
    let program = Program::new(&context, module()).unwrap();
    assert!(matches!(program.kernel("nothing"), Err(Error::NoSymbol(_))));
    assert!(matches!(
        program.variable("nothing"),
        Err(Error::NoSymbol(_))
    ));
    let fill = program.kernel("fill").unwrap();
    let memory = context.allocate(4096).unwrap();
    let first = || KernelArguments::new().with(&memory.all());
    let one = LaunchShape::new([1; 3], [1; 3]);
    // SAFETY: no launch is submitted.
    let refuse =
        |shape, arguments| unsafe { Command::launch(&fill, shape, arguments) }.unwrap_err();
    for arguments in [
        first(),
        first().value(1_u32).value(1_u32).value(1_u32),
        first().value(1_u8).value(1_u32),
        first().value(1_u64).value(1_u32),
        first().local(4).value(1_u32),
        first().address(0).value(1_u32),
    ] {
        let error = refuse(one, arguments.clone());
        assert!(
            matches!(error, Error::InvalidArgument(_)),
            "{arguments:?}: {error}"
        );
    }
    let right = || first().value(1_u32).value(1_u32);
    for shape in [
        LaunchShape::new([1; 3], [1 << 20, 1, 1]),
        LaunchShape::new([1; 3], [0, 1, 1]),
    ] {
        assert!(matches!(refuse(shape, right()), Error::InvalidArgument(_)));
    }
    for shape in [
        one.shared_memory(4),
        LaunchShape::new([2, 1, 1], [1, 1, 1]).cooperative(true),
        LaunchShape::threads([1; 3]).cooperative(true),
        one.cluster([1; 3]),
    ] {
        assert!(matches!(refuse(shape, right()), Error::Unsupported(_)));
    }
    // SAFETY: the kernel writes one word of the memory.
    let command = unsafe { Command::launch(&fill, one.cooperative(true), right()) }.unwrap();
    let queue = context.create_queue().unwrap();
    queue.submit(command).unwrap();
    queue.finish_timeout(TIMEOUT).unwrap();
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn launches_wait_and_signal_in_both_kinds_of_queues() {
    let context = context();
    let program = Program::new(&context, ProgramImage::text(SOURCE)).unwrap();
    let add = program.kernel("add").unwrap();
    let memory = context.allocate(4).unwrap();
    let launch = || {
        let arguments = KernelArguments::new().with(&memory.all()).value(1_u32);
        // SAFETY: the kernel adds to the only word.
        unsafe { Command::launch(&add, LaunchShape::new([1; 3], [1; 3]), arguments) }.unwrap()
    };
    for order in [QueueOrder::InOrder, QueueOrder::OutOfOrder] {
        let queue = context.create_queue_with(order).unwrap();
        let gate = context.create_event().unwrap();
        let mut last: Option<Event> = None;
        for _ in 0..200 {
            let event = context.create_event().unwrap();
            let command = launch().signal(&event).after_value(&gate, 1);
            queue
                .submit(match &last {
                    Some(last) => command.after(last),
                    None => command,
                })
                .unwrap();
            last = Some(event);
        }
        assert!(!queue.is_idle());
        gate.signal().unwrap();
        last.unwrap().wait_timeout(TIMEOUT).unwrap();
    }
    assert_eq!(memory.typed::<u32>().unwrap().get(0), Some(400));
    // A command that waits for a failed signal does not run, and fails too.
    let queue = context.create_queue().unwrap();
    let (failed, after) = (
        context.create_event().unwrap(),
        context.create_event().unwrap(),
    );
    queue
        .submit(Command::call(|| Err::<(), _>("no")).signal(&failed))
        .unwrap();
    queue
        .submit(launch().after(&failed).signal(&after))
        .unwrap();
    let result = after.wait_timeout(TIMEOUT);
    assert!(matches!(result, Err(Error::CommandFailed(_))), "{result:?}");
    assert_eq!(memory.typed::<u32>().unwrap().get(0), Some(400));
}

/// Launches that are already submitted to the runtime keep their order with other commands of the
/// queue.
#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn launches_in_flight_keep_their_place() {
    let context = context();
    let program = Program::new(&context, ProgramImage::text(SOURCE)).unwrap();
    let add = program.kernel("add").unwrap();
    const COPIES: usize = 40;
    let (memory, copies) = (
        context.allocate(4).unwrap(),
        context.allocate(4 * COPIES).unwrap(),
    );
    let launch = || {
        let arguments = KernelArguments::new().with(&memory.all()).value(1_u32);
        // SAFETY: the kernel adds to the only word.
        unsafe { Command::launch(&add, LaunchShape::new([1; 3], [1; 3]), arguments) }.unwrap()
    };
    let queue = context.create_queue().unwrap();
    for at in 0..COPIES {
        for _ in 0..5 {
            queue.submit(launch()).unwrap();
        }
        let to = copies.range(4 * at..4 * at + 4).unwrap();
        queue
            .submit(Command::copy(memory.all(), to).unwrap())
            .unwrap();
    }
    queue.finish().unwrap();
    assert!(queue.is_idle());
    let words = copies.typed::<u32>().unwrap();
    let seen: Vec<_> = (0..COPIES).map(|at| words.get(at).unwrap()).collect();
    let wanted: Vec<_> = (1..=COPIES as u32).map(|at| 5 * at).collect();
    assert_eq!(seen, wanted);

    // In an out-of-order queue, a barrier keeps a copy after the launches before it.
    let loose = context.create_queue_with(QueueOrder::OutOfOrder).unwrap();
    for at in 0..COPIES {
        let count = 5 * COPIES as u32 + at as u32 + 1;
        loose.submit(launch()).unwrap();
        loose.submit(Command::barrier()).unwrap();
        let to = copies.range(0..4).unwrap();
        loose
            .submit(Command::copy(memory.all(), to).unwrap())
            .unwrap();
        loose.submit(Command::barrier()).unwrap();
        loose.finish_timeout(TIMEOUT).unwrap();
        assert_eq!(words.get(0), Some(count));
    }

    // The queue is dropped, so only the queue's own thread sees these launches end.
    let done = context.create_event().unwrap();
    for _ in 0..100 {
        queue.submit(launch()).unwrap();
    }
    queue.submit(launch().signal(&done)).unwrap();
    drop(queue);
    done.wait_timeout(TIMEOUT).unwrap();
    let total = 6 * COPIES as u32 + 101;
    assert_eq!(memory.typed::<u32>().unwrap().get(0), Some(total));
}

/// Uses memory, events and queues without kernels, in a separate process.
#[test]
#[ignore = "`nothing_is_loaded_without_kernels` runs it"]
fn without_kernels() {
    let host = Device::find("host").unwrap();
    assert!(host.loaded_kernels().is_none());
    let context = Context::new(&host).unwrap();
    let (memory, event) = (
        context.allocate(4096).unwrap(),
        context.create_event().unwrap(),
    );
    let queue = context.create_queue().unwrap();
    let fill = Command::fill(memory.all(), &[1]).unwrap();
    queue.submit(fill.signal(&event)).unwrap();
    event.wait_timeout(TIMEOUT).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .to_lowercase();
    assert!(
        !maps.contains("opencl") && !maps.contains("intelocl"),
        "{maps}"
    );
}

#[test]
fn nothing_is_loaded_without_kernels() {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", "without_kernels", "--include-ignored"];
    let output = std::process::Command::new(program)
        .args(arguments)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}"
    );
}

/// A forked child does not have the runtime's threads, and its locks may stay locked.
#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn a_forked_child_leaves_the_runtime_alone() {
    let context = context();
    let program = Program::new(&context, module()).unwrap();
    let fill = program.kernel("fill").unwrap();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(4096).unwrap();
    let shape = LaunchShape::new([8, 1, 1], [128, 1, 1]);
    let arguments = |value: u32| {
        KernelArguments::new()
            .with(&memory.all())
            .value(value)
            .value(1024_u32)
    };
    // SAFETY: the kernel accesses only the memory.
    let launch = |value| unsafe { Command::launch(&fill, shape, arguments(value)) };
    queue.submit(launch(1).unwrap()).unwrap();
    queue.finish_timeout(TIMEOUT).unwrap();
    let objects = (program.clone(), fill.clone(), launch(2).unwrap());

    // SAFETY: the child calls only functions of this crate that support a forked child, and
    // `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = launch(3).is_err()
            && program.kernel("fill").is_err()
            && program.variable("factor").is_err()
            && program.binary().is_err()
            && program.kernel_names().is_none()
            && fill.suggested_block(0).is_err()
            && Program::new(&context, module()).is_err();
        drop((objects, queue, memory, fill, program, context));
        // SAFETY: the call ends the child without running the parent's code.
        unsafe { libc::_exit(if is_refused { 0 } else { 1 }) };
    }
    drop(objects);
    let end = std::time::Instant::now() + TIMEOUT;
    let mut status = 0;
    // SAFETY: the process is our own child, and `status` is writable during the call.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if std::time::Instant::now() > end {
            // SAFETY: the process is our own child, which was not waited for yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the forked child hangs");
        }
        std::thread::yield_now();
    }
    assert_eq!(status, 0, "the child's exit status");
    queue.submit(launch(4).unwrap()).unwrap();
    queue.finish_timeout(TIMEOUT).unwrap();
    assert_eq!(memory.typed::<u32>().unwrap().get(1023), Some(4));
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn variables_are_memory() {
    let context = context();
    let program = Program::new(&context, module()).unwrap();
    let factor = program.variable("factor").unwrap();
    assert_eq!(factor.len(), 4);
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(8).unwrap();
    let first = memory.range(0..4).unwrap();
    queue
        .submit(Command::copy(factor.clone(), first.clone()).unwrap())
        .unwrap();
    queue
        .submit(Command::fill(factor.clone(), &5_u32.to_ne_bytes()).unwrap())
        .unwrap();
    let scale = program.kernel("scale").unwrap();
    let arguments = KernelArguments::new()
        .with(&first)
        .value(1_u32)
        .value(1_u32);
    // SAFETY: the kernel scales the first word.
    let command = unsafe { Command::launch(&scale, LaunchShape::new([1; 3], [1; 3]), arguments) };
    queue.submit(command.unwrap()).unwrap();
    queue.finish_timeout(TIMEOUT).unwrap();
    assert_eq!(memory.typed::<u32>().unwrap().get(0), Some(3 * 5 + 1));
}
