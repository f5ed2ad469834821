//! The contract between the objects of `crosshandle` and a driver: the traits that every backend
//! implements. [`common`] has code that backends share.
//!
//! A *backend* is one implementation of these traits: `host`, `cuda`, `level_zero`. Each object
//! that a program uses has one object of a backend behind it:
//!
//! | object of the program | object of the backend |
//! |---|---|
//! | – | [`Backend`]: a driver, which may be absent |
//! | `Device` | [`BackendDevice`] |
//! | `Context` | [`BackendContext`] |
//! | `Memory` | a part of a [`Segment`] |
//! | `PhysicalMemory` | a [`Shared`] object |
//! | `VirtualRange` | [`AddressRange`] |
//! | `Queue` | [`BackendQueue`] |
//! | `Command` | [`Submission`], which holds [`Work`] and a [`WaitList`] |
//! | `Program`, `Kernel` | [`LoadedProgram`], [`LoadedKernel`] |
//! | `Image`, `Sampler` | [`DeviceImage`], [`DeviceSampler`] |
//! | `LevelledImage`, `ImageView` | [`DeviceLevels`], [`DeviceView`] |
//! | `ExecutableGraph` | [`GraphNodes`] and, where the driver has graphs, a [`DriverGraph`] |
//! | `Event` | none: see [Events](#events) |
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
//! A [`Segment`] or [`Shared`] object is memory that the kernel or the driver counts. Every process
//! that has mapped the memory keeps it, even if its creator frees it or ends.
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
//! the driver ([`DriverEvents`]). The words remain authoritative.
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
//! Implement the traits in a new crate, with the same file names as the other backends (`device`,
//! `info`, `memory`, `queue`, `native`, `tuning`). `CONTRIBUTING.md` lists further files to
//! change.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod common;
mod graph;
mod image;
mod native;
mod submission;
mod wait_list;

pub use graph::{DriverGraph, GraphNode, GraphNodes, GraphRun, Graphs, PreparedNode, RecordedWork};
pub use image::{
    DeviceImage, DeviceLevels, DeviceSampler, DeviceView, ExternalMapping, ExternalMemory,
    ImageCopy, ImageSide, Images, ViewSource, Views,
};
pub use native::{NativeContext, NativeDevice, NativeEvent, NativeQueue};
pub use submission::{HostFunction, Launch, Operand, Pattern, RectCopy, RowFill, Submission, Work};
pub use wait_list::{WaitList, WaitPoint};

use crosshandle_handle::{BackendKind, DRIVER_HANDLE_SIZE, DeviceUuid};
use crosshandle_ipc::{BackendBlob, DriverEvents, Import, Shared};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Deadline;
use crosshandle_types::{
    Access, Address, AffinityDomain, DeviceInfo, ImageLimits, KernelArguments, KernelLimits,
    KernelProperties, MemoryKind, NativeRuntime, Ownership, Partition, PartitionLimits,
    ProgramImage, ProgramOptions, QueueOrder, SharedBytes,
};
use std::any::Any;
use std::ffi::CStr;
use std::sync::Arc;

/// A driver, which may be absent.
pub trait Backend: Sync {
    /// Returns the kind by which handles name the backend.
    fn kind(&self) -> BackendKind;

    /// Returns the devices in the driver's order. The list is empty if the driver is absent.
    fn devices(&self) -> Vec<Arc<dyn BackendDevice>>;

    /// Returns a description of the driver, or what was looked for and where if the driver is
    /// absent.
    fn status(&self) -> std::result::Result<String, String>;
}

/// A device of a driver.
pub trait BackendDevice: Send + Sync {
    /// Returns the device's description, which does not change.
    fn info(&self) -> &DeviceInfo;

    /// Returns the current number of free bytes of the device's memory, if known.
    fn free_memory(&self) -> Option<u64>;

    /// Returns whether contexts on this device can map the memory of `device`: the same device, or
    /// one that is close enough.
    fn reaches(&self, device: DeviceUuid) -> bool;

    /// Returns the limits of kernels, or the reason why the device runs none. May search for the
    /// runtime that runs kernels.
    fn kernels(&self) -> std::result::Result<&KernelLimits, String>;

    /// Returns the limits of kernels if they are known without a search.
    fn loaded_kernels(&self) -> Option<&KernelLimits> {
        self.kernels().ok()
    }

    /// Returns the native objects of the runtime that compiles and runs kernels, if it is not the
    /// driver itself.
    fn native_runtime(&self) -> std::result::Result<NativeRuntime, String> {
        Err("the driver itself runs this device's kernels".into())
    }

