//! Allocations, addresses, mappings and registered host memory.

use super::{Code, DeviceHandle, Driver, SUCCESS};
use crate::error::{Error, Result};
use crate::os::descriptor;
use crate::os::process;
use crate::types::Access;
use cudarc::driver::sys::CUpointer_attribute as Attribute;
use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use rustix::io::Errno;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// An address as devices see it.
pub(crate) type DeviceAddress = sys::CUdeviceptr;

const DESCRIPTOR: c_uint = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

/// Physical memory, counted by the driver: this handle, every mapping and every descriptor, in any
/// process, keeps it.
pub(crate) struct Allocation {
    pub(super) driver: &'static Driver,
    pub(super) handle: CUmemGenericAllocationHandle,
}

impl Allocation {
    /// Returns whether both are handles of the same allocation, in this process. While one of them lives, no
    /// other allocation has its number.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // SAFETY: our own handle, released once.
        let code = unsafe { (self.driver.library.mem_release)(self.handle) };
        self.driver.note("cuMemRelease", code);
    }
}

/// The kind of some memory, and the context and the device that it is of, as far as the driver says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home([Option<u64>; 3]);

impl Driver {
    /// Returns the granularity of physical memory and of mappings, in bytes.
    pub(crate) fn granularity(&self, device: DeviceHandle) -> Result<usize> {
        let properties = properties(device);
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut bytes = 0;
        self.check(
            "cuMemGetAllocationGranularity",
            (self.library.mem_get_allocation_granularity)(
                &mut bytes,
                &properties,
                minimum as c_uint,
            ),
        )?;
        Ok(bytes)
    }

    /// Creates physical memory of a device, which can be exported. `len` is a multiple of the
    /// granularity.
    pub(crate) fn create_memory(
        &'static self,
        device: DeviceHandle,
        len: usize,
    ) -> Result<Allocation> {
        let properties = properties(device);
        let mut handle = 0;
        self.check_memory(
            "cuMemCreate",
            len,
            (self.library.mem_create)(&mut handle, len, &properties, 0),
        )?;
        Ok(Allocation {
            driver: self,
            handle,
        })
    }

    /// Returns a descriptor with which another process imports memory.
    pub(crate) fn export_memory(&self, memory: &Allocation) -> Result<OwnedFd> {
        let mut descriptor: c_int = -1;
        // SAFETY: for this kind of handle the result is a descriptor number.
        let code = unsafe {
            let place = (&raw mut descriptor).cast();
            (self.library.mem_export)(place, memory.handle, DESCRIPTOR, 0)
        };
        self.check_descriptors("cuMemExportToShareableHandle", code)?;
        if descriptor < 0 {
            return Err(self.error("cuMemExportToShareableHandle", code));
        }
        // SAFETY: a new descriptor that the driver gave to us.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Imports memory that another process exported. Anything may be behind the descriptor; the
    /// driver refuses what is not an allocation of its own.
    pub(crate) fn import_memory(&'static self, descriptor: BorrowedFd<'_>) -> Result<Allocation> {
        let mut handle = 0;
        let number = descriptor.as_raw_fd() as usize;
        // SAFETY: the result is live. The descriptor is passed as the value of the pointer, and
        // stays ours.
        let code = unsafe {
            let number = std::ptr::without_provenance_mut::<c_void>(number);
            (self.library.mem_import)(&mut handle, number, DESCRIPTOR)
        };
        self.check_descriptors("cuMemImportFromShareableHandle", code)?;
        Ok(Allocation {
            driver: self,
            handle,
        })
    }

    /// Reserves addresses without memory, at a multiple of `align`.
    pub(crate) fn reserve_addresses(
        &self,
        wish: usize,
        len: usize,
        align: usize,
    ) -> Result<DeviceAddress> {
        let mut start = 0;
        let wish = wish as DeviceAddress;
        self.check_memory(
            "cuMemAddressReserve",
            len,
            (self.library.mem_address_reserve)(&mut start, len, align, wish, 0),
        )?;
        Ok(start)
    }

    /// Frees addresses.
    ///
    /// # Safety
    /// What [`reserve_addresses`](Self::reserve_addresses) returned, once, with nothing mapped.
    pub(crate) unsafe fn free_addresses(&self, start: DeviceAddress, len: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check("cuMemAddressFree", unsafe {
            (self.library.mem_address_free)(start, len)
        })
    }

    /// Maps the first `len` bytes of memory; no device may access them yet. More than the memory
    /// has is refused by the driver.
    ///
    /// # Safety
    /// The addresses are reserved, are the caller's and have nothing mapped.
    pub(crate) unsafe fn map(
        &self,
        start: DeviceAddress,
        len: usize,
        memory: &Allocation,
        offset: usize,
    ) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check_memory("cuMemMap", len, unsafe {
            (self.library.mem_map)(start, len, offset, memory.handle, 0)
        })
    }

