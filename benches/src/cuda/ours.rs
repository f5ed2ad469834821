//! The measured calls of the library, in the form that scenarios need.

use anyhow::{Context as _, Result, ensure};
use crosshandle::{
    AllocationOptions, Command, Context, ContextOptions, Device, Memory, MemoryKind, Queue,
};
use std::time::Duration;

/// Time limit of a check of a GPU's memory.
///
/// The check copies eight bytes, after commands that take less than a second. The limit turns a
/// hang into an error.
const GPU_CHECK_TIMEOUT: Duration = Duration::from_secs(20);

/// Creates a context on a GPU, with default options.
pub(super) fn context(gpu: usize) -> Result<Context> {
    context_with(gpu, ContextOptions::new())
}

/// Creates a context without a pool: each allocation has its own memory, which is freed with it.
pub(super) fn unpooled_context(gpu: usize) -> Result<Context> {
    context_with(gpu, ContextOptions::new().pooling(false))
}

fn context_with(gpu: usize, options: ContextOptions) -> Result<Context> {
    let device = Device::find(&format!("cuda:{gpu}")).context("cannot find the GPU")?;
    Context::with_options(&device, options).context("cannot create a context")
}

/// Sets the first eight bytes of device memory.
pub(super) fn set_first_word(queue: &Queue, memory: &Memory, word: u64) -> Result<()> {
    queue.submit(Command::fill(memory.range(..8)?, &word.to_le_bytes())?)?;
    Ok(queue.finish_timeout(GPU_CHECK_TIMEOUT)?)
}

/// Reads the first eight bytes of device memory.
pub(super) fn first_word(context: &Context, queue: &Queue, memory: &Memory) -> Result<u64> {
    let host = context.allocate_with(AllocationOptions::new(8).kind(MemoryKind::Host))?;
    queue.submit(Command::copy(memory.range(..8)?, host.all())?)?;
    queue.finish_timeout(GPU_CHECK_TIMEOUT)?;
    let mut bytes = [0; 8];
    host.read(0, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Fails unless `found` is the word that the exporter wrote.
pub(super) fn check(found: u64, expected: u64) -> Result<()> {
    ensure!(
        found == expected,
        "memory starts with {found:#x}, not {expected:#x} as its exporter wrote"
    );
    Ok(())
}
