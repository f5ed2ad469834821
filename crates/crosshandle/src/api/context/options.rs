//! What can be chosen when something is made.

use crate::event_protocol::WaitMode;
use crate::ipc::Origin;
use crate::ipc::broker::PeerPolicy;
use crate::pool::PoolOptions;
use crate::types::MemoryKind;
use std::path::PathBuf;
use std::time::Duration;

/// How a context behaves. `ContextOptions::new()` is right for most.
#[derive(Clone, Debug)]
pub struct ContextOptions {
    pooling: bool,
    huge_pages: bool,
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
    /// The usual options.
    pub fn new() -> Self {
        Self {
            pooling: true,
            huge_pages: true,
            socket_dir: None,
            peers: PeerPolicy::SameUser,
            exchange_timeout: Duration::from_secs(10),
        }
    }

    /// Whether small allocations share segments (yes). Without, each has a descriptor and whole
    /// pages of its own, so that an importer of one can reach no other.
    pub fn pooling(mut self, pooling: bool) -> Self {
        self.pooling = pooling;
        self
    }

    /// Whether large memory is gathered into huge pages when it is allocated (yes). That takes
    /// all of its memory at once; without, pages are taken one by one as they are touched, which
    /// is several times slower in total.
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// The directory in which exporters listen and are looked for, for instance one that several
    /// containers share. By default `$CROSSHANDLE_SOCKET_DIR`, else `crosshandle` in
    /// `$XDG_RUNTIME_DIR` or `/run/user/UID`, else `crosshandle-UID` in the directory for
    /// temporary files.
    pub fn socket_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.socket_dir = Some(directory.into());
        self
    }

    /// Who may open what this context exports, and whose exports it opens (the same user).
    pub fn peers(mut self, peers: PeerPolicy) -> Self {
        self.peers = peers;
        self
    }

    /// How long opening a handle may wait for a living exporter to answer (10 s).
    pub fn exchange_timeout(mut self, timeout: Duration) -> Self {
        self.exchange_timeout = timeout;
        self
    }

    pub(super) fn pool(&self) -> PoolOptions {
        PoolOptions::new(self.pooling, self.huge_pages)
    }

    pub(super) fn into_origin(self) -> Origin {
        Origin {
            directory: self.socket_dir,
            policy: self.peers,
            timeout: self.exchange_timeout,
        }
    }
}

/// What to allocate.
#[derive(Clone, Copy, Debug)]
pub struct AllocationOptions {
    pub(crate) len: usize,
    pub(crate) kind: MemoryKind,
    pub(crate) align: usize,
}

impl AllocationOptions {
    /// `len` bytes of device memory, aligned to 64 bytes.
    pub fn new(len: usize) -> Self {
        Self {
            len,
            kind: MemoryKind::Device,
            align: 64,
        }
    }

    /// Where it shall live (on the device).
    pub fn kind(mut self, kind: MemoryKind) -> Self {
        self.kind = kind;
        self
    }

    /// Of what its address shall be a multiple, in bytes: a power of two, at most 2 MiB (64).
    pub fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }
}

/// What kind of event to make.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventOptions {
    shareable: Option<bool>,
    profiling: bool,
    low_power: bool,
}

impl EventOptions {
    /// A shareable event without timestamps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether handles can be made (yes, unless it takes timestamps).
    pub fn shareable(mut self, shareable: bool) -> Self {
        self.shareable = Some(shareable);
        self
    }

    /// Whether it notes when the command that signals it was submitted, started and ended (no).
    pub fn profiling(mut self, profiling: bool) -> Self {
        self.profiling = profiling;
        self
    }

    /// Whether waiting sleeps at once (no: it spins first while that pays).
    pub fn low_power(mut self, low_power: bool) -> Self {
        self.low_power = low_power;
        self
    }

    /// Whether handles can be made; `None` if the options contradict each other.
    pub(crate) fn sharing(self) -> Option<bool> {
        match self.shareable {
            Some(true) if self.profiling => None,
            Some(shareable) => Some(shareable),
            None => Some(!self.profiling),
        }
    }

    pub(crate) fn is_profiling(self) -> bool {
        self.profiling
    }

    pub(crate) fn mode(self) -> WaitMode {
        if self.low_power {
            WaitMode::LowPower
        } else {
            WaitMode::Spin
        }
    }
}
