//! An event as a timeline: signal *n* says that step *n* is complete, and a wait names its step.
//!
//! Run it with `cargo run --example 03_timeline`. A producer fills a ring of buffers, and a
//! consumer empties it. Each process has an event that counts its steps. Each waits for a step of
//! the other process that may not have happened yet. The consumer waits for the step that it wants
//! to read, and the producer for the step that makes room.

use crosshandle::{Context, Device, Event, Memory};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const STEPS: u64 = 100;
/// Number of buffers in the ring. `LEN` is the size of each buffer in bytes.
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

    // The consumer creates the event that it signals. If the consumer died, waits for its remaining
    // steps would fail at once.
    let mut output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
    let mut handle = String::new();
    output.read_line(&mut handle)?;
    let consumed = context.open_event(&handle.parse()?)?;

    for step in 1..=STEPS {
        // The buffer is free when the consumer has read the previous step in it.
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
    // Completed signals stay complete for processes that have the event open, even after this
    // process ends.
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