    /// Returns a description of the runtime that compiles and runs kernels. Returns `None` if
    /// [`kernels`](Self::kernels) has no limits, or if the driver itself runs the kernels.
    fn kernel_runtime(&self) -> Option<String> {
        None
    }

    /// Returns the limits of images, or the reason why the device has none. May search for the
    /// runtime that provides images.
    fn images(&self) -> std::result::Result<&ImageLimits, String> {
        Err(format!("{} has no images", self.info().name))
    }

    /// Returns how the device can be divided, or the reason why it cannot. May search for the
    /// runtime that runs kernels.
    fn partitions(&self) -> std::result::Result<PartitionLimits, String> {
        Err(format!("{} cannot be divided", self.info().name))
    }

    /// Divides the device within its [limits](Self::partitions). The parts have the identity and
    /// the memory of the whole device. Contexts of a part run kernels only on the part's compute
    /// units.
    fn partition(&self, _how: &Partition) -> Result<Vec<Arc<dyn BackendDevice>>> {
        Err(Error::Unsupported(format!(
            "{} cannot be divided",
            self.info().name
        )))
    }

    /// Returns what the compute units of a part share, if the device was divided by affinity.
    fn affinity(&self) -> Option<AffinityDomain> {
        None
    }

    /// Creates a context on the device.
    fn create_context(&self) -> Result<Arc<dyn BackendContext>>;

    /// Returns the native view of the device, if programs may call the driver too.
    fn native(&self) -> Option<&dyn NativeDevice> {
        None
    }
}

/// A context on a device, which allocates memory, maps it and creates queues.
pub trait BackendContext: Send + Sync {
    /// Returns the granularity of physical memory and of mappings, in bytes.
    fn granularity(&self) -> usize;

    /// Returns whether the context can map the memory of `device`: its own device, or one that is
    /// close enough.
    fn reaches(&self, device: DeviceUuid) -> bool;

    /// Returns the length in bytes of the segments that small allocations share. It is a multiple
    /// of 16 MiB.
    fn shared_segment(&self, _kind: MemoryKind) -> usize {
        64 << 20
    }

    /// Returns whether the system commits each page only when it is first accessed. Then an
    /// allocation can succeed although too little memory is available, and [`Segment::give_back`]
    /// returns pages to the system.
    fn takes_memory_late(&self) -> bool {
        false
    }

    /// Returns whether the driver may reuse freed memory for the next allocation of this process
    /// while importers still have it open.
    fn reuses_shared_memory(&self) -> bool {
        false
    }

    /// Notes that the program has dropped the context. Objects that were created with it may still
    /// exist. May wait briefly, so that no thread is inside the driver if the process ends now.
    fn close(&self) {}

    /// Allocates memory and maps it. The address is a multiple of 2 MiB if the memory is at least
    /// that large, and otherwise of the largest power of two that divides its length. Host memory
    /// is zeroed. The contents of device memory are arbitrary.
    fn create_segment(&self, kind: MemoryKind, len: usize) -> Result<Arc<dyn Segment>>;

    /// Maps memory of another process. The address is a multiple of 2 MiB if the memory is at least
    /// that large.
    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn Segment>>;

    /// Allocates physical memory without mapping it. Its initial contents follow the rule of
    /// [`create_segment`](Self::create_segment).
    fn create_physical(&self, len: usize) -> Result<Arc<dyn Shared>>;

    /// Opens physical memory of another process.
    fn import_physical(&self, import: Import) -> Result<Arc<dyn Shared>>;

    /// Reserves addresses without memory. The range starts at `wish` if `wish` is not 0, is
    /// aligned, and its addresses are free.
    fn reserve(&self, wish: usize, len: usize, align: usize) -> Result<Box<dyn AddressRange>>;

    /// Returns the importer of driver handles, if the driver shares some memory only by handles
    /// without a descriptor.
    fn driver_handles(&self) -> Option<&dyn DriverHandles> {
        None
    }

    /// Returns the allocator of memory for other hosts, if the device supports a fabric.
    fn fabric(&self) -> Option<&dyn Fabric> {
        None
    }

    /// Returns the factory of native mirrors, if the driver has events that other processes can
    /// open.
    fn driver_events(&self) -> Option<Arc<dyn DriverEvents>> {
        None
    }

    /// Creates a queue.
    fn create_queue(&self, order: QueueOrder) -> Result<Box<dyn BackendQueue>>;

