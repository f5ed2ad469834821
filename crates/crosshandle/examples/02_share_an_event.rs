//! Shares an event: one process produces data and signals, another waits for that and consumes.
//!
//! Run it with `cargo run --example 02_share_an_event`. What was written before a signal is there
//! for everybody who has waited for that signal. A wait ends with an error when its timeout has
//! passed, or when the process that was to signal has died; it never hangs.

use crosshandle::{Context, Device};
use std::error::Error;
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [memory, ready] => consumer(memory, ready),
        _ => producer(),
    }
}

fn producer() -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let memory = context.allocate(8 * 1000)?;
    let ready = context.create_event()?;
    let mut consumer = Command::new(std::env::current_exe()?)
        .arg(memory.handle()?.to_string())
        .arg(ready.handle()?.to_string())
        .spawn()?;

    let squares: Vec<u64> = (0..1000).map(|n| n * n).collect();
    memory.typed::<u64>()?.write(0, &squares)?;
    let number = ready.signal()?;
    println!("producer: wrote {} squares, signal {number}", squares.len());

    // The consumer may still be on its way to its wait. Whoever creates an event holds it until
    // all have opened it.
    let status = consumer.wait()?;
    if !status.success() {
        return Err(format!("the consumer failed: {status}").into());
    }
    Ok(())
}

fn consumer(memory: &str, ready: &str) -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let memory = context.open_memory(&memory.parse()?)?;
    let ready = context.open_event(&ready.parse()?)?;

    // The first signal, whether it has been given yet or not.
    ready.wait_value_timeout(1, TIMEOUT)?;
    let squares = memory.typed::<u64>()?;
    let sum: u64 = (0..squares.len()).filter_map(|n| squares.get(n)).sum();
    println!("consumer: they add up to {sum}");
    assert_eq!(sum, 332_833_500);
    Ok(())
}
