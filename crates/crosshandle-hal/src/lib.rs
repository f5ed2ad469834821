//! The contract between the objects of `crosshandle` and a driver: the traits that every backend
//! implements. [`common`] has code that backends share, and [`noop`] is a backend without a device.
//!
//! A *backend* is one implementation of these traits: `host`, `cuda`, `level_zero`. Each object
//! that a program uses has one object of a backend behind it:
//!
//! | object of the program | object of the backend | file |
//! |---|---|---|
//! | – | [`Backend`]: a driver, which may be absent | `device` |
//! | `Device` | [`BackendDevice`] | `device` |
//! | `Context` | [`BackendContext`] | `context` |
//! | `Memory` | a part of a [`BackendSegment`] | `memory` |
//! | `PhysicalMemory` | a [`BackendObject`] | `memory` |
//! | `VirtualRange` | [`BackendRange`] | `memory` |
//! | `Queue` | [`BackendQueue`] | `queue` |
//! | `Command` | [`Submission`], which holds [`Work`] and a [`WaitList`] | `submission` |
//! | `Program`, `Kernel` | [`BackendProgram`], [`BackendKernel`] | `program` |
//! | `Image`, `Sampler` | [`BackendImage`], [`BackendSampler`] | `image` |
//! | `LevelledImage`, `ImageView` | [`BackendLevels`], [`BackendView`] | `image` |
//! | `ExecutableGraph` | [`GraphNodes`] and, where the driver has graphs, a [`BackendGraph`] | `graph` |
//! | `Event` | none: see [Events](#events) | – |
//!
//! A trait's prefix says whether a backend needs the trait:
//!
//! | prefix | traits |
//! |---|---|
//! | `Backend` | the contract. A backend implements those of its objects. |
//! | `Native` | optional views of the driver's own objects: see [below](#the-drivers-own-objects) |
//!
//! `crosshandle-ipc` defines [`BackendObject`], [`BackendEvents`], [`BackendTimestamps`] and
//! [`BackendPinner`], because it uses them. This crate exports them with the others.
//!
//! The traits are object-safe, because programs choose a device at run time. The words of events
//! and the checks of handles must be faster than a virtual call, so they do not go through these
//! traits.
//!
//! # Validation
//! The object layer (`crosshandle`) checks every argument once, before it calls a backend. Ranges
//! lie inside their memory, lengths are not zero, and alignments are powers of two. Objects belong
//! to the context's device, and were created by this process and not before a fork. A backend
//! relies on these checks. It reports only what its driver refuses, with the driver's own code
//! ([`Error::Driver`]).
//!
//! The object layer does not check data from another process. A backend checks an [`Import`]
//! itself: its descriptor, its length, and the data that the exporter's backend wrote about it. It
//! does so before its driver sees any of that data.
//!
//! # Ownership
//! The result of a `create_*`, `import_*`, `reserve` or `load` method owns the driver's object and
//! releases it on drop. Objects can be dropped in any order, because each object keeps alive the
//! objects that it needs. A drop never panics and never waits for a device. If the driver reports
//! an error during a drop, the error is logged.
//!
//! A [`BackendSegment`] or [`BackendObject`] is memory that the kernel or the driver counts. Every
//! process that has mapped the memory keeps it, even if its creator frees it or ends.
//!
//! A [`Submission`] owns the objects that its command uses. Each [`Operand`] keeps its memory, and
//! a launch keeps its kernel and arguments. A queue keeps these objects until the device has
//! finished with them. It drops them outside its locks, because a drop may run the program's code
//! (`common::user_code`). If nothing tells when the driver has finished with an object, the backend
//! leaks the object through `common::leak_registry`.
//!
//! An object that a program passes to `adopt_*` with [`Ownership::Borrowed`] remains the program's.
//! With [`Ownership::Owned`], it is destroyed together with the result.
//!
//! # Synchronisation
//! All methods may be called from any thread at any time. A backend takes the locks that it needs.
//! It holds no lock across a driver call that may wait for a device, and no lock while it runs the
//! program's code.
//!
//! A queue orders its own commands. [`QueueOrder::InOrder`] runs them one after the other.
//! [`QueueOrder::OutOfOrder`] runs each command as soon as its waits and the barriers allow. Only
//! events order commands across queues and processes. A call may wait for a device only if its
//! documentation says so, and every such call takes a deadline.
//!
//! # Events
//! A backend does not implement events. It signals and waits on the words of
//! [`EventCore`](crosshandle_ipc::EventCore). These words lie in shared host memory and are defined
//! by `crosshandle-events`.
//! - A command that signals takes a *ticket* from its event during its submission, so that signal
//!   numbers follow the order of submission.
//! - The backend completes each ticket exactly once, successfully or with an error. It does so even
//!   if the command fails or the queue is dropped. It may complete a ticket late but never early,
//!   because everything that the command wrote must be visible by then.
//! - A command that waits starts when the signal has completed. If the signal failed, or can never
//!   be submitted because its process ended, the command does not run. Its own signal then fails
//!   too, as far as [`late_failures`](crosshandle_types::Capabilities::late_failures) promises.
//!
//! If a driver cannot wait for these words, each event gets a *native mirror*, which is an event of
//! the driver ([`BackendEvents`]). The words remain authoritative.
//!
//! # State after an error
//! A call that returns an error leaves everything unchanged, with two documented exceptions. A
//! failed [`BackendQueue::submit`] may have dropped parts of the submission, and
//! [`BackendQueue::finish`] returns a stored error only once.
//!
//! # The driver's own objects
//! If a program may call the driver too, `native()` returns a view that exposes the driver's
//! objects and adopts the program's objects. See [`NativeDevice`], [`NativeContext`] and
//! [`NativeQueue`]. The program is responsible for what it does with an exposed object, and orders
//! that work as the driver requires.
//!
//! # Absence
//! An absent driver is not an error. Its backend lists no devices, and [`status`](Backend::status)
//! says what was looked for and where. If an old driver lacks a function, the corresponding
//! capability is absent. A limit of a device is a value (an `Option`, or a field of
//! [`Capabilities`](crosshandle_types::Capabilities)), never a method that fails unexpectedly.
//!
//! # How to add a backend
//! A new backend is a separate crate, which starts as a copy of [`noop`]. It has the file names of
//! the other backends: `device`, `context`, `info`, `memory`, `queue`, `program`, `image`,
//! `native`. `CONTRIBUTING.md` describes the steps, and lists the files outside the crate
//! that change.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.
//!
//! [`Error::Driver`]: crosshandle_types::error::Error::Driver
//! [`Ownership::Borrowed`]: crosshandle_types::Ownership::Borrowed
//! [`Ownership::Owned`]: crosshandle_types::Ownership::Owned
//! [`QueueOrder::InOrder`]: crosshandle_types::QueueOrder::InOrder
//! [`QueueOrder::OutOfOrder`]: crosshandle_types::QueueOrder::OutOfOrder

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod common;
mod context;
mod device;
mod graph;
mod image;
mod memory;
mod native;
pub mod noop;
mod program;
mod queue;
mod submission;
mod wait_list;

