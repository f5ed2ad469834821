//! Device memory and events, shared between processes through small handles.
//!
//! One process *gets* a handle to a piece of memory or to an event. The handle is plain bytes,
//! and travels any way the application likes. Another process *opens* it and holds the same
//! object: the same bytes, the same state, no copy. The meaning follows the inter-process
//! communication extension of oneAPI's Unified Runtime.
//!
//! ```no_run
//! use crosshandle::{Context, Device};
//!
//! # fn main() -> crosshandle::Result<()> {
//! // The producer.
//! let context = Context::new(&Device::find("host")?)?;
//! let memory = context.allocate(1 << 20)?;
//! let ready = context.create_event()?;
//! println!("{} {}", memory.handle()?, ready.handle()?);
//! memory.write(0, b"hello")?;
//! ready.signal()?;
//! # Ok(())
//! # }
//! ```
//!
//! ```no_run
//! use crosshandle::{Context, Device};
//!
//! # fn consume(memory: &str, ready: &str) -> crosshandle::Result<()> {
//! // The consumer, in another process, given the two words.
//! let context = Context::new(&Device::find("host")?)?;
//! let memory = context.open_memory(&memory.parse()?)?;
//! let ready = context.open_event(&ready.parse()?)?;
//! ready.wait_value(1)?;
//! let mut greeting = [0; 5];
//! memory.read(0, &mut greeting)?;
//! assert_eq!(&greeting, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # The nouns
//! | noun | what it is | where it lives |
//! |---|---|---|
//! | [`Device`] | where memory lives and queues run | `device` |
//! | [`Context`] | allocates, exports and opens on one device | `context/` |
//! | [`Memory`] | a range of bytes, allocated here or opened | `memory/` |
//! | [`MemoryPool`] | memory kept apart, with a limit and books | `memory/` |
//! | [`PhysicalMemory`], [`VirtualRange`] | memory without an address, and addresses without memory | `physical`, `virtual_range` |
//! | [`Event`] | a counter of signals that processes wait on | `event` |
//! | [`Queue`], [`Command`] | copies, fills, calls, kernels, signals and waits, run beside the host | `queue`, `command` |
//! | [`Program`], [`Kernel`] | code for a device, where that runs any | `program`, `kernel` |
//! | [`MemoryHandle`], [`PhysicalMemoryHandle`], [`EventHandle`] | what crosses | [`handle`] |
//!
//! # What happens
//! `Memory::handle()` gives the allocation a *record* in the context's arena and writes its number,
//! its place in its segment and the context's secret into a [`handle`]. `Context::open_memory`
//! checks every byte of it, and, if the segment isn't mapped here yet, asks the exporter's
//! *broker* for its descriptor: over a Unix socket, after a check of the user, without any ptrace
//! permission. From then on nothing is asked any more: the next handle into that segment opens
//! without a system call.
//!
//! An [`Event`] is a few counters in the same arena. A signal is one atomic operation, a wait one
//! load, and only who really has to sleep calls the kernel. Signal *n* is a number, so that a wait
//! is for a signal, and may be for one that is yet to come.
//!
//! # Lifetime
//! Whoever has an object open keeps it. An exporter that frees memory or ends takes nothing from
//! its importers; it reuses freed memory only once nobody has it open. Every open is closed by
//! itself, on drop. Objects keep what they need: a `Memory` outlives its `Context`.
//!
//! # Death
//! When a process ends, however it ends, its connection hangs up. The signals it had submitted and
//! not finished fail with [`Error::PeerDied`] in all other processes, at once; so do waits for a
//! value that nobody has submitted when the event's creator ends. Everybody else carries on.
//!
//! # Trust
//! A handle is a capability of its [`Context`]: whoever has one can disturb that context's other
//! shared events and what shares a segment with the memory, but nothing beyond. Handles and peers
//! may be hostile: anything they send is checked, and what they write into shared memory can make
//! data wrong, never memory unsafe.
//!
//! # Errors, threads, time
//! All fallible calls return [`Error`], which keeps the system's or driver's own code. All objects
//! are `Send` and `Sync`. Every blocking call has a form with a [`Duration`](std::time::Duration).

#![deny(unsafe_code)]
// The shared layers serve every backend: a build without some of them leaves parts unused.
#![cfg_attr(
    not(all(feature = "cuda", feature = "level-zero")),
    allow(dead_code, unused_imports)
)]

mod api;
mod error;
mod event_protocol;
#[cfg(fuzzing)]
pub mod fuzzing;
#[allow(unsafe_code)]
mod hal;
pub mod handle;
#[allow(unsafe_code)]
mod ipc;
#[allow(unsafe_code)]
mod os;
mod platform;
mod pool;
mod sync;
mod threads;
mod types;

/// For the adapters of this workspace alone: not part of the interface that programs may rely on.
#[doc(hidden)]
pub mod adapter_support {
    pub use crate::threads::background::{run, run_blocking};
}

pub use api::command::Command;
pub use api::context::{Context, NativeEvent};
pub use api::core::ContextOptions;
pub use api::device::{BackendStatus, Device};
pub use api::event::{Event, EventOptions, EventProfile, EventStatus};
pub use api::kernel::Kernel;
pub use api::memory::{
    Buffer, Memory, MemoryPool, MemoryPoolOptions, MemoryPoolUsage, MemoryRange,
};
pub use api::physical::{PhysicalMemory, PhysicalMemoryExport};
pub use api::program::Program;
pub use api::queue::Queue;
pub use api::virtual_range::VirtualRange;
pub use error::{Error, Result};
pub use handle::{EventHandle, MemoryHandle, PhysicalMemoryHandle};
pub use ipc::broker::{PeerPolicy, SOCKET_DIR_VARIABLE, socket_directories};
pub use os::process::host_identity;
pub use types::{
    Access, AllocationOptions, Capabilities, DeviceInfo, KernelArguments, KernelLimits,
    KernelParameter, KernelProperties, LaunchShape, MemoryKind, NativeObject, Ownership, Pitches,
    Pod, ProgramImage, ProgramOptions, QueueOrder, Region, SharedBytes, TypedSlice,
};
/// The crate whose traits make a type [plain data](Pod).
pub use zerocopy;
