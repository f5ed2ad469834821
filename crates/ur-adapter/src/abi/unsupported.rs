//! The tables of entry points that are not implemented, and the messages that their callers
//! receive.

use super::stub::{Reason, Stub};
use unified_runtime_sys::ur_memory_export_exp_dditable_t;

/// The reason why memory cannot be exported as a file descriptor.
struct Exports;

impl Reason for Exports {
    const TEXT: &str =
        "this adapter exports memory through the functions for inter-process communication only";
}

/// The reason why kernels cannot use pipes to the host.
pub(crate) struct HostPipes;

impl Reason for HostPipes {
    const TEXT: &str = "this adapter does not support pipes between kernels and the host";
}

/// The reason that an adapter without support for programs gives for refusing kernels.
pub(crate) struct Kernels;

impl Reason for Kernels {
    const TEXT: &str = "this adapter runs no kernels; it shares and moves memory and events";
}

/// The reason why specialization constants cannot be set on a kernel, or on a program that is not
/// in SPIR-V form.
pub(crate) struct SpecializationConstants;

impl Reason for SpecializationConstants {
    const TEXT: &str = "only SPIR-V programs have specialization constants, and they must be set on the program \
        before it is built";
}

/// The entry points for exporting memory as file descriptors. None of them is implemented.
pub(crate) const MEMORY_EXPORT_EXP: ur_memory_export_exp_dditable_t =
    ur_memory_export_exp_dditable_t {
        pfnAllocExportableMemoryExp: Stub::<Exports>::STUB,
        pfnFreeExportableMemoryExp: Stub::<Exports>::STUB,
        pfnExportMemoryHandleExp: Stub::<Exports>::STUB,
    };
