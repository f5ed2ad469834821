//! Device memory and events, shared between processes through small handles.
//!
//! One process *gets* a handle to a piece of memory or to an event. The handle is plain bytes, and
//! the application sends it any way it likes. Another process *opens* the handle and has the same
//! object: the same bytes, the same state, no copy. The semantics follow the inter-process
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
//! use std::time::Duration;
//!
//! # fn consume(memory: &str, ready: &str) -> crosshandle::Result<()> {
//! // The consumer, in another process, given the two words.
//! let context = Context::new(&Device::find("host")?)?;
//! let memory = context.open_memory(&memory.parse()?)?;
//! let ready = context.open_event(&ready.parse()?)?;
//! ready.wait_timeout(Duration::from_secs(30))?;
//! let mut greeting = [0; 5];
//! memory.read(0, &mut greeting)?;
//! assert_eq!(&greeting, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # The nouns
//! The root of the crate has the names that most programs use. The modules in the last column have
//! the others.
//!
//! | noun | what it is | more of it |
//! |---|---|---|
//! | [`Device`] | a device that has memory and runs queues | [`device`] |
//! | [`Context`] | a device in use: it allocates, exports and opens | |
//! | [`Memory`], [`Buffer`] | a range of bytes, or of elements, allocated here or opened | |
//! | [`MemoryRange`] | a part of memory, for commands | [`memory`] |
//! | [`MemoryPool`](memory::MemoryPool) | memory that is kept apart and accounted for, with a limit | [`memory`] |
//! | [`PhysicalMemory`](virtual_memory::PhysicalMemory), [`VirtualRange`](virtual_memory::VirtualRange) | memory without an address, and addresses without memory | [`virtual_memory`] |
//! | [`Channel`](channel::Channel) | a ring of slots, through which processes send items | [`channel`] |
//! | [`Event`] | a counter of signals that processes wait for | [`event`] |
//! | [`Queue`], [`Command`] | copies, fills, calls, kernels, signals and waits that run asynchronously | [`graph`] |
//! | [`Program`](kernel::Program), [`Kernel`](kernel::Kernel) | code that a device runs | [`kernel`] |
//! | [`Image`](image::Image) | pixels in the layout of the device | [`image`] |
//! | [`MemoryHandle`], [`EventHandle`] | the bytes that one process sends to another | [`handle`] |
//! | [`Bundle`](handle::bundle::Bundle) | handles and the layouts of arrays in their memory, as bytes | [`handle`] |
//! | [`Holder`](holder::Holder) | a process that keeps shared memory after its exporter has ended | [`holder`] |
//! | [`NativeObject`](native::NativeObject) | a driver's own object, for programs that also call the driver | [`native`] |
//!
//! A *handle* is always the bytes that one process sends to another. A driver's own object is
//! always *native*.
//!
//! For people who change the code (paths in the repository):
//! - `docs/architecture.md` shows the crates, and follows a handle, a signal and the death of a
//!   process through the code. A table says what to change where.
//! - `docs/glossary.md` explains this library's own terms.
//! - `docs/threads.md` lists the threads, what each may block on, and the order of the locks.
//!
//! # How it works
//! [`Memory::handle`] gives the allocation a *record*, which is a number in its context. It writes
//! three things into a [`handle`]: the record's number, the position of the memory in its segment,
//! and the record's random key. [`Context::open_memory`] checks every byte of the handle. If this
//! process has not mapped the segment yet, it asks the exporter's *broker* for the segment's
//! descriptor over a Unix socket. The broker checks the user, and no ptrace permission is needed.
//! Later handles into that segment open without a system call.
//!
//! An [`Event`] is a few counters in shared memory. A signal is one atomic operation, and a wait is
//! one load. Only a thread that has to sleep calls the kernel. Signals are numbered, so a thread
//! can wait for one signal, even before it is submitted. A wait without a number waits for the
//! latest signal, or for the first one if there is none yet.
//!
//! Events can also be awaited without a thread for each. [`Event::reached`] is a future and
//! [`Event::values`] a stream for any async runtime, [`Event::on_signal`] calls a function, and a
//! [`Notifier`] has a descriptor for epoll and other event loops. All of them report failures and
//! deaths as waits do. Dropping any of them cancels the wait.
//!
//! # Lifetime
//! A process that has an object open keeps it. An exporter that frees memory or ends takes nothing
//! from its importers, because it reuses freed memory only when no importer has it open. Each open
//! is closed separately, on drop. Objects keep alive what they need: a [`Memory`] outlives its
//! [`Context`].
//!
//! # Death
//! When a process ends, for whatever reason, the kernel closes its connections. Signals that it had
//! submitted and not finished fail at once with [`Error::PeerDied`] in all other processes. Waits
//! for signals that were never submitted fail with the same error in two cases: when the event's
//! creator ends, and when a process that had the event open ends and no other process has it open.
//! All other work continues.
//!
//! # Trust
//! A handle is a capability of its [`Context`]. A process that has one can disturb that context's
//! other shared events, and memory in the same segment, but nothing else. Handles and peers may be
//! hostile. Everything that they send is checked. What they write into shared memory can corrupt
//! data, but never violates memory safety.
//!
//! # Errors
//! All fallible calls return [`Error`]. Its text says what to do, and it keeps the code of the
//! operating system or driver. [`Error::kind`] classifies it. Nothing here panics because of a
//! driver or a peer.
//!
//! # Threads
//! All objects are `Send` and `Sync`, and any thread may call any method. A method blocks only if
//! its documentation says so, and each such method has a form with a
//! [`Duration`](std::time::Duration). Accesses to memory by several threads or processes at once
//! are never undefined behaviour: see [`SharedBytes`].
//!
//! The library starts threads of its own when they are first needed. Their names start with `xh-`,
//! and `docs/threads.md` lists them. They run the functions and drops that a program gives to
//! queues, and its callbacks and wakers. A panic in any of these is caught. A child made by `fork`
//! without `exec` starts afresh on the host: see [`Context`].
//!
//! # Features
//! `cuda` and `level-zero` (both on by default) add the backends. Each driver is loaded on first
//! use, and may be absent.
//!
//! `metrics` (off by default) counts bytes, objects, opens, signals, waits, deaths and refusals
//! through the `metrics` facade, for the recorder that the program has installed.
//! `docs/observing.md` lists these metrics, and also the events and spans of `tracing`, which need
//! no feature.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// The shared layers serve every backend, so a build without one of them leaves some code unused.
#![cfg_attr(
    not(all(feature = "cuda", feature = "level-zero")),
    allow(dead_code, unused_imports)
)]

