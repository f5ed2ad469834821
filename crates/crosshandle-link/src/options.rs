//! Options for a link.

use crate::control::identity::Identity;
use crate::error::{Error, Result};
use crate::tuning::MIN_KEEP_ALIVE;
use crate::ucx::worker::Settings;
use crosshandle::holder::Holder;
use std::time::Duration;

/// Default keep-alive: if no message arrives from the peer for this time, the link ends. With a
/// shorter time, links would end while switches find new routes. With a longer time, dead hosts are
/// detected later.
const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Maximum keep-alive.
const MAX_KEEP_ALIVE: Duration = Duration::from_secs(3600);

/// The transport for memory contents. Both sides must choose the same transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Data {
    /// UCX, on any network that UCX supports. This transport is the faster one. UCX neither
    /// encrypts nor authenticates connections, and a linked host can access all memory in the
    /// process that has the link. Use UCX only with networks and hosts that may have this access.
    #[default]
    Ucx,
    /// The link's own TLS connection. The bytes are encrypted, and the owner of the memory checks
    /// each access. This transport is slower, but works without UCX.
    Tls,
}

/// The path for memory that the host's processors cannot access, such as GPU memory.
///
/// If memory is *staged*, a queue copies it part by part to or from host memory. If it is not
/// staged, UCX accesses the memory directly. The owner of the memory decides. Local device memory
/// on the other side, which a command copies from or to, is always staged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Staging {
    /// UCX moves GPU memory over transports that access it directly: RDMA, and CUDA's transports
    /// between processes on one machine. With other transports, such as TCP, UCX would copy the
    /// memory in pieces of a few KiB, so the memory is staged instead.
    #[default]
    Auto,
    /// All GPU memory is staged. UCX never accesses it.
    Always,
    /// UCX moves all memory that it can register, over any transport.
    WhereNeeded,
}

/// Options for a link. Each side needs an [`Identity`]. All other options have defaults.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    pub(crate) identity: Identity,
    pub(crate) data: Data,
    pub(crate) staging: Staging,
    pub(crate) keep_alive: Duration,
    pub(crate) ucx: Settings,
    pub(crate) names: Option<Holder>,
}

impl LinkOptions {
    /// Creates options with `identity` and defaults for all other options.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            data: Data::default(),
            staging: Staging::default(),
            keep_alive: DEFAULT_KEEP_ALIVE,
            ucx: Settings::default(),
            names: None,
        }
    }

    /// Sets the transport for memory contents (default: UCX).
    pub fn data(mut self, data: Data) -> Self {
        self.data = data;
        self
    }

    /// Sets which device memory is staged (default: [`Staging::Auto`]). With [`Data::Tls`], all
    /// device memory is staged.
    pub fn staging(mut self, staging: Staging) -> Self {
        self.staging = staging;
        self
    }

    /// Sets the keep-alive: if no message arrives from the peer for this time, the link ends
    /// (default: 10 s). The value must be between 200 ms and one hour. The shorter value of the two
    /// sides applies.
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// Restricts UCX to one network interface (default: all interfaces, or `UCX_NET_DEVICES`).
    ///
    /// `name` is the system's name for the interface, such as `eth0`, or a port on an InfiniBand
    /// device, such as `mlx5_0:1`. Every host that can reach this interface can connect to UCX.
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.ucx.interface = Some(name.into());
        self
    }

    /// Sets the transports from which UCX chooses, in the format of `UCX_TLS`, for example
    /// `tcp,self`.
    pub fn transports(mut self, names: impl Into<String>) -> Self {
        self.ucx.transports = Some(names.into());
        self
    }

    /// Permits the peer to look up and read named objects that `holder` keeps, with
    /// [`Link::open_name`](crate::Link::open_name) (default: not permitted). An object that
    /// requires a token is served only if `holder` has the token.
    pub fn names(mut self, holder: Holder) -> Self {
        self.names = Some(holder);
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        match (MIN_KEEP_ALIVE..=MAX_KEEP_ALIVE).contains(&self.keep_alive) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "the keep-alive {:?} is not between {MIN_KEEP_ALIVE:?} and {MAX_KEEP_ALIVE:?}",
                self.keep_alive
            ))),
        }
    }
}
