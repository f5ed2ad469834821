//! Allocations, addresses, mappings and registered host memory.

use super::{Code, DeviceHandle, Driver, SUCCESS};
use crosshandle_os::{descriptor, process};
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
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

/// An address as devices use it.
pub(crate) type DeviceAddress = sys::CUdeviceptr;

const DESCRIPTOR: c_uint = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

/// Physical memory that the driver counts. This handle, every mapping and every descriptor in any
/// process keep it alive.
pub(crate) struct Allocation {
    pub(super) driver: &'static Driver,
    pub(super) handle: CUmemGenericAllocationHandle,
}

impl Allocation {
    /// Returns whether both are handles of the same allocation in this process. No other allocation
    /// gets the handle's number while one of the two handles lives.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // SAFETY: this object owns the handle, which is released once.
        let code = unsafe { (self.driver.library.mem_release)(self.handle) };
        self.driver.note("cuMemRelease", code);
    }
}

/// The kind of memory at an address, its context and its device, as far as the driver knows them.
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

    /// Returns a descriptor by which another process can import the memory.
    pub(crate) fn export_memory(&self, memory: &Allocation) -> Result<OwnedFd> {
        let mut descriptor: c_int = -1;
        // SAFETY: the driver writes a descriptor number for this kind of handle, and the result has
        // room for it.
        let code = unsafe {
            let place = (&raw mut descriptor).cast();
            (self.library.mem_export)(place, memory.handle, DESCRIPTOR, 0)
        };
        self.check_descriptors("cuMemExportToShareableHandle", code)?;
        if descriptor < 0 {
            return Err(self.error("cuMemExportToShareableHandle", code));
        }
        // SAFETY: the driver has just returned this new descriptor to the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Imports memory that another process exported. The descriptor may be anything, because the
    /// driver refuses descriptors that are not allocations of its own.
    pub(crate) fn import_memory(&'static self, descriptor: BorrowedFd<'_>) -> Result<Allocation> {
        let mut handle = 0;
        let number = descriptor.as_raw_fd() as usize;
        // SAFETY: the result is live. The descriptor is passed as the value of the pointer, and is
        // still owned by the caller.
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
    /// The range was returned by [`reserve_addresses`](Self::reserve_addresses), is freed once, and
    /// has nothing mapped.
    pub(crate) unsafe fn free_addresses(&self, start: DeviceAddress, len: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check("cuMemAddressFree", unsafe {
            (self.library.mem_address_free)(start, len)
        })
    }

    /// Maps `len` bytes of memory from `offset` on. No device may access them yet. The driver
    /// refuses a range that exceeds the memory.
    ///
    /// # Safety
    /// The addresses are reserved and belong to the caller, and nothing is mapped there.
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
    /// The range is exactly what one call of [`map`](Self::map) mapped, or several calls without a
    /// gap between them (measured: the driver unmaps them together). No use of it is outstanding.
    pub(crate) unsafe fn unmap(&self, start: DeviceAddress, len: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check("cuMemUnmap", unsafe {
            (self.library.mem_unmap)(start, len)
        })
    }

    /// Sets a device's access to mapped memory.
    ///
    /// # Safety
    /// The range is exactly what one call of [`map`](Self::map) mapped, or several calls without a
    /// gap between them. If the call reduces access, no use that needs more access is outstanding.
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
        // SAFETY: there is one description, which outlives the call. The caller promises the rest.
        self.check_memory("cuMemSetAccess", len, unsafe {
            (self.library.mem_set_access)(start, len, &description, 1)
        })
    }

    /// Lets all devices access host memory, and returns the address at which they access it. This
    /// pins the memory and commits pages that were never accessed.
    ///
    /// # Safety
    /// The range consists of whole mapped pages that permit the given access, and stays mapped
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
        // SAFETY: the result is live, and the memory was registered above.
        let code = unsafe { (self.library.mem_host_get_device_pointer)(&mut address, pointer, 0) };
        if code != SUCCESS {
            // SAFETY: registered above, and no other code knows of it.
            unsafe { self.unregister_host(start) };
        }
        self.check("cuMemHostGetDevicePointer", code)?;
        Ok(address)
    }

    /// Ends the registration by [`register_host`](Self::register_host).
    ///
    /// # Safety
    /// Memory that starts at `start` is registered, and nothing uses it any more.
    pub(crate) unsafe fn unregister_host(&self, start: NonNull<u8>) {
        // SAFETY: promised by the caller.
        let code = unsafe { (self.library.mem_host_unregister)(start.as_ptr().cast()) };
        self.note("cuMemHostUnregister", code);
    }

    /// Returns whether the driver knows the memory at an address, as its own or as registered host
    /// memory.
    pub(crate) fn knows(&self, address: DeviceAddress) -> bool {
        let kind = Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        self.pointer_attribute(address, kind).is_some()
    }

    /// Returns the kind, the context and the device of the memory at an address.
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
        // SAFETY: the result is at least as large as the attribute. Any address may be queried.
        let code = unsafe {
            let place = (&raw mut value).cast();
            (self.library.pointer_get_attribute)(place, attribute as c_uint, address)
        };
        (code == SUCCESS).then_some(value)
    }

    /// Logs the failure of an operation that cannot be undone any more.
    pub(super) fn note(&self, operation: &'static str, code: Code) {
        if code != SUCCESS {
            tracing::warn!(operation, name = self.name_of(code), "could not release");
        }
    }

    /// Checks a code like `check`. Also detects that this process has no descriptors left, which
    /// the driver does not report.
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
    // SAFETY: the structure consists of numbers, a null pointer, and enumerations that have the
    // value zero.
    let zeroed: CUmemAllocationProp = unsafe { MaybeUninit::zeroed().assume_init() };
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(device),
        ..zeroed
    }
}