pub use context::BackendContext;
pub use crosshandle_ipc::{
    BackendBlob, BackendEvent, BackendEvents, BackendObject, BackendPinner, BackendTimestamps,
    Import, Pin,
};
pub use device::{Backend, BackendDevice, BackendPartitions, BackendRuntime, BackendRuntimeMemory};
pub use graph::{
    BackendGraph, BackendGraphs, GraphNode, GraphNodes, GraphRun, PreparedNode, RecordedWork,
};
pub use image::{
    BackendExternalMapping, BackendExternalMemory, BackendImage, BackendImages, BackendLevels,
    BackendSampler, BackendView, BackendViews, ImageCopy, ImageSide, ViewSource,
};
pub use memory::{BackendDriverHandles, BackendFabric, BackendRange, BackendSegment};
pub use native::{
    NativeAllocations, NativeBarrier, NativeContext, NativeDevice, NativeEvent, NativeKernels,
    NativePrograms, NativeQueue, NativeRecording,
};
pub use program::{BackendKernel, BackendProgram, BackendPrograms};
pub use queue::BackendQueue;
pub use submission::{
    FunctionResult, HostFunction, Launch, Operand, Pattern, RectCopy, RepeatableFunction, RowFill,
    Submission, Work,
};
pub use wait_list::{WaitList, WaitPoint};
