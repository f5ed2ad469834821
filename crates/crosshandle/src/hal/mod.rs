//! The contract between the objects of this crate and a driver.
//!
//! A *backend* is one implementation of these traits: `host`, `cuda`, `level_zero`. Each object that
//! a program uses has one object of a backend behind it:
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
//! The traits are object-safe: programs choose a device at run time. The parts that must be faster
//! than a virtual call, the words of events and the checks of handles, do not go through them.
//!
//! # Validation
//! The object layer (`api`) checks every argument once, before it calls a backend: ranges lie inside
//! their memory, lengths are not zero, alignments are powers of two, objects belong to the context's
//! device, and were made by this process and not before a fork. A backend relies on that, and reports only what its
//! driver refuses, with the driver's own code ([`Error::Driver`](crate::Error::Driver)).
//!
//! Data from another process is not checked above: a backend checks an [`Import`] itself, its
//! descriptor, its length and what its exporter's backend wrote about it, before its driver sees
//! any of it.
//!
//! # Ownership
//! The result of a `create_*`, `import_*`, `reserve` or `load` owns the driver's object and
//! releases it on drop. Objects are dropped in any order: each keeps alive those that it needs. A
//! drop never panics and never waits for a device; what the driver refuses then is logged.
//!
//! A [`Segment`] and a [`Shared`] object is memory that the kernel or the driver counts: every process
//! that has mapped it keeps it, also when the process that made it frees it or ends.
//!
//! A [`Submission`] owns what its command uses: each [`Operand`] keeps its memory, a launch its
//! kernel and arguments. A queue keeps them until the device is done with them, and drops them
//! outside its locks, since a drop may be the program's code (`common::user_code`). An object that
//! a driver may use for ever, since nothing tells when the driver is done, goes to
//! `common::leak_registry`.
//!
//! An object that a program gives to `adopt_*` stays the program's with
//! [`Ownership::Borrowed`](crate::Ownership::Borrowed), and is destroyed with the result with
//! [`Ownership::Owned`](crate::Ownership::Owned).
//!
//! # Synchronisation
//! All methods may be called from any thread at any time; a backend locks what it must. It holds no lock
//! across a driver call that may wait for a device, and no lock while it runs the program's code.
//!
//! A queue orders its own commands: [`QueueOrder::InOrder`] runs them one after the other,
//! [`QueueOrder::OutOfOrder`] as soon as their waits and barriers allow. Only events order commands
//! across queues and processes. A call may wait for a device only where its documentation says so;
//! every such call takes a deadline.
//!
//! # Events
//! A backend does not implement events. It signals and waits on the words of
//! [`EventCore`](crate::ipc::EventCore), which lie in shared host memory, and which `event_protocol`
//! defines:
//! - A command that signals takes a *ticket* from its event while it is submitted, so that numbers
//!   follow the order of submission.
//! - The backend completes each ticket that it took exactly once, well or with an error, also when the
//!   command fails or the queue is dropped. It may complete late, never early: everything that the
//!   command wrote is visible by then.
//! - A command that waits starts when the signal has completed. If the signal failed, or will never be
//!   submitted since its process ended, the command does not run, and its own signal fails likewise, as
//!   far as [`late_failures`](crate::Capabilities::late_failures) promises.
//!
//! A driver that cannot wait for those words gives each event a *native mirror* in events of its own
//! ([`DriverEvents`]); the words stay the truth.
//!
//! # State after an error
//! A call that returns an error leaves everything as it was, with two exceptions, both documented: a
//! failed [`BackendQueue::submit`] may have dropped parts of the submission, and
//! [`BackendQueue::finish`] hands out a stored error once.
//!
//! # The driver's own objects
//! Where a program may call the driver too, `native()` returns the view of an object that shows the
//! driver's own and adopts the program's: see [`NativeDevice`], [`NativeContext`], [`NativeQueue`]. What
//! the program does with an object that it was shown is the program's affair; it orders that work as the
//! driver demands.
//!
//! # Absence
//! A driver that is absent is no error: its backend lists no devices, and its
//! [`status`](Backend::status) says what was looked for and where. A function of the driver that an old
//! version lacks is a capability that is absent. What a device cannot do is a value (an `Option`, a
//! field of [`Capabilities`](crate::Capabilities)), never a method that fails by surprise.
//!
//! # How to add a backend
//! Implement the traits in a directory of its own, whose files are named as in the others (`device`,
//! `info`, `memory`, `queue`, `native`, `tuning`); list it in `registry`; give it a `BackendKind`; run
//! the conformance suite on it.