    /// Returns the native view of the context, if programs may call the driver too.
    fn native(&self) -> Option<&dyn NativeContext> {
        None
    }

    /// Returns the factory of the driver's graphs, if the backend has one. Otherwise queues replay
    /// the nodes.
    fn graphs(&self) -> Option<&dyn Graphs> {
        None
    }

    /// Returns the factory of images, if the device's [limits](BackendDevice::images) say that it
    /// has images.
    fn images(&self) -> Option<&dyn Images> {
        None
    }

    /// Returns the loader of programs, if the context may have one. The loader itself reports what
    /// is missing.
    fn programs(&self) -> Option<&dyn Programs> {
        None
    }
}

/// An importer of memory for which the driver has no descriptor.
pub trait DriverHandles {
    /// Maps memory of another process by the driver's handle. The exporter claims `handle` and
    /// `len`, so neither is trusted.
    fn import_handle(&self, handle: &BackendBlob, len: usize) -> Result<Arc<dyn Segment>>;
}

/// A fabric of GPUs on several hosts, which can access each other's memory.
pub trait Fabric {
    /// Allocates and maps at least `len` bytes, and returns the driver's handle of this memory for
    /// other hosts.
    fn create_segment(&self, len: usize) -> Result<(Arc<dyn Segment>, [u8; DRIVER_HANDLE_SIZE])>;

    /// Maps memory by the driver's handle, which may come from another host. The handle and `len`
    /// are not trusted.
    fn import_segment(
        &self,
        handle: &[u8; DRIVER_HANDLE_SIZE],
        len: usize,
    ) -> Result<Arc<dyn Segment>>;
}

/// A loader of programs for one device.
pub trait Programs {
    /// Loads a program from one image, or links it from several. The caller passes at least one
    /// image.
    fn load(
        &self,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Arc<dyn LoadedProgram>>;

    /// Adopts a program that other code has loaded with the driver.
    ///
    /// # Safety
    /// `program` belongs to the driver and this device, and stays loaded as long as the result
    /// lives. If the result owns it, no other code unloads it.
    unsafe fn adopt(&self, program: usize, ownership: Ownership) -> Result<Arc<dyn LoadedProgram>>;

    /// Adopts the program of a kernel that other code has created, and returns the kernel's name.
    ///
    /// # Safety
    /// `kernel` belongs to the driver and this device. If the result owns it, no other code
    /// destroys it.
    unsafe fn adopt_kernel(
        &self,
        _kernel: usize,
        _ownership: Ownership,
    ) -> Result<(Arc<dyn LoadedProgram>, String)> {
        Err(Error::Unsupported(
            "this driver does not tell a kernel's program; adopt the program, and find the kernel in it"
                .into(),
        ))
    }
}

/// A program that is loaded on a device. Its kernels keep it loaded.
pub trait LoadedProgram: Send + Sync {
    /// Returns a kernel of the program, or [`Error::NoSymbol`] if the
    /// program has none of that name.
    fn kernel(self: Arc<Self>, name: &CStr) -> Result<Arc<dyn LoadedKernel>>;

    /// Returns the address of a variable of the program, and its length in bytes. Fails as
    /// [`kernel`](Self::kernel) does if the name does not exist.
    fn variable(&self, name: &CStr) -> Result<(Address, usize)>;

    /// Returns the output of the driver's compiler, which may be empty.
    fn log(&self) -> &str;

    /// Returns the names of all kernels, if the driver provides them.
    fn kernel_names(&self) -> Option<Vec<String>> {
        None
    }

    /// Returns the program as a binary image, if the driver provides one.
    fn binary(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Returns the driver's own program as an integer. On CUDA, for example, it is a `CUmodule`.
    fn raw(&self) -> usize;
}

/// A kernel of a loaded program.
pub trait LoadedKernel: Any + Send + Sync {
    /// Returns the kernel's requirements and the resulting limits.
    fn properties(&self) -> &KernelProperties;

    /// Checks the arguments against everything that the driver knows about them and that the
    /// kernel's properties do not contain.
    fn check_arguments(&self, _arguments: &KernelArguments) -> Result<()> {
        Ok(())
    }

    /// Returns the number of threads per block, at most `limit`, with which the most threads run at
    /// the same time. `dynamic_shared` is in bytes.
    fn suggest_block(&self, dynamic_shared: usize, limit: u32) -> Result<u32>;

