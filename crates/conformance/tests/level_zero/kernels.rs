//! Roles with kernels, which need an OpenCL runtime for the CPU.

use crate::roles::{LONG, harness};
use crosshandle::kernel::Program;
use crosshandle::{
    Command, Context, Error, QueueOrder,
    kernel::{Kernel, KernelArguments, LaunchShape, ProgramImage, ProgramOptions},
};
use crosshandle_conformance::Transfer;
use std::ptr::NonNull;

const SPIR_V: &[u8] = include_bytes!("../../kernels/kernels.spv");
const COUNT: usize = 1000;

fn module() -> ProgramImage<'static> {
    // SAFETY: the module passed the assembler's validator.
    unsafe { ProgramImage::spirv(SPIR_V) }
}

fn context() -> Context {
    let context = harness().context().unwrap();
    let limits = *context
        .device()
        .kernels()
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(limits.offsets && limits.block_choice && limits.local_arguments);
    assert_eq!(limits.architecture, (20, 1));
    assert_eq!(limits.intermediate_languages.split(' ').count(), 5);
    context
}

fn launch(kernel: &Kernel, shape: LaunchShape, arguments: KernelArguments) -> Command {
    // SAFETY: the kernels access only the thousand words.
    unsafe { Command::launch(kernel, shape, arguments) }.unwrap()
}

pub(crate) fn arguments_shapes_and_constants_reach_kernels() {
    let context = context();
    let transfer = Transfer::new(&context).unwrap();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(4 * COUNT).unwrap();
    let run = |kernel: &Kernel, shape, arguments| {
        queue.submit(launch(kernel, shape, arguments)).unwrap();
        queue.finish_timeout(LONG).unwrap();
        let bytes = transfer.read(&memory, 0, 4 * COUNT).unwrap();
        let words = bytes.as_chunks().0.iter();
        words
            .map(|word| u32::from_ne_bytes(*word))
            .collect::<Vec<_>>()
    };
    let program = Program::new(&context, module()).unwrap();
    let mut names = program.kernel_names().unwrap();
    names.sort();
    assert_eq!(names, ["fill", "number", "reverse", "scale"]);
    let first = || KernelArguments::new().with(&memory.all());

    let number = program.kernel("number").unwrap();
    let shape = LaunchShape::threads([COUNT, 1, 1]);
    let words = run(&number, shape.offset([5, 0, 0]), first());
    assert!(words.iter().copied().eq(5..1005));
    // The next launch has no offset.
    let words = run(&number, shape, first());
    assert!(words.iter().copied().eq(0..1000));
    // Only groups of a single thread divide a prime number of threads.
    let words = run(
        &number,
        LaunchShape::threads([997, 1, 1]).offset([3, 0, 0]),
        first(),
    );
    assert!(words[..997].iter().copied().eq(3..1000) && words[997..] == [997, 998, 999]);

    let reverse = program.kernel("reverse").unwrap();
    let words = run(
        &reverse,
        LaunchShape::new([10, 1, 1], [100, 1, 1]).cooperative(false),
        first().local(4 * 100),
    );
    assert_eq!((words[0], words[99], words[100]), (102, 3, 202));
    let one = LaunchShape::new([1; 3], [100, 1, 1]);
    assert_eq!(reverse.concurrent_blocks(100, 400).unwrap(), 1);
    let words = run(&reverse, one.cooperative(true), first().local(4 * 100));
    assert_eq!((words[0], words[99]), (3, 102));

    // The module multiplies by 3, and by a constant that is 1 by default.
    let constants = [(0, 10_u32.to_le_bytes().to_vec())];
    let options = ProgramOptions::new().compiler("-cl-fast-relaxed-math -ze-opt-disable");
    let images = [module().specialized(&constants)];
    let more = Program::with_options(&context, &images, &options).unwrap();
    let scale = more.kernel("scale").unwrap();
    let arguments = || first().value(1_u32).value(COUNT as u32);
    let covering = LaunchShape::covering(COUNT, 64).unwrap();
    let words = run(&scale, covering, arguments());
    assert_eq!((words[0], words[99]), (30 * 3 + 1, 30 * 102 + 1));

    // A binary from the driver can be loaded again.
    let binary = more.binary().unwrap().unwrap();
    // SAFETY: the driver made the binary.
    let again = Program::new(&context, unsafe { ProgramImage::binary(&binary) });
    let again = again.unwrap().kernel("scale").unwrap();
    let words = run(&again, covering, arguments());
    assert_eq!(words[0], 30 * (30 * 3 + 1) + 1);

    let factor = more.variable("factor").unwrap();
    queue
        .submit(Command::fill(factor, &2_u32.to_ne_bytes()).unwrap())
        .unwrap();
    let words = run(&scale, covering, arguments());
    assert_eq!(words[0], 20 * (30 * (30 * 3 + 1) + 1) + 1);
    assert!(scale.suggested_block(0).unwrap() > 1);
}

