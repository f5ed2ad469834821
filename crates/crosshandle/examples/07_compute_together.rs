//! Computes in two processes on one piece of a GPU's memory: one fills it with a kernel and signals,
//! the other's queue waits for that, and computes on.
//!
//! Run it with `cargo run --example 07_compute_together`. Without a device that runs kernels it says
//! so. Programs are loaded before anything waits: drivers may load only while nothing does.

use crosshandle::{
    AllocationOptions, Command, Context, Device, Kernel, KernelArguments, LaunchShape, Memory,
    MemoryKind, ProgramImage,
};
use std::error::Error;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const COUNT: usize = 1_000_000;

/// Both kernels work on words: `fill` sets them, `scale` multiplies them by 3 and adds a number.
const PROGRAM: &str = include_str!("../src/hal/cuda/kernels.ptx");

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let devices = Device::all();
    let Some(device) = devices.iter().find(|it| it.kernels().is_ok()) else {
        println!("no device here runs kernels; these were found:");
        devices.iter().for_each(|device| println!("  {device}"));
        return Ok(());
    };
    let context = Context::new(device)?;
    match &arguments[..] {
        [memory, filled, scaled] => consumer(&context, [memory, filled, scaled]),
        _ => producer(&context),
    }
}

fn producer(context: &Context) -> Result<(), Box<dyn Error>> {
    let fill = context
        .load_program(ProgramImage::text(PROGRAM))?
        .kernel("fill")?;
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

    // The copy waits for the consumer's kernel, which is not even submitted yet.
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
    let scale = context
        .load_program(ProgramImage::text(PROGRAM))?
        .kernel("scale")?;
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

/// A launch of one of the kernels on all words of some memory.
fn launch(kernel: &Kernel, memory: &Memory, number: u32) -> crosshandle::Result<Command> {
    let arguments = KernelArguments::new()
        .memory(&memory.all())
        .value(number)
        .value(COUNT as u32);
    let shape = LaunchShape::covering(COUNT, 256)?;
    // SAFETY: both kernels access as many words as the last argument says, and nothing else.
    unsafe { Command::launch(kernel, shape, arguments) }
}
