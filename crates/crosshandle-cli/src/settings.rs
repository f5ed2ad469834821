//! The options that all commands have, and the contexts that are created from them.

use crate::failure::{Failure, Result};
use crate::output::log::{self, Format, Level};
use crosshandle::handle::{BackendKind, DeviceUuid};
use crosshandle::holder::Holder;
use crosshandle::{Context, ContextOptions, Device};
use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options that every command accepts.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Directory of the exporters' sockets, which exporters and importers must share [default:
    /// $CROSSHANDLE_SOCKET_DIR, or else a directory of this user]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) socket_dir: Option<PathBuf>,
    /// Report on standard error what the command does
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Format of the lines on standard error
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        hide_default_value = true
    )]
    log_format: Format,
}

impl Settings {
    /// Sets the format of this process's lines on standard error.
    pub(crate) fn apply(&self) {
        log::set_format(self.log_format);
    }

    /// Prints a line to standard error if the user has passed `--verbose`.
    pub(crate) fn log(&self, line: impl Display) {
        if self.verbose {
            log::say(Level::Info, line);
        }
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Returns the command-line arguments that pass these settings to a child process.
    pub(crate) fn as_arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        if let Some(directory) = &self.socket_dir {
            arguments.extend(["--socket-dir".into(), directory.into()]);
        }
        if self.verbose {
            arguments.push("--verbose".into());
        }
        if self.log_format != Format::default() {
            arguments.extend(["--log-format".into(), self.log_format.name().into()]);
        }
        arguments
    }

    /// Returns a client for the holder in the socket directory. The client presents `token` if it
    /// is given.
    pub(crate) fn holder(&self, token: Option<&str>) -> Holder {
        let mut holder = Holder::new();
        if let Some(directory) = &self.socket_dir {
            holder = holder.socket_dir(directory);
        }
        match token {
            Some(token) => holder.token(token),
            None => holder,
        }
    }

    /// Returns the socket directory that the user has chosen, if any.
    pub(crate) fn holder_directory(&self) -> Option<&Path> {
        self.socket_dir.as_deref()
    }

    /// Returns options for a context that uses the chosen socket directory.
    pub(crate) fn context_options(&self) -> ContextOptions {
        match &self.socket_dir {
            Some(directory) => ContextOptions::new().socket_dir(directory),
            None => ContextOptions::new(),
        }
    }

    /// Returns the directories in which exporters may have their sockets.
    pub(crate) fn socket_directories(&self) -> Vec<PathBuf> {
        match &self.socket_dir {
            Some(directory) => vec![directory.clone()],
            None => crosshandle::report::socket_directories(),
        }
    }

    /// Creates a context on the device with the given name.
    ///
    /// `exchange_timeout` limits how long an exporter may take to reply. `None` uses the library's
    /// default.
    pub(crate) fn context_on(
        &self,
        device: &str,
        exchange_timeout: Option<Duration>,
    ) -> Result<Context> {
        let device = Device::find(device)?;
        self.create_context(&device, exchange_timeout)
    }

    /// Creates a context in which a handle for this backend and device can be opened.
    ///
    /// `exchange_timeout` limits how long an exporter may take to reply. `None` uses the library's
    /// default.
    pub(crate) fn context_for(
        &self,
        backend: BackendKind,
        uuid: DeviceUuid,
        exchange_timeout: Option<Duration>,
    ) -> Result<Context> {
        let devices = Device::all();
        // If this machine lacks the device, use any device. Opening the handle then fails with a
        // precise error.
        let device = devices
            .iter()
            .find(|device| device.info().backend == backend && device.info().uuid == uuid)
            .or(devices.first())
            .ok_or_else(no_device)?;
        self.create_context(device, exchange_timeout)
    }

    /// Creates a context for events. Their state is host memory, so they open on every device.
    pub(crate) fn context_for_events(&self, exchange_timeout: Option<Duration>) -> Result<Context> {
        let device = Device::all().into_iter().next().ok_or_else(no_device)?;
        self.create_context(&device, exchange_timeout)
    }

    fn create_context(
        &self,
        device: &Device,
        exchange_timeout: Option<Duration>,
    ) -> Result<Context> {
        let options = match exchange_timeout {
            Some(timeout) => self.context_options().exchange_timeout(timeout),
            None => self.context_options(),
        };
        Ok(Context::with_options(device, options)?)
    }
}

fn no_device() -> Failure {
    Failure::error("there is no device; run `crosshandle doctor`")
}
