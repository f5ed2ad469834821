//! The contract between the objects of this crate and a driver.
//!
//! # Who validates
//! The object layer (`Context`, `Memory`, `Queue`, …) checks every argument once, before it calls
//! here: ranges lie inside their memory, sizes are not zero, objects belong to the context's
//! device. A backend relies on that, and reports only what its driver refuses, with the driver's
//! own code.
//!
//! # Who owns
//! What a `create_*` or `import_*` returns owns the driver's object and releases it on drop. A
//! [`Segment`] is memory that the kernel or driver counts: whoever has mapped it keeps it alive,
//! also when the process that made it frees it or ends. Dropping never fails loudly; it logs.
//!
//! # Who synchronises
//! All methods may be called from any thread at any time. A queue orders its own commands; across
//! queues and processes order comes from events alone.
//!
//! # Events
//! A backend doesn't implement events; it signals and waits on the words of `counter`, which lie
//! in shared host memory. It completes each ticket that it took exactly once, also when the
//! command fails. A driver that has events for several processes, but cannot use those words, lets
//! its own ride along ([`DriverEvents`]).
//!
//! # The driver's own objects
//! Where a program may use the driver besides, a backend shows its objects and takes the program's:
//! see `native`. What was adopted is the program's, and so is what it does with what it was shown;
//! it synchronises the two as the driver wants it.
//!
//! # Absence
//! A driver that isn't there is no error: its backend lists no devices.

pub(crate) mod common;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod host;
#[cfg(feature = "level-zero")]
pub(crate) mod level_zero;
mod native;
pub(crate) mod registry;
mod submission;
mod wait_list;

pub(crate) use native::{NativeContext, NativeDevice, NativeEvent, NativeQueue};
pub(crate) use submission::{
    HostFunction, Launch, Operand, Pattern, RectCopy, RowFill, Submission, Work,
};
pub(crate) use wait_list::{WaitList, WaitPoint};

use crate::error::Result;
use crate::handle::{BackendKind, DeviceUuid};
use crate::ipc::{DriverEvents, Import, Shared};
use crate::types::{
    Access, Address, DeviceInfo, KernelProperties, MemoryKind, Ownership, ProgramImage,
    ProgramOptions, QueueOrder, SharedBytes,
};
use std::any::Any;
use std::ffi::CStr;
use std::sync::Arc;
use std::time::Instant;

/// A driver.
pub(crate) trait Backend: Sync {
    /// Which one.
    fn kind(&self) -> BackendKind;

    /// The devices there are. None without a driver.
    fn devices(&self) -> Vec<Arc<dyn BackendDevice>>;

    /// Whether the driver is there; where not, what was looked for and where.
    fn status(&self) -> std::result::Result<String, String>;
}

/// A device of a driver.
pub(crate) trait BackendDevice: Send + Sync {
    /// What is known of it.
    fn info(&self) -> &DeviceInfo;

    /// Bytes of its memory that are free at the moment, if that is known.
    fn free_memory(&self) -> Option<u64>;

    /// Whether contexts on it can map memory of a device: its own, or one near enough.
    fn reaches(&self, device: DeviceUuid) -> bool;

    /// A new context on it.
    fn create_context(&self) -> Result<Arc<dyn BackendContext>>;

    /// The driver's view of it, if programs may use the driver besides.
    fn native(&self) -> Option<&dyn NativeDevice> {
        None
    }
}

/// What allocates, maps and queues on one device.
pub(crate) trait BackendContext: Send + Sync {
    /// The smallest piece of physical memory and of a mapping, in bytes.
    fn granularity(&self) -> usize;

    /// Whether it can map memory of this device: its own, or one near enough.
    fn reaches(&self, device: DeviceUuid) -> bool;

    /// Bytes in a segment that small allocations share: a multiple of 16 MiB.
    fn shared_segment(&self, _kind: MemoryKind) -> usize {
        64 << 20
    }

    /// Whether the driver may give memory that was freed to the next one in this process who
    /// allocates, also while importers have it open.
    fn reuses_shared_memory(&self) -> bool {
        false
    }

    /// The program has let go of the context, though not of all that was made with it. May wait a
    /// moment, so that a process which ends now leaves no thread in the driver.
    fn close(&self) {}

    /// New memory, mapped at an address that is a multiple of 2 MiB if it is that large. What is in
    /// it is the system's affair: zeros on the host, anything on other devices.
    fn create_segment(&self, kind: MemoryKind, len: usize) -> Result<Arc<dyn Segment>>;

    /// Memory of another process, mapped likewise.
    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn Segment>>;

    /// New physical memory, not mapped anywhere, with contents as a segment has them.
    fn create_physical(&self, len: usize) -> Result<Arc<dyn Shared>>;

    /// Physical memory of another process.
    fn import_physical(&self, import: Import) -> Result<Arc<dyn Shared>>;

