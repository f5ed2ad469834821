//! Host memory that GPUs access.

use super::caretaker;
use super::device::Gpu;
use super::driver::DeviceAddress;
use crate::error::{Error, Result};
use crate::hal::Segment;
use crate::hal::host::HostSegment;
use crate::ipc::Shared;
use crate::types::Access;
use crate::types::Address;
use crate::types::SharedBytes;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Host memory that all GPUs access at the address at which the host does. It is pinned. On drop
/// it is unregistered when no stream waits, and unmapped after that.
pub(super) struct PinnedSegment {
    /// `None` only while it is being dropped.
    registered: Option<Registered<HostSegment>>,
    len: usize,
}

/// Host memory, registered with the driver until drop, and what keeps it mapped so long.
pub(super) struct Registered<T> {
    gpu: Arc<Gpu>,
    start: Address,
    memory: T,
}

impl<T: Send + 'static> Registered<T> {
    /// Registers whole pages.
    ///
    /// # Safety
    /// `memory` keeps them mapped, for as long as this lives, and they may be accessed as said.
    pub(super) unsafe fn new(
        gpu: &Arc<Gpu>,
        start: NonNull<u8>,
        len: usize,
        access: Access,
        memory: T,
    ) -> Result<Self> {
        let _current = gpu.enter()?;
        // SAFETY: promised by the caller; `drop` unregisters them before they go.
        let register = || unsafe { gpu.driver().register_host(start, len, access) };
        let address = match register() {
            Err(Error::OutOfMemory { .. }) => {
                gpu.traffic().make_room();
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
            registered.release(len);
            return Err(Error::Unsupported(format!(
                "{} sees host memory at other addresses than the host does",
                gpu.info().name
            )));
        }
        Ok(registered)
    }

    /// Drops it, and `len` bytes with it, when no stream waits, which may be now.
    pub(super) fn release(self, len: usize) {
        let gpu = Arc::clone(&self.gpu);
        gpu.traffic().when_quiet(len, move || drop(self));
    }
}

impl<T> Drop for Registered<T> {
    fn drop(&mut self) {
        self.gpu.release("pinned memory", |driver| {
            // SAFETY: registered when this was made. Commands keep the memory that they use, and
            // events are open until the device is past them.
            unsafe { driver.unregister_host(self.start.pointer()) };
            Ok(())
        });
    }
}

impl PinnedSegment {
    pub(super) fn register(gpu: &Arc<Gpu>, memory: HostSegment, access: Access) -> Result<Self> {
        let start = memory.start();
        let len = memory.len();
        // All pages come into being now, and pinned ones can't be gathered later.
        if access == Access::ReadWrite {
            memory.populate(0, len);
        }
        // Where a context of the program's ends no registration does, which may last longer.
        let gpu = gpu.lasting();
        // SAFETY: whole pages, which their mapping keeps.
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

impl Shared for PinnedSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        self.memory().descriptor(access)
    }
}

impl Segment for PinnedSegment {
    fn start(&self) -> Address {
        self.memory().start()
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        self.memory().host_bytes()
    }

    fn populate(&self, _offset: usize, _len: usize) {
        // Done before the pages were pinned.
    }

    fn release_finished(&self) {
        caretaker::look();
    }
}
