//! The environment of a case: a device, a private socket directory, and peers.

mod executor;
mod expectations;
mod transfer;

pub use executor::{block_on, is_pending, next};
pub use transfer::Transfer;

use expectations::Expectations;

use crate::failure::Failure;
use crate::peer::{Peer, PeerOptions};
use crosshandle::{Context, ContextOptions, Device, MemoryKind, device::Capabilities};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Environment variable with the factor by which time limits grow, for example under a checker.
pub const SLOWDOWN: &str = "CONFORMANCE_SLOWDOWN";

/// Returns the factor by which time limits grow.
pub fn slowdown() -> u32 {
    static TIMES: LazyLock<u32> = LazyLock::new(|| {
        let text = std::env::var(SLOWDOWN).ok();
        let times = text.and_then(|text| text.parse().ok());
        times.unwrap_or(1).max(1)
    });
    *TIMES
}

/// Returns the time limit of an action that should be quick.
pub(crate) fn deadline() -> Duration {
    Duration::from_secs(10) * slowdown()
}

/// The devices of one run of the suite, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Devices {
    /// Device of the contexts in a case's own process.
    pub own: String,
    /// Device of the contexts in its peers.
    pub peer: String,
}

/// The environment of one case.
pub struct Harness {
    device: Device,
    peer_device: Device,
    peer_name: String,
    program: PathBuf,
    directory: PathBuf,
}

impl Harness {
    /// Returns an environment on these devices, with peers that run `program`.
    ///
    /// # Errors
    /// Fails if there is no such device or no directory can be made.
    pub fn new(devices: &Devices, program: &Path) -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // The name is short, because the path of a socket has at most 107 characters.
        let directory = loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("xhc-{}-{count}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            match fs::create_dir(&directory) {
                Ok(()) => break directory,
                // A killed process that had the same ID has left the directory.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
        };
        let harness = Self {
            device: Device::find(&devices.own)?,
            peer_device: Device::find(&devices.peer)?,
            peer_name: devices.peer.clone(),
            program: program.to_owned(),
            directory,
        };
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&harness.directory, private)?;
        Ok(harness)
    }

    /// Returns the device under test.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the capabilities of the device under test.
    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.device.info().capabilities
    }

    pub(crate) fn peer_device(&self) -> &Device {
        &self.peer_device
    }

    pub(crate) fn peer_device_name(&self) -> &str {
        &self.peer_name
    }

    /// Returns whether both devices are the host, whose memory is visible in `/proc`.
    pub(crate) fn is_host(&self) -> bool {
        [&self.device, &self.peer_device]
            .iter()
            .all(|device| device.info().backend.to_string() == "host")
    }

    pub(crate) fn host_kind(&self) -> MemoryKind {
        if self.capabilities().host_accessible_memory {
            MemoryKind::Device
        } else {
            MemoryKind::Host
        }
    }

    /// Returns what the suite expects of the peers' driver.
    pub(crate) fn expectations(&self) -> Expectations {
        Expectations::of(self.peer_device.info().backend)
    }

    /// Returns the time within which a death must be noticed. It is far longer than the documented
    /// 100 ms, because the machine may be busy. A driver also cleans up after a process before the
    /// kernel closes the process's connections.
    pub(crate) fn promptness(&self) -> Duration {
        Duration::from_secs(if self.is_host() { 1 } else { 5 })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the path of a copy of the peers' program that every user may execute.
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

    /// Returns the socket directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns options for a context in the case's socket directory.
    pub fn options(&self) -> ContextOptions {
        ContextOptions::new().socket_dir(&self.directory)
    }

    /// Returns a new context in this process.
    ///
    /// # Errors
    /// Fails as [`Context::with_options`] does.
    pub fn context(&self) -> crosshandle::Result<Context> {
        Context::with_options(&self.device, self.options())
    }

    /// Returns a new context and a transfer for its memory.
    pub(crate) fn transfer(&self) -> crosshandle::Result<(Context, Transfer)> {
        let context = self.context()?;
        let transfer = Transfer::new(&context)?;
        Ok((context, transfer))
    }

    /// Returns a new context, and starts a peer.
    pub(crate) fn with_peer(&self) -> Result<(Context, Peer), Failure> {
        Ok((self.context()?, self.peer()?))
    }

    /// Starts a peer.
    ///
    /// # Errors
    /// Fails if the peer does not start.
    pub fn peer(&self) -> Result<Peer, Failure> {
        self.peer_with(PeerOptions::new())
    }

    /// Starts a peer with these options.
    ///
    /// # Errors
    /// Fails if the peer does not start.
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

/// Polls until a condition holds. Use it only for changes that send no message.
#[track_caller]
pub(crate) fn eventually(
    what: &str,
    mut holds: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let end = Instant::now() + deadline();
    while !holds()? {
        if Instant::now() >= end {
            return Err(Failure::new(format!("{what}: not within {:?}", deadline())));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
