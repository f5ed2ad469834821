//! Reserved device addresses.

use super::device_memory::{CudaPhysical, Reservation};
use crate::device::Gpu;
use crate::scheduler;
use crosshandle_hal::{BackendObject, BackendRange};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{Access, Address, SharedBytes};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reserved addresses into which physical memory is mapped.
pub(crate) struct CudaRange {
    reservation: Reservation,
    /// The lengths of the mappings by offset, because the driver unmaps only whole mappings.
    mapped: Mutex<BTreeMap<usize, usize>>,
    /// Whether pieces cover the whole range. They are then unmapped together.
    is_open: AtomicBool,
}

impl CudaRange {
    /// Reserves addresses, at `wish` if that is not 0 and those addresses are free.
    pub(crate) fn reserve(gpu: &Arc<Gpu>, wish: usize, len: usize, align: usize) -> Result<Self> {
        Ok(Self {
            reservation: Reservation::new(gpu, wish, len, align)?,
            mapped: Mutex::default(),
            is_open: AtomicBool::new(false),
        })
    }
}

impl BackendRange for CudaRange {
    fn start(&self) -> Address {
        self.reservation.start()
    }

    fn host_bytes(&self, _access: Access) -> Option<SharedBytes<'_>> {
        None
    }

    fn map(
        &self,
        offset: usize,
        memory: &dyn BackendObject,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()> {
        let memory: &dyn Any = memory;
        let memory = memory.downcast_ref::<CudaPhysical>().ok_or_else(|| {
            Error::invalid("only physical memory of a CUDA device can be mapped here")
        })?;
        // SAFETY: the caller checked that the place lies inside the range and has nothing mapped.
        unsafe {
            self.reservation
                .map(offset, memory, memory_offset, len, access)?;
        }
        self.reservation.open_to_peers(offset, len, access);
        self.mapped.lock().insert(offset, len);
        Ok(())
    }

    fn place(
        &self,
        offset: usize,
        memory: &dyn BackendObject,
        memory_offset: usize,
        len: usize,
        _access: Access,
    ) -> Result<()> {
        let memory: &dyn Any = memory;
        let memory = memory.downcast_ref::<CudaPhysical>().ok_or_else(|| {
            Error::invalid("only physical memory of a CUDA device can be mapped here")
        })?;
        let gpu = self.reservation.gpu();
        let start = self.reservation.address(offset);
        let _current = gpu.enter()?;
        // SAFETY: the caller checked that the place lies inside the range and has nothing mapped.
        unsafe {
            gpu.driver()
                .map(start, len, memory.allocation(), memory_offset)?;
        }
        self.mapped.lock().insert(offset, len);
        Ok(())
    }

    fn open(&self, access: Access) -> Result<()> {
        let gpu = self.reservation.gpu();
        let (start, len) = (self.reservation.address(0), self.reservation.len());
        let _current = gpu.enter()?;
        // SAFETY: pieces were mapped everywhere in the range, and nothing uses them yet.
        unsafe { gpu.driver().set_access(start, len, gpu.handle(), access)? };
        self.is_open.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn keeps_memory(&self) -> bool {
        // The driver counts mappings.
        true
    }

    fn release_finished(&self) {
        scheduler::tend_every_queue();
    }

    fn release_soon(&self) {
        scheduler::tend_every_queue_soon();
    }

    fn unmap(&self, offset: usize, len: usize) -> Result<()> {
        let gpu = self.reservation.gpu();
        let _current = gpu.enter()?;
        // SAFETY: the caller checked that exactly this range was mapped. The program promised, when
        // it obtained a view of the range, that no command uses the mapping any more.
        unsafe { gpu.driver().unmap(self.reservation.address(offset), len)? };
        self.mapped.lock().remove(&offset);
        Ok(())
    }

    fn set_access(&self, offset: usize, len: usize, access: Access) -> Result<()> {
        let gpu = self.reservation.gpu();
        let _current = gpu.enter()?;
        let start = self.reservation.address(offset);
        // SAFETY: the caller checked that exactly this range was mapped. The program promised, when
        // it obtained a view of the range, that no command uses the mapping any more.
        unsafe {
            gpu.driver().set_access(start, len, gpu.handle(), access)?;
        }
        self.reservation.open_to_peers(offset, len, access);
        Ok(())
    }
}

impl Drop for CudaRange {
    fn drop(&mut self) {
        let mapped = std::mem::take(&mut *self.mapped.lock());
        if *self.is_open.get_mut() {
            let (start, len) = (self.reservation.address(0), self.reservation.len());
            self.reservation.gpu().release("mapped pieces", |driver| {
                // SAFETY: the pieces were mapped from `start` on, without gaps. Nothing uses the
                // range any more.
                unsafe { driver.unmap(start, len) }
            });
            return;
        }
        for (offset, len) in mapped {
            self.reservation.gpu().release("a mapping", |driver| {
                // SAFETY: exactly this range was mapped. Nothing uses it any more.
                unsafe { driver.unmap(self.reservation.address(offset), len) }
            });
        }
    }
}
