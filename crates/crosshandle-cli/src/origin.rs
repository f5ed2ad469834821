//! The socket directory, and contexts for exporting and opening.

use crate::failure::{Context as _, Failure, Result};
use crosshandle::handle::{BackendKind, DeviceUuid};
use crosshandle::{Context, ContextOptions, Device};
use std::io::{self, BufRead};
use std::path::PathBuf;
use std::time::Duration;

/// The place where exporters listen and are looked for.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Origin {
    /// Directory of the exporters' sockets, the same on both sides [default:
    /// $CROSSHANDLE_SOCKET_DIR, else one of this user]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) socket_dir: Option<PathBuf>,
}

impl Origin {
    /// Returns the options of a context that exports or opens there.
    pub(crate) fn options(&self) -> ContextOptions {
        match &self.socket_dir {
            Some(directory) => ContextOptions::new().socket_dir(directory),
            None => ContextOptions::new(),
        }
    }

    /// Returns a context on a named device.
    pub(crate) fn context_on(&self, device: &str) -> Result<Context> {
        self.context_on_within(device, None)
    }

    /// Returns such a context with a limit on the wait for an exporter's answer.
    pub(crate) fn context_on_within(
        &self,
        device: &str,
        time_limit: Option<Duration>,
    ) -> Result<Context> {
        let device = Device::find(device)?;
        Ok(Context::with_options(
            &device,
            self.options_within(time_limit),
        )?)
    }

    fn options_within(&self, time_limit: Option<Duration>) -> ContextOptions {
        match time_limit {
            Some(time_limit) => self.options().exchange_timeout(time_limit),
            None => self.options(),
        }
    }

    /// Returns a context in which a handle for this device can be opened.
    pub(crate) fn context_for(&self, backend: BackendKind, uuid: DeviceUuid) -> Result<Context> {
        self.context_for_within(backend, uuid, None)
    }

    /// Returns such a context with a limit on the wait for an exporter's answer.
    pub(crate) fn context_for_within(
        &self,
        backend: BackendKind,
        uuid: DeviceUuid,
        time_limit: Option<Duration>,
    ) -> Result<Context> {
        let devices = Device::all();
        // Without the right device the open fails with the best explanation.
        let device = devices
            .iter()
            .find(|device| device.info().backend == backend && device.info().uuid == uuid)
            .or(devices.first())
            .ok_or_else(|| Failure::error("there is no device; run `crosshandle doctor`"))?;
        Ok(Context::with_options(
            device,
            self.options_within(time_limit),
        )?)
    }
}

/// Returns the text of a handle: the argument, or the first line of standard input for `-`.
pub(crate) fn handle_text(given: &str) -> Result<String> {
    /// Longest line of standard input in bytes: far more than any handle has.
    const MAX_LINE_BYTES: u64 = 4096;
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut line = String::new();
    io::BufReader::new(io::Read::take(io::stdin(), MAX_LINE_BYTES))
        .read_line(&mut line)
        .context("reading the handle from standard input")?;
    if line.trim().is_empty() {
        return Err(Failure::error(
            "no handle on the first line of standard input; pipe one in, or give it as HANDLE",
        ));
    }
    Ok(line)
}
