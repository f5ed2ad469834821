//! The calls of the library that are measured, in the form the scenarios need them.

use anyhow::{Context as _, Result};
use crosshandle::{Context, ContextOptions, Device};

/// A context on the first device, with the options that a program gets without asking.
pub(super) fn context() -> Result<Context> {
    context_with(ContextOptions::new())
}

/// The same, in which each allocation owns its memory and returns it when freed.
pub(super) fn unpooled_context() -> Result<Context> {
    context_with(ContextOptions::new().pooling(false))
}

fn context_with(options: ContextOptions) -> Result<Context> {
    let device = Device::find("level_zero:0").context("cannot find the device")?;
    Context::with_options(&device, options).context("cannot create a context")
}
