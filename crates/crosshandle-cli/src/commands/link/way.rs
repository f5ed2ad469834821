//! The connection to another host: this process's own link, or a link that another process shares.

use super::{Options, failed, host};
use crate::failure::Result;
use crate::settings::Settings;
use crosshandle::{Event, EventHandle, MemoryHandle};
use crosshandle_link::{
    Link, NeighbourEvent, NeighbourLink, NeighbourMemory, RemoteEvent, RemoteMemory,
};

/// Prefix that marks the name of a shared link in place of an address.
const SHARED: char = '@';

pub(super) enum Way {
    Own(Link),
    Shared(NeighbourLink),
}

pub(super) enum Memory {
    Own(RemoteMemory),
    Shared(NeighbourMemory),
}

pub(super) enum Signals {
    Own(RemoteEvent),
    Shared(NeighbourEvent),
}

impl Way {
    pub(super) fn to(address: &str, options: &Options, settings: &Settings) -> Result<Self> {
        let context = host(settings)?;
        match address.strip_prefix(SHARED) {
            None => options.connect(address, &context).map(Self::Own),
            Some(name) => NeighbourLink::connect(name, &context, settings.socket_dir.as_deref())
                .map(Self::Shared)
                .map_err(failed),
        }
    }

    pub(super) fn open_memory(&self, handle: &MemoryHandle) -> Result<Memory> {
        match self {
            Self::Own(link) => link.open_memory_read_only(handle).map(Memory::Own),
            Self::Shared(link) => link.open_memory_read_only(handle).map(Memory::Shared),
        }
        .map_err(failed)
    }

    pub(super) fn open_event(&self, handle: &EventHandle) -> Result<Signals> {
        match self {
            Self::Own(link) => link.open_event(handle).map(Signals::Own),
            Self::Shared(link) => link.open_event(handle).map(Signals::Shared),
        }
        .map_err(failed)
    }
}

impl Memory {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(memory) => memory.len(),
            Self::Shared(memory) => memory.len(),
        }
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Own(memory) => memory.read(offset, into),
            Self::Shared(memory) => memory.read(offset, into),
        }
        .map_err(failed)
    }
}

impl Signals {
    pub(super) fn mirror(&self) -> &Event {
        match self {
            Self::Own(event) => event.mirror(),
            Self::Shared(event) => event.mirror(),
        }
    }

    pub(super) fn signal(&self) -> Result<u64> {
        match self {
            Self::Own(event) => event.signal(),
            Self::Shared(event) => event.signal(),
        }
        .map_err(failed)
    }
}
