//! Options of a link.

use crate::control::identity::Identity;
use crate::error::{Error, Result};
use crate::tuning::{DEFAULT_KEEP_ALIVE, MAX_KEEP_ALIVE, MIN_KEEP_ALIVE};
use crate::ucx::worker::Settings;
use crosshandle::holder::Holder;
use std::time::Duration;

/// How the bytes of memory travel. Both sides must choose the same way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Data {
    /// By UCX, over whatever network it finds: the fast way. UCX neither encrypts nor asks who connects, and
    /// a linked host can reach all memory of the process that runs the link. For networks, and hosts, that
    /// are trusted so far.
    #[default]
    Ucx,
    /// Over the control connection: encrypted, and each access checked by the owner. Slower, and without
    /// UCX.
    Tls,
}

/// Whether memory of devices that the host cannot access, such as a GPU's, is copied to and from memory of the
/// host by a queue, part by part, or moved by UCX itself. The memory's owner
/// chooses; memory of this host's devices that a queue copies from or to is staged here in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Staging {
    /// UCX moves memory of GPUs over transports that access it themselves: RDMA, and CUDA's own between processes
    /// of one machine. Over others, such as TCP, UCX would copy it in pieces of some KiB: there it is staged.
    #[default]
    Auto,
    /// UCX never sees memory of GPUs.
    Always,
    /// UCX moves all memory that it can register, by whichever transport.
    WhereNeeded,
}

/// The behaviour of a link. Both sides need an [`Identity`]; all else has a default.
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
    /// Returns the usual options.
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

    /// Sets how the bytes of memory travel (default: by UCX).
    pub fn data(mut self, data: Data) -> Self {
        self.data = data;
        self
    }

    /// Sets which memory of devices is staged (default: [`Staging::Auto`]). Over TLS all of it is.
    pub fn staging(mut self, staging: Staging) -> Self {
        self.staging = staging;
        self
    }

    /// Sets how long nothing may be heard from the other side before the link ends (default: 10 s; between
    /// 200 ms and an hour). The shorter one of the two sides' counts.
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// Sets the network interface that UCX listens on and uses, alone (default: all, or `UCX_NET_DEVICES`):
    /// the name that the system has for it, such as `eth0`, or of a port of an InfiniBand device, such as
    /// `mlx5_0:1`. Whoever reaches this interface reaches UCX.
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.ucx.interface = Some(name.into());
        self
    }

    /// Sets the transports that UCX chooses from, as `UCX_TLS` does: `tcp,self`, for instance.
    pub fn transports(mut self, names: impl Into<String>) -> Self {
        self.ucx.transports = Some(names.into());
        self
    }

    /// Lets the other side ask for what has a name at this holder ([`Link::open_name`](crate::Link::open_name)),
    /// and read it (default: it may not ask). What needs a token is given away only if the holder has it.
    pub fn names(mut self, holder: Holder) -> Self {
        self.names = Some(holder);
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        match (MIN_KEEP_ALIVE..=MAX_KEEP_ALIVE).contains(&self.keep_alive) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "a keep-alive of {:?} is not between {MIN_KEEP_ALIVE:?} and {MAX_KEEP_ALIVE:?}",
                self.keep_alive
            ))),
        }
    }
}