    /// Unmaps memory.
    ///
    /// # Safety
    /// Exactly what one call of [`map`](Self::map) mapped, or several with nothing between them (measured: the
    /// driver takes them together), with no use of it outstanding.
    pub(crate) unsafe fn unmap(&self, start: DeviceAddress, len: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check("cuMemUnmap", unsafe {
            (self.library.mem_unmap)(start, len)
        })
    }

    /// Sets a device's access to mapped memory.
    ///
    /// # Safety
    /// Exactly what one call of [`map`](Self::map) mapped, or several with nothing between them; if access is reduced, no use that needs
    /// more is outstanding.
    pub(crate) unsafe fn set_access(
        &self,
        start: DeviceAddress,
        len: usize,
        device: DeviceHandle,
        access: Access,
    ) -> Result<()> {
        let description = CUmemAccessDesc {
            location: location(device),
            flags: match access {
                Access::ReadOnly => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
                Access::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            },
        };
        // SAFETY: one live description; the rest is promised by the caller.
        self.check_memory("cuMemSetAccess", len, unsafe {
            (self.library.mem_set_access)(start, len, &description, 1)
        })
    }

    /// Lets all devices access host memory, and returns the address at which they see it. Pins the
    /// memory: pages that were never touched come into being.
    ///
    /// # Safety
    /// The range consists of whole mapped pages that may be accessed as said, and stays mapped
    /// until [`unregister_host`](Self::unregister_host).
    pub(crate) unsafe fn register_host(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<DeviceAddress> {
        let read_only = match access {
            Access::ReadOnly => sys::CU_MEMHOSTREGISTER_READ_ONLY,
            Access::ReadWrite => 0,
        };
        let flags =
            sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP | read_only;
        let pointer = start.as_ptr().cast();
        // SAFETY: promised by the caller.
        self.check_memory("cuMemHostRegister", len, unsafe {
            (self.library.mem_host_register)(pointer, len, flags)
        })?;
        let mut address = 0;
        // SAFETY: the result is live, and the memory was registered a moment ago.
        let code = unsafe { (self.library.mem_host_get_device_pointer)(&mut address, pointer, 0) };
        if code != SUCCESS {
            // SAFETY: registered above, and no other code knows of it.
            unsafe { self.unregister_host(start) };
        }
        self.check("cuMemHostGetDevicePointer", code)?;
        Ok(address)
    }

    /// Ends what [`register_host`](Self::register_host) began.
    ///
    /// # Safety
    /// Memory is registered at this start, with no use outstanding.
    pub(crate) unsafe fn unregister_host(&self, start: NonNull<u8>) {
        // SAFETY: promised by the caller.
        let code = unsafe { (self.library.mem_host_unregister)(start.as_ptr().cast()) };
        self.note("cuMemHostUnregister", code);
    }

    /// Returns whether the driver knows the memory at an address: its own, or registered memory of
    /// the host.
    pub(crate) fn knows(&self, address: DeviceAddress) -> bool {
        let kind = Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        self.pointer_attribute(address, kind).is_some()
    }

    /// Returns what kind of memory is at an address, and whose it is.
    pub(crate) fn home(&self, address: DeviceAddress) -> Home {
        let attributes = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ];
        Home(attributes.map(|attribute| self.pointer_attribute(address, attribute)))
    }

    /// Returns an attribute of at most 8 bytes of the memory at an address, if the driver knows it.
    fn pointer_attribute(&self, address: DeviceAddress, attribute: Attribute) -> Option<u64> {
        let mut value: u64 = 0;
        // SAFETY: the result is at least as large as the attribute is; any address may be asked about.
        let code = unsafe {
            let place = (&raw mut value).cast();
            (self.library.pointer_get_attribute)(place, attribute as c_uint, address)
        };
        (code == SUCCESS).then_some(value)
    }

    /// Logs the failure of something that cannot be undone any more.
    pub(super) fn note(&self, operation: &'static str, code: Code) {
        if code != SUCCESS {
            tracing::warn!(operation, name = self.name_of(code), "could not release");
        }
    }

    /// Checks a code as `check` does, and finds out whether this process has no descriptor left,
    /// which the driver doesn't say.
    fn check_descriptors(&self, operation: &'static str, code: Code) -> Result<()> {
        if code != SUCCESS && descriptor::are_exhausted() {
            return Err(Error::os(operation)(Errno::MFILE));
        }
        self.check(operation, code)
    }
}

fn location(device: DeviceHandle) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device.0,
    }
}

pub(super) fn properties(device: DeviceHandle) -> CUmemAllocationProp {
    // SAFETY: numbers, a null pointer, and enumerations in which zero is a value.
    let zeroed: CUmemAllocationProp = unsafe { MaybeUninit::zeroed().assume_init() };
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(device),
        ..zeroed
    }
}
