//! Tests of the runtime that is installed on this machine. Without one, they print that and pass.

use opencl_cpu::{Argument, Code, Image, Parameter, Program, Queue, Runtime, Shape};
use std::ffi::CString;
use std::sync::Arc;

const SOURCE: &str = "
    kernel void fill(global uint *to, uint value, uint count) {
        size_t i = get_global_id(0);
        if (i < count)
            to[i] = value;
    }
    kernel void reverse(global uint *data, local uint *part) {
        size_t i = get_local_id(0), n = get_local_size(0);
        part[i] = data[get_global_id(0)];
        barrier(CLK_LOCAL_MEM_FENCE);
        data[get_global_id(0)] = part[n - 1 - i];
    }
    kernel void follow(global ulong *place) {
        *(global uint *)place[0] = get_global_id(0);
    }
";

fn runtime() -> Option<&'static Runtime> {
    match Runtime::get() {
        Ok(runtime) => Some(runtime),
        Err(reason) => {
            println!("not tested: {reason}");
            None
        }
    }
}

fn build(runtime: &'static Runtime, source: &str) -> Result<Arc<Program>, opencl_cpu::Failure> {
    // SAFETY: the code is source, and no binary.
    unsafe { Program::build(&runtime.device(), &[plain(Image::Source(source))], "") }.map(Arc::new)
}

fn plain(image: Image<'_>) -> Code<'_> {
    Code { image, options: "" }
}

fn name(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn line(global: usize, local: Option<usize>) -> Shape {
    Shape {
        offset: [0; 3],
        global: [global, 1, 1],
        local: local.map(|local| [local, 1, 1]),
    }
}

#[test]
fn kernels_work_on_memory_in_place() {
    let Some(runtime) = runtime() else { return };
    let program = build(runtime, SOURCE).unwrap();
    let queue = Queue::new(&runtime.device()).unwrap();
    let fill = program.kernel(&name("fill")).unwrap();
    let mut words = vec![0_u32; 1000];
    let start = words.as_mut_ptr().expose_provenance();
    let arguments = |value: &'static u32| {
        [
            Argument::Address(start),
            Argument::Value(unsafe {
                // SAFETY: the number is four bytes long.
                std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), 4)
            }),
            Argument::Value(&[0xE8, 3, 0, 0]),
        ]
    };
    // SAFETY: the words live until the queue has finished, and no other code accesses them.
    let done =
        unsafe { queue.launch(&fill, &line(1024, Some(128)), arguments(&7).into_iter()) }.unwrap();
    done.wait().unwrap();
    assert!(done.is_done().unwrap());
    assert!(words.iter().all(|word| *word == 7));

    for (index, word) in words.iter_mut().enumerate() {
        *word = index as u32;
    }
    let reverse = program.kernel(&name("reverse")).unwrap();
    let local = [Argument::Address(start), Argument::Local(4 * 100)];
    // SAFETY: the words live until the queue has finished, and no other code accesses them.
    let done = unsafe { queue.launch(&reverse, &line(1000, Some(100)), local.into_iter()) };
    done.unwrap().wait().unwrap();
    let wanted = (0..10_u32).flat_map(|part| (0..100).rev().map(move |at| 100 * part + at));
    assert!(words.iter().copied().eq(wanted));

    let follow = program.kernel(&name("follow")).unwrap();
    let place = [start as u64];
    let indirect = [Argument::Address(place.as_ptr().expose_provenance())];
    let shape = Shape {
        offset: [42, 0, 0],
        ..line(1, None)
    };
    // SAFETY: the words live until the queue has finished, and no other code accesses them.
    unsafe { queue.launch(&follow, &shape, indirect.into_iter()) }.unwrap();
    queue.finish().unwrap();
    assert_eq!(words[0], 42);
}

#[test]
fn refusals_say_why() {
    let Some(runtime) = runtime() else { return };
    let refused = build(runtime, "kernel void wrong(").err().unwrap();
    assert!(!refused.log.is_empty(), "{refused}");
    let program = build(runtime, SOURCE).unwrap();
    let mut names = program.kernel_names().unwrap();
    names.sort();
    assert_eq!(names, ["fill", "follow", "reverse"]);
    assert!(
        program
            .kernel(&name("nothing"))
            .err()
            .unwrap()
            .is_unknown_name()
    );
    let fill = program.kernel(&name("fill")).unwrap();
    assert_eq!((fill.info().parameters, &*fill.info().name), (3, "fill"));
    let short = [
        Argument::Address(0),
        Argument::Value(&[1]),
        Argument::Value(&[1; 4]),
    ];
    let (index, failure) = fill.check_arguments(short.into_iter()).unwrap_err();
    assert!(
        index == 1 && failure.is_wrong_argument(),
        "{index} {failure}"
    );
    let few = [Argument::Address(0)];
    assert_eq!(fill.check_arguments(few.into_iter()).unwrap_err().0, 1);
    let right = [
        Argument::Address(0),
        Argument::Value(&[1; 4]),
        Argument::Value(&[1; 4]),
    ];
    fill.check_arguments(right.into_iter()).unwrap();
}

