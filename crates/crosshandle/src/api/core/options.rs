//! Options of a context.

use crate::api::device::Device;
use crate::ipc::broker::PeerPolicy;
use crate::ipc::{Label, Origin};
use crate::pool::PoolOptions;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of the longest name of a context that reports show.
const MAX_NAME_BYTES: usize = 64;

/// The behaviour of a context. [`ContextOptions::new`] suits most programs.
#[derive(Clone, Debug)]
pub struct ContextOptions {
    name: Option<String>,
    pooling: bool,
    huge_pages: bool,
    overcommit: bool,
    socket_dir: Option<PathBuf>,
    peers: PeerPolicy,
    exchange_timeout: Duration,
}

impl Default for ContextOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ContextOptions {
    /// Returns the usual options.
    pub fn new() -> Self {
        Self {
            name: None,
            pooling: true,
            huge_pages: true,
            overcommit: false,
            socket_dir: None,
            peers: PeerPolicy::SameUser,
            exchange_timeout: Duration::from_secs(10),
        }
    }

    /// Gives the context a name, for people: `crosshandle ps` shows it. Names are no place for secrets.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets whether small allocations share segments (default: yes). Without pooling each
    /// allocation has a descriptor and whole pages of its own, so that an importer of one can reach
    /// no other.
    pub fn pooling(mut self, pooling: bool) -> Self {
        self.pooling = pooling;
        self
    }

    /// Sets whether to ask the system for huge pages for large host memory (default: yes).
    ///
    /// This is a hint. Asking takes all pages of the memory when it is allocated; without, pages are
    /// taken one by one as they are touched, which is several times slower in total. A driver
    /// chooses the pages of its own memory itself.
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Sets whether one allocation may be larger than what the machine has left (default: no).
    ///
    /// Host memory is taken page by page when it is touched, so an allocation could succeed that can never be
    /// used. By default, one of 32 MiB and more is compared with the memory that is available, including what the
    /// kernel can give up at once and the free swap space, and with the limits of this process's control groups. It
    /// fails with [`Error::OutOfMemory`](crate::Error::OutOfMemory) if it is larger. Earlier allocations count as far as
    /// they were touched. Choose this for sparse memory, most of which is never touched.
    pub fn overcommit(mut self, overcommit: bool) -> Self {
        self.overcommit = overcommit;
        self
    }

    /// Sets the directory in which exporters listen and are looked for, for instance one that
    /// several containers share.
    ///
    /// By default it is `$CROSSHANDLE_SOCKET_DIR`, else `crosshandle` in `$XDG_RUNTIME_DIR` or
    /// `/run/user/UID`, else `crosshandle-UID` in the directory for temporary files.
    pub fn socket_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.socket_dir = Some(directory.into());
        self
    }

    /// Sets the users that may open exports of this context, and whose exports this context opens
    /// (default: the same user's).
    pub fn peers(mut self, peers: PeerPolicy) -> Self {
        self.peers = peers;
        self
    }

    /// Sets how long opening a handle may wait for a living exporter, however many answers it takes
    /// (default: 10 s).
    pub fn exchange_timeout(mut self, timeout: Duration) -> Self {
        self.exchange_timeout = timeout;
        self
    }

    /// Returns what reports call a context with these options.
    pub(super) fn label(&self, device: &Device) -> Label {
        let name = self.name.as_deref().unwrap_or_default();
        // As much of it as lines can show.
        let name = name.get(..name.floor_char_boundary(MAX_NAME_BYTES.min(name.len())));
        Label {
            name: name.filter(|name| !name.is_empty()).map(str::to_owned),
            device: device.to_string(),
            backend: device.info().backend.to_string(),
        }
    }

    pub(super) fn pool(&self) -> PoolOptions {
        PoolOptions {
            overcommit: self.overcommit,
            ..PoolOptions::new(self.pooling, self.huge_pages)
        }
    }

    pub(super) fn into_origin(self) -> Origin {
        Origin {
            directory: self.socket_dir,
            policy: self.peers,
            timeout: self.exchange_timeout,
        }
    }
}