pub(crate) mod common;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod graph;
pub(crate) mod host;
mod image;
#[cfg(feature = "level-zero")]
pub(crate) mod level_zero;
mod native;
pub(crate) mod registry;
mod submission;
mod wait_list;

pub(crate) use graph::{
    DriverGraph, GraphNode, GraphNodes, GraphRun, Graphs, PreparedNode, RecordedWork,
};
pub(crate) use image::{
    DeviceImage, DeviceLevels, DeviceSampler, DeviceView, ExternalMapping, ExternalMemory,
    ImageCopy, ImageSide, Images, ViewSource, Views,
};
pub(crate) use native::{NativeContext, NativeDevice, NativeEvent, NativeQueue};
pub(crate) use submission::{
    HostFunction, Launch, Operand, Pattern, RectCopy, RowFill, Submission, Work,
};
pub(crate) use wait_list::{WaitList, WaitPoint};

use crate::error::{Error, Result};
use crate::handle::{BackendKind, DRIVER_HANDLE_SIZE, DeviceUuid};
use crate::ipc::{BackendBlob, DriverEvents, Import, Shared};
use crate::sync::Deadline;
use crate::types::{
    Access, Address, AffinityDomain, DeviceInfo, ImageLimits, KernelArguments, KernelLimits,
    KernelProperties, MemoryKind, NativeRuntime, Ownership, Partition, PartitionLimits,
    ProgramImage, ProgramOptions, QueueOrder, SharedBytes,
};
use std::any::Any;
use std::ffi::CStr;
use std::sync::Arc;

/// A driver, present or not.
pub(crate) trait Backend: Sync {
    /// Returns the backend's kind, which handles name it by.
    fn kind(&self) -> BackendKind;

    /// Returns the devices in the driver's order; none without a driver.
    fn devices(&self) -> Vec<Arc<dyn BackendDevice>>;

    /// Returns a description of the driver; if it is absent, what was looked for and where.
    fn status(&self) -> std::result::Result<String, String>;
}

/// A device of a driver.
pub(crate) trait BackendDevice: Send + Sync {
    /// Returns the device's description, which never changes.
    fn info(&self) -> &DeviceInfo;

    /// Returns the number of free bytes of the device's memory at the moment, if that is known.
    fn free_memory(&self) -> Option<u64>;

    /// Returns whether contexts on this device can map memory of a device: of this one, or of one
    /// near enough.
    fn reaches(&self, device: DeviceUuid) -> bool;

    /// Returns the limits of kernels, or why the device runs none. May look for what runs them.
    fn kernels(&self) -> std::result::Result<&KernelLimits, String>;

    /// Returns the limits of kernels, if that takes no search.
    fn loaded_kernels(&self) -> Option<&KernelLimits> {
        self.kernels().ok()
    }

    /// Returns the objects of what compiles and runs kernels, if that is not the driver itself.
    fn native_runtime(&self) -> std::result::Result<NativeRuntime, String> {
        Err("the driver itself runs this device's kernels".into())
    }

    /// Returns a description of what compiles and runs kernels, where [`kernels`](Self::kernels) has
    /// limits and that is not the driver itself.
    fn kernel_runtime(&self) -> Option<String> {
        None
    }

