//! Many consumers: one process publishes data, and several processes read the same memory at once.
//! One event notifies all consumers, and all consumers reply through one event.
//!
//! Run it with `cargo run --example 04_many_consumers`. The handle allows reading only: the
//! consumers receive a descriptor that they cannot write through. Any number of processes may wait
//! for an event, and any number may signal it.

use crosshandle::{Context, ContextOptions, Device, Error as ShareError};
use std::error::Error;
use std::process::{Child, Command};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const CONSUMERS: u64 = 4;
const LEN: usize = 4 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [number, memory, published, answered] => consumer(number, memory, published, answered),
        _ => publisher(),
    }
}

fn publisher() -> Result<(), Box<dyn Error>> {
    // Without pooling, each allocation has its own segment, so importers cannot see any other
    // memory.
    let options = ContextOptions::new().pooling(false);
    let context = Context::with_options(&Device::find("host")?, options)?;
    let memory = context.allocate(LEN)?;
    let published = context.create_event()?;
    let answered = context.create_event()?;

    let start = |number: u64| {
        Command::new(std::env::current_exe()?)
            .arg(number.to_string())
            .arg(memory.handle_read_only()?.to_string())
            .arg(published.handle()?.to_string())
            .arg(answered.handle()?.to_string())
            .spawn()
            .map_err(Box::<dyn Error>::from)
    };
    let consumers = (1..=CONSUMERS)
        .map(start)
        .collect::<Result<Vec<Child>, _>>()?;

    memory.write(0, &vec![42; LEN])?;
    published.signal()?;
    println!("publisher: published {LEN} bytes to {CONSUMERS} processes");

    // The event counts the signals of all consumers together, in any order.
    answered.wait_value_timeout(CONSUMERS, TIMEOUT)?;
    println!("publisher: all have answered");
    for mut consumer in consumers {
        let status = consumer.wait()?;
        if !status.success() {
            return Err(format!("a consumer failed: {status}").into());
        }
    }
    Ok(())
}

fn consumer(
    number: &str,
    memory: &str,
    published: &str,
    answered: &str,
) -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let handle = memory.parse()?;
    // The handle does not allow opening the memory for writing.
    assert!(matches!(
        context.open_memory(&handle),
        Err(ShareError::ReadOnly)
    ));
    let memory = context.open_memory_read_only(&handle)?;
    let published = context.open_event(&published.parse()?)?;
    let answered = context.open_event(&answered.parse()?)?;

    published.wait_value_timeout(1, TIMEOUT)?;
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes)?;
    assert!(bytes.iter().all(|byte| *byte == 42));
    let answer = answered.signal()?;
    println!(
        "consumer {number}: read {} bytes, answer {answer}",
        bytes.len()
    );
    Ok(())
}
