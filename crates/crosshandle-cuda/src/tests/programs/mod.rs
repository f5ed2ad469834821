//! Tests of programs and kernels on a GPU.
mod images;
mod launches;

use crosshandle::{
    Command, Context, Device, Event, Memory, Queue,
    kernel::{Kernel, Program},
};
use crosshandle_types::error::Error;
use crosshandle_types::{KernelArguments, LaunchShape, Ownership, ProgramImage, ProgramOptions};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const IMAGE: &str = include_str!("../../kernels.ptx");
const COUNT: usize = 1000;

struct Fixture {
    context: Context,
    queue: Queue,
    program: Program,
}

fn fixture() -> Fixture {
    let context = Context::new(&Device::find("cuda:0").unwrap()).unwrap();
    Fixture {
        queue: context.create_queue().unwrap(),
        program: Program::new(&context, ProgramImage::text(IMAGE)).unwrap(),
        context,
    }
}

impl Fixture {
    fn memory(&self, values: &[u32]) -> Memory {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_ne_bytes())
            .collect();
        let host = self.host(bytes.len());
        host.write(0, &bytes).unwrap();
        let memory = self.context.allocate(bytes.len()).unwrap();
        let copy = Command::copy(host.all(), memory.all()).unwrap();
        self.queue.submit(copy).unwrap();
        self.queue.finish().unwrap();
        memory
    }

    fn host(&self, len: usize) -> Memory {
        let options = crosshandle_types::AllocationOptions::new(len)
            .kind(crosshandle_types::MemoryKind::Host);
        self.context.allocate_with(options).unwrap()
    }

    fn read(&self, memory: &Memory) -> Vec<u32> {
        let host = self.host(memory.len());
        let copy = Command::copy(memory.all(), host.all()).unwrap();
        self.queue.submit(copy).unwrap();
        self.queue.finish().unwrap();
        let mut bytes = vec![0; memory.len()];
        host.read(0, &mut bytes).unwrap();
        let words = bytes.chunks_exact(4);
        words
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    }

    fn kernel(&self, name: &str) -> Kernel {
        self.program.kernel(name).unwrap()
    }
}

/// Returns a launch of a kernel of the test program, with arguments that the kernel accepts.
fn launch(kernel: &Kernel, shape: LaunchShape, arguments: KernelArguments) -> Command {
    // SAFETY: the kernels access only what the tests allocated for them.
    unsafe { Command::launch(kernel, shape, arguments) }.unwrap()
}

fn fill(kernel: &Kernel, memory: &Memory, value: u32) -> Command {
    let count = memory.len() / 4;
    let arguments = KernelArguments::new()
        .with(&memory.all())
        .value(value)
        .value(count as u32);
    launch(
        kernel,
        LaunchShape::covering(count, 128).unwrap(),
        arguments,
    )
}
