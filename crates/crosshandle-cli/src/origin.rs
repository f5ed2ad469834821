//! Where exporters are found, and contexts for what is to be opened.

use crate::failure::{Context as _, Failure, Result};
use crosshandle::handle::{BackendKind, DeviceUuid};
use crosshandle::{Context, ContextOptions, Device};
use std::io::{self, BufRead};
use std::path::PathBuf;
use std::time::Duration;

/// Where exporters listen and are looked for.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Origin {
    /// Directory of the exporters' sockets, the same on both sides [default:
    /// $CROSSHANDLE_SOCKET_DIR, else one of this user]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) socket_dir: Option<PathBuf>,
}

impl Origin {
    /// The options of a context that exports or opens there.
    pub(crate) fn options(&self) -> ContextOptions {
        match &self.socket_dir {
            Some(directory) => ContextOptions::new().socket_dir(directory),
            None => ContextOptions::new(),
        }
    }

    /// A context on a named device.
    pub(crate) fn context_on(&self, device: &str) -> Result<Context> {
        self.patient_context_on(device, None)
    }

    /// The same, which waits no longer than this for an exporter's answer.
    pub(crate) fn patient_context_on(
        &self,
        device: &str,
        patience: Option<Duration>,
    ) -> Result<Context> {
        let device = Device::find(device)?;
        Ok(Context::with_options(&device, self.patient(patience))?)
    }

    fn patient(&self, patience: Option<Duration>) -> ContextOptions {
        match patience {
            Some(patience) => self.options().exchange_timeout(patience),
            None => self.options(),
        }
    }

    /// A context in which a handle for this device can be opened.
    pub(crate) fn context_for(&self, backend: BackendKind, uuid: DeviceUuid) -> Result<Context> {
        self.patient_context_for(backend, uuid, None)
    }

    /// The same, which waits no longer than this for an exporter's answer.
    pub(crate) fn patient_context_for(
        &self,
        backend: BackendKind,
        uuid: DeviceUuid,
        patience: Option<Duration>,
    ) -> Result<Context> {
        let devices = Device::all();
        // Without the right device the open fails, and says best why.
        let device = devices
            .iter()
            .find(|device| device.info().backend == backend && device.info().uuid == uuid)
            .or(devices.first())
            .ok_or_else(|| Failure::error("there is no device; run `crosshandle doctor`"))?;
        Ok(Context::with_options(device, self.patient(patience))?)
    }
}

/// The handle's text: what was given, or the first line of standard input for `-`.
pub(crate) fn handle_text(given: &str) -> Result<String> {
    /// Far more than any handle has.
    const MOST: u64 = 4096;
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut line = String::new();
    io::BufReader::new(io::Read::take(io::stdin(), MOST))
        .read_line(&mut line)
        .context("reading the handle from standard input")?;
    if line.trim().is_empty() {
        return Err(Failure::error(
            "no handle on the first line of standard input; pipe one in, or give it as HANDLE",
        ));
    }
    Ok(line)
}
