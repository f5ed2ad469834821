//! What a case has at hand: a device, a socket directory of its own, and peers.

use crate::failure::Failure;
use crate::peer::{Peer, PeerOptions};
use crosshandle::handle::BackendKind;
use crosshandle::{Capabilities, Context, ContextOptions, Device, MemoryKind};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The variable that says how many times as long as usual anything may take: under a checker, say.
pub const SLOWDOWN: &str = "CONFORMANCE_SLOWDOWN";

/// How many times as long as usual anything may take.
pub fn slowdown() -> u32 {
    static TIMES: LazyLock<u32> = LazyLock::new(|| {
        let text = std::env::var(SLOWDOWN).ok();
        let times = text.and_then(|text| text.parse().ok());
        times.unwrap_or(1).max(1)
    });
    *TIMES
}

/// How long anything may take that should be quick.
pub(crate) fn deadline() -> Duration {
    Duration::from_secs(10) * slowdown()
}

/// The devices of one run of the suite, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Devices {
    /// Of the contexts in a case's own process.
    pub own: String,
    /// Of those in its peers.
    pub peer: String,
}

/// The scene of one case.
pub struct Harness {
    device: Device,
    peer_device: Device,
    peer_name: String,
    program: PathBuf,
    directory: PathBuf,
}

impl Harness {
    /// A scene on these devices, with peers that run `program`.
    ///
    /// # Errors
    /// If there is no such device or no directory can be made.
    pub fn new(devices: &Devices, program: &Path) -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Short: a socket's path has 107 characters at most.
        let directory = loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("xhc-{}-{count}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            match fs::create_dir(&directory) {
                Ok(()) => break directory,
                // Of a process that was killed and had the same number.
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

    /// The device under test.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What it can do.
    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.device.info().capabilities
    }

    /// The peers' device.
    pub(crate) fn peer_device(&self) -> &Device {
        &self.peer_device
    }

    /// Its name, for peers.
    pub(crate) fn peer_device_name(&self) -> &str {
        &self.peer_name
    }

    /// Whether both devices are the host, whose memory shows in `/proc`.
    pub(crate) fn is_host(&self) -> bool {
        [&self.device, &self.peer_device]
            .iter()
            .all(|device| device.info().backend == BackendKind::Host)
    }

    /// A kind of memory that the host can access.
    pub(crate) fn host_kind(&self) -> MemoryKind {
        if self.capabilities().host_accessible_memory {
            MemoryKind::Device
        } else {
            MemoryKind::Host
        }
    }

    /// Up to what an address in an importer is aligned as it is in the exporter, in bytes: Level
    /// Zero's drivers choose it, and promise their pages.
    pub(crate) fn importers_alignment(&self) -> usize {
        match self.peer_device.info().backend {
            BackendKind::LevelZero => 64 << 10,
            _ => 2 << 20,
        }
    }

    /// Whether drivers open memory by handles of their own, so that a descriptor alone is none.
    pub(crate) fn has_driver_handles(&self) -> bool {
        self.peer_device.info().backend == BackendKind::LevelZero
    }

    /// Within which time a death must be known: far more than the 100 ms that are promised, for a
    /// machine that is busy with other things. A driver cleans up after a process before the
    /// system closes its connections.
    pub(crate) fn promptness(&self) -> Duration {
        Duration::from_secs(if self.is_host() { 1 } else { 5 })
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
    let end = Instant::now() + deadline();
    while !holds()? {
        if Instant::now() >= end {
            return Err(Failure::new(format!("{what}: not within {:?}", deadline())));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