pub(crate) fn several_modules_are_linked() {
    let context = context();
    // This is the same module with other names of the same lengths.
    let mut other = SPIR_V.to_vec();
    let names = [("fill", "full"), ("scale", "skale"), ("number", "namber")];
    let names = names
        .into_iter()
        .chain([("reverse", "raverse"), ("factor", "faktor")]);
    for (from, to) in names {
        for at in 0..other.len() - from.len() {
            if other[at..].starts_with(from.as_bytes()) {
                other[at..at + to.len()].copy_from_slice(to.as_bytes());
            }
        }
    }
    let constants = [(0, 10_u32.to_le_bytes().to_vec())];
    // SAFETY: only names in the module were changed.
    let other = unsafe { ProgramImage::spirv(&other) }
        .specialized(&constants)
        .compiled_with("-cl-mad-enable");
    let linked = Program::with_options(&context, &[module(), other], &ProgramOptions::new());
    let linked = linked.unwrap();
    assert_eq!(linked.kernel_names().map(|names| names.len()), Some(8));
    let transfer = Transfer::new(&context).unwrap();
    let memory = context.allocate(4).unwrap();
    let queue = context.create_queue().unwrap();
    for (name, value) in [
        ("fill", 2),
        ("scale", 5),
        ("skale", 5),
        ("full", 6),
        ("skale", 0),
    ] {
        if name == "full" {
            // From now on, commands are in a list that the program may append to as well.
            assert!(queue.native().is_some());
        }
        let kernel = linked.kernel(name).unwrap();
        let arguments = KernelArguments::new()
            .with(&memory.all())
            .value::<u32>(value)
            .value(1_u32);
        queue
            .submit(launch(&kernel, LaunchShape::threads([1; 3]), arguments))
            .unwrap();
        queue.finish_timeout(LONG).unwrap();
        let bytes = transfer.read(&memory, 0, 4).unwrap();
        let wanted: u32 = match (name, value) {
            ("scale", _) => 3 * 2 + 5,
            ("skale", 5) => 30 * 11 + 5,
            ("skale", _) => 30 * 6,
            (_, value) => value,
        };
        assert_eq!(bytes, wanted.to_ne_bytes(), "{name}");
    }
    // Two modules with the same kernels cannot be linked, and the linker's error says so.
    let error =
        Program::with_options(&context, &[module(), module()], &ProgramOptions::new()).unwrap_err();
    assert!(matches!(error, Error::Program { .. }), "{error}");
    // SAFETY: the binary is refused before it reaches the driver.
    let images = [module(), unsafe { ProgramImage::binary(b"binary") }];
    let error = Program::with_options(&context, &images, &ProgramOptions::new());
    assert!(matches!(error, Err(Error::Unsupported(_))));
}

