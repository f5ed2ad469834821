//! Calls of the library that are measured, in the form that scenarios need.

use anyhow::{Context as _, Result};
use crosshandle::{Context, ContextOptions, Device};

/// Creates a context on the first device, with default options.
pub(super) fn context() -> Result<Context> {
    context_with(ContextOptions::new())
}

/// Creates a context without a pool: each allocation has its own memory, which is freed with it.
pub(super) fn unpooled_context() -> Result<Context> {
    context_with(ContextOptions::new().pooling(false))
}

fn context_with(options: ContextOptions) -> Result<Context> {
    let device = Device::find("level_zero:0").context("cannot find the device")?;
    Context::with_options(&device, options).context("cannot create a context")
}
