//! Reserved address ranges of a device.

use super::physical::{LevelZeroPhysical, Places};
use crate::driver::{DriverContext, PhysicalHandle, VirtualMemory};
use crosshandle_hal::{BackendObject, BackendRange};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Mutex, MutexGuard};
use crosshandle_types::{Access, Address, SharedBytes};
use std::any::Any;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

/// A reserved address range into which physical memory is mapped.
pub(crate) struct LevelZeroRange {
    context: Arc<DriverContext>,
    start: NonNull<u8>,
    len: usize,
    /// The mappings by offset, because the driver unmaps only whole mappings. The lock is held
    /// during the driver's calls, and other calls for the same range wait for it.
    mapped: Mutex<BTreeMap<usize, Mapped>>,
}

/// A mapping of a part of physical memory. The object layer keeps the memory alive.
struct Mapped {
    len: usize,
    memory: PhysicalHandle,
    memory_offset: usize,
    access: Access,
    places: Places,
    /// The owner of the handle, if the memory's own handle was already mapped elsewhere.
    alias: Option<LevelZeroPhysical>,
}

impl Mapped {
    /// Maps the part at an address.
    ///
    /// # Safety
    /// The address is reserved, and nothing is mapped there.
    unsafe fn map(&self, context: &DriverContext, place: NonNull<u8>) -> Result<()> {
        let (memory, offset, access) = (self.memory, self.memory_offset, self.access);
        // SAFETY: promised by the caller.
        unsafe { VirtualMemory(context).map(place, self.len, memory, offset, access)? };
        self.places().push(Address::new(place));
        Ok(())
    }

    /// Unmaps the part from an address.
    ///
    /// # Safety
    /// The part is mapped there, and no command and no thread accesses it any more.
    unsafe fn unmap(&self, context: &DriverContext, place: NonNull<u8>) -> Result<()> {
        let mut places = self.places();
        // SAFETY: promised by the caller.
        unsafe { VirtualMemory(context).unmap(place, self.len)? };
        places.retain(|known| known.pointer() != place);
        Ok(())
    }

    fn places(&self) -> MutexGuard<'_, Vec<Address>> {
        self.places.lock()
    }
}

// SAFETY: the value only holds addresses. The code that accesses memory there ensures that it may.
unsafe impl Send for LevelZeroRange {}
// SAFETY: as above.
unsafe impl Sync for LevelZeroRange {}

impl LevelZeroRange {
    /// Reserves addresses. The range starts at `wish` if `wish` is not 0 and its addresses are
    /// free.
    pub(crate) fn reserve(
        context: &Arc<DriverContext>,
        wish: usize,
        len: usize,
        align: usize,
    ) -> Result<Self> {
        let memory = VirtualMemory(context);
        let start = match wish - wish % align {
            0 => memory.reserve(0, len)?,
            // The driver may fail instead of choosing another address.
            wish => memory
                .reserve(wish, len)
                .or_else(|_| memory.reserve(0, len))?,
        };
        Ok(Self {
            context: Arc::clone(context),
            start,
            len,
            mapped: Mutex::default(),
        })
    }

    fn mapped(&self) -> MutexGuard<'_, BTreeMap<usize, Mapped>> {
        self.mapped.lock()
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        self.start.map_addr(|start| start.saturating_add(offset))
    }
}

impl BackendRange for LevelZeroRange {
    fn start(&self) -> Address {
        Address::new(self.start)
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
        let memory = memory.downcast_ref::<LevelZeroPhysical>().ok_or_else(|| {
            Error::invalid("only physical memory of a Level Zero device can be mapped here")
        })?;
        if !memory.is_of(&self.context) {
            return Err(Error::invalid(
                "this is physical memory of another Level Zero driver's",
            ));
        }
        let mut part = Mapped {
            len,
            memory: memory.handle(),
            memory_offset,
            access,
            places: Arc::clone(memory.places()),
            alias: None,
        };
        let place = self.at(offset);
        let mut mapped = self.mapped();
        // SAFETY: the caller checked that the addresses lie in the range and that nothing is mapped
        // there.
        if let Err(error) = unsafe { part.map(&self.context, place) } {
            if part.places().is_empty() {
                return Err(error);
            }
            let alias = memory.alias().map_err(|_| error)?;
            part.memory = alias.handle();
            part.alias = Some(alias);
            // SAFETY: as above.
            unsafe { part.map(&self.context, place)? };
        }
        mapped.insert(offset, part);
        Ok(())
    }

    fn unmap(&self, offset: usize, _len: usize) -> Result<()> {
        let mut mapped = self.mapped();
        if let Some(part) = mapped.get(&offset) {
            // SAFETY: the part is mapped there. When the program got the range, it promised to
            // unmap a part only after the last command that uses it.
            unsafe { part.unmap(&self.context, self.at(offset))? };
        }
        mapped.remove(&offset);
        Ok(())
    }

    fn set_access(&self, offset: usize, _len: usize, access: Access) -> Result<()> {
        let mut mapped = self.mapped();
        let Some(part) = mapped.get_mut(&offset) else {
            return Err(Error::invalid("nothing is mapped there"));
        };
        let place = self.at(offset);
        if part.memory_offset == 0 {
            // SAFETY: as for unmapping.
            unsafe { VirtualMemory(&self.context).set_access(place, part.len, access)? };
            part.access = access;
            return Ok(());
        }
        // To change the access, Intel's driver creates a new mapping, and it maps the start of the
        // memory instead of this part.
        // SAFETY: as for unmapping.
        unsafe { part.unmap(&self.context, place)? };
        let before = std::mem::replace(&mut part.access, access);
        // SAFETY: the call above has unmapped the part.
        let changed = unsafe { part.map(&self.context, place) };
        if changed.is_err() {
            part.access = before;
            // SAFETY: as above.
            if unsafe { part.map(&self.context, place) }.is_err() {
                mapped.remove(&offset);
            }
        }
        changed
    }
}

impl Drop for LevelZeroRange {
    fn drop(&mut self) {
        let mapped = std::mem::take(&mut *self.mapped());
        self.context.release("reserved addresses", |context| {
            for (offset, part) in mapped {
                // SAFETY: the part is mapped there, and is not used any more, as for unmapping.
                unsafe { part.unmap(context, self.at(offset))? };
            }
            // SAFETY: the addresses were reserved as one range, and nothing is mapped there any
            // more.
            unsafe { VirtualMemory(context).unreserve(self.start, self.len) }
        });
    }
}