    /// Returns the number of blocks that a device with `units` compute units can run at the same
    /// time.
    fn concurrent_blocks(&self, threads: u32, dynamic_shared: usize, units: u32) -> Result<u32>;

    /// Returns the driver's own kernel as an integer. On CUDA, for example, it is a `CUfunction`.
    fn raw(&self) -> usize;
}

/// Memory with an address and a descriptor.
pub trait Segment: Shared {
    /// Returns the start of the segment: a device address, which on the host is also a pointer.
    fn start(&self) -> Address;

    /// Returns the segment's bytes, if the host may access them.
    fn host_bytes(&self) -> Option<SharedBytes<'_>>;

    /// Requests the best pages for a part of the segment. This is a hint: without such pages,
    /// accesses are slower.
    fn populate(&self, offset: usize, len: usize);

    /// Commits all memory of a part of the segment now, so that accessing it cannot fail. Memory
    /// that the driver allocated is always committed.
    ///
    /// # Errors
    /// Returns [`Error::OutOfMemory`] if there is not enough memory.
    /// Pages that were committed before the failure stay committed.
    fn make_present(&self, _offset: usize, _len: usize) -> Result<()> {
        Ok(())
    }

    /// Returns the whole pages of a part to the system until they are accessed again. Their
    /// contents are arbitrary afterwards. This is a hint.
    fn give_back(&self, _offset: usize, _len: usize) {}

    /// Drops the objects that finished commands keep, as far as the backend can tell without
    /// waiting. Without this call, the backend may notice the end of a command late.
    fn release_finished(&self) {}

    /// Notes that the program has dropped memory of the segment that a command may have used. The
    /// backend then notices within a few milliseconds when the command has finished. Does not call
    /// the driver.
    fn release_soon(&self) {}
}

/// A range of reserved addresses, into which physical memory is mapped.
pub trait AddressRange: Send + Sync {
    /// Returns the start of the range.
    fn start(&self) -> Address;

    /// Returns the bytes of the whole range, if the host may access mapped memory. While the caller
    /// accesses a part, that part stays mapped with at least `access`.
    fn host_bytes(&self, access: Access) -> Option<SharedBytes<'_>>;

    /// Maps `len` bytes of physical memory at `offset`, where nothing is mapped. These are all
    /// bytes of the memory, unless the device has
    /// [`partial_mappings`](crosshandle_types::Capabilities::partial_mappings).
    fn map(
        &self,
        offset: usize,
        memory: &dyn Shared,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()>;

    /// Maps one of many pieces that together fill the range. Otherwise like [`map`](Self::map), but
    /// the pieces may be accessed only after [`open`](Self::open).
    fn place(
        &self,
        offset: usize,
        memory: &dyn Shared,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()> {
        self.map(offset, memory, memory_offset, len, access)
    }

    /// Grants `access` to the whole range. The caller has placed pieces everywhere in the range,
    /// with the same access.
    fn open(&self, _access: Access) -> Result<()> {
        Ok(())
    }

    /// Returns whether a mapping keeps its memory alive, so that the memory's own object may be
    /// dropped.
    fn keeps_memory(&self) -> bool {
        false
    }

    /// Drops the objects that finished commands keep (see [`Segment::release_finished`]).
    fn release_finished(&self) {}

    /// Makes the backend notice soon when commands have finished (see [`Segment::release_soon`]).
    fn release_soon(&self) {}

    /// Unmaps one mapping.
    fn unmap(&self, offset: usize, len: usize) -> Result<()>;

    /// Changes the access of one mapping.
    fn set_access(&self, offset: usize, len: usize, access: Access) -> Result<()>;
}

/// A queue of commands. Commands that were submitted still run after the queue is dropped.
pub trait BackendQueue: Send + Sync {
    /// Submits a command. It may return before or after the command has finished.
    ///
    /// The submission is passed by reference, because it is large. The backend takes the parts that
    /// it needs. The caller drops the rest outside the queue's locks, because the drop may run the
    /// program's code.
    fn submit(&self, submission: &mut Submission) -> Result<()>;

    /// Ensures that all submitted commands will run without further calls.
    fn flush(&self) -> Result<()>;

    /// Waits until all submitted commands have finished. Returns the first error of a command that
    /// signals no event, and returns it only once.
    fn finish(&self, deadline: Deadline) -> Result<()>;

    /// Returns whether all submitted commands have finished.
    fn is_idle(&self) -> bool;

    /// Returns the native view of the queue, if programs may call the driver too.
    fn native(&self) -> Option<&dyn NativeQueue> {
        None
    }
}