pub(crate) fn refusals_say_what_is_wrong() {
    let context = context();
    let error = Program::new(&context, ProgramImage::text("text")).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    let constants = [(0, vec![0; 8]), (7, vec![0; 4])];
    for constant in &constants {
        let image = module().specialized(std::slice::from_ref(constant));
        let error = Program::new(&context, image).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    let wrong = ProgramOptions::new().compiler("-no-such-option");
    let error = Program::with_options(&context, &[module()], &wrong).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Program {
                operation: "zeModuleCreate",
                code: 0x7000_0004,
                ..
            }
        ),
        "{error}"
    );
    // SAFETY: the driver recognises its own binaries, and refuses others.
    let error = Program::new(&context, unsafe { ProgramImage::binary(b"no binary") });
    assert!(matches!(error, Err(Error::Program { .. })));
    let program = Program::new(&context, module()).unwrap();
    assert!(matches!(program.kernel("nothing"), Err(Error::NoSymbol(_))));
    assert!(matches!(
        program.variable("nothing"),
        Err(Error::NoSymbol(_))
    ));
    let fill = program.kernel("fill").unwrap();
    let memory = context.allocate(4096).unwrap();
    let first = || KernelArguments::new().with(&memory.all());
    let right = || first().value(1_u32).value(1_u32);
    let one = LaunchShape::new([1; 3], [1; 3]);
    // SAFETY: no launch is submitted.
    let refuse =
        |shape, arguments| unsafe { Command::launch(&fill, shape, arguments) }.unwrap_err();
    for arguments in [
        first(),
        right().value(1_u32),
        first().value(1_u8).value(1_u32),
        first().value(1_u64).value(1_u32),
        KernelArguments::new()
            .value(1_u32)
            .value(1_u32)
            .value(1_u32),
    ] {
        let error = refuse(one, arguments);
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    let large = refuse(LaunchShape::new([1; 3], [1 << 20, 1, 1]), right());
    assert!(matches!(large, Error::InvalidArgument(_)), "{large}");
    for shape in [one.shared_memory(4), one.cluster([1; 3])] {
        assert!(matches!(refuse(shape, right()), Error::Unsupported(_)));
    }
    let queue = context.create_queue().unwrap();
    queue.submit(launch(&fill, one, right())).unwrap();
    queue.finish_timeout(LONG).unwrap();
}

/// The driver checks addresses when a launch is appended. The command fails, commands that wait for
/// it fail, and other commands run.
pub(crate) fn refused_launches_fail_in_their_turn() {
    let context = context();
    let transfer = Transfer::new(&context).unwrap();
    let fill = Program::new(&context, module())
        .unwrap()
        .kernel("fill")
        .unwrap();
    let memory = context.allocate(4).unwrap();
    let one = LaunchShape::new([1; 3], [1; 3]);
    for order in [QueueOrder::InOrder, QueueOrder::OutOfOrder] {
        let queue = context.create_queue_with(order).unwrap();
        let (refused, done) = (
            context.create_event().unwrap(),
            context.create_event().unwrap(),
        );
        let nowhere = NonNull::<u32>::dangling().as_ptr().expose_provenance();
        let wrong = KernelArguments::new()
            .address(nowhere)
            .value(1_u32)
            .value(1_u32);
        let right = KernelArguments::new()
            .with(&memory.all())
            .value(7_u32)
            .value(1_u32);
        queue
            .submit(launch(&fill, one, wrong).signal(&refused))
            .unwrap();
        queue
            .submit(launch(&fill, one, right).signal(&done))
            .unwrap();
        let error = refused.wait_timeout(LONG).unwrap_err();
        assert!(
            error.to_string().contains("zeKernelSetArgumentValue"),
            "{error}"
        );
        done.wait_timeout(LONG).unwrap();
        assert_eq!(transfer.read(&memory, 0, 4).unwrap(), 7_u32.to_ne_bytes());
        transfer.write(&memory, 0, &[0; 4]).unwrap();
    }
}

/// It is unknown whether a launch that the driver refused is in the list. The queue therefore
/// signals no completion of it and keeps what it may use.
pub(crate) fn a_refused_launch_keeps_what_it_may_use() {
    let context = context();
    let fill = Program::new(&context, module())
        .unwrap()
        .kernel("fill")
        .unwrap();
    let memory = context.allocate(4).unwrap();
    let queue = context.create_queue().unwrap();
    let done = context.create_event().unwrap();
    let arguments = KernelArguments::new()
        .with(&memory.all())
        .value(7_u32)
        .value(1_u32);
    let command = launch(&fill, LaunchShape::new([1; 3], [1; 3]), arguments);
    drop((fill, memory));
    queue.submit(command.signal(&done)).unwrap();
    let error = done.wait_timeout(LONG).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("zeCommandListAppendLaunchKernel"),
        "{error}"
    );
    let after = context.create_event().unwrap();
    queue.submit(Command::marker().signal(&after)).unwrap();
    after.wait_timeout(LONG).unwrap();
}

pub(crate) fn a_driver_without_a_compiler_says_so() {
    let context = harness().context().unwrap();
    let error = context.device().kernels().unwrap_err();
    assert!(error.to_string().contains("compiler"), "{error}");
    let error = Program::new(&context, module()).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
}
