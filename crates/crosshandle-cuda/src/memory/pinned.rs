//! Host memory that is registered with the driver, so that GPUs can access it.

use crate::device::Gpu;
use crate::driver::DeviceAddress;
use crate::scheduler::{self, Urgency};
use crosshandle_hal::common::host_memory::HostSegment;
use crosshandle_hal::{BackendObject, BackendPinner, BackendSegment, Pin};
use crosshandle_handle::BackendKind;
use crosshandle_os::mapping::Mapping;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, Address, SharedBytes};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Pinned host memory that all GPUs access at the same address as the host. After the drop, it is
/// unregistered when no stream waits, and then unmapped.
pub(super) struct PinnedSegment {
    /// `None` only during the drop.
    registered: Option<Registered<HostSegment>>,
    len: usize,
}

/// Host memory that is registered with the driver until the drop, and its mapping.
struct Registered<T> {
    gpu: Arc<Gpu>,
    start: Address,
    memory: T,
}

impl<T: Send + 'static> Registered<T> {
    /// Registers whole pages.
    ///
    /// # Safety
    /// `memory` keeps the pages mapped as long as the result lives, and the pages permit the given
    /// access.
    unsafe fn new(
        gpu: &Arc<Gpu>,
        start: NonNull<u8>,
        len: usize,
        access: Access,
        memory: T,
    ) -> Result<Self> {
        let _current = gpu.enter()?;
        // SAFETY: promised by the caller. `drop` unregisters the pages before they are unmapped.
        let register = || unsafe { gpu.driver().register_host(start, len, access) };
        let address = match register() {
            Err(Error::OutOfMemory { .. }) => {
                gpu.scheduler().make_room();
                register()?
            }
            address => address?,
        };
        let registered = Self {
            gpu: Arc::clone(gpu),
            start: Address::new(start),
            memory,
        };
        if address != start.addr().get() as DeviceAddress {
            registered.release_later(len);
            return Err(Error::Unsupported(format!(
                "{} accesses host memory at other addresses than the host",
                gpu.info().name
            )));
        }
        Ok(registered)
    }

    /// Unregisters `len` bytes when no stream waits. If no stream waits now, this call waits a
    /// while for that.
    fn release(self, len: usize) {
        let scheduler = Arc::clone(self.gpu.scheduler());
        scheduler.call(Urgency::WhenQuiet, len, move || drop(self));
    }

    /// Unregisters `len` bytes when no stream waits.
    fn release_later(self, len: usize) {
        let scheduler = Arc::clone(self.gpu.scheduler());
        scheduler.call_later(Urgency::WhenQuiet, len, move || drop(self));
    }
}

impl<T> Drop for Registered<T> {
    fn drop(&mut self) {
        self.gpu.release("pinned memory", |driver| {
            // SAFETY: registered when this object was created. Commands keep the memory that they
            // use, and events stay open until the device has finished with them.
            unsafe { driver.unregister_host(self.start.pointer()) };
            Ok(())
        });
    }
}

impl PinnedSegment {
    pub(super) fn register(gpu: &Arc<Gpu>, memory: HostSegment, access: Access) -> Result<Self> {
        let start = memory.start();
        let len = memory.len();
        // All pages are committed now, and pinned pages cannot be merged into larger ones later.
        if access == Access::ReadWrite {
            memory.populate(0, len);
        }
        // A registration ends with its context. The primary context is used because memory may
        // outlive a context of the program.
        let gpu = gpu.primary();
        // SAFETY: these are whole pages, which their mapping keeps.
        let registered = unsafe { Registered::new(gpu, start.pointer(), len, access, memory)? };
        Ok(Self {
            registered: Some(registered),
            len,
        })
    }

    fn memory(&self) -> &HostSegment {
        let registered = self.registered.as_ref().expect("present until drop");
        &registered.memory
    }
}

impl Drop for PinnedSegment {
    fn drop(&mut self) {
        if let Some(registered) = self.registered.take() {
            registered.release(self.len);
        }
    }
}

impl BackendObject for PinnedSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        self.memory().descriptor(access)
    }
}

impl BackendSegment for PinnedSegment {
    fn start(&self) -> Address {
        self.memory().start()
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        self.memory().host_bytes()
    }

    fn populate(&self, _offset: usize, _len: usize) {
        // The pages were populated before they were pinned.
    }

    fn release_finished(&self) {
        scheduler::tend_every_queue();
    }

    fn release_soon(&self) {
        scheduler::tend_every_queue_soon();
    }
}

/// Registers words of events with the driver of a GPU.
pub(crate) struct WordPinner<'a>(pub(crate) &'a Arc<Gpu>);

impl BackendPinner for WordPinner<'_> {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    unsafe fn pin(&self, start: NonNull<u8>, len: usize, mapping: &Arc<Mapping>) -> Result<Pin> {
        let mapping = Arc::clone(mapping);
        // One registration is used by all contexts, whichever of them end.
        let gpu = self.0.primary();
        // SAFETY: the caller promises that these pages belong to the mapping.
        let registered = unsafe { Registered::new(gpu, start, len, Access::ReadWrite, mapping)? };
        Ok(Box::new(PinnedWords(Some(registered), len)))
    }
}

/// Words of events that devices can access, and their size in bytes.
struct PinnedWords(Option<Registered<Arc<Mapping>>>, usize);

impl Drop for PinnedWords {
    fn drop(&mut self) {
        if let Some(registered) = self.0.take() {
            // The queue of the last command that used them may be locked, so this does not wait.
            registered.release_later(self.1);
        }
    }
}
