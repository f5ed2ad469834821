//! What a case has at hand: a device, a socket directory of its own, and peers.

use crate::failure::Failure;
use crate::peer::{Peer, PeerOptions};
use crosshandle::{Context, ContextOptions, Device};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take that should be quick.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// The scene of one case.
pub struct Harness {
    device: Device,
    name: String,
    program: PathBuf,
    directory: PathBuf,
}

impl Harness {
    /// A scene on the device with this name, with peers that run `program`.
    ///
    /// # Errors
    /// If there is no such device or no directory can be made.
    pub fn new(device: &str, program: &Path) -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Short: a socket's path has 107 characters at most.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("xhc-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory)?;
        let harness = Self {
            device: Device::find(device)?,
            name: device.to_owned(),
            program: program.to_owned(),
            directory,
        };
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&harness.directory, private)?;
        Ok(harness)
    }

    /// The device under test.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its name, for peers.
    pub(crate) fn device_name(&self) -> &str {
        &self.name
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// A copy of the peers' program that every user may run.
    pub(crate) fn public_program(&self) -> std::io::Result<PathBuf> {
        let copy = self.copy();
        if !copy.exists() {
            fs::copy(&self.program, &copy)?;
            let public = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&copy, public)?;
        }
        Ok(copy)
    }

    fn copy(&self) -> PathBuf {
        self.directory.with_extension("peer")
    }

    /// The socket directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Options of a context in the case's socket directory.
    pub fn options(&self) -> ContextOptions {
        ContextOptions::new().socket_dir(&self.directory)
    }

    /// A context in this process.
    ///
    /// # Errors
    /// As [`Context::with_options`].
    pub fn context(&self) -> crosshandle::Result<Context> {
        Context::with_options(&self.device, self.options())
    }

    /// Another process.
    ///
    /// # Errors
    /// If it does not start.
    pub fn peer(&self) -> Result<Peer, Failure> {
        self.peer_with(PeerOptions::new())
    }

    /// Another process, started as the options say.
    ///
    /// # Errors
    /// If it does not start.
    pub fn peer_with(&self, options: PeerOptions) -> Result<Peer, Failure> {
        Peer::start(self, options)
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_file(self.copy());
    }
}

/// Looks again and again until something holds. Only for what sends no message when it happens.
#[track_caller]
pub(crate) fn eventually(
    what: &str,
    mut holds: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let end = Instant::now() + DEADLINE;
    while !holds()? {
        if Instant::now() >= end {
            return Err(Failure::new(format!("{what}: not within {DEADLINE:?}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
