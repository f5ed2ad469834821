//! Tests of contexts of the program that end as soon as all objects in them are dropped.

use super::super::driver::sys;
use super::native::{BYTES, SOON, context, ends, make_current, native};
use crosshandle::image::LevelledImage;
use crosshandle::kernel::Program;
use crosshandle::{Command, Context, ContextOptions, Device};
use crosshandle_types::{
    Addressing, ChannelOrder, ChannelType, Filter, ImageDescription, ImageFormat, ImageKind,
    ProgramImage, QueueOrder, SamplerDescription,
};
use std::ptr;

const IMAGE: &str = include_str!("../kernels.ptx");

/// Drops an image of several levels, one of its levels, and views of both. Each view and level
/// keeps its image. None of them must still be waiting for its destruction when the context ends.
fn make_and_drop_images(context: &Context) {
    let format = ImageFormat {
        order: ChannelOrder::Rgba,
        channel: ChannelType::Float,
    };
    let description = ImageDescription::new(ImageKind::TwoD, format, [64, 64, 1]);
    let sampler = SamplerDescription {
        is_normalized: true,
        addressing: Addressing::ClampToEdge,
        filter: Filter::Nearest,
    };
    let levels = LevelledImage::new(context, &description, 3).unwrap();
    let level = levels.level(1).unwrap();
    let views = [
        levels.sampled_view(&sampler.into()).unwrap(),
        level.sampled_view(&sampler.into()).unwrap(),
        level.unsampled_view().unwrap(),
    ];
    drop((levels, level, views));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_context_of_the_program_may_end_when_nothing_is_left_in_it() {
    let device = Device::find("cuda").unwrap();
    let ordinary = context();
    let number = device.native().unwrap().raw() as i32;
    for round in 0..20 {
        let mut made = ptr::null_mut();
        // SAFETY: the result is live.
        let code = unsafe { sys::cuCtxCreate_v2(&mut made, 0, number) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        make_current(ordinary.native().unwrap());
        {
            // SAFETY: the context lives until all objects in it are dropped.
            let inside = unsafe {
                Context::adopt(&device, native(made as usize), ContextOptions::new()).unwrap()
            };
            // In the meantime, other threads create streams ahead and unload the program.
            let order = [QueueOrder::InOrder, QueueOrder::OutOfOrder][round % 2];
            let queue = inside.create_queue_with(order).unwrap();
            let memory = inside.allocate(BYTES).unwrap();
            let fill = Command::fill(memory.all(), &[round as u8]).unwrap();
            let filled = inside.create_event().unwrap();
            queue.submit(fill.signal(&filled)).unwrap();
            filled.wait_timeout(SOON).unwrap();
            assert_eq!(ends(&queue, &memory), [round as u8; 2]);
            drop(Program::new(&inside, ProgramImage::text(IMAGE)).unwrap());
            make_and_drop_images(&inside);
        }
        // SAFETY: nothing uses the context any more.
        let code = unsafe { sys::cuCtxDestroy_v2(made) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    }
    let queue = ordinary.create_queue().unwrap();
    let memory = ordinary.allocate(BYTES).unwrap();
    queue
        .submit(Command::fill(memory.all(), &[7]).unwrap())
        .unwrap();
    queue.finish_timeout(SOON).unwrap();
    assert_eq!(ends(&queue, &memory), [7; 2]);
}