    /// Returns the limits of images, or why the device has none. May look for what has them.
    fn images(&self) -> std::result::Result<&ImageLimits, String> {
        Err(format!("{} has no images", self.info().name))
    }

    /// Returns how the device can be divided, or why it cannot. May look for what runs kernels.
    fn partitions(&self) -> std::result::Result<PartitionLimits, String> {
        Err(format!("{} cannot be divided", self.info().name))
    }

    /// Divides the device as its [limits](Self::partitions) allow. The parts have the identity and the memory
    /// of the whole; their contexts run kernels on the part's compute units alone.
    fn partition(&self, _how: &Partition) -> Result<Vec<Arc<dyn BackendDevice>>> {
        Err(Error::Unsupported(format!(
            "{} cannot be divided",
            self.info().name
        )))
    }

    /// Returns what the compute units of a part share, if that is by what the whole was divided.
    fn affinity(&self) -> Option<AffinityDomain> {
        None
    }

    /// Makes a context on the device.
    fn create_context(&self) -> Result<Arc<dyn BackendContext>>;

    /// Returns the native view of the object, if programs may call the driver too.
    fn native(&self) -> Option<&dyn NativeDevice> {
        None
    }
}

/// A device in use: it allocates, maps and queues.
pub(crate) trait BackendContext: Send + Sync {
    /// Returns the smallest piece of physical memory and of a mapping, in bytes.
    fn granularity(&self) -> usize;

    /// Returns whether the context can map memory of a device: its own, or one near enough.
    fn reaches(&self, device: DeviceUuid) -> bool;

    /// Returns the length of the segments that small allocations share, in bytes: a multiple of
    /// 16 MiB.
    fn shared_segment(&self, _kind: MemoryKind) -> usize {
        64 << 20
    }

    /// Returns whether memory is taken page by page when it is touched, so that an allocation succeeds although there
    /// is less. Then [`Segment::give_back`] gives pages back.
    fn takes_memory_late(&self) -> bool {
        false
    }

    /// Returns whether the driver may reuse freed memory for the next allocation in this process
    /// although importers have it open.
    fn reuses_shared_memory(&self) -> bool {
        false
    }

    /// Notes that the program has dropped the context, though maybe not all that was made with it. May
    /// wait a moment, so that a process that ends now leaves no thread in the driver.
    fn close(&self) {}

    /// Makes new memory, mapped at an address that is a multiple of 2 MiB if it is that large, else of
    /// the largest power of two that divides its length. The host's is zeroed; other devices' contents
    /// are arbitrary.
    fn create_segment(&self, kind: MemoryKind, len: usize) -> Result<Arc<dyn Segment>>;

    /// Maps memory of another process, at an address that is a multiple of 2 MiB if it is that large.
    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn Segment>>;

    /// Makes new physical memory, not mapped anywhere, with contents as a segment has them.
    fn create_physical(&self, len: usize) -> Result<Arc<dyn Shared>>;

    /// Opens physical memory of another process.
    fn import_physical(&self, import: Import) -> Result<Arc<dyn Shared>>;

    /// Reserves addresses without memory. They start at `wish` if that is not 0, is aligned, and they
    /// are free.
    fn reserve(&self, wish: usize, len: usize, align: usize) -> Result<Box<dyn AddressRange>>;

    /// Returns what maps memory by the driver's handles to it, if the driver shares some memory by those alone.
    fn driver_handles(&self) -> Option<&dyn DriverHandles> {
        None
    }

    /// Returns what makes memory for other hosts, if the device is made for a fabric.
    fn fabric(&self) -> Option<&dyn Fabric> {
        None
    }

    /// Returns the maker of native mirrors, if the driver has events that cross processes.
    fn driver_events(&self) -> Option<Arc<dyn DriverEvents>> {
        None
    }

    /// Makes a queue.
    fn create_queue(&self, order: QueueOrder) -> Result<Box<dyn BackendQueue>>;

