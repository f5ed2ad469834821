//! Shares an event: one process produces numbers and signals, another waits for the signal and adds
//! the numbers up.
//!
//! Run it with `cargo run --example 02_share_an_event`. Bytes that were written before a signal are
//! visible to every process that has waited for that signal. A wait never hangs: it returns an
//! error when its timeout passes, or when the process that was to signal has died. The numbers are
//! in a typed buffer, which both processes open with the same element type.

use crosshandle::{Buffer, Context, Device};
use std::error::Error;
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const COUNT: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [squares, ready] => consumer(squares, ready),
        _ => producer(),
    }
}

fn producer() -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let squares: Buffer<u64> = Buffer::new(&context, COUNT as usize)?;
    let ready = context.create_event()?;
    let mut consumer = Command::new(std::env::current_exe()?)
        .arg(squares.handle()?.to_string())
        .arg(ready.handle()?.to_string())
        .spawn()?;

    let numbers: Vec<u64> = (0..COUNT).map(|n| n * n).collect();
    squares.write(0, &numbers)?;
    let number = ready.signal()?;
    println!("producer: wrote {} squares, signal {number}", squares.len());

    // The consumer may not have opened the event yet, so its creator keeps it until then.
    let status = consumer.wait()?;
    if !status.success() {
        return Err(format!("the consumer failed: {status}").into());
    }
    Ok(())
}

fn consumer(squares: &str, ready: &str) -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let squares: Buffer<u64> = Buffer::open(&context, &squares.parse()?)?;
    let ready = context.open_event(&ready.parse()?)?;

    // Waits for the first signal, even if it was not submitted yet.
    ready.wait_value_timeout(1, TIMEOUT)?;
    let sum: u64 = squares.to_vec()?.iter().sum();
    println!("consumer: they add up to {sum}");
    assert_eq!(sum, 332_833_500);
    Ok(())
}
