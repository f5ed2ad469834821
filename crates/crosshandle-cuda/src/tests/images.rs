//! Tests of images, samplers and views on a GPU.

use crosshandle::graph::Graph;
use crosshandle::image::{ExternalMemory, ImageView, LevelledImage, Sampler};
use crosshandle::{
    Command, Context, Device, Memory, Queue,
    image::Image,
    kernel::{Kernel, Program},
};
use crosshandle_types::error::Error;
use crosshandle_types::{
    Addressing, AllocationOptions, ChannelOrder, ChannelType, Filter, ImageDescription,
    ImageFormat, ImageKind, ImagePart, KernelArguments, LaunchShape, MemoryKind, Pitches,
    ProgramImage, QueueOrder, SamplerDescription, Sampling,
};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const SIZE: [usize; 2] = [24, 10];
const PIXELS: usize = SIZE[0] * SIZE[1];
const WHOLE: ImagePart = ImagePart {
    origin: [0; 3],
    extent: [SIZE[0], SIZE[1], 1],
};

struct Fixture {
    context: Context,
    queue: Queue,
    program: Program,
}

fn fixture() -> Fixture {
    let context = Context::new(&Device::find("cuda:0").unwrap()).unwrap();
    let program = ProgramImage::text(include_str!("../images.ptx"));
    Fixture {
        queue: context.create_queue().unwrap(),
        program: Program::new(&context, program).unwrap(),
        context,
    }
}

impl Fixture {
    fn host(&self, bytes: &[u8]) -> Memory {
        let options = AllocationOptions::new(bytes.len()).kind(MemoryKind::Host);
        let memory = self.context.allocate_with(options).unwrap();
        memory.write(0, bytes).unwrap();
        memory
    }

    fn image(&self, kind: ImageKind, format: ImageFormat, extent: [usize; 3]) -> Image {
        let description = ImageDescription::new(kind, format, extent);
        Image::new(&self.context, &description).unwrap()
    }

    fn flat(&self, format: ImageFormat) -> Image {
        self.image(ImageKind::TwoD, format, WHOLE.extent)
    }

    /// Writes a whole image.
    fn put(&self, image: &Image, bytes: &[u8]) {
        let part = whole(image);
        let memory = self.host(bytes);
        let copy = Command::write_image(memory.all(), image.tight_pitches(&part), image, part);
        self.queue.submit(copy.unwrap()).unwrap();
    }

    /// Reads a whole image.
    fn get(&self, image: &Image) -> Vec<u8> {
        let part = whole(image);
        let mut bytes = vec![0; image.description().bytes().unwrap()];
        let memory = self.host(&bytes);
        let copy = Command::read_image(image, part, memory.all(), image.tight_pitches(&part));
        self.queue.submit(copy.unwrap()).unwrap();
        self.finish();
        memory.read(0, &mut bytes).unwrap();
        bytes
    }

    fn finish(&self) {
        self.queue.finish_timeout(TIMEOUT).unwrap();
    }

    fn kernel(&self, name: &str) -> Kernel {
        self.program.kernel(name).unwrap()
    }

    /// Launches a kernel with one thread for each pixel of an image.
    fn launch(&self, kernel: &Kernel, arguments: KernelArguments) -> Command {
        let shape = LaunchShape::new([SIZE[0] as u32 / 8, SIZE[1] as u32 / 2, 1], [8, 2, 1]);
        // SAFETY: the kernels access only objects that the tests created for them.
        unsafe { Command::launch(kernel, shape, arguments) }.unwrap()
    }
}

fn format(order: ChannelOrder, channel: ChannelType) -> ImageFormat {
    ImageFormat { order, channel }
}

fn wide() -> ImageFormat {
    format(ChannelOrder::Rgba, ChannelType::UnsignedInt32)
}

fn whole(image: &Image) -> ImagePart {
    ImagePart {
        origin: [0; 3],
        extent: image.description().extent,
    }
}