#[test]
fn images_are_linked_and_binaries_built_again() {
    let Some(runtime) = runtime() else { return };
    let images = [
        Image::Source("uint twice(uint); kernel void both(global uint *to) { *to = twice(*to); }"),
        Image::Source("uint twice(uint x) { return FACTOR * x; }"),
    ];
    let mut codes = images.map(plain);
    // The option applies to the second image only.
    codes[1].options = "-DFACTOR=2";
    // SAFETY: the code is source, and no binary.
    let linked = unsafe { Program::build(&runtime.device(), &codes, "") }.unwrap();
    let mut word = 21_u32;
    let place = [Argument::Address((&raw mut word).expose_provenance())];
    let queue = Queue::new(&runtime.device()).unwrap();
    let run = |program: Program| {
        let both = Arc::new(program).kernel(&name("both")).unwrap();
        // SAFETY: the word lives until the launch is complete.
        let done = unsafe { queue.launch(&both, &line(1, Some(1)), place.into_iter()) };
        done.unwrap().wait().unwrap();
    };
    let binary = linked.binary().unwrap();
    run(linked);
    // SAFETY: the runtime has made the binary.
    let again = unsafe { Program::build(&runtime.device(), &[plain(Image::Binary(&binary))], "") };
    run(again.unwrap());
    assert_eq!(word, 84);
    // SAFETY: the code is source, and no binary.
    let unresolved = unsafe { Program::build(&runtime.device(), &codes[..1], "") };
    println!("{:?}", unresolved.err());
}

#[test]
fn parameters_and_constants_are_found_by_trying() {
    let Some(runtime) = runtime() else { return };
    let program = build(runtime, SOURCE).unwrap();
    let kinds = |kernel: &str| {
        let kernel = program.kernel(&name(kernel)).unwrap();
        let all = (0..=kernel.info().parameters).map(|index| kernel.parameter(index));
        all.collect::<Vec<_>>()
    };
    let (value, address) = (Some(Parameter::Value), Some(Parameter::Address));
    assert_eq!(kinds("fill"), [address, value, value, None]);
    assert_eq!(kinds("reverse"), [address, Some(Parameter::Local), None]);
    let fill = program.kernel(&name("fill")).unwrap();
    fill.check_argument(1, Argument::Value(&[0; 4])).unwrap();
    for wrong in [
        Argument::Value(&[0; 3]),
        Argument::Address(0),
        Argument::Local(4),
    ] {
        assert!(
            fill.check_argument(1, wrong)
                .unwrap_err()
                .is_wrong_argument()
        );
    }
    let module = include_bytes!("../../conformance/kernels/kernels.spv");
    // SAFETY: the module passed the assembler's validator.
    let sizes = |numbers: &[u32]| unsafe { opencl_cpu::constant_sizes(runtime, module, numbers) };
    assert_eq!(sizes(&[0]), Ok(vec![4]));
    assert!(sizes(&[0, 1]).is_err());
}

/// Prints the cost of a launch. Run it with `--ignored`.
#[test]
#[ignore = "prints figures"]
fn figures() {
    let Some(runtime) = runtime() else { return };
    println!(
        "{} {} {:?}",
        runtime.device_name(),
        runtime.version(),
        runtime.limits()
    );
    println!("{}", runtime.extensions());
    let program = build(runtime, SOURCE).unwrap();
    let fill = program.kernel(&name("fill")).unwrap();
    println!("{:?}", fill.info());
    let queue = Queue::new(&runtime.device()).unwrap();
    println!(
        "suggested {:?} concurrent {:?}",
        queue.suggested_size(&fill, [0; 3], [1_000_003, 1, 1]),
        queue.concurrent_groups(&fill, [64, 1, 1])
    );
    println!(
        "suggested {:?}",
        queue.suggested_size(&fill, [0; 3], [1_000_000, 1, 1])
    );
    let mut words = vec![0_u32; 1 << 20];
    let start = words.as_mut_ptr().expose_provenance();
    let arguments = [
        Argument::Address(start),
        Argument::Value(&[1, 0, 0, 0]),
        Argument::Value(&[0, 1, 0, 0]),
    ];
    for round in 0..5 {
        let begin = std::time::Instant::now();
        for _ in 0..1000 {
            // SAFETY: the words live until the queue has finished.
            unsafe { queue.launch(&fill, &line(256, Some(128)), arguments.into_iter()) }.unwrap();
        }
        let submitted = begin.elapsed();
        queue.finish().unwrap();
        let finished = begin.elapsed();
        let begin = std::time::Instant::now();
        for _ in 0..1000 {
            // SAFETY: the words live until the queue has finished.
            let done = unsafe { queue.launch(&fill, &line(256, Some(128)), arguments.into_iter()) }
                .unwrap();
            done.wait().unwrap();
        }
        println!(
            "round {round}: 1000 launches submitted {submitted:?} finished {finished:?}; each waited {:?}",
            begin.elapsed()
        );
    }
}
