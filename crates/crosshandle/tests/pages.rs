//! The parts of programs that pages in `docs` show. A comment before such a block names this file,
//! and a test of the command checks that its lines are here.

use crosshandle::graph::Graph;
use crosshandle::{Command, Context, Device, Event, Memory, Queue};
use std::error::Error;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const RUNS: u64 = 1000;

type Outcome = Result<(), Box<dyn Error>>;

fn host() -> Context {
    Context::new(&Device::find("host").expect("there is always a host")).expect("a context")
}

/// The objects of a page's program.
fn objects(context: &Context) -> (Memory, Queue, [Event; 2]) {
    let event = || context.create_event().expect("an event");
    let memory = context.allocate(1024).expect("memory");
    let queue = context.create_queue().expect("a queue");
    (memory, queue, [event(), event()])
}

/// Returns the last byte of the memory.
fn last(memory: &Memory) -> crosshandle::Result<u8> {
    let mut byte = [0];
    memory.read(memory.len() - 1, &mut byte)?;
    Ok(byte[0])
}

#[test]
fn a_graph_runs_and_is_updated() -> Outcome {
    let context = host();
    let (memory, queue, [filled, done]) = objects(&context);
    filled.signal()?;

    let mut graph = Graph::new(&context);
    let fill = graph.add(Command::fill(memory.range(..512)?, &[7])?, &[])?;
    let copy = Command::copy(memory.range(..512)?, memory.range(512..)?)?;
    graph.add(copy, &[fill])?;
    let executable = graph.instantiate()?;
    queue.submit(executable.command().after(&filled).signal(&done))?;
    done.wait_value_timeout(1, TIMEOUT)?;
    assert_eq!(last(&memory)?, 7);
    executable.update(fill, Command::fill(memory.range(..512)?, &[8])?)?;
    queue.submit(executable.command().signal(&done))?;
    done.wait_value_timeout(2, TIMEOUT)?;
    assert_eq!(last(&memory)?, 8);
    Ok(())
}

#[test]
fn each_run_of_a_graph_waits_for_the_next_number() -> Outcome {
    let context = host();
    let (memory, queue, [ping, pong]) = objects(&context);

    let mut graph = Graph::new(&context);
    let fill = Command::fill(memory.range(..512)?, &[7])?;
    let fill = graph.add(fill.signal(&ping), &[])?;
    let reply = graph.add(Command::marker().after_value(&pong, 1), &[fill])?;
    let copy = Command::copy(memory.range(..512)?, memory.range(512..)?)?;
    graph.add(copy, &[reply])?;
    let executable = graph.instantiate()?;
    for _ in 0..RUNS {
        queue.submit(executable.command())?;
    }
    for number in 1..=RUNS {
        ping.wait_value_timeout(number, TIMEOUT)?;
        pong.signal()?;
    }
    queue.finish_timeout(TIMEOUT)?;
    assert_eq!(
        (ping.status().completed, pong.status().completed),
        (RUNS, RUNS)
    );
    Ok(())
}

/// These need an OpenCL runtime.
mod with_opencl {
    use super::*;
    use crosshandle::device::Partition;
    use crosshandle::image::{Addressing, Filter, Sampler, SamplerDescription, Sampling};

    const SOURCE: &str = "
        kernel void scale(global uint *data, uint addend, uint count) {
            size_t i = get_global_id(0);
            if (i < count) data[i] = 3 * data[i] + addend;
        }";

    #[test]
    #[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
    fn a_kernel_is_launched() -> Outcome {
        use crosshandle::Command;
        use crosshandle::kernel::{KernelArguments, LaunchShape, Program, ProgramImage};

        let context = host();
        let (memory, queue, [filled, scaled]) = objects(&context);
        let count = memory.len() / 4;
        filled.signal()?;

        let program = Program::new(&context, ProgramImage::text(SOURCE))?;
        let scale = program.kernel("scale")?;
        let words = memory.all();
        let arguments = KernelArguments::new()
            .with(&words)
            .value(3_u32)
            .value(count as u32);
        let shape = LaunchShape::covering(count, 128)?;
        // SAFETY: `scale` writes `count` words of the memory, and nothing else.
        let launch = unsafe { Command::launch(&scale, shape, arguments)? };
        queue.submit(launch.after(&filled).signal(&scaled))?;
        scaled.wait_value_timeout(1, TIMEOUT)?;
        assert_eq!(memory.typed::<u32>()?.get(count - 1), Some(3));
        Ok(())
    }

    #[test]
    #[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
    fn the_host_is_divided() -> Outcome {
        let host = Device::find("host")?;
        let parts = host.partition(&Partition::ByCounts(vec![1, 1]))?;
        let context = Context::new(&parts[0])?;
        assert_eq!(context.device().info().compute_units, 1);
        Ok(())
    }

    #[test]
    #[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
    fn pixels_are_copied() -> Outcome {
        use crosshandle::image::{
            ChannelOrder, ChannelType, Image, ImageDescription, ImageFormat, ImageKind, ImagePart,
        };
        use crosshandle::kernel::KernelArguments;

        let context = host();
        let (_, queue, [filled, _]) = objects(&context);
        let memory = context.allocate(4 * 640 * 480)?;
        let sampler = SamplerDescription {
            is_normalized: false,
            addressing: Addressing::ClampToEdge,
            filter: Filter::Nearest,
        };
        let sampling = Sampling::from(sampler);
        let sampler = Sampler::new(&context, &sampler)?;
        filled.signal()?;

        let (order, channel) = (ChannelOrder::Rgba, ChannelType::UnormInt8);
        let format = ImageFormat { order, channel };
        let description = ImageDescription::new(ImageKind::TwoD, format, [640, 480, 1]);
        let image = Image::new(&context, &description)?;
        let (origin, extent) = ([0; 3], [640, 480, 1]);
        let all = ImagePart { origin, extent };
        let pitches = image.tight_pitches(&all);
        let copy = Command::write_image(memory.all(), pitches, &image, all)?;
        queue.submit(copy.after(&filled))?;
        let arguments = KernelArguments::new().with(&image).with(&sampler);
        queue.finish_timeout(TIMEOUT)?;
        drop(arguments);

        let views = || {
            let sampled = image.sampled_view(&sampling)?;
            let written = image.unsampled_view()?;
            Ok(KernelArguments::new().with(&sampled).with(&written))
        };
        // The host has none.
        let refused: crosshandle::Result<KernelArguments> = views();
        assert!(matches!(refused, Err(crosshandle::Error::Unsupported(_))));
        Ok(())
    }
}
