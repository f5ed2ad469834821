//! A pipeline of queues in two processes. Only events order the steps, and neither host waits in
//! between.
//!
//! Run it with `cargo run --example 06_queue_pipeline`. One process fills an input, the other
//! process turns it into an output, and the first process copies the output away. All steps may be
//! submitted before any of them runs. Each step waits for the event of the previous step, in either
//! process.

use crosshandle::{Command as Step, Context, Device, Event};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const LEN: usize = 1 << 16;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [input, output, filled] => worker(input, output, filled),
        _ => owner(),
    }
}

fn owner() -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let (input, output) = (context.allocate(LEN)?, context.allocate(LEN)?);
    let filled = context.create_event()?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg(input.handle()?.to_string())
        .arg(output.handle()?.to_string())
        .arg(filled.handle()?.to_string())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut handle = String::new();
    BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut handle)?;
    let worked: Event = context.open_event(&handle.parse()?)?;

    let result = context.allocate(LEN)?;
    let queue = context.create_queue()?;
    queue.submit(Step::fill(input.all(), &[1, 2, 3, 4])?.signal(&filled))?;
    // This copy waits for a signal of the other process, which may not be submitted yet.
    queue.submit(Step::copy(output.all(), result.all())?.after_value(&worked, 1))?;
    println!("owner: all is submitted");
    queue.finish_timeout(TIMEOUT)?;

    let mut bytes = vec![0; LEN];
    result.read(0, &mut bytes)?;
    assert!(bytes.chunks(4).all(|chunk| chunk == [10, 20, 30, 40]));
    println!("owner: the result is {:?}…", &bytes[..4]);
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("the worker failed: {status}").into());
    }
    Ok(())
}

fn worker(input: &str, output: &str, filled: &str) -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let input = Arc::new(context.open_memory_read_only(&input.parse()?)?);
    let output = Arc::new(context.open_memory(&output.parse()?)?);
    let filled = context.open_event(&filled.parse()?)?;
    let worked = context.create_event()?;

    let queue = context.create_queue()?;
    let work = Step::call(move || -> crosshandle::Result<()> {
        let mut bytes = vec![0; LEN];
        input.read(0, &mut bytes)?;
        bytes.iter_mut().for_each(|byte| *byte *= 10);
        output.write(0, &bytes)
    });
    queue.submit(work.after_value(&filled, 1).signal(&worked))?;
    println!("{}", worked.handle()?);
    // The step runs when the owner has filled the input, and the owner must open this event first.
    queue.finish_timeout(TIMEOUT)?;
    Ok(())
}
