//! The tables of what this adapter does not do, and the reasons that callers are told.

use super::stub::{Reason, Stub};
use unified_runtime_sys::{ur_bindless_images_exp_dditable_t, ur_memory_export_exp_dditable_t};

/// Why memory is not exported as file descriptors.
struct Exports;

impl Reason for Exports {
    const TEXT: &str =
        "this adapter exports memory through the functions for inter-process communication only";
}

/// Why kernels have no pipes.
pub(crate) struct HostPipes;

impl Reason for HostPipes {
    const TEXT: &str = "kernels of this adapter have no pipes to the host";
}

/// Why there are no images.
pub(crate) struct Images;

impl Reason for Images {
    const TEXT: &str = "this adapter's devices have no images";
}

/// Why an adapter runs no kernels.
pub(crate) struct Kernels;

impl Reason for Kernels {
    const TEXT: &str = "this adapter runs no kernels; it shares and moves memory and events";
}

/// Why programs in intermediate languages are not taken.
pub(crate) struct IntermediateLanguages;

impl Reason for IntermediateLanguages {
    const TEXT: &str =
        "this adapter takes programs that are compiled for its devices, and no others";
}

/// The table of bindless images.
pub(crate) const BINDLESS_IMAGES_EXP: ur_bindless_images_exp_dditable_t =
    ur_bindless_images_exp_dditable_t {
        pfnUnsampledImageHandleDestroyExp: Stub::<Images>::STUB,
        pfnSampledImageHandleDestroyExp: Stub::<Images>::STUB,
        pfnImageAllocateExp: Stub::<Images>::STUB,
        pfnImageFreeExp: Stub::<Images>::STUB,
        pfnUnsampledImageCreateExp: Stub::<Images>::STUB,
        pfnSampledImageCreateExp: Stub::<Images>::STUB,
        pfnImageCopyExp: Stub::<Images>::STUB,
        pfnImageGetInfoExp: Stub::<Images>::STUB,
        pfnGetImageMemoryHandleTypeSupportExp: Stub::<Images>::STUB,
        pfnGetImageUnsampledHandleSupportExp: Stub::<Images>::STUB,
        pfnGetImageSampledHandleSupportExp: Stub::<Images>::STUB,
        pfnMipmapGetLevelExp: Stub::<Images>::STUB,
        pfnMipmapFreeExp: Stub::<Images>::STUB,
        pfnImportExternalMemoryExp: Stub::<Images>::STUB,
        pfnMapExternalArrayExp: Stub::<Images>::STUB,
        pfnMapExternalLinearMemoryExp: Stub::<Images>::STUB,
        pfnReleaseExternalMemoryExp: Stub::<Images>::STUB,
        pfnFreeMappedLinearMemoryExp: Stub::<Images>::STUB,
        pfnSupportsImportingHandleTypeExp: Stub::<Images>::STUB,
        pfnImportExternalSemaphoreExp: Stub::<Images>::STUB,
        pfnReleaseExternalSemaphoreExp: Stub::<Images>::STUB,
        pfnWaitExternalSemaphoreExp: Stub::<Images>::STUB,
        pfnSignalExternalSemaphoreExp: Stub::<Images>::STUB,
    };

/// The table of exports of memory.
pub(crate) const MEMORY_EXPORT_EXP: ur_memory_export_exp_dditable_t =
    ur_memory_export_exp_dditable_t {
        pfnAllocExportableMemoryExp: Stub::<Exports>::STUB,
        pfnFreeExportableMemoryExp: Stub::<Exports>::STUB,
        pfnExportMemoryHandleExp: Stub::<Exports>::STUB,
    };
