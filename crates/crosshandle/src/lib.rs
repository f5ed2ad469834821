//! Crosshandle: device memory and events shared between processes through small handles.

#![deny(unsafe_code)]

// The places that may: each says at every block why it is sound.
#[allow(unsafe_code)]
mod backend;
mod context;
mod counter;
mod device;
mod error;
mod event;
mod exchange;
pub mod handle;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod os;
#[allow(unsafe_code)]
mod physical;
mod platform;
mod pool;
mod queue;
#[allow(unsafe_code)]
mod sharing;

pub use backend::{Capabilities, DeviceInfo, MemoryKind, QueueOrder};
pub use context::{AllocationOptions, Context, ContextOptions, EventOptions};
pub use device::{BackendStatus, Device};
pub use error::{Error, Result};
pub use event::{Event, EventProfile, EventStatus};
pub use exchange::{PeerPolicy, SOCKET_DIR_VARIABLE};
pub use handle::{EventHandle, MemoryHandle, PhysicalMemoryHandle};
pub use memory::{Memory, MemoryRange};
pub use os::mapping::Access;
pub use os::shared_bytes::{SharedBytes, TypedSlice};
pub use physical::{PhysicalMemory, VirtualRange};
pub use queue::{Command, Queue};
