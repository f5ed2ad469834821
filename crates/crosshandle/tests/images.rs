//! Tests of images on the host, which need an OpenCL runtime with images. The clients of the
//! adapters test images across processes.

use crosshandle::graph::Graph;
use crosshandle::image::{ExternalMemory, ImageView, LevelledImage, Sampler};
use crosshandle::kernel::Program;
use crosshandle::{
    Command, Context, Device, Error, QueueOrder,
    image::{
        Addressing, ChannelOrder, ChannelType, Filter, Image, ImageDescription, ImageFormat,
        ImageKind, ImagePart, SamplerDescription, Sampling,
    },
    kernel::{KernelArguments, LaunchShape, ProgramImage},
    memory::Pitches,
};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const FORMAT: ImageFormat = ImageFormat {
    order: ChannelOrder::Rgba,
    channel: ChannelType::UnsignedInt8,
};
const ALL: ImagePart = ImagePart {
    origin: [0; 3],
    extent: [6, 4, 1],
};
const BYTES: usize = 6 * 4 * 4;

fn context() -> Context {
    let host = Device::find("host").unwrap();
    let limits = host.images().unwrap_or_else(|error| panic!("{error}"));
    assert!(limits.size_2d[0] >= 6 && limits.samplers > 0);
    Context::new(&host).unwrap()
}

fn image(context: &Context) -> Image {
    let description = ImageDescription::new(ImageKind::TwoD, FORMAT, ALL.extent);
    Image::new(context, &description).unwrap()
}

