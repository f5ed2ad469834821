//! The measured calls of the library, in the form that the scenarios need.

use anyhow::{Context as _, Result};
use crosshandle::{Context, ContextOptions, Device};

/// Returns a context on the first device, with default options.
pub(super) fn context() -> Result<Context> {
    context_with(ContextOptions::new())
}

/// Returns a context on the first device in which each allocation owns its memory and returns it
/// when freed.
pub(super) fn unpooled_context() -> Result<Context> {
    context_with(ContextOptions::new().pooling(false))
}

fn context_with(options: ContextOptions) -> Result<Context> {
    let device = Device::find("level_zero:0").context("cannot find the device")?;
    Context::with_options(&device, options).context("cannot create a context")
}
