//! Contexts, which create all other objects.

use crate::{
    BackendDriverHandles, BackendEvents, BackendFabric, BackendGraphs, BackendImages,
    BackendObject, BackendPrograms, BackendQueue, BackendRange, BackendSegment, Import,
    NativeContext,
};
use crosshandle_handle::DeviceUuid;
use crosshandle_ipc::EventCore;
use crosshandle_types::error::Result;
use crosshandle_types::{Access, MemoryKind, QueueOrder};
use std::sync::Arc;

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
    /// allocation can succeed although too little memory is available, and
    /// [`BackendSegment::give_back`] returns pages to the system.
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
    fn create_segment(&self, kind: MemoryKind, len: usize) -> Result<Arc<dyn BackendSegment>>;

    /// Maps memory of another process. The address is a multiple of 2 MiB if the memory is at least
    /// that large.
    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn BackendSegment>>;

    /// Allocates physical memory without mapping it. Its initial contents follow the rule of
    /// [`create_segment`](Self::create_segment).
    fn create_physical(&self, len: usize) -> Result<Arc<dyn BackendObject>>;

    /// Opens physical memory of another process.
    fn import_physical(&self, import: Import) -> Result<Arc<dyn BackendObject>>;

    /// Reserves addresses without memory. The range starts at `wish` if `wish` is not 0, is
    /// aligned, and its addresses are free.
    fn reserve(&self, wish: usize, len: usize, align: usize) -> Result<Box<dyn BackendRange>>;

    /// Returns the importer of driver handles, if the driver shares some memory only by handles
    /// without a descriptor.
    fn driver_handles(&self) -> Option<&dyn BackendDriverHandles> {
        None
    }

    /// Returns the allocator of memory for other hosts, if the device supports a fabric.
    fn fabric(&self) -> Option<&dyn BackendFabric> {
        None
    }

    /// Returns the factory of native mirrors, if the driver has events that other processes can
    /// open.
    fn driver_events(&self) -> Option<Arc<dyn BackendEvents>> {
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
    fn graphs(&self) -> Option<&dyn BackendGraphs> {
        None
    }

    /// Returns the factory of images, if the device's [limits](crate::BackendDevice::images) say
    /// that it has images.
    fn images(&self) -> Option<&dyn BackendImages> {
        None
    }

    /// Returns the address of an event's words for code on the device, which has access to them
    /// from now on, while the event is open. Returns `None` if code on the device cannot use
    /// events.
    fn event_words(&self, _event: &EventCore) -> Option<Result<usize>> {
        None
    }

    /// Returns the loader of programs, if the context may have one. The loader itself reports what
    /// is missing.
    fn programs(&self) -> Option<&dyn BackendPrograms> {
        None
    }
}
