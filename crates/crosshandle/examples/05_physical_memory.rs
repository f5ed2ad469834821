//! Physical memory has no address, and each process maps it wherever it needs it.
//!
//! Run it with `cargo run --example 05_physical_memory`. The exporter maps the same memory twice,
//! one mapping directly after the other. The result is a ring buffer in which an access beyond the
//! end continues at the beginning. The importer maps the memory once, for reading only.

use crosshandle::virtual_memory::PhysicalMemory;
use crosshandle::{Access, Context, Device, Result as ShareResult, virtual_memory::VirtualRange};
use std::error::Error;
use std::process::Command;

const MESSAGE: &[u8] = b"across the seam";
/// Length of the message's part before the end of the first mapping, in bytes.
const BEFORE: usize = 6;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        None => exporter(),
        Some(handle) => importer(&handle),
    }
}

fn exporter() -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    // Lengths and offsets are multiples of the device's granularity.
    let len = context.device().info().granularity;
    let memory = PhysicalMemory::new(&context, len)?;

    let ring = VirtualRange::reserve(&context, 2 * len)?;
    ring.map(0, &memory, ..len, Access::ReadWrite)?;
    ring.map(len, &memory, ..len, Access::ReadWrite)?;
    // The message crosses the border of the mappings, so it is written in two parts, one in each
    // mapping.
    write(&ring, len - BEFORE, &MESSAGE[..BEFORE])?;
    write(&ring, len, &MESSAGE[BEFORE..])?;
    let mut wrapped = vec![0; MESSAGE.len() - BEFORE];
    ring.with_bytes(..wrapped.len(), |bytes| bytes.read(0, &mut wrapped))??;
    println!("exporter: {len} bytes, mapped twice; the end is at the beginning");
    assert_eq!(wrapped, &MESSAGE[BEFORE..]);

    let status = Command::new(std::env::current_exe()?)
        .arg(memory.handle_read_only()?.to_string())
        .status()?;
    if !status.success() {
        return Err(format!("the importer failed: {status}").into());
    }
    ring.unmap(len..)?;
    ring.unmap(..len)?;
    Ok(())
}

fn write(range: &VirtualRange, offset: usize, bytes: &[u8]) -> ShareResult<()> {
    range.with_bytes(offset..offset + bytes.len(), |shared| {
        shared.write(0, bytes)
    })?
}

fn importer(handle: &str) -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let memory = PhysicalMemory::open_read_only(&context, &handle.parse()?)?;
    let len = memory.len();
    let addresses = VirtualRange::reserve(&context, len)?;
    addresses.map(0, &memory, ..len, Access::ReadOnly)?;

    let mut message = vec![0; len];
    addresses.with_bytes(..len, |bytes| bytes.read(0, &mut message))??;
    message.rotate_right(BEFORE);
    message.truncate(MESSAGE.len());
    println!("importer: read \"{}\"", String::from_utf8_lossy(&message));
    assert_eq!(message, MESSAGE);
    // The handle does not allow writing, so a writable mapping is refused.
    assert!(addresses.set_access(.., Access::ReadWrite).is_err());
    Ok(())
}