    /// Addresses without memory, from `wish` on if that is not 0, is aligned and they are free.
    fn reserve(&self, wish: usize, len: usize, align: usize) -> Result<Box<dyn AddressRange>>;

    /// Events of the driver's own, if it has any that ride along with ours.
    fn driver_events(&self) -> Option<Arc<dyn DriverEvents>> {
        None
    }

    /// A new queue.
    fn create_queue(&self, order: QueueOrder) -> Result<Box<dyn BackendQueue>>;

    /// The driver's view of it, if programs may use the driver besides.
    fn native(&self) -> Option<&dyn NativeContext> {
        None
    }

    /// What loads programs, if the device runs any. It does if its information has limits for
    /// kernels.
    fn programs(&self) -> Option<&dyn Programs> {
        None
    }
}

/// What loads programs for one device.
pub(crate) trait Programs {
    /// Loads a program made of one image, or of several that are linked first. There is at least
    /// one.
    fn load(
        &self,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Arc<dyn LoadedProgram>>;

    /// A program that somebody else has loaded, by the driver's handle; what `is_owned` is unloaded
    /// with the result.
    ///
    /// # Safety
    /// It is such a handle, and stays loaded as long as the result lives. Nobody else unloads what
    /// is owned.
    unsafe fn adopt(&self, program: usize, ownership: Ownership) -> Arc<dyn LoadedProgram>;
}

/// A program on a device. Its kernels keep it loaded.
pub(crate) trait LoadedProgram: Send + Sync {
    /// A kernel of it; [`Error::NoSymbol`](crate::Error::NoSymbol) if there is none of that name.
    fn kernel(self: Arc<Self>, name: &CStr) -> Result<Arc<dyn LoadedKernel>>;

    /// Where a variable of it lies and how many bytes it has; errors as for kernels.
    fn variable(&self, name: &CStr) -> Result<(Address, usize)>;

    /// What the driver had to say about it.
    fn log(&self) -> &str;

    /// The driver's handle.
    fn raw(&self) -> usize;
}

/// A kernel of a loaded program.
pub(crate) trait LoadedKernel: Any + Send + Sync {
    fn properties(&self) -> &KernelProperties;

    /// Threads in a block with which most of them run at a time, for this much dynamic shared
    /// memory, and at most `limit`.
    fn suggest_block(&self, dynamic_shared: usize, limit: u32) -> Result<u32>;

    /// Blocks that a compute unit runs at a time.
    fn blocks_per_unit(&self, threads: u32, dynamic_shared: usize) -> Result<u32>;

    /// The driver's handle.
    fn raw(&self) -> usize;
}

/// Memory at an address, with a descriptor.
pub(crate) trait Segment: Shared {
    /// Where it starts: a device address, on the host also a pointer.
    fn start(&self) -> Address;

    /// Its bytes, if the host may access them.
    fn host_bytes(&self) -> Option<SharedBytes<'_>>;

    /// Asks for the best pages for a part of it now; losing nothing but speed where it can't.
    fn populate(&self, offset: usize, len: usize);

    /// Lets go now of what commands keep that are done, as far as that can be found out without
    /// waiting: a backend may otherwise learn of it late.
    fn release_finished(&self) {}
}

/// Reserved addresses into which physical memory is mapped.
pub(crate) trait AddressRange: Send + Sync {
    /// Where they start.
    fn start(&self) -> Address;

    /// All of them as bytes, if the host may access what is mapped. The caller touches only parts
    /// that are mapped with this access, and unmaps none of them meanwhile.
    fn host_bytes(&self, access: Access) -> Option<SharedBytes<'_>>;

    /// Puts physical memory at an offset: all of it, or a part if the device can do that.
    fn map(
        &self,
        offset: usize,
        memory: &dyn Shared,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()>;

    /// Takes it away again.
    fn unmap(&self, offset: usize, len: usize) -> Result<()>;

    /// Changes what may be done with it.
    fn set_access(&self, offset: usize, len: usize, access: Access) -> Result<()>;
}

/// A queue of commands.
pub(crate) trait BackendQueue: Send + Sync {
    /// Takes a command, and returns before it is done, or after. What is left of it in its place, the
    /// caller drops: by reference, since it is large, and since its drop may be the user's code.
    fn submit(&self, submission: &mut Submission) -> Result<()>;

    /// Makes sure that what was submitted will run without further calls.
    fn flush(&self) -> Result<()>;

    /// Waits until all that was submitted is done. The first error of a command that signals no
    /// event is returned here, once.
    fn finish(&self, deadline: Option<Instant>) -> Result<()>;

    /// Whether nothing is left to do.
    fn is_idle(&self) -> bool;

    /// The driver's view of it, if programs may use the driver besides.
    fn native(&self) -> Option<&dyn NativeQueue> {
        None
    }
}
