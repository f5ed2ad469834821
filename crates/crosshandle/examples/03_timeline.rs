//! An event as a timeline: signal *n* says that step *n* is done, and waits name their step.
//!
//! Run it with `cargo run --example 03_timeline`. A producer fills a ring of buffers, a consumer
//! empties it. Each of them has an event that counts its steps, and waits for a step of the other
//! that may be yet to come: the consumer for the step that it wants to read, the producer for the
//! one that makes room.

use crosshandle::{Context, Device, Event, Memory};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const STEPS: u64 = 100;
/// Buffers in the ring, and bytes in each.
const RING: u64 = 4;
const LEN: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [memory, produced] => consumer(memory, produced),
        _ => producer(),
    }
}

fn producer() -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let ring = context.allocate(RING as usize * LEN)?;
    let produced = context.create_event()?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg(ring.handle()?.to_string())
        .arg(produced.handle()?.to_string())
        .stdout(Stdio::piped())
        .spawn()?;

    // The consumer creates the event that it signals. Were it to die, waits for steps that it has
    // not done would fail at once.
    let mut output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
    let mut handle = String::new();
    output.read_line(&mut handle)?;
    let consumed = context.open_event(&handle.parse()?)?;

    for step in 1..=STEPS {
        // Room is there when the step before in the same buffer was consumed.
        consumed.wait_value_timeout(step.saturating_sub(RING), TIMEOUT)?;
        ring.write(place(step), &[step as u8; LEN])?;
        let number = produced.signal()?;
        assert_eq!(number, step);
    }
    println!("producer: {STEPS} steps through {RING} buffers");
    consumed.wait_value_timeout(STEPS, TIMEOUT)?;
    println!("producer: all are consumed");

    let status = child.wait()?;
    if !status.success() {
        return Err(format!("the consumer failed: {status}").into());
    }
    Ok(())
}

fn consumer(ring: &str, produced: &str) -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let ring = context.open_memory(&ring.parse()?)?;
    let produced = context.open_event(&produced.parse()?)?;
    let consumed = context.create_event()?;
    println!("{}", consumed.handle()?);

    for step in 1..=STEPS {
        consume(&ring, &produced, step)?;
        consumed.signal()?;
    }
    // Signals that are complete stay so for processes that have the event open, also when this one ends.
    Ok(())
}

fn consume(ring: &Memory, produced: &Event, step: u64) -> Result<(), Box<dyn Error>> {
    produced.wait_value_timeout(step, TIMEOUT)?;
    let mut bytes = [0; LEN];
    ring.read(place(step), &mut bytes)?;
    assert_eq!(bytes, [step as u8; LEN], "step {step}");
    Ok(())
}

/// Returns the offset of a step's bytes in the ring.
fn place(step: u64) -> usize {
    (step % RING) as usize * LEN
}