mod api;
mod backends;
#[cfg(doctest)]
mod documents;
pub mod handle;
mod pool;

pub use api::command::Command;
pub use api::context::Context;
pub use api::core::ContextOptions;
pub use api::device::Device;
pub use api::event::{Event, EventOptions, Notifier};
pub use api::memory::{Buffer, Memory, MemoryRange};
pub use api::queue::Queue;
pub use api::{channel, holder, report};
pub use crosshandle_handle::{EventHandle, MemoryHandle};
pub use crosshandle_ipc::broker::PeerPolicy;
pub use crosshandle_os::socket::interrupt::interruptible;
pub use crosshandle_types::error::{Error, ErrorKind, Result};
pub use crosshandle_types::{Access, AllocationOptions, MemoryKind, Pod, QueueOrder, SharedBytes};
/// The crate whose traits make a type [plain old data](Pod).
pub use zerocopy;

/// Functions for the adapters and the Python module of this workspace only. Programs must not rely
/// on them.
#[doc(hidden)]
pub mod adapter_support {
    pub use crosshandle_os::fork::PerProcess;

    /// Checks that neither the context nor its objects come from before a `fork` of this process.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if they do.
    pub fn check_birth(context: &crate::Context) -> crate::Result<()> {
        context.core().check_birth()
    }

    pub use crosshandle_os::threads::background::{run, run_blocking};
    pub use crosshandle_types::error::write_escaped;
    pub use crosshandle_types::sync::Deadline;
}

/// Properties and abilities of devices, and their partitions.
pub mod device {
    pub use crate::api::device::BackendStatus;
    pub use crosshandle_types::{
        AffinityDomain, Capabilities, DeviceInfo, Partition, PartitionLimits, dlpack,
    };
}

/// Futures, streams, callbacks and sets of events, and what events report.
pub mod event {
    pub use crate::api::event::{
        DeviceChannel, DeviceChannelAddresses, DeviceEvent, DeviceEventAddresses, EventProfile,
        EventSet, EventStatus, Notification, Reached, Subscription, Values,
    };
    pub use crosshandle_types::error::PeerDeath;
}

/// Graphs: commands that are prepared once and run many times.
pub mod graph {
    pub use crate::api::command::graph::{ExecutableGraph, Graph, Node, Replaced, SignalCursor};
}

/// Images, samplers, and views through which kernels reach images.
pub mod image {
    pub use crate::api::image::{ExternalMemory, Image, ImageView, LevelledImage, Sampler};
    pub use crosshandle_types::{
        Addressing, ChannelOrder, ChannelType, Filter, ImageDescription, ImageFormat, ImageKind,
        ImageLimits, ImagePart, SamplerDescription, Sampling, ViewLimits,
    };
}

/// Programs, their kernels, and the arguments and shapes of launches.
pub mod kernel {
    pub use crate::api::program::{Program, kernel::Kernel};
    pub use crosshandle_types::{
        KernelArgument, KernelArguments, KernelLimits, KernelParameter, KernelProperties,
        LaunchShape, ProgramImage, ProgramOptions,
    };
}

/// Pools of memory, and the shapes of copies.
pub mod memory {
    pub use crate::api::memory::{MemoryPool, MemoryPoolOptions, MemoryPoolUsage};
    pub use crosshandle_types::{Pitches, Region, TypedSlice};
}

/// A driver's own objects, for programs that also call the driver.
pub mod native {
    pub use crate::api::native::{NativeEvent, NativeRecording, RuntimeMemory};
    pub use crosshandle_types::{DriverAllocation, NativeObject, NativeRuntime, Ownership};
}

/// Memory without an address, and addresses without memory.
pub mod virtual_memory {
    pub use crate::api::physical::{PhysicalMemory, PhysicalMemoryExport};
    pub use crate::api::virtual_range::{VirtualRange, VirtualRangeExport};
    pub use crosshandle_handle::PhysicalMemoryHandle;
}