fn sampler() -> SamplerDescription {
    SamplerDescription {
        is_normalized: false,
        addressing: Addressing::ClampToEdge,
        filter: Filter::Nearest,
    }
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn commands_on_pixels_wait_and_signal_and_keep_what_they_use() {
    let context = context();
    // SAFETY: the module passed the assembler's validator.
    let module =
        unsafe { ProgramImage::spirv(include_bytes!("../../conformance/kernels/images.spv")) };
    let shift = Program::new(&context, module).unwrap();
    let shift = shift.kernel("shift").unwrap();
    for order in [QueueOrder::InOrder, QueueOrder::OutOfOrder] {
        let queue = context.create_queue_with(order).unwrap();
        let gate = context.create_event().unwrap();
        let steps = [0; 4].map(|_| context.create_event().unwrap());
        let (from, to) = (image(&context), image(&context));
        let memory = context.allocate(BYTES).unwrap();
        let tight = from.tight_pitches(&ALL);
        let copy = Command::write_image(memory.all(), tight, &from, ALL).unwrap();
        queue
            .submit(copy.after_value(&gate, 1).signal(&steps[0]))
            .unwrap();
        let arguments = KernelArguments::new()
            .with(&from)
            .with(&to)
            .with(&Sampler::new(&context, &sampler()).unwrap())
            .value(1_u32);
        // SAFETY: the kernel accesses only pixels inside the images.
        let launch = unsafe { Command::launch(&shift, LaunchShape::threads([6, 4, 1]), arguments) };
        let launch = launch.unwrap().after_value(&steps[0], 1);
        queue.submit(launch.signal(&steps[1])).unwrap();
        // Copies the right half of an image to its left half, without overlap.
        let half = ImagePart {
            origin: [3, 0, 0],
            extent: [3, 4, 1],
        };
        let copy = Command::copy_image(&to, half, &to, [0; 3]).unwrap();
        queue
            .submit(copy.after_value(&steps[1], 1).signal(&steps[2]))
            .unwrap();
        let copy = Command::read_image(&to, ALL, memory.all(), tight).unwrap();
        queue
            .submit(copy.after_value(&steps[2], 1).signal(&steps[3]))
            .unwrap();
        drop((from, to));
        assert!(!steps[3].try_wait().unwrap(), "the gate is closed");
        let pixels: Vec<u8> = (0..BYTES as u8).collect();
        memory.write(0, &pixels).unwrap();
        gate.signal().unwrap();
        steps[3].wait_value_timeout(1, TIMEOUT).unwrap();
        let mut found = vec![0; BYTES];
        memory.read(0, &mut found).unwrap();
        let wanted = (0..24_u8).flat_map(|pixel| {
            let (row, column) = (pixel / 6, pixel % 6);
            let source = 6 * row + [4, 5, 5, 4, 5, 5][usize::from(column)];
            (0..4).map(move |channel| 4 * source + channel + 1)
        });
        assert_eq!(found, wanted.collect::<Vec<_>>(), "{order:?}");
    }
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn what_does_not_fit_is_refused() {
    let context = context();
    let (one, memory) = (image(&context), context.allocate(BYTES).unwrap());
    let tight = one.tight_pitches(&ALL);
    let outside = ImagePart {
        origin: [usize::MAX, 0, 0],
        ..ALL
    };
    let invalid = |result: Result<Command, Error>| {
        let error = result.expect_err("refused");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    };
    invalid(Command::write_image(memory.all(), tight, &one, outside));
    invalid(Command::read_image(
        &one,
        ALL,
        memory.range(1..).unwrap(),
        tight,
    ));
    let narrow = Pitches { row: 23, ..tight };
    invalid(Command::read_image(&one, ALL, memory.all(), narrow));
    let part = ImagePart {
        origin: [0; 3],
        extent: [2, 2, 1],
    };
    invalid(Command::copy_image(&one, part, &one, [1, 1, 0]));
    invalid(Command::copy_image(&one, part, &one, [5, 0, 0]));
    let description = ImageDescription::new(ImageKind::TwoD, FORMAT, [usize::MAX, 1, 1]);
    let refused = Image::new(&context, &description).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    let format = ImageFormat {
        order: ChannelOrder::Rgb,
        ..FORMAT
    };
    let description = ImageDescription::new(ImageKind::TwoD, format, [1; 3]);
    let refused = Image::new(&context, &description).unwrap_err();
    assert!(matches!(refused, Error::Unsupported(_)), "{refused}");

    let other = Context::new(context.device()).unwrap();
    let foreign = image(&other);
    invalid(Command::copy_image(&one, ALL, &foreign, [0; 3]));
    let copy = Command::read_image(&foreign, ALL, memory.all(), tight).unwrap();
    let refused = context.create_queue().unwrap().submit(copy).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    let foreign = || Command::read_image(&foreign, ALL, memory.all(), tight).unwrap();
    let mut graph = Graph::new(&context);
    let refused = graph.add(foreign(), &[]).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    let copy = Command::read_image(&one, ALL, memory.all(), tight).unwrap();
    let copy = graph.add(copy, &[]).unwrap();
    let executable = graph.instantiate().unwrap();
    let refused = executable.update(copy, foreign()).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn a_graph_copies_pixels_at_each_run() {
    let context = context();
    // SAFETY: the module passed the assembler's validator.
    let module =
        unsafe { ProgramImage::spirv(include_bytes!("../../conformance/kernels/images.spv")) };
    let program = Program::new(&context, module).unwrap();
    let shift = program.kernel("shift").unwrap();
    let (from, to, memory) = (
        image(&context),
        image(&context),
        context.allocate(BYTES).unwrap(),
    );
    let tight = from.tight_pitches(&ALL);
    let mut graph = Graph::new(&context);
    let write = Command::write_image(memory.all(), tight, &from, ALL).unwrap();
    let write = graph.add(write, &[]).unwrap();
    let arguments = KernelArguments::new()
        .with(&from)
        .with(&to)
        .with(&Sampler::new(&context, &sampler()).unwrap())
        .value(1_u32);
    // SAFETY: the kernel accesses only pixels inside the images.
    let launch = unsafe { Command::launch(&shift, LaunchShape::threads([6, 4, 1]), arguments) };
    let launch = graph.add(launch.unwrap(), &[write]).unwrap();
    // The first column of the shifted image is copied to the last column of the other image, which
    // is copied to memory.
    let column = ImagePart {
        origin: [0; 3],
        extent: [1, 4, 1],
    };
    let copy = Command::copy_image(&to, column, &from, [5, 0, 0]).unwrap();
    let copy = graph.add(copy, &[launch]).unwrap();
    let read = Command::read_image(&from, ALL, memory.all(), tight).unwrap();
    let read = graph.add(read, &[copy]).unwrap();
    let executable = graph.instantiate().unwrap();
    let (queue, done) = (
        context.create_queue().unwrap(),
        context.create_event().unwrap(),
    );
    let pixels: Vec<u8> = (0..BYTES as u8).collect();
    memory.write(0, &pixels).unwrap();
    let mut wanted = pixels;
    let mut runs = 0;
    let mut run = || {
        queue.submit(executable.command().signal(&done)).unwrap();
        runs += 1;
        done.wait_value_timeout(runs, TIMEOUT).unwrap();
        let mut found = vec![0; BYTES];
        memory.read(0, &mut found).unwrap();
        found
    };
    drop((graph, program, shift));
    // Each run starts with the result of the previous one.
    for _ in 0..3 {
        for row in wanted.chunks_exact_mut(24) {
            for channel in 0..4 {
                row[20 + channel] = row[4 + channel] + 1;
            }
        }
        assert_eq!(run(), wanted);
    }
    // After the update, the shifted image itself is copied to memory.
    let replaced = Command::read_image(&to, ALL, memory.all(), tight).unwrap();
    executable.update(read, replaced).unwrap();
    drop((from, to));
    let shifted = wanted.chunks_exact(24).flat_map(|row| {
        let sources = [1, 2, 3, 4, 5, 5];
        let pixels =
            sources.map(|column| [0, 1, 2, 3].map(|channel| row[4 * column + channel] + 1));
        pixels.into_iter().flatten()
    });
    let shifted: Vec<u8> = shifted.collect();
    assert_eq!(run(), shifted);
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn a_kernel_takes_images_where_it_has_such_parameters() {
    let context = context();
    // SAFETY: the module passed the assembler's validator.
    let module =
        unsafe { ProgramImage::spirv(include_bytes!("../../conformance/kernels/images.spv")) };
    let program = Program::new(&context, module).unwrap();
    let shift = program.kernel("shift").unwrap();
    let (one, how) = (image(&context), Sampler::new(&context, &sampler()).unwrap());
    let launch = |arguments| {
        // SAFETY: accepted arguments are no larger than the images.
        unsafe { Command::launch(&shift, LaunchShape::threads([6, 4, 1]), arguments) }
    };
    let new = KernelArguments::new;
    assert!(launch(new().with(&one).with(&one).with(&how).value(1_u32)).is_ok());
    assert!(launch(new().with(&how).with(&one).with(&how).value(1_u32)).is_err());
    assert!(launch(new().address(64).with(&one).with(&how).value(1_u32)).is_err());
    assert!(launch(new().with(&one).with(&one).with(&one).value(1_u32)).is_err());
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn views_of_images_are_refused_where_there_are_none() {
    let context = context();
    assert_eq!(context.device().images().unwrap().views, None);
    let (one, description) = (image(&context), *image(&context).description());
    let sampling = Sampling::from(sampler());
    let memory = context.allocate(BYTES).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    for refused in [
        one.sampled_view(&sampling).err(),
        one.unsampled_view().err(),
        LevelledImage::new(&context, &description, 2).err(),
        ImageView::of_memory(&context, &memory.all(), &description, 24, &sampling).err(),
        ImageView::check(&context, &description, 1).err(),
        ImageView::check_memory(&context, &description, 24).err(),
        ExternalMemory::import(&context, file.into(), 4096).err(),
    ] {
        assert!(
            matches!(&refused, Some(Error::Unsupported(text)) if text.contains("no views")),
            "{refused:?}"
        );
    }
    let cube = ImageDescription::new(ImageKind::Cube, FORMAT, [4, 4, 6]);
    let refused = Image::new(&context, &cube).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
}
