//! Options of a context.

use crate::api::device::Device;
use crate::pool::PoolOptions;
use crosshandle_ipc::broker::PeerPolicy;
use crosshandle_ipc::{Label, Origin};
use std::path::PathBuf;
use std::time::Duration;

/// Maximum length of a context's name in reports, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// Options of a context. The defaults of [`ContextOptions::new`] suit most programs.
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
    /// Returns the default options.
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

    /// Gives the context a name that tools such as `crosshandle ps` show. Other users may see it,
    /// so it must not contain secrets.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets whether small allocations share segments (default: yes). Without pooling, each
    /// allocation has its own descriptor and its own pages, so an importer of one allocation cannot
    /// access another.
    pub fn pooling(mut self, pooling: bool) -> Self {
        self.pooling = pooling;
        self
    }

    /// Sets whether to ask the system for huge pages for large host memory (default: yes).
    ///
    /// This is a hint. With huge pages, all pages of the memory are taken when it is allocated.
    /// Without them, pages are taken one by one on first access, which is several times slower in
    /// total. A driver chooses the pages of its own memory itself.
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Sets whether one allocation may be larger than the memory that the machine has left
    /// (default: no).
    ///
    /// Host memory is taken page by page on first access, so an allocation can succeed although its
    /// memory can never be used. By default, allocations of 32 MiB and more are therefore checked.
    /// The check compares their size with the available memory and with the limits of this
    /// process's control groups. Available memory includes memory that the kernel can reclaim at
    /// once, and free swap space. Untouched pages of earlier allocations are not subtracted. An
    /// allocation that is too large fails with [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    ///
    /// Enable this for sparse memory, most of which is never accessed.
    pub fn overcommit(mut self, overcommit: bool) -> Self {
        self.overcommit = overcommit;
        self
    }

    /// Sets the directory that contains the sockets of exporters, for instance a directory that
    /// several containers share. Exporters listen there, and importers look for them there.
    ///
    /// The default is the first of these that is set or exists:
    /// 1. `$CROSSHANDLE_SOCKET_DIR`
    /// 2. `crosshandle` in `$XDG_RUNTIME_DIR` or `/run/user/UID`
    /// 3. `crosshandle-UID` in the directory for temporary files
    pub fn socket_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.socket_dir = Some(directory.into());
        self
    }

    /// Sets which users may open exports of this context, and whose exports this context opens
    /// (default: only the same user).
    pub fn peers(mut self, peers: PeerPolicy) -> Self {
        self.peers = peers;
        self
    }

    /// Sets how long opening a handle may wait for a running exporter in total, however many
    /// replies it takes (default: 10 s).
    pub fn exchange_timeout(mut self, timeout: Duration) -> Self {
        self.exchange_timeout = timeout;
        self
    }

    /// Returns the label that reports show for a context with these options.
    pub(super) fn label(&self, device: &Device) -> Label {
        let name = self.name.as_deref().unwrap_or_default();
        // Cut to the length that one line of a report can show.
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
