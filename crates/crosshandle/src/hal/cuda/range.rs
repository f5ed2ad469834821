//! Reserved device addresses.

use super::device::Gpu;
use super::memory::{CudaPhysical, Reservation};
use crate::error::{Error, Result};
use crate::hal::AddressRange;
use crate::ipc::Shared;
use crate::types::SharedBytes;
use crate::types::{Access, Address};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Addresses into which physical memory is mapped.
pub(super) struct CudaRange {
    reservation: Reservation,
    /// Lengths of what is mapped, by offset: the driver unmaps only what it mapped at once.
    mapped: Mutex<BTreeMap<usize, usize>>,
}

impl CudaRange {
    /// At a wished address if that is free; 0 for none.
    pub(super) fn reserve(gpu: &Arc<Gpu>, wish: usize, len: usize, align: usize) -> Result<Self> {
        Ok(Self {
            reservation: Reservation::new(gpu, wish, len, align)?,
            mapped: Mutex::default(),
        })
    }

    fn mapped(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AddressRange for CudaRange {
    fn start(&self) -> Address {
        self.reservation.start()
    }

    fn host_bytes(&self, _access: Access) -> Option<SharedBytes<'_>> {
        None
    }

    fn map(
        &self,
        offset: usize,
        memory: &dyn Shared,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()> {
        let memory: &dyn Any = memory;
        let memory = memory.downcast_ref::<CudaPhysical>().ok_or_else(|| {
            Error::invalid("only physical memory of a CUDA device can be mapped here")
        })?;
        let mut mapped = self.mapped();
        // SAFETY: the caller checked that the place is inside and has nothing mapped.
        unsafe {
            self.reservation
                .map(offset, memory, memory_offset, len, access)?;
        }
        self.reservation.open_to_visitors(offset, len, access);
        mapped.insert(offset, len);
        Ok(())
    }

    fn unmap(&self, offset: usize, len: usize) -> Result<()> {
        let mut mapped = self.mapped();
        let gpu = self.reservation.gpu();
        let _current = gpu.enter()?;
        // SAFETY: the caller checked that exactly this was mapped; that no command uses it any
        // more is the promise of whoever got a range of it.
        unsafe { gpu.driver().unmap(self.reservation.address(offset), len)? };
        mapped.remove(&offset);
        Ok(())
    }

    fn set_access(&self, offset: usize, len: usize, access: Access) -> Result<()> {
        let gpu = self.reservation.gpu();
        let _current = gpu.enter()?;
        let start = self.reservation.address(offset);
        // SAFETY: as for unmapping.
        unsafe {
            gpu.driver().set_access(start, len, gpu.handle(), access)?;
        }
        self.reservation.open_to_visitors(offset, len, access);
        Ok(())
    }
}

impl Drop for CudaRange {
    fn drop(&mut self) {
        let mapped = std::mem::take(&mut *self.mapped());
        for (offset, len) in mapped {
            self.reservation.gpu().release("a mapping", |driver| {
                // SAFETY: mapped like this; as for unmapping.
                unsafe { driver.unmap(self.reservation.address(offset), len) }
            });
        }
    }
}