    /// Returns the native view of the object, if programs may call the driver too.
    fn native(&self) -> Option<&dyn NativeContext> {
        None
    }

    /// Returns the maker of the driver's graphs, if the backend has one. Otherwise queues replay the nodes.
    fn graphs(&self) -> Option<&dyn Graphs> {
        None
    }

    /// Returns the maker of images, if the device's [limits](BackendDevice::images) say that there are any.
    fn images(&self) -> Option<&dyn Images> {
        None
    }

    /// Returns the loader of programs, if there may be one: it says itself what is missing.
    fn programs(&self) -> Option<&dyn Programs> {
        None
    }
}

/// What maps memory of which the driver has no descriptor.
pub(crate) trait DriverHandles {
    /// Maps memory of another process by the driver's handle to it. The handle and `len` are the exporter's word.
    fn import_handle(&self, handle: &BackendBlob, len: usize) -> Result<Arc<dyn Segment>>;
}

/// A fabric of GPUs of several hosts, each of which accesses the others' memory.
pub(crate) trait Fabric {
    /// Makes memory of at least `len` bytes, mapped, and the driver's handle of it for other hosts.
    fn create_segment(&self, len: usize) -> Result<(Arc<dyn Segment>, [u8; DRIVER_HANDLE_SIZE])>;

    /// Maps memory by the driver's handle, maybe another host's. The handle and `len` are anybody's word.
    fn import_segment(
        &self,
        handle: &[u8; DRIVER_HANDLE_SIZE],
        len: usize,
    ) -> Result<Arc<dyn Segment>>;
}

