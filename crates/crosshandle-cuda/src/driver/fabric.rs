//! Memory that other hosts of an NVLink fabric can open.

use super::memory::{Allocation, properties};
use super::{Code, DeviceHandle, Driver, SUCCESS};
use crosshandle_handle::DRIVER_HANDLE_SIZE;
use crosshandle_types::error::{Error, Result};
use cudarc::driver::sys::{
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    cudaError_enum,
};
use std::ffi::c_uint;

const FABRIC: c_uint = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0;
const NOT_PERMITTED: Code = cudaError_enum::CUDA_ERROR_NOT_PERMITTED as Code;

/// Adds to an error what is missing if the driver supports an operation but does not permit it.
fn explained(error: Error) -> Error {
    match error {
        Error::Driver {
            backend,
            operation,
            code,
            name,
        } if code == i64::from(NOT_PERMITTED) => Error::Driver {
            backend,
            operation,
            code,
            name: format!(
                "{name}: memory for other hosts needs an IMEX channel, a file in \
                 /dev/nvidia-caps-imex-channels that this process may open, and nvidia-imex running on each host"
            ),
        },
        error => error,
    }
}

/// Returns the properties of memory that is exported as descriptors and as fabric handles.
fn fabric_properties(device: DeviceHandle) -> CUmemAllocationProp {
    let own = properties(device);
    CUmemAllocationProp {
        requestedHandleTypes: CUmemAllocationHandleType(own.requestedHandleTypes.0 | FABRIC),
        ..own
    }
}

impl Driver {
    /// Returns the granularity of memory for other hosts, in bytes.
    pub(crate) fn fabric_granularity(&self, device: DeviceHandle) -> Result<usize> {
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut bytes = 0;
        let code = (self.library.mem_get_allocation_granularity)(
            &mut bytes,
            &fabric_properties(device),
            minimum as c_uint,
        );
        self.check("cuMemGetAllocationGranularity", code)
            .map_err(explained)?;
        Ok(bytes.max(1))
    }

    /// Creates physical memory of a device for other processes and other hosts. `len` is a multiple
    /// of both granularities.
    pub(crate) fn create_fabric_memory(
        &'static self,
        device: DeviceHandle,
        len: usize,
    ) -> Result<Allocation> {
        let mut handle = 0;
        let code = (self.library.mem_create)(&mut handle, len, &fabric_properties(device), 0);
        self.check_memory("cuMemCreate", len, code)
            .map_err(explained)?;
        Ok(Allocation {
            driver: self,
            handle,
        })
    }

    /// Returns the handle by which another host imports memory.
    pub(crate) fn export_to_fabric(&self, memory: &Allocation) -> Result<[u8; DRIVER_HANDLE_SIZE]> {
        let mut bytes = [0; DRIVER_HANDLE_SIZE];
        // SAFETY: the driver writes 64 bytes for this kind of handle, and the result has that
        // length.
        let code = unsafe {
            (self.library.mem_export)(bytes.as_mut_ptr().cast(), memory.handle, FABRIC, 0)
        };
        self.check("cuMemExportToShareableHandle", code)
            .map_err(explained)?;
        Ok(bytes)
    }

    /// Imports memory of the fabric. The bytes may be anything, because the driver refuses bytes
    /// that are not a handle of an allocation.
    pub(crate) fn import_from_fabric(
        &'static self,
        bytes: &[u8; DRIVER_HANDLE_SIZE],
    ) -> Result<Allocation> {
        let (mut handle, mut bytes) = (0, *bytes);
        // SAFETY: the result is live. The driver reads 64 bytes for this kind of handle, which
        // outlive the call.
        let code =
            unsafe { (self.library.mem_import)(&mut handle, bytes.as_mut_ptr().cast(), FABRIC) };
        match code {
            SUCCESS => Ok(Allocation {
                driver: self,
                handle,
            }),
            code => Err(explained(
                self.error("cuMemImportFromShareableHandle", code),
            )),
        }
    }
}
