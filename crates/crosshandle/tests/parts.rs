//! Tests of parts of the host, which need two processors and an OpenCL runtime that can divide the
//! host.

use crosshandle::image::Image;
use crosshandle::kernel::Program;
use crosshandle::{
    Command, Context, Device, Error, Memory,
    device::{AffinityDomain, Partition},
    image::{ChannelOrder, ChannelType, ImageDescription, ImageFormat, ImageKind, ImagePart},
    kernel::{Kernel, KernelArguments, LaunchShape, ProgramImage},
};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);
const SOURCE: &str = "
    kernel void add(global uint *data, uint addend) {
        data[get_global_id(0)] += addend;
    }
    // How many groups run at a time, at most.
    kernel void crowd(volatile global int *running, volatile global int *most, uint turns) {
        atomic_max(most, atomic_inc(running) + 1);
        for (uint i = 0; i < turns; i++)
            atomic_or(running, 0);
        atomic_dec(running);
    }
";

/// Returns the host, which can be divided into several parts, and its number of compute units.
fn host() -> (Device, u32) {
    let host = Device::find("host").unwrap();
    let limits = host.partitions().unwrap_or_else(|error| panic!("{error}"));
    assert!(
        limits.parts > 1 && limits.equally && limits.by_counts,
        "{limits:?}"
    );
    (host, limits.compute_units)
}

fn kernel(context: &Context, name: &str) -> Kernel {
    let program = Program::new(context, ProgramImage::text(SOURCE)).unwrap();
    program.kernel(name).unwrap()
}

fn add(kernel: &Kernel, memory: &Memory, addend: u32) -> Command {
    let arguments = KernelArguments::new().with(&memory.all()).value(addend);
    // SAFETY: the memory has a word for each thread.
    unsafe { Command::launch(kernel, LaunchShape::threads([256, 1, 1]), arguments) }.unwrap()
}

