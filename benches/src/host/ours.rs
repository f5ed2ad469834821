//! The measured calls of the library, in the form that the scenarios need.

use anyhow::{Context as _, Result};
use crosshandle::handle::{EventHandle, HANDLE_SIZE, MemoryHandle};
use crosshandle::{Context, ContextOptions, Device, Event, EventOptions, Memory};

use crate::harness::region::Region;

/// Returns a context with default options.
pub(crate) fn context() -> Result<Context> {
    context_with(ContextOptions::new())
}

/// Returns a context in which each allocation owns a segment and returns it when freed.
pub(crate) fn unpooled_context() -> Result<Context> {
    context_with(ContextOptions::new().pooling(false))
}

fn context_with(options: ContextOptions) -> Result<Context> {
    let device = Device::find("host").context("cannot find the host device")?;
    Context::with_options(&device, options).context("cannot create a context")
}

/// The way in which the waiters of an event pass the time.
#[derive(Clone, Copy)]
pub(crate) enum Waiters {
    /// The default: spin first where that helps.
    Default,
    /// Sleep without spinning.
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

/// Returns the bytes of `memory`, which must not be used after it is dropped.
pub(crate) fn region(memory: &Memory) -> Region {
    // SAFETY: memory stays mapped and writable as long as it lives, and starts at a multiple of
    // eight; the scenarios access it through the region only.
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

/// Iterates over the handles in a message that contains only handles.
pub(crate) fn each_handle(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(HANDLE_SIZE)
}
