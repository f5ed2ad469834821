//! What this adapter does not do, and says so.

use crate::stub::{Reason, Stub};
use unified_runtime_sys::{
    ur_bindless_images_exp_dditable_t, ur_command_buffer_exp_dditable_t, ur_graph_exp_dditable_t,
    ur_kernel_dditable_t, ur_memory_export_exp_dditable_t, ur_program_dditable_t,
    ur_program_exp_dditable_t,
};

pub(crate) struct CommandBuffers;

impl Reason for CommandBuffers {
    const TEXT: &str = "this adapter has no command buffers";
}

struct Exports;

impl Reason for Exports {
    const TEXT: &str =
        "this adapter exports memory through the functions for inter-process communication only";
}

pub(crate) struct Graphs;

impl Reason for Graphs {
    const TEXT: &str = "this adapter has no graphs";
}

struct Images;

impl Reason for Images {
    const TEXT: &str = "this adapter has no images";
}

pub(crate) struct Kernels;

impl Reason for Kernels {
    const TEXT: &str = "this adapter runs no kernels yet; it shares and moves memory and events";
}

pub(crate) const PROGRAM: ur_program_dditable_t = ur_program_dditable_t {
    pfnCreateWithIL: Stub::<Kernels>::STUB,
    pfnCreateWithBinary: Stub::<Kernels>::STUB,
    pfnBuild: Stub::<Kernels>::STUB,
    pfnCompile: Stub::<Kernels>::STUB,
    pfnLink: Stub::<Kernels>::STUB,
    pfnRetain: Stub::<Kernels>::STUB,
    pfnRelease: Stub::<Kernels>::STUB,
    pfnGetFunctionPointer: Stub::<Kernels>::STUB,
    pfnGetGlobalVariablePointer: Stub::<Kernels>::STUB,
    pfnGetInfo: Stub::<Kernels>::STUB,
    pfnGetBuildInfo: Stub::<Kernels>::STUB,
    pfnSetSpecializationConstants: Stub::<Kernels>::STUB,
    pfnGetNativeHandle: Stub::<Kernels>::STUB,
    pfnCreateWithNativeHandle: Stub::<Kernels>::STUB,
};

pub(crate) const PROGRAM_EXP: ur_program_exp_dditable_t = ur_program_exp_dditable_t {
    pfnDynamicLinkExp: Stub::<Kernels>::STUB,
    pfnBuildExp: Stub::<Kernels>::STUB,
    pfnCompileExp: Stub::<Kernels>::STUB,
    pfnLinkExp: Stub::<Kernels>::STUB,
};

pub(crate) const KERNEL: ur_kernel_dditable_t = ur_kernel_dditable_t {
    pfnCreate: Stub::<Kernels>::STUB,
    pfnGetInfo: Stub::<Kernels>::STUB,
    pfnGetGroupInfo: Stub::<Kernels>::STUB,
    pfnGetSubGroupInfo: Stub::<Kernels>::STUB,
    pfnRetain: Stub::<Kernels>::STUB,
    pfnRelease: Stub::<Kernels>::STUB,
    pfnGetNativeHandle: Stub::<Kernels>::STUB,
    pfnCreateWithNativeHandle: Stub::<Kernels>::STUB,
    pfnGetSuggestedLocalWorkSize: Stub::<Kernels>::STUB,
    pfnGetSuggestedLocalWorkSizeWithArgs: Stub::<Kernels>::STUB,
    pfnSetExecInfo: Stub::<Kernels>::STUB,
    pfnSetSpecializationConstants: Stub::<Kernels>::STUB,
    pfnSuggestMaxCooperativeGroupCount: Stub::<Kernels>::STUB,
};

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

pub(crate) const COMMAND_BUFFER_EXP: ur_command_buffer_exp_dditable_t =
    ur_command_buffer_exp_dditable_t {
        pfnCreateExp: Stub::<CommandBuffers>::STUB,
        pfnRetainExp: Stub::<CommandBuffers>::STUB,
        pfnReleaseExp: Stub::<CommandBuffers>::STUB,
        pfnFinalizeExp: Stub::<CommandBuffers>::STUB,
        pfnAppendKernelLaunchExp: Stub::<CommandBuffers>::STUB,
        pfnAppendKernelLaunchWithArgsExp: Stub::<CommandBuffers>::STUB,
        pfnAppendUSMMemcpyExp: Stub::<CommandBuffers>::STUB,
        pfnAppendUSMFillExp: Stub::<CommandBuffers>::STUB,
        pfnAppendMemBufferCopyExp: Stub::<CommandBuffers>::STUB,
        pfnAppendMemBufferWriteExp: Stub::<CommandBuffers>::STUB,
        pfnAppendMemBufferReadExp: Stub::<CommandBuffers>::STUB,
        pfnAppendMemBufferCopyRectExp: Stub::<CommandBuffers>::STUB,
        pfnAppendMemBufferWriteRectExp: Stub::<CommandBuffers>::STUB,
        pfnAppendMemBufferReadRectExp: Stub::<CommandBuffers>::STUB,
        pfnAppendMemBufferFillExp: Stub::<CommandBuffers>::STUB,
        pfnAppendUSMPrefetchExp: Stub::<CommandBuffers>::STUB,
        pfnAppendUSMAdviseExp: Stub::<CommandBuffers>::STUB,
        pfnAppendNativeCommandExp: Stub::<CommandBuffers>::STUB,
        pfnUpdateKernelLaunchExp: Stub::<CommandBuffers>::STUB,
        pfnUpdateSignalEventExp: Stub::<CommandBuffers>::STUB,
        pfnUpdateWaitEventsExp: Stub::<CommandBuffers>::STUB,
        pfnGetInfoExp: Stub::<CommandBuffers>::STUB,
        pfnGetNativeHandleExp: Stub::<CommandBuffers>::STUB,
    };

pub(crate) const GRAPH_EXP: ur_graph_exp_dditable_t = ur_graph_exp_dditable_t {
    pfnCreateExp: Stub::<Graphs>::STUB,
    pfnInstantiateGraphExp: Stub::<Graphs>::STUB,
    pfnDestroyExp: Stub::<Graphs>::STUB,
    pfnExecutableGraphDestroyExp: Stub::<Graphs>::STUB,
    pfnIsEmptyExp: Stub::<Graphs>::STUB,
    pfnGetIdExp: Stub::<Graphs>::STUB,
    pfnSetDestructionCallbackExp: Stub::<Graphs>::STUB,
    pfnDumpContentsExp: Stub::<Graphs>::STUB,
    pfnGetNativeHandleExp: Stub::<Graphs>::STUB,
    pfnExecutableGraphGetNativeHandleExp: Stub::<Graphs>::STUB,
};

pub(crate) const MEMORY_EXPORT_EXP: ur_memory_export_exp_dditable_t =
    ur_memory_export_exp_dditable_t {
        pfnAllocExportableMemoryExp: Stub::<Exports>::STUB,
        pfnFreeExportableMemoryExp: Stub::<Exports>::STUB,
        pfnExportMemoryHandleExp: Stub::<Exports>::STUB,
    };
