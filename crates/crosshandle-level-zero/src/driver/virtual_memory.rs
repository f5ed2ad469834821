//! Physical memory and reserved address ranges.

use super::{
    DeviceHandle, DriverContext, Handle, PhysicalHandle, check, check_memory, description,
};
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use level_zero_sys::{ze_external_memory_type_flags_t, ze_memory_access_attribute_t};
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

/// The calls of a context for physical memory and reserved address ranges.
pub(crate) struct VirtualMemory<'a>(pub &'a DriverContext);

fn attribute(access: Access) -> ze_memory_access_attribute_t {
    match access {
        Access::ReadOnly => ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY,
        Access::ReadWrite => ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE,
    }
}

impl VirtualMemory<'_> {
    /// Creates physical memory. It can be exported as `kind`, or not at all if `kind` is `None`.
    pub(crate) fn create(
        &self,
        device: DeviceHandle,
        len: usize,
        kind: Option<ze_external_memory_type_flags_t>,
    ) -> Result<PhysicalHandle> {
        let mut export = description!(
            ze_external_memory_export_desc_t,
            ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC
        );
        export.flags = kind.unwrap_or(0);
        let chained = kind.map_or(ptr::null(), |_| (&raw const export).cast());
        self.create_from(device, len, chained)
    }

    /// Imports physical memory by the number of a descriptor. The driver may close the descriptor
    /// when the memory is destroyed, but not earlier.
    pub(crate) fn import(
        &self,
        device: DeviceHandle,
        len: usize,
        kind: ze_external_memory_type_flags_t,
        number: c_int,
    ) -> Result<PhysicalHandle> {
        let mut import = description!(
            ze_external_memory_import_fd_t,
            ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD
        );
        import.flags = kind;
        import.fd = number;
        self.create_from(device, len, (&raw const import).cast())
    }

    fn create_from(
        &self,
        device: DeviceHandle,
        len: usize,
        chained: *const c_void,
    ) -> Result<PhysicalHandle> {
        let mut desc = description!(ze_physical_mem_desc_t, ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC);
        desc.size = len;
        desc.pNext = chained;
        let mut handle = ptr::null_mut();
        let create = self.0.driver.loader.zePhysicalMemCreate;
        // SAFETY: our context and one of its devices, with a live chain and a live result.
        let code = unsafe { create(self.0.handle.0, device.0, &mut desc, &mut handle) };
        check_memory("zePhysicalMemCreate", len, code)?;
        Ok(Handle(handle))
    }

    /// Returns the descriptor of physical memory, which the driver owns. Returns `None` if the
    /// driver provides the descriptor only for a mapped address, as drivers before Level Zero 1.15
    /// do.
    pub(crate) fn descriptor_of(
        &self,
        memory: PhysicalHandle,
        kind: ze_external_memory_type_flags_t,
    ) -> Option<c_int> {
        let get = self.0.driver.loader.zePhysicalMemGetProperties?;
        let mut export = description!(
            ze_external_memory_export_fd_t,
            ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD
        );
        export.flags = kind;
        export.fd = -1;
        let mut properties = description!(
            ze_physical_mem_properties_t,
            ZE_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES
        );
        properties.pNext = (&raw mut export).cast();
        // SAFETY: physical memory of this context, and live results.
        let code = unsafe { get(self.0.handle.0, memory.0, &mut properties) };
        let found = check("zePhysicalMemGetProperties", code);
        found.ok().map(|()| export.fd).filter(|fd| *fd >= 0)
    }

    /// Returns the descriptor of the physical memory that is mapped at an address. The driver owns
    /// the descriptor.
    pub(crate) fn descriptor(
        &self,
        mapped_at: NonNull<u8>,
        kind: ze_external_memory_type_flags_t,
    ) -> Result<c_int> {
        let mut export = description!(
            ze_external_memory_export_fd_t,
            ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD
        );
        export.flags = kind;
        export.fd = -1;
        let mut properties = description!(
            ze_memory_allocation_properties_t,
            ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES
        );
        properties.pNext = (&raw mut export).cast();
        let get = self.0.driver.loader.zeMemGetAllocProperties;
        let address = mapped_at.as_ptr().cast::<c_void>();
        // SAFETY: the results are live, and the device may be omitted.
        let code = unsafe { get(self.0.handle.0, address, &mut properties, ptr::null_mut()) };
        check_memory("zeMemGetAllocProperties", 0, code)?;
        Ok(export.fd)
    }

    /// Destroys physical memory.
    ///
    /// # Safety
    /// The memory is not mapped anywhere.
    pub(crate) unsafe fn destroy(&self, memory: PhysicalHandle) -> Result<()> {
        let destroy = self.0.driver.loader.zePhysicalMemDestroy;
        // SAFETY: promised by the caller.
        let code = unsafe { destroy(self.0.handle.0, memory.0) };
        check("zePhysicalMemDestroy", code)
    }

    /// Reserves addresses without memory. The range starts at `wish` if `wish` is not 0 and the
    /// driver grants it.
    pub(crate) fn reserve(&self, wish: usize, len: usize) -> Result<NonNull<u8>> {
        let mut start = ptr::null_mut();
        let reserve = self.0.driver.loader.zeVirtualMemReserve;
        let wish = ptr::without_provenance(wish);
        // SAFETY: our context, with a live result. The driver does not access memory at `wish`.
        let code = unsafe { reserve(self.0.handle.0, wish, len, &mut start) };
        check_memory("zeVirtualMemReserve", len, code)?;
        NonNull::new(start.cast()).ok_or_else(|| Error::out_of_memory(len))
    }

    /// Releases reserved addresses.
    ///
    /// # Safety
    /// The addresses were reserved as one range, and nothing is mapped there.
    pub(crate) unsafe fn unreserve(&self, start: NonNull<u8>, len: usize) -> Result<()> {
        let free = self.0.driver.loader.zeVirtualMemFree;
        // SAFETY: promised by the caller.
        let code = unsafe { free(self.0.handle.0, start.as_ptr().cast(), len) };
        check("zeVirtualMemFree", code)
    }

    /// Maps physical memory at reserved addresses.
    ///
    /// # Safety
    /// The addresses are reserved, and nothing is mapped there.
    pub(crate) unsafe fn map(
        &self,
        start: NonNull<u8>,
        len: usize,
        memory: PhysicalHandle,
        offset: usize,
        access: Access,
    ) -> Result<()> {
        let map = self.0.driver.loader.zeVirtualMemMap;
        let start = start.as_ptr().cast::<c_void>();
        let access = attribute(access);
        // SAFETY: promised by the caller.
        let code = unsafe { map(self.0.handle.0, start, len, memory.0, offset, access) };
        let mapped = check_memory("zeVirtualMemMap", len, code);
        // If Intel's driver cannot make the memory resident, it fails but leaves the memory mapped.
        if mapped.is_err() && self.0.knows(start) {
            let unmap = self.0.driver.loader.zeVirtualMemUnmap;
            // SAFETY: the driver says that the call above mapped the memory, and no code uses it
            // yet.
            let code = unsafe { unmap(self.0.handle.0, start, len) };
            tracing::debug!(code = code.0, "unmapped what could not be mapped");
        }
        mapped
    }

    /// Unmaps physical memory.
    ///
    /// # Safety
    /// The memory was mapped as one range, and no command and no thread accesses it any more.
    pub(crate) unsafe fn unmap(&self, start: NonNull<u8>, len: usize) -> Result<()> {
        let unmap = self.0.driver.loader.zeVirtualMemUnmap;
        // SAFETY: promised by the caller.
        let code = unsafe { unmap(self.0.handle.0, start.as_ptr().cast(), len) };
        check("zeVirtualMemUnmap", code)
    }

    /// Changes the access to mapped memory.
    ///
    /// # Safety
    /// The memory was mapped as one range, and no code relies any longer on access that this call
    /// removes.
    pub(crate) unsafe fn set_access(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<()> {
        let set = self.0.driver.loader.zeVirtualMemSetAccessAttribute;
        let start = start.as_ptr().cast::<c_void>();
        // SAFETY: promised by the caller.
        let code = unsafe { set(self.0.handle.0, start, len, attribute(access)) };
        check("zeVirtualMemSetAccessAttribute", code)
    }
}