fn nearest() -> SamplerDescription {
    SamplerDescription {
        is_normalized: false,
        addressing: Addressing::ClampToEdge,
        filter: Filter::Nearest,
    }
}

fn pattern(len: usize, number: usize) -> Vec<u8> {
    let byte = |index: usize| (index * 7 + number + index / 251) as u8;
    (0..len).map(byte).collect()
}

/// Returns 16-byte pixels shifted to the left by one, with a number added to each channel.
fn shifted(bytes: &[u8], addend: u32) -> Vec<u8> {
    let pixel = |index: usize| {
        let (x, y) = (index % SIZE[0], index / SIZE[0]);
        let from = 16 * (y * SIZE[0] + (x + 1).min(SIZE[0] - 1));
        bytes[from..from + 16]
            .chunks_exact(4)
            .flat_map(move |word| {
                let word = u32::from_ne_bytes(word.try_into().unwrap());
                word.wrapping_add(addend).to_ne_bytes()
            })
    };
    (0..PIXELS).flat_map(pixel).collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn limits_are_those_of_a_gpu() {
    let device = Device::find("cuda:0").unwrap();
    let limits = device.images().unwrap();
    eprintln!("{limits:?}");
    assert!(limits.size_2d.iter().all(|size| *size >= 16384) && limits.layers >= 2048);
    let views = limits.views.unwrap();
    assert!(views.pitch_alignment.is_power_of_two() && views.start_alignment.is_power_of_two());
    assert!(views.linear_1d > 1 << 20 && views.cube >= 16384);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_formats_and_kinds_keep_their_pixels() {
    let fixture = fixture();
    let kinds = [
        (ImageKind::OneD, [20, 1, 1]),
        (ImageKind::TwoD, [20, 6, 1]),
        (ImageKind::ThreeD, [20, 6, 4]),
        (ImageKind::OneDArray, [20, 6, 1]),
        (ImageKind::TwoDArray, [20, 6, 4]),
        (ImageKind::Cube, [8, 8, 6]),
    ];
    for order in [ChannelOrder::R, ChannelOrder::Rg, ChannelOrder::Rgba] {
        for channel in [
            ChannelType::SnormInt8,
            ChannelType::SnormInt16,
            ChannelType::UnormInt8,
            ChannelType::UnormInt16,
            ChannelType::SignedInt8,
            ChannelType::SignedInt16,
            ChannelType::SignedInt32,
            ChannelType::UnsignedInt8,
            ChannelType::UnsignedInt16,
            ChannelType::UnsignedInt32,
            ChannelType::HalfFloat,
            ChannelType::Float,
        ] {
            for (kind, extent) in kinds {
                let image = fixture.image(kind, format(order, channel), extent);
                let bytes = pattern(image.description().bytes().unwrap(), 3);
                fixture.put(&image, &bytes);
                let found = fixture.get(&image);
                assert!(found == bytes, "{order:?} {channel:?} {kind:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn parts_go_to_their_places() {
    let fixture = fixture();
    let pixel = format(ChannelOrder::Rg, ChannelType::UnsignedInt16);
    for (kind, extent) in [
        (ImageKind::OneD, [20, 1, 1]),
        (ImageKind::TwoD, [20, 6, 1]),
        (ImageKind::ThreeD, [20, 6, 4]),
        (ImageKind::OneDArray, [20, 6, 1]),
        (ImageKind::TwoDArray, [20, 6, 4]),
    ] {
        let [x, y, z] = extent;
        let (from, to) = (
            fixture.image(kind, pixel, extent),
            fixture.image(kind, pixel, extent),
        );
        let bytes = pattern(x * y * z * 4, 5);
        fixture.put(&from, &bytes);
        fixture.put(&to, &vec![0; bytes.len()]);
        let half = |size: usize| if size > 1 { size / 2 } else { 0 };
        let part = ImagePart {
            origin: [x / 2, half(y), half(z)],
            extent: [x / 2 - 1, (y / 2).max(1), (z / 2).max(1)],
        };
        let origin = [1, 0, 0];
        let copy = Command::copy_image(&from, part, &to, origin).unwrap();
        fixture.queue.submit(copy).unwrap();
        // The destination belongs to the program, has gaps between its rows, and is unknown to the
        // driver.
        let read = ImagePart { origin, ..part };
        let row = part.extent[0] * 4 + 12;
        let pitches = Pitches {
            row,
            slice: row * (part.extent[1] + 1),
        };
        let len = pitches.slice * part.extent[2];
        let mut found = vec![0xEE; len];
        let start = std::ptr::NonNull::new(found.as_mut_ptr()).unwrap();
        // SAFETY: the memory lives until the queue has finished.
        let memory = unsafe {
            crosshandle::MemoryRange::from_raw_parts(
                start,
                len,
                crosshandle_types::Access::ReadWrite,
            )
        };
        let copy = Command::read_image(&to, read, memory, pitches).unwrap();
        fixture.queue.submit(copy).unwrap();
        fixture.finish();
        for slice in 0..part.extent[2] {
            for line in 0..part.extent[1] {
                let [px, py, pz] = part.origin;
                let first = 4 * (((slice + pz) * y + line + py) * x + px);
                let at = slice * pitches.slice + line * row;
                let width = part.extent[0] * 4;
                assert_eq!(
                    found[at..at + width],
                    bytes[first..first + width],
                    "{kind:?}, row {line} of slice {slice}"
                );
                assert!(found[at + width..at + row].iter().all(|byte| *byte == 0xEE));
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rows_of_an_array_go_to_rows_of_an_image() {
    let fixture = fixture();
    let pixel = format(ChannelOrder::R, ChannelType::UnsignedInt8);
    let rows = fixture.image(ImageKind::OneDArray, pixel, [16, 5, 1]);
    let flat = fixture.image(ImageKind::TwoD, pixel, [16, 5, 1]);
    let bytes = pattern(80, 9);
    fixture.put(&rows, &bytes);
    let copy = Command::copy_image(&rows, whole(&rows), &flat, [0; 3]).unwrap();
    fixture.queue.submit(copy).unwrap();
    assert_eq!(fixture.get(&flat), bytes);
    // Each row is one copy of the driver. These are more copies than a waiting stream accepts.
    let rows = fixture.image(ImageKind::OneDArray, pixel, [16, 2048, 1]);
    let flat = fixture.image(ImageKind::TwoD, pixel, [16, 2048, 1]);
    let bytes = pattern(16 * 2048, 5);
    fixture.put(&rows, &bytes);
    fixture.finish();
    let gate = fixture.context.create_event().unwrap();
    let copy = Command::copy_image(&rows, whole(&rows), &flat, [0; 3]).unwrap();
    fixture.queue.submit(copy.after_value(&gate, 1)).unwrap();
    // This thread opens the gate, so `submit` did not block.
    gate.signal().unwrap();
    assert_eq!(fixture.get(&flat), bytes);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn commands_on_pixels_wait_and_signal_and_keep_what_they_use() {
    let fixture = fixture();
    let kernel = fixture.kernel("shift");
    for order in [QueueOrder::InOrder, QueueOrder::OutOfOrder] {
        let context = &fixture.context;
        let queue = context.create_queue_with(order).unwrap();
        let gate = context.create_event().unwrap();
        let steps = [0; 3].map(|_| context.create_event().unwrap());
        let (from, to) = (fixture.flat(wide()), fixture.flat(wide()));
        let memory = fixture.host(&vec![0; PIXELS * 16]);
        let tight = from.tight_pitches(&WHOLE);
        let copy = Command::write_image(memory.all(), tight, &from, WHOLE).unwrap();
        queue
            .submit(copy.after_value(&gate, 1).signal(&steps[0]))
            .unwrap();
        let arguments = KernelArguments::new()
            .with(&from)
            .with(&to)
            .with(&Sampler::new(context, &nearest()).unwrap())
            .value(9_u32);
        let launch = fixture.launch(&kernel, arguments);
        queue
            .submit(launch.after_value(&steps[0], 1).signal(&steps[1]))
            .unwrap();
        let copy = Command::read_image(&to, WHOLE, memory.all(), tight).unwrap();
        queue
            .submit(copy.after_value(&steps[1], 1).signal(&steps[2]))
            .unwrap();
        // The commands keep the images.
        drop((from, to));
        assert!(!steps[2].try_wait().unwrap(), "the gate is closed");
        let bytes = pattern(PIXELS * 16, 1);
        memory.write(0, &bytes).unwrap();
        gate.signal().unwrap();
        steps[2].wait_value_timeout(1, TIMEOUT).unwrap();
        let mut found = vec![0; bytes.len()];
        memory.read(0, &mut found).unwrap();
        assert_eq!(found, shifted(&bytes, 9), "{order:?}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn images_and_views_are_made_while_a_stream_waits() {
    let fixture = fixture();
    let gate = fixture.context.create_event().unwrap();
    let wait = Command::barrier().after_value(&gate, 1);
    fixture.queue.submit(wait).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let context = fixture.context.clone();
    let maker = std::thread::spawn(move || {
        let description = ImageDescription::new(ImageKind::TwoD, wide(), WHOLE.extent);
        let image = Image::new(&context, &description).unwrap();
        tell.send("image").unwrap();
        let view = image.sampled_view(&nearest().into()).unwrap();
        tell.send("view").unwrap();
        let levels = LevelledImage::new(&context, &description, 3).unwrap();
        tell.send("levels").unwrap();
        let level = levels.level(1).unwrap();
        tell.send("level").unwrap();
        drop((image, view, levels, level));
        tell.send("end").unwrap();
    });
    let mut made = Vec::new();
    while let Ok(what) = told.recv_timeout(Duration::from_secs(5)) {
        made.push(what);
    }
    gate.signal().unwrap();
    maker.join().unwrap();
    fixture.finish();
    assert_eq!(made, ["image", "view", "levels", "level", "end"]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn graphs_copy_pixels() {
    let fixture = fixture();
    let (from, to) = (fixture.flat(wide()), fixture.flat(wide()));
    let memory = fixture.host(&pattern(PIXELS * 16, 1));
    let tight = from.tight_pitches(&WHOLE);
    let mut graph = Graph::new(&fixture.context);
    let copy = Command::write_image(memory.all(), tight, &from, WHOLE).unwrap();
    let first = graph.add(copy, &[]).unwrap();
    let arguments = KernelArguments::new()
        .with(&from)
        .with(&to)
        .with(&Sampler::new(&fixture.context, &nearest()).unwrap())
        .value(3_u32);
    let launch = fixture.launch(&fixture.kernel("shift"), arguments);
    let second = graph.add(launch, &[first]).unwrap();
    let copy = Command::read_image(&to, WHOLE, memory.all(), tight).unwrap();
    graph.add(copy, &[second]).unwrap();
    let executable = graph.instantiate().unwrap();
    drop((from, to, graph));
    let mut wanted = pattern(PIXELS * 16, 1);
    for _ in 0..3 {
        fixture.queue.submit(executable.command()).unwrap();
        fixture.finish();
        wanted = shifted(&wanted, 3);
        let mut found = vec![0; wanted.len()];
        memory.read(0, &mut found).unwrap();
        assert_eq!(found, wanted);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn views_sample_and_are_written() {
    let fixture = fixture();
    let (from, to) = (fixture.flat(wide()), fixture.flat(wide()));
    let bytes = pattern(PIXELS * 16, 4);
    fixture.put(&from, &bytes);
    let sampled = from.sampled_view(&nearest().into()).unwrap();
    let written = to.unsampled_view().unwrap();
    let arguments = KernelArguments::new()
        .with(&sampled)
        .with(&written)
        .value(5_u32);
    drop((from, sampled, written));
    let launch = fixture.launch(&fixture.kernel("sample"), arguments);
    fixture.queue.submit(launch).unwrap();
    assert_eq!(fixture.get(&to), shifted(&bytes, 5));
}

/// Reads the first channel of each pixel through a view, at a distance of `right` from the pixel's
/// left edge.
fn blend(
    fixture: &Fixture,
    view: &crosshandle::image::ImageView,
    right: f32,
    scale: [f32; 2],
) -> Vec<f32> {
    let memory = fixture.host(&vec![0; PIXELS * 4]);
    let arguments = KernelArguments::new()
        .with(view)
        .with(&memory.all())
        .value(right)
        .value(scale[0])
        .value(scale[1])
        .value(0_f32);
    let launch = fixture.launch(&fixture.kernel("blend"), arguments);
    fixture.queue.submit(launch).unwrap();
    fixture.finish();
    let mut bytes = vec![0; PIXELS * 4];
    memory.read(0, &mut bytes).unwrap();
    let floats = bytes.chunks_exact(4);
    floats
        .map(|float| f32::from_ne_bytes(float.try_into().unwrap()))
        .collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_of_all_kinds_is_an_image() {
    let fixture = fixture();
    let pixel = format(ChannelOrder::R, ChannelType::Float);
    let floats: Vec<f32> = (0..PIXELS).map(|index| index as f32).collect();
    let description = ImageDescription::new(ImageKind::TwoD, pixel, WHOLE.extent);
    let pitch = 128;
    let limits = fixture.context.device().images().unwrap().views.unwrap();
    let mut bytes = vec![0; pitch * SIZE[1]];
    for (row, floats) in bytes.chunks_mut(pitch).zip(floats.chunks(SIZE[0])) {
        for (place, float) in row.chunks_exact_mut(4).zip(floats) {
            place.copy_from_slice(&float.to_ne_bytes());
        }
    }
    let host = fixture.host(&bytes);
    for kind in [MemoryKind::Device, MemoryKind::Host, MemoryKind::Shared] {
        let options = AllocationOptions::new(bytes.len())
            .kind(kind)
            .align(limits.start_alignment);
        let memory = fixture.context.allocate_with(options).unwrap();
        let copy = Command::copy(host.all(), memory.all()).unwrap();
        fixture.queue.submit(copy).unwrap();
        let sampling = Sampling::from(nearest());
        let view = ImageView::of_memory(
            &fixture.context,
            &memory.all(),
            &description,
            pitch,
            &sampling,
        )
        .unwrap();
        drop(memory);
        assert_eq!(blend(&fixture, &view, 0.5, [1.0; 2]), floats, "{kind:?}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn floats_are_blended() {
    let fixture = fixture();
    for channel in [ChannelType::Float, ChannelType::UnormInt8] {
        let image = fixture.flat(format(ChannelOrder::R, channel));
        let value = |index: usize| (index % 100) as f32;
        let bytes: Vec<u8> = match channel {
            ChannelType::Float => (0..PIXELS)
                .flat_map(|index| value(index).to_ne_bytes())
                .collect(),
            _ => (0..PIXELS).map(|index| value(index) as u8).collect(),
        };
        let unit = if channel == ChannelType::Float {
            1.0
        } else {
            255.0
        };
        fixture.put(&image, &bytes);
        let linear = SamplerDescription {
            filter: Filter::Linear,
            ..nearest()
        };
        let view = image.sampled_view(&linear.into()).unwrap();
        let found = blend(&fixture, &view, 1.0, [1.0; 2]);
        for (index, found) in found.iter().enumerate() {
            let next = if index % SIZE[0] + 1 < SIZE[0] {
                index + 1
            } else {
                index
            };
            let wanted = (value(index) + value(next)) / 2.0 / unit;
            assert!(
                (found - wanted).abs() < 0.02,
                "{channel:?}, {index}: {found}, not {wanted}"
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_there_is_not_is_refused() {
    let fixture = fixture();
    let context = &fixture.context;
    let describe = |kind, format, extent| ImageDescription::new(kind, format, extent);
    let three = format(ChannelOrder::Rgb, ChannelType::Float);
    let refused = Image::new(context, &describe(ImageKind::TwoD, three, [4, 4, 1]));
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    let large = Image::new(context, &describe(ImageKind::TwoD, wide(), [1 << 30, 4, 1]));
    assert!(matches!(large, Err(Error::InvalidArgument(_))), "{large:?}");
    let limits = *context.device().images().unwrap();
    let wide_layers = [limits.layer_2d[0] + 1, 1, 2];
    let large = Image::new(
        context,
        &describe(ImageKind::TwoDArray, wide(), wide_layers),
    );
    assert!(matches!(large, Err(Error::InvalidArgument(_))), "{large:?}");
    let long = [limits.layer_1d, 2, 1];
    Image::new(context, &describe(ImageKind::OneDArray, wide(), long)).unwrap();
    let odd = Image::new(context, &describe(ImageKind::Cube, wide(), [4, 5, 6]));
    assert!(matches!(odd, Err(Error::InvalidArgument(_))), "{odd:?}");
    let image = fixture.flat(wide());
    let linear = SamplerDescription {
        filter: Filter::Linear,
        ..nearest()
    };
    let refused = image.sampled_view(&linear.into());
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
    // A sampler is passed to a kernel as a 32-bit word, and an image's surface as a 64-bit word.
    let arguments = KernelArguments::new()
        .with(&image)
        .with(&image)
        .with(&image)
        .value(1_u32);
    let shape = LaunchShape::new([1; 3], [1; 3]);
    // SAFETY: the launch is refused.
    let refused = unsafe { Command::launch(&fixture.kernel("shift"), shape, arguments) };
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    assert_ne!(image.native().raw(), 0);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn many_images_come_and_go() {
    let fixture = fixture();
    let description = ImageDescription::new(ImageKind::TwoD, wide(), [4096, 4096, 1]);
    // Each image has 256 MiB. All of them together are larger than the memory of a GPU.
    for _ in 0..800 {
        let image = Image::new(&fixture.context, &description).unwrap();
        drop(image.sampled_view(&nearest().into()).unwrap());
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_that_the_driver_exported_is_imported_as_external_memory() {
    use super::gpu;
    let fixture = fixture();
    let (gpu, len) = (gpu(), 1 << 21);
    let exported = {
        let _current = gpu.enter().unwrap();
        let driver = gpu.driver();
        let memory = driver.create_memory(gpu.handle(), len).unwrap();
        driver.export_memory(&memory).unwrap()
    };
    let external = ExternalMemory::import(&fixture.context, exported, len as u64);
    let external = external.expect("the driver takes its own descriptors here too");
    for (offset, part) in [(0, len as u64 + 1), (len as u64, 1), (0, 0), (u64::MAX, 2)] {
        let refused = external.map(offset, part);
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{refused:?}"
        );
    }
    let range = external.map(0, len as u64).unwrap();
    drop(external);
    let bytes = pattern(len, 2);
    let (from, to) = (fixture.host(&bytes), fixture.host(&vec![0; len]));
    let copy = Command::copy(from.all(), range.clone()).unwrap();
    fixture.queue.submit(copy).unwrap();
    let copy = Command::copy(range, to.all()).unwrap();
    fixture.queue.submit(copy).unwrap();
    fixture.finish();
    let mut found = vec![0; len];
    to.read(0, &mut found).unwrap();
    assert!(found == bytes);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn descriptors_of_other_things_are_no_external_memory() {
    let fixture = fixture();
    let file = std::fs::File::open("/dev/zero").unwrap();
    let refused = ExternalMemory::import(&fixture.context, file.into(), 1 << 21);
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
    let (read, _write) = std::io::pipe().unwrap();
    let refused = ExternalMemory::import(&fixture.context, read.into(), 1 << 21);
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
}
