//! Memory and semaphores of other interfaces, such as Vulkan: none are imported.

use crate::abi::boundary::{Out, entry_points};
use crate::abi::failure::Failure;
use crate::abi::object::Handle;
use crate::abi::stub::{Reason, Stub};
use crate::discovery::Device;
use unified_runtime_sys::{
    ur_bool_t, ur_exp_external_mem_type_t, ur_pfnBindlessImagesFreeMappedLinearMemoryExp_t,
    ur_pfnBindlessImagesImportExternalMemoryExp_t,
    ur_pfnBindlessImagesImportExternalSemaphoreExp_t, ur_pfnBindlessImagesMapExternalArrayExp_t,
    ur_pfnBindlessImagesMapExternalLinearMemoryExp_t,
    ur_pfnBindlessImagesReleaseExternalMemoryExp_t,
    ur_pfnBindlessImagesReleaseExternalSemaphoreExp_t,
    ur_pfnBindlessImagesSignalExternalSemaphoreExp_t,
    ur_pfnBindlessImagesWaitExternalSemaphoreExp_t,
};

/// Why no memory of other interfaces is imported.
struct Memory;

impl Reason for Memory {
    const TEXT: &str = "this adapter imports no memory of other interfaces; memory of other processes is \
                        opened by its handle";
}

/// Why no semaphores of other interfaces are imported.
struct Semaphores;

impl Reason for Semaphores {
    const TEXT: &str = "this adapter imports no semaphores of other interfaces; events of other processes \
                        are opened by their handles";
}

pub(super) const MEMORY_IMPORT: ur_pfnBindlessImagesImportExternalMemoryExp_t =
    Stub::<Memory>::STUB;
pub(super) const MEMORY_MAP_ARRAY: ur_pfnBindlessImagesMapExternalArrayExp_t = Stub::<Memory>::STUB;
pub(super) const MEMORY_MAP_LINEAR: ur_pfnBindlessImagesMapExternalLinearMemoryExp_t =
    Stub::<Memory>::STUB;
pub(super) const MEMORY_RELEASE: ur_pfnBindlessImagesReleaseExternalMemoryExp_t =
    Stub::<Memory>::STUB;
pub(super) const MEMORY_FREE: ur_pfnBindlessImagesFreeMappedLinearMemoryExp_t =
    Stub::<Memory>::STUB;
pub(super) const SEMAPHORE_IMPORT: ur_pfnBindlessImagesImportExternalSemaphoreExp_t =
    Stub::<Semaphores>::STUB;
pub(super) const SEMAPHORE_RELEASE: ur_pfnBindlessImagesReleaseExternalSemaphoreExp_t =
    Stub::<Semaphores>::STUB;
pub(super) const SEMAPHORE_WAIT: ur_pfnBindlessImagesWaitExternalSemaphoreExp_t =
    Stub::<Semaphores>::STUB;
pub(super) const SEMAPHORE_SIGNAL: ur_pfnBindlessImagesSignalExternalSemaphoreExp_t =
    Stub::<Semaphores>::STUB;

entry_points! {
    pub(super) fn supports_importing(
        device: Handle<Device>,
        kind: ur_exp_external_mem_type_t,
        supported: Out<ur_bool_t>,
    ) {
        if kind.0 > ur_exp_external_mem_type_t::UR_EXP_EXTERNAL_MEM_TYPE_WIN32_NT_DX11_RESOURCE.0 {
            return Err(Failure::ENUMERATION);
        }
        supported.put(false.into())
    }
}
