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

/// Why there are no bindless images.
pub(crate) struct BindlessImages;

impl Reason for BindlessImages {
    const TEXT: &str = "this adapter has no bindless images; `urMemImageCreate` makes others";
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

/// Why kernels have no specialization constants of their own.
pub(crate) struct KernelConstants;

impl Reason for KernelConstants {
    const TEXT: &str = "specialization constants are set for a program, before it is built";
}

/// The table of bindless images.
pub(crate) const BINDLESS_IMAGES_EXP: ur_bindless_images_exp_dditable_t =
    ur_bindless_images_exp_dditable_t {
        pfnUnsampledImageHandleDestroyExp: Stub::<BindlessImages>::STUB,
        pfnSampledImageHandleDestroyExp: Stub::<BindlessImages>::STUB,
        pfnImageAllocateExp: Stub::<BindlessImages>::STUB,
        pfnImageFreeExp: Stub::<BindlessImages>::STUB,
        pfnUnsampledImageCreateExp: Stub::<BindlessImages>::STUB,
        pfnSampledImageCreateExp: Stub::<BindlessImages>::STUB,
        pfnImageCopyExp: Stub::<BindlessImages>::STUB,
        pfnImageGetInfoExp: Stub::<BindlessImages>::STUB,
        pfnGetImageMemoryHandleTypeSupportExp: Stub::<BindlessImages>::STUB,
        pfnGetImageUnsampledHandleSupportExp: Stub::<BindlessImages>::STUB,
        pfnGetImageSampledHandleSupportExp: Stub::<BindlessImages>::STUB,
        pfnMipmapGetLevelExp: Stub::<BindlessImages>::STUB,
        pfnMipmapFreeExp: Stub::<BindlessImages>::STUB,
        pfnImportExternalMemoryExp: Stub::<BindlessImages>::STUB,
        pfnMapExternalArrayExp: Stub::<BindlessImages>::STUB,
        pfnMapExternalLinearMemoryExp: Stub::<BindlessImages>::STUB,
        pfnReleaseExternalMemoryExp: Stub::<BindlessImages>::STUB,
        pfnFreeMappedLinearMemoryExp: Stub::<BindlessImages>::STUB,
        pfnSupportsImportingHandleTypeExp: Stub::<BindlessImages>::STUB,
        pfnImportExternalSemaphoreExp: Stub::<BindlessImages>::STUB,
        pfnReleaseExternalSemaphoreExp: Stub::<BindlessImages>::STUB,
        pfnWaitExternalSemaphoreExp: Stub::<BindlessImages>::STUB,
        pfnSignalExternalSemaphoreExp: Stub::<BindlessImages>::STUB,
    };

/// The table of exports of memory.
pub(crate) const MEMORY_EXPORT_EXP: ur_memory_export_exp_dditable_t =
    ur_memory_export_exp_dditable_t {
        pfnAllocExportableMemoryExp: Stub::<Exports>::STUB,
        pfnFreeExportableMemoryExp: Stub::<Exports>::STUB,
        pfnExportMemoryHandleExp: Stub::<Exports>::STUB,
    };