/// The loader of programs for one device.
pub(crate) trait Programs {
    /// Loads a program made of one image, or links it of several. There is at least one.
    fn load(
        &self,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Arc<dyn LoadedProgram>>;

    /// Adopts a program that the driver has loaded for other code.
    ///
    /// # Safety
    /// `program` is one of the driver's on this device, and stays loaded as long as the result lives.
    /// No other code unloads one that is owned.
    unsafe fn adopt(&self, program: usize, ownership: Ownership) -> Result<Arc<dyn LoadedProgram>>;

    /// Adopts the program of a kernel that other code has made, and returns the kernel's name.
    ///
    /// # Safety
    /// `kernel` is one of the driver's on this device. No other code destroys one that is owned.
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

/// A program on a device. Its kernels keep it loaded.
pub(crate) trait LoadedProgram: Send + Sync {
    /// Returns a kernel of the program; [`Error::NoSymbol`](crate::Error::NoSymbol) if it has none
    /// of that name.
    fn kernel(self: Arc<Self>, name: &CStr) -> Result<Arc<dyn LoadedKernel>>;

    /// Returns the address and the length in bytes of a variable of the program; errors as for
    /// kernels.
    fn variable(&self, name: &CStr) -> Result<(Address, usize)>;

    /// Returns the output of the driver's compiler; may be empty.
    fn log(&self) -> &str;

    /// Returns the names of all kernels, if the driver tells them.
    fn kernel_names(&self) -> Option<Vec<String>> {
        None
    }

    /// Returns the program as a binary image, if the driver gives one.
    fn binary(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Returns the driver's own program.
    fn raw(&self) -> usize;
}

/// A kernel of a loaded program.
pub(crate) trait LoadedKernel: Any + Send + Sync {
    /// Returns what the kernel needs, and the limits that follow.
    fn properties(&self) -> &KernelProperties;

    /// Refuses arguments that the kernel doesn't take, as far as the driver says, and the properties
    /// don't.
    fn check_arguments(&self, _arguments: &KernelArguments) -> Result<()> {
        Ok(())
    }

    /// Returns the number of threads in a block, at most `limit`, with which most threads run at a
    /// time, for this many bytes of dynamic shared memory.
    fn suggest_block(&self, dynamic_shared: usize, limit: u32) -> Result<u32>;

    /// Returns the number of blocks that the device, which has `units` compute units, runs at a time.
    fn concurrent_blocks(&self, threads: u32, dynamic_shared: usize, units: u32) -> Result<u32>;

    /// Returns the driver's own kernel.
    fn raw(&self) -> usize;
}

/// Memory at an address, with a descriptor.
pub(crate) trait Segment: Shared {
    /// Returns the start: a device address, on the host also a pointer.
    fn start(&self) -> Address;

    /// Returns the segment's bytes, if the host may access them.
    fn host_bytes(&self) -> Option<SharedBytes<'_>>;

    /// Asks for the best pages for a part of the segment. A hint: without them, accesses are
    /// slower.
    fn populate(&self, offset: usize, len: usize);

    /// Takes all memory for a part of the segment now, so that touching it cannot fail. Memory that the
    /// driver allocated is always there.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory). Pages that were taken until then stay.
    fn make_present(&self, _offset: usize, _len: usize) -> Result<()> {
        Ok(())
    }

    /// Gives the memory of a part back to the system until it is touched again, as far as the part has whole pages.
    /// Its contents are arbitrary from then on. A hint.
    fn give_back(&self, _offset: usize, _len: usize) {}

    /// Drops the objects that finished commands keep, as far as the backend can tell without
    /// waiting: it may otherwise notice them late.
    fn release_finished(&self) {}

    /// Notes that the program has dropped memory in the segment that a command may have used: the backend
    /// notices within some milliseconds when the command has finished. Calls no driver.
    fn release_soon(&self) {}
}

/// Reserved addresses into which physical memory is mapped.
pub(crate) trait AddressRange: Send + Sync {
    /// Returns the start.
    fn start(&self) -> Address;

    /// Returns all addresses as bytes, if the host may access what is mapped. The caller touches
    /// only parts that are mapped with this access, and unmaps none of them meanwhile.
    fn host_bytes(&self, access: Access) -> Option<SharedBytes<'_>>;

    /// Maps physical memory at an offset: all of it, or a part if the device has
    /// [`partial_mappings`](crate::Capabilities::partial_mappings). Nothing is mapped there.
    fn map(
        &self,
        offset: usize,
        memory: &dyn Shared,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()>;

    /// Maps physical memory as [`map`](Self::map) does, as one of many pieces: what is placed may be accessed
    /// only after [`open`](Self::open).
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

    /// Grants the access to all addresses, each of which has something placed, with this access.
    fn open(&self, _access: Access) -> Result<()> {
        Ok(())
    }

    /// Returns whether a mapping keeps its memory, so that the memory's own object need not live.
    fn keeps_memory(&self) -> bool {
        false
    }

    /// Does what [`Segment::release_finished`] does.
    fn release_finished(&self) {}

    /// Does what [`Segment::release_soon`] does.
    fn release_soon(&self) {}

    /// Unmaps one mapping.
    fn unmap(&self, offset: usize, len: usize) -> Result<()>;

    /// Changes the access of one mapping.
    fn set_access(&self, offset: usize, len: usize, access: Access) -> Result<()>;
}

/// A queue of commands. Dropping it lets what was submitted run on.
pub(crate) trait BackendQueue: Send + Sync {
    /// Submits a command, and returns before or after it is done.
    ///
    /// The submission is passed by reference, since it is large. The backend takes what it needs; the
    /// caller drops the rest outside the queue's locks, since the drop may be the program's code.
    fn submit(&self, submission: &mut Submission) -> Result<()>;

    /// Makes sure that all that was submitted will run without further calls.
    fn flush(&self) -> Result<()>;

    /// Waits until all that was submitted is done. Returns, once, the first error of a command that
    /// signals no event.
    fn finish(&self, deadline: Deadline) -> Result<()>;

    /// Returns whether all that was submitted is done.
    fn is_idle(&self) -> bool;

    /// Returns the native view of the object, if programs may call the driver too.
    fn native(&self) -> Option<&dyn NativeQueue> {
        None
    }
}
