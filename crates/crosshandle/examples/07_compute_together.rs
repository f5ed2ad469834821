//! Two processes compute on the same device memory. One process fills the memory with a kernel and
//! signals. The other process's queue waits for that signal and runs the next kernel.
//!
//! Run it with `cargo run --example 07_compute_together`. It uses a GPU if one runs kernels.
//! Otherwise it uses the host, which needs an OpenCL runtime (docs/kernels.md). Without either it
//! says so. The example loads programs before any command waits, because a driver may not load a
//! program while a stream waits.

use crosshandle::{
    AllocationOptions, Command, Context, Device, Memory, MemoryKind,
    handle::BackendKind,
    kernel::{Kernel, KernelArguments, LaunchShape, Program, ProgramImage},
};
use std::error::Error;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const COUNT: usize = 1_000_000;

/// Kernels that work on words: `fill` sets them, `scale` multiplies them by 3 and adds a number.
const PTX: &str = include_str!("kernels.ptx");
/// The same kernels in OpenCL C.
const SOURCE: &str = "
    kernel void fill(global uint *to, uint value, uint count) {
        size_t i = get_global_id(0);
        if (i < count) to[i] = value;
    }
    kernel void scale(global uint *data, uint addend, uint count) {
        size_t i = get_global_id(0);
        if (i < count) data[i] = 3 * data[i] + addend;
    }
";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let devices = Device::all();
    let can = |device: &&Device| {
        device.info().backend != BackendKind::LevelZero && device.kernels().is_ok()
    };
    // The host is the first device, so GPUs are tried before it.
    let Some(device) = devices.iter().rev().find(can) else {
        println!("no device here runs these kernels:");
        for device in &devices {
            let reason = device.kernels().err();
            println!(
                "  {device}: {}",
                reason.map_or("not written for it".into(), |it| it.to_string())
            );
        }
        return Ok(());
    };
    let context = Context::new(device)?;
    match &arguments[..] {
        [memory, filled, scaled] => consumer(&context, [memory, filled, scaled]),
        _ => producer(&context),
    }
}

fn producer(context: &Context) -> Result<(), Box<dyn Error>> {
    let fill = load(context)?.kernel("fill")?;
    let memory = context.allocate(4 * COUNT)?;
    let (filled, scaled) = (context.create_event()?, context.create_event()?);
    let mut consumer = std::process::Command::new(std::env::current_exe()?)
        .arg(memory.handle()?.to_string())
        .arg(filled.handle()?.to_string())
        .arg(scaled.handle()?.to_string())
        .spawn()?;

    let queue = context.create_queue()?;
    queue.submit(launch(&fill, &memory, 13)?.signal(&filled))?;
    println!("producer: {COUNT} words are being filled");

    // The copy waits for the consumer's kernel, which may not be submitted yet.
    let options = AllocationOptions::new(4 * COUNT).kind(MemoryKind::Host);
    let result = context.allocate_with(options)?;
    let copy = Command::copy(memory.all(), result.all())?;
    queue.submit(copy.after_value(&scaled, 1))?;
    queue.finish_timeout(TIMEOUT)?;
    let words = result.typed::<u32>()?;
    assert!((0..words.len()).all(|index| words.get(index) == Some(42)));
    println!("producer: the consumer has made 42 of each 13");

    let status = consumer.wait()?;
    if !status.success() {
        return Err(format!("the consumer failed: {status}").into());
    }
    Ok(())
}

fn consumer(context: &Context, handles: [&str; 3]) -> Result<(), Box<dyn Error>> {
    let scale = load(context)?.kernel("scale")?;
    let memory = context.open_memory(&handles[0].parse()?)?;
    let filled = context.open_event(&handles[1].parse()?)?;
    let scaled = context.open_event(&handles[2].parse()?)?;

    let queue = context.create_queue()?;
    let command = launch(&scale, &memory, 3)?;
    queue.submit(command.after_value(&filled, 1).signal(&scaled))?;
    println!("consumer: they are multiplied as soon as that is done");
    queue.finish_timeout(TIMEOUT)?;
    Ok(())
}

/// Loads the kernels in the language of the context's device.
fn load(context: &Context) -> crosshandle::Result<Program> {
    let text = match context.device().info().backend {
        BackendKind::Host => SOURCE,
        _ => PTX,
    };
    Program::new(context, ProgramImage::text(text))
}

/// Creates a launch of one of the kernels on all words of the memory.
fn launch(kernel: &Kernel, memory: &Memory, number: u32) -> crosshandle::Result<Command> {
    let arguments = KernelArguments::new()
        .with(&memory.all())
        .value(number)
        .value(COUNT as u32);
    let shape = LaunchShape::covering(COUNT, 256)?;
    // SAFETY: both kernels access as many words as the last argument says, and no other memory.
    unsafe { Command::launch(kernel, shape, arguments) }
}
