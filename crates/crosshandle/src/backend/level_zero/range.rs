//! Reserved device addresses.

use super::driver::{Core, VirtualMemory};
use super::physical::LevelZeroPhysical;
use crate::backend::AddressRange;
use crate::error::{Error, Result};
use crate::os::mapping::Access;
use crate::os::shared_bytes::SharedBytes;
use crate::sharing::Shared;
use std::any::Any;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Addresses into which physical memory is mapped.
pub(super) struct LevelZeroRange {
    core: Arc<Core>,
    start: NonNull<u8>,
    len: usize,
    /// Lengths of what is mapped, by offset: the driver unmaps only what it mapped at once.
    mapped: Mutex<BTreeMap<usize, usize>>,
}

// SAFETY: only addresses; whoever accesses memory there answers for that.
unsafe impl Send for LevelZeroRange {}
// SAFETY: as above.
unsafe impl Sync for LevelZeroRange {}

impl LevelZeroRange {
    /// At a wished address if that is free; 0 for none.
    pub(super) fn reserve(core: &Arc<Core>, wish: usize, len: usize, align: usize) -> Result<Self> {
        let memory = VirtualMemory(core);
        let start = match wish - wish % align {
            0 => memory.reserve(0, len)?,
            // The driver may fail where it could choose another place.
            wish => memory
                .reserve(wish, len)
                .or_else(|_| memory.reserve(0, len))?,
        };
        Ok(Self {
            core: Arc::clone(core),
            start,
            len,
            mapped: Mutex::default(),
        })
    }

    fn mapped(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        self.start.map_addr(|start| start.saturating_add(offset))
    }
}

impl AddressRange for LevelZeroRange {
    fn start(&self) -> NonNull<u8> {
        self.start
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
        let memory = memory.downcast_ref::<LevelZeroPhysical>().ok_or_else(|| {
            Error::invalid("only physical memory of a Level Zero device can be mapped here")
        })?;
        let mut mapped = self.mapped();
        // SAFETY: the caller checked that the place is inside and has nothing mapped.
        unsafe {
            VirtualMemory(&self.core).map(
                self.at(offset),
                len,
                memory.handle(),
                memory_offset,
                access,
            )?;
        }
        mapped.insert(offset, len);
        Ok(())
    }

    fn unmap(&self, offset: usize, len: usize) -> Result<()> {
        let mut mapped = self.mapped();
        // SAFETY: the caller checked that exactly this was mapped; that no command uses it any
        // more is the promise of whoever got a range of it.
        unsafe { VirtualMemory(&self.core).unmap(self.at(offset), len)? };
        mapped.remove(&offset);
        Ok(())
    }

    fn set_access(&self, offset: usize, len: usize, access: Access) -> Result<()> {
        // SAFETY: as for unmapping.
        unsafe { VirtualMemory(&self.core).set_access(self.at(offset), len, access) }
    }
}

impl Drop for LevelZeroRange {
    fn drop(&mut self) {
        let mapped = std::mem::take(&mut *self.mapped());
        self.core.release("reserved addresses", |core| {
            let memory = VirtualMemory(core);
            for (offset, len) in mapped {
                // SAFETY: mapped like this; as for unmapping.
                unsafe { memory.unmap(self.at(offset), len)? };
            }
            // SAFETY: reserved when this was made, with nothing mapped any more.
            unsafe { memory.unreserve(self.start, self.len) }
        });
    }
}