/// Returns the maximum number of groups, out of 64, that run at the same time.
fn crowd(context: &Context, turns: u32) -> i32 {
    let kernel = kernel(context, "crowd");
    let words = context.allocate(8).unwrap();
    words.write(0, &[0; 8]).unwrap();
    let arguments = KernelArguments::new()
        .with(&words.range(..4).unwrap())
        .with(&words.range(4..).unwrap())
        .value(turns);
    let shape = LaunchShape::new([64, 1, 1], [1, 1, 1]);
    // SAFETY: both words are inside the memory.
    let launch = unsafe { Command::launch(&kernel, shape, arguments) }.unwrap();
    let queue = context.create_queue().unwrap();
    queue.submit(launch).unwrap();
    queue.finish_timeout(TIMEOUT).unwrap();
    let mut most = [0; 4];
    words.read(4, &mut most).unwrap();
    i32::from_ne_bytes(most)
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn a_part_runs_kernels_on_its_own_compute_units() {
    let (host, _) = host();
    let parts = host.partition(&Partition::ByCounts(vec![1])).unwrap();
    let [part] = &parts[..] else {
        panic!("{} parts", parts.len())
    };
    assert_eq!(part.info().compute_units, 1);
    let context = Context::new(part).unwrap();
    for _ in 0..10 {
        assert_eq!(crowd(&context, 10_000), 1);
    }
    // The whole device runs several groups at once, as soon as the system runs two threads at once.
    let whole = Context::new(&host).unwrap();
    let start = Instant::now();
    while crowd(&whole, 10_000) < 2 {
        assert!(start.elapsed() < TIMEOUT, "one group at a time");
    }
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn parts_and_the_whole_share_memory_and_events() {
    let (host, units) = host();
    let parts = host.partition(&Partition::Equally(1)).unwrap();
    assert_eq!(parts.len(), units as usize);
    assert!(parts.iter().all(|part| part.info().compute_units == 1));
    assert!(
        parts
            .iter()
            .all(|part| part.info().uuid == host.info().uuid)
    );
    let (here, there) = (
        Context::new(&parts[0]).unwrap(),
        Context::new(&host).unwrap(),
    );
    let memory = here.allocate(1024).unwrap();
    let opened = there.open_memory(&memory.handle().unwrap()).unwrap();
    let done = here.create_event().unwrap();
    let seen = there.open_event(&done.handle().unwrap()).unwrap();
    memory.write(0, &[0; 1024]).unwrap();

    let (queue, further) = (here.create_queue().unwrap(), there.create_queue().unwrap());
    queue
        .submit(add(&kernel(&here, "add"), &memory, 5).signal(&done))
        .unwrap();
    further
        .submit(add(&kernel(&there, "add"), &opened, 2).after_value(&seen, 1))
        .unwrap();
    further.finish_timeout(TIMEOUT).unwrap();
    let words = memory.typed::<u32>().unwrap();
    assert!((0..256).all(|at| words.get(at) == Some(7)));
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn parts_of_one_partition_run_each_others_kernels() {
    let (host, _) = host();
    let parts = host.partition(&Partition::ByCounts(vec![1, 1])).unwrap();
    let contexts = [&parts[0], &parts[1], &host].map(|device| Context::new(device).unwrap());
    let native = |device: &Device| device.native_runtime().unwrap();
    assert_eq!(native(&parts[0]).context, native(&parts[1]).context);
    assert_ne!(native(&parts[0]).device, native(&parts[1]).device);
    assert_ne!(native(&parts[0]).context, native(&host).context);

    let memory = contexts[0].allocate(1024).unwrap();
    memory.write(0, &[0; 1024]).unwrap();
    let kernel = kernel(&contexts[0], "add");
    for context in &contexts[..2] {
        let queue = context.create_queue().unwrap();
        queue.submit(add(&kernel, &memory, 4)).unwrap();
        queue.finish_timeout(TIMEOUT).unwrap();
    }
    let queue = contexts[2].create_queue().unwrap();
    queue.submit(add(&kernel, &memory, 4)).unwrap();
    let refused = queue.finish_timeout(TIMEOUT);
    assert!(matches!(refused, Err(Error::Driver { .. })), "{refused:?}");
    let words = memory.typed::<u32>().unwrap();
    assert!((0..256).all(|at| words.get(at) == Some(8)));
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn parts_copy_pixels() {
    let (host, _) = host();
    let parts = host.partition(&Partition::ByCounts(vec![1])).unwrap();
    let context = Context::new(&parts[0]).unwrap();
    let format = ImageFormat {
        order: ChannelOrder::Rgba,
        channel: ChannelType::UnsignedInt8,
    };
    let description = ImageDescription::new(ImageKind::TwoD, format, [8, 4, 1]);
    let image = Image::new(&context, &description).unwrap();
    let all = ImagePart {
        origin: [0; 3],
        extent: [8, 4, 1],
    };
    let tight = image.tight_pitches(&all);
    let (from, to) = (context.allocate(128), context.allocate(128));
    let (from, to) = (from.unwrap(), to.unwrap());
    let pixels: Vec<u8> = (0..128).collect();
    from.write(0, &pixels).unwrap();
    let queue = context.create_queue().unwrap();
    for command in [
        Command::write_image(from.all(), tight, &image, all),
        Command::read_image(&image, all, to.all(), tight),
    ] {
        queue.submit(command.unwrap()).unwrap();
    }
    queue.finish_timeout(TIMEOUT).unwrap();
    let mut found = [0; 128];
    to.read(0, &mut found).unwrap();
    assert_eq!(found[..], pixels);
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn parts_are_divided_again_and_outlive_what_they_are_parts_of() {
    let (host, _) = host();
    let pair = host.partition(&Partition::ByCounts(vec![2])).unwrap();
    let limits = pair[0].partitions().unwrap();
    assert_eq!((limits.parts, pair[0].info().compute_units), (2, 2));
    let single = pair[0].partition(&Partition::Equally(1)).unwrap();
    drop((pair, host));
    assert_eq!(single.len(), 2);
    let context = Context::new(&single[1]).unwrap();
    drop(single);
    assert_eq!(crowd(&context, 100), 1);
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn what_cannot_be_divided_is_refused() {
    let (host, units) = host();
    for bad in [
        Partition::Equally(0),
        Partition::Equally(units + 1),
        Partition::ByCounts(vec![units, 1]),
        Partition::ByCounts(vec![]),
    ] {
        let refused = host.partition(&bad);
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{bad:?}: {refused:?}"
        );
    }
    let single = host.partition(&Partition::Equally(units)).unwrap();
    assert_eq!((single.len(), single[0].info().compute_units), (1, units));
    let limits = host.partitions().unwrap();
    let caches = AffinityDomain::L1Cache;
    if !limits.by_affinity.contains(&caches) {
        let refused = host.partition(&Partition::ByAffinity(caches));
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    }
    let single = &host.partition(&Partition::ByCounts(vec![1])).unwrap()[0];
    assert_eq!(single.partitions().unwrap().parts, 0);
    let refused = single.partition(&Partition::Equally(1));
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
}
