//! Shares a buffer: one process allocates memory, another opens it, and both see the same bytes.
//!
//! Run it with `cargo run --example 01_share_a_buffer`. The program starts itself again as the
//! second process, and passes the handle as an argument. Any other way to transfer a word of text
//! works too.

use crosshandle::{Context, Device};
use std::error::Error;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        None => exporter(),
        Some(handle) => importer(&handle),
    }
}

/// Allocates the memory, and passes its handle to the importer.
fn exporter() -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let memory = context.allocate(1 << 20)?;
    memory.write(0, b"written by the exporter")?;

    let handle = memory.handle()?;
    println!("exporter: {} bytes, handle {handle}", memory.len());
    let status = Command::new(std::env::current_exe()?)
        .arg(handle.to_string())
        .status()?;
    if !status.success() {
        return Err(format!("the importer failed: {status}").into());
    }

    // The importer has ended. Its bytes are still here, because both processes used the same
    // memory.
    let mut answer = [0; 23];
    memory.read(100, &mut answer)?;
    println!("exporter: read \"{}\"", String::from_utf8_lossy(&answer));
    assert_eq!(&answer, b"written by the importer");
    Ok(())
}

/// Opens the memory and accesses the same bytes.
fn importer(handle: &str) -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let memory = context.open_memory(&handle.parse()?)?;

    let mut greeting = [0; 23];
    memory.read(0, &mut greeting)?;
    println!("importer: read \"{}\"", String::from_utf8_lossy(&greeting));
    assert_eq!(&greeting, b"written by the exporter");
    memory.write(100, b"written by the importer")?;
    Ok(())
}
