//! Tests of a runtime's images. Without a runtime, they print that and pass.

use opencl_cpu::{
    Addressing, Argument, ChannelOrder, ChannelType, Code, Image, ImageDescription, ImageKind,
    ImageObject, Parameter, Part, Program, Queue, Runtime, SamplerDescription, SamplerObject,
    Shape,
};
use std::sync::Arc;

const SOURCE: &str = "
    kernel void shift(read_only image2d_t from, write_only image2d_t to, sampler_t how) {
        int2 at = (int2)(get_global_id(0), get_global_id(1));
        write_imageui(to, at, read_imageui(from, how, at + (int2)(1, 0)) + 1);
    }
";

fn runtime() -> Option<&'static Runtime> {
    let runtime = match Runtime::get() {
        Ok(runtime) => runtime,
        Err(reason) => {
            println!("not tested: {reason}");
            return None;
        }
    };
    if runtime.limits().images.is_none() {
        println!("not tested: {} has no images", runtime.device_name());
        return None;
    }
    Some(runtime)
}

fn image(runtime: &'static Runtime, kind: ImageKind, extent: [usize; 3]) -> ImageObject {
    let description = ImageDescription {
        kind,
        order: ChannelOrder::Rgba,
        channel: ChannelType::UnsignedInt8,
        extent,
    };
    ImageObject::new(&runtime.device(), &description).unwrap()
}

#[test]
fn a_kernel_reads_one_image_through_a_sampler_and_writes_another() {
    let Some(runtime) = runtime() else { return };
    let code = Code {
        image: Image::Source(SOURCE),
        options: "",
    };
    // SAFETY: the code is source, and no binary.
    let program = Arc::new(unsafe { Program::build(&runtime.device(), &[code], "") }.unwrap());
    let kernel = program.kernel(c"shift").unwrap();
    let kinds = [0, 1, 2].map(|index| kernel.parameter(index).unwrap());
    assert_eq!(
        kinds,
        [Parameter::Image, Parameter::Image, Parameter::Sampler]
    );
    let (from, to) = (
        image(runtime, ImageKind::TwoD, [4, 2, 1]),
        image(runtime, ImageKind::TwoD, [4, 2, 1]),
    );
    let how = SamplerDescription {
        is_normalized: false,
        addressing: Addressing::ClampToEdge,
        is_linear: false,
    };
    let how = SamplerObject::new(&runtime.device(), &how).unwrap();
    let queue = Queue::new(&runtime.device()).unwrap();
    let pixels: Vec<u8> = (0..32).collect();
    let all = Part {
        origin: [0; 3],
        extent: [4, 2, 1],
    };
    let shape = Shape {
        offset: [0; 3],
        global: [4, 2, 1],
        local: None,
    };
    let numbers = [from.raw(), to.raw(), how.raw()].map(usize::to_ne_bytes);
    let arguments = numbers.iter().map(|bytes| Argument::Value(bytes));
    let mut found = vec![0_u8; 32];
    // SAFETY: the bytes live until the queue has finished.
    unsafe {
        let place = (pixels.as_ptr(), 16, 32);
        queue.write_image(&from, &all, place).unwrap();
        queue.launch(&kernel, &shape, arguments).unwrap();
        let place = (found.as_mut_ptr(), 16, 32);
        queue.read_image(&to, &all, place).unwrap();
    }
    queue.finish().unwrap();
    // Each pixel equals its right neighbour in the original, and the last one equals itself.
    let wanted = (0..8).map(|pixel| if pixel % 4 == 3 { pixel } else { pixel + 1 });
    let wanted: Vec<u8> = wanted
        .flat_map(|pixel| (0..4).map(move |channel| 4 * pixel + channel + 1))
        .collect();
    assert_eq!(found, wanted);
}

#[test]
fn parts_of_all_kinds_go_to_memory_and_back() {
    let Some(runtime) = runtime() else { return };
    let queue = Queue::new(&runtime.device()).unwrap();
    for (kind, extent) in [
        (ImageKind::OneD, [6, 1, 1]),
        (ImageKind::TwoD, [6, 4, 1]),
        (ImageKind::ThreeD, [6, 4, 3]),
        (ImageKind::OneDArray, [6, 4, 1]),
        (ImageKind::TwoDArray, [6, 4, 3]),
    ] {
        let (one, other) = (image(runtime, kind, extent), image(runtime, kind, extent));
        let len = 4 * extent.iter().product::<usize>();
        let pixels: Vec<u8> = (0..len).map(|index| index as u8 ^ 0x5A).collect();
        let all = Part {
            origin: [0; 3],
            extent,
        };
        let part = Part {
            origin: extent.map(|size| usize::from(size > 1)),
            extent: extent.map(|size| size.saturating_sub(2).max(1)),
        };
        // Rows are 40 bytes apart, and slices 200 bytes.
        let mut found = vec![0_u8; 600];
        // SAFETY: the bytes live until the queue has finished.
        unsafe {
            let place = (pixels.as_ptr(), 24, 24 * extent[1]);
            queue.write_image(&one, &all, place).unwrap();
            let copied = queue.copy_image((&one, [0; 3]), (&other, [0; 3]), extent);
            copied.unwrap().wait().unwrap();
            let place = (found.as_mut_ptr(), 40, 200);
            queue.read_image(&other, &part, place).unwrap();
        }
        queue.finish().unwrap();
        let mut wanted = vec![0_u8; 600];
        for z in 0..part.extent[2] {
            for y in 0..part.extent[1] {
                let row = extent[0] * (part.origin[1] + y + extent[1] * (part.origin[2] + z));
                let start = 4 * (row + part.origin[0]);
                let (to, width) = (200 * z + 40 * y, 4 * part.extent[0]);
                wanted[to..to + width].copy_from_slice(&pixels[start..start + width]);
            }
        }
        assert_eq!(found, wanted, "{kind:?}");
    }
}

#[test]
fn what_there_is_not_is_refused() {
    let Some(runtime) = runtime() else { return };
    let description = ImageDescription {
        kind: ImageKind::TwoD,
        order: ChannelOrder::Rgb,
        channel: ChannelType::Float,
        extent: [1; 3],
    };
    let refusal = ImageObject::new(&runtime.device(), &description)
        .err()
        .unwrap();
    assert!(refusal.is_unsupported_format(), "{refusal}");
    let description = ImageDescription {
        order: ChannelOrder::Rgba,
        extent: [usize::MAX, 1, 1],
        ..description
    };
    assert!(ImageObject::new(&runtime.device(), &description).is_err());
    let (one, queue) = (
        image(runtime, ImageKind::TwoD, [4, 4, 1]),
        Queue::new(&runtime.device()).unwrap(),
    );
    let overlapping = queue.copy_image((&one, [0; 3]), (&one, [1, 1, 0]), [2, 2, 1]);
    assert!(overlapping.is_err());
    let outside = queue.copy_image((&one, [0; 3]), (&one, [3, 0, 0]), [2, 2, 1]);
    assert!(outside.is_err());
}
