//! The measured calls of the library, in the form that scenarios need.

use anyhow::{Context as _, Result};
use crosshandle::handle::{EVENT_HANDLE_SIZE, EventHandle, MEMORY_HANDLE_SIZE, MemoryHandle};
use crosshandle::{Access, Context, ContextOptions, Device, Event, EventOptions, Memory};

use crate::harness::region::Region;

/// Creates a context with default options.
pub(crate) fn context() -> Result<Context> {
    context_with(ContextOptions::new())
}

/// Creates a context without a pool: each allocation has its own segment, which is freed with it.
pub(crate) fn unpooled_context() -> Result<Context> {
    context_with(ContextOptions::new().pooling(false))
}

fn context_with(options: ContextOptions) -> Result<Context> {
    let device = Device::find("host").context("cannot find the host device")?;
    Context::with_options(&device, options).context("cannot create a context")
}

/// How waiters of an event wait.
#[derive(Clone, Copy)]
pub(crate) enum Waiters {
    /// The default: waiters spin first if that helps.
    Default,
    /// Waiters sleep at once.
    LowPower,
}

impl Waiters {
    fn options(self) -> EventOptions {
        EventOptions::new().low_power(matches!(self, Self::LowPower))
    }
}

pub(crate) fn create_event(context: &Context, waiters: Waiters) -> Result<Event> {
    context
        .create_event_with(waiters.options())
        .context("cannot create an event")
}

/// Returns the bytes of host memory as words.
///
/// # Panics
///
/// Panics if the memory is read-only or is no host memory.
pub(crate) fn region(memory: &Memory) -> Region<'_> {
    assert!(
        memory.access() == Access::ReadWrite && memory.bytes().is_ok(),
        "a region needs host memory that can be written"
    );
    // SAFETY: host memory starts at a multiple of eight, and stays mapped as long as `memory`
    // lives, which the region borrows. The assertion checks that it is readable and writable.
    // Scenarios access it only through regions, so the library accesses it in no other way.
    unsafe { Region::new(memory.as_ptr(), memory.len()) }
}

pub(crate) fn open_memory(context: &Context, bytes: &[u8]) -> Result<Memory> {
    let handle = MemoryHandle::from_bytes(bytes)?;
    Ok(context.open_memory(&handle)?)
}

pub(crate) fn open_event(context: &Context, bytes: &[u8], waiters: Waiters) -> Result<Event> {
    let handle = EventHandle::from_bytes(bytes)?;
    Ok(context.open_event_with(&handle, waiters.options())?)
}

/// Splits a message that consists of handles of memory.
pub(crate) fn each_memory(bytes: &[u8]) -> impl ExactSizeIterator<Item = &[u8]> {
    bytes.chunks_exact(MEMORY_HANDLE_SIZE)
}

/// Splits a message that consists of handles of events.
pub(crate) fn each_event(bytes: &[u8]) -> impl ExactSizeIterator<Item = &[u8]> {
    bytes.chunks_exact(EVENT_HANDLE_SIZE)
}
