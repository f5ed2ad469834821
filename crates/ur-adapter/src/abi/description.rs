//! The description of an adapter: its backend, and what it reports.

use crosshandle::handle::BackendKind;
use std::env;
use std::ffi::CStr;
use std::sync::OnceLock;
use unified_runtime_sys::{
    UR_DEVICE_BINARY_TARGET_NVPTX64, UR_DEVICE_BINARY_TARGET_SPIRV64,
    UR_DEVICE_BINARY_TARGET_SPIRV64_GEN, UR_DEVICE_BINARY_TARGET_SPIRV64_X86_64, ur_backend_t,
    ur_device_type_t,
};

/// The environment variable that makes an adapter report another UR backend than its own, for
/// clients that don't know its own: `opencl`, `cuda`, `hip` or `native_cpu`.
pub const REPORTED_BACKEND_VARIABLE: &str = "CROSSHANDLE_UR_BACKEND";

/// An adapter: whose devices it shows, and what it reports of itself.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The backend whose devices the adapter shows.
    pub backend: BackendKind,
    /// The UR backend that the adapter reports, unless [`REPORTED_BACKEND_VARIABLE`] names another one.
    pub ur_backend: ur_backend_t,
    /// The type of its devices.
    pub device_type: ur_device_type_t,
    /// The name of its only platform.
    pub platform_name: &'static str,
    /// The number of a native queue's kind, where clients ask for it: on Level Zero, 1 for an
    /// immediate command list and 0 for a command queue. `None` if there is one kind only.
    pub queue_kind: Option<i32>,
    /// The targets of images with programs for its devices, the best first; none if they run none.
    pub program_targets: &'static [&'static CStr],
    /// Whether its devices take programs in SPIR-V.
    pub takes_spirv: bool,
}

impl Description {
    /// The adapter for the host device, which runs programs where an OpenCL runtime is installed.
    pub const HOST: Self = Self {
        backend: BackendKind::Host,
        ur_backend: ur_backend_t::UR_BACKEND_NATIVE_CPU,
        device_type: ur_device_type_t::UR_DEVICE_TYPE_CPU,
        platform_name: "Crosshandle (host)",
        queue_kind: None,
        program_targets: &[
            UR_DEVICE_BINARY_TARGET_SPIRV64_X86_64,
            UR_DEVICE_BINARY_TARGET_SPIRV64,
        ],
        takes_spirv: true,
    };

    /// The adapter for Level Zero devices. SYCL makes kernels of fills for the backend that it reports, which
    /// programs without code for devices lack; the variable helps.
    pub const LEVEL_ZERO: Self = Self {
        backend: BackendKind::LevelZero,
        ur_backend: ur_backend_t::UR_BACKEND_LEVEL_ZERO,
        device_type: ur_device_type_t::UR_DEVICE_TYPE_GPU,
        platform_name: "Crosshandle (Level Zero)",
        queue_kind: Some(1),
        program_targets: &[
            UR_DEVICE_BINARY_TARGET_SPIRV64_GEN,
            UR_DEVICE_BINARY_TARGET_SPIRV64,
        ],
        takes_spirv: true,
    };

    /// The adapter for NVIDIA GPUs.
    pub const CUDA: Self = Self {
        backend: BackendKind::Cuda,
        ur_backend: ur_backend_t::UR_BACKEND_CUDA,
        device_type: ur_device_type_t::UR_DEVICE_TYPE_GPU,
        platform_name: "Crosshandle (CUDA)",
        queue_kind: None,
        program_targets: &[UR_DEVICE_BINARY_TARGET_NVPTX64],
        takes_spirv: false,
    };
}

static DESCRIPTION: OnceLock<Description> = OnceLock::new();

/// Says which adapter this is; the first description counts.
pub(crate) fn set(description: Description) {
    DESCRIPTION.get_or_init(|| description);
}

/// Returns which adapter this is. The loader has taken a table before it can call an entry point.
pub(crate) fn get() -> &'static Description {
    DESCRIPTION.get_or_init(|| Description::HOST)
}

/// Returns whether clients may take native handles for objects of OpenCL.
pub(crate) fn is_reported_as_opencl() -> bool {
    reported_backend() == ur_backend_t::UR_BACKEND_OPENCL
}

/// Returns the UR backend to report.
pub(crate) fn reported_backend() -> ur_backend_t {
    static REPORTED: OnceLock<ur_backend_t> = OnceLock::new();
    *REPORTED.get_or_init(|| {
        let own = get().ur_backend;
        let Ok(name) = env::var(REPORTED_BACKEND_VARIABLE) else {
            return own;
        };
        match name.as_str() {
            "opencl" => ur_backend_t::UR_BACKEND_OPENCL,
            "cuda" => ur_backend_t::UR_BACKEND_CUDA,
            "hip" => ur_backend_t::UR_BACKEND_HIP,
            "native_cpu" => ur_backend_t::UR_BACKEND_NATIVE_CPU,
            _ => {
                tracing::warn!(
                    "{REPORTED_BACKEND_VARIABLE}={name} is none of opencl, cuda, hip, native_cpu"
                );
                own
            }
        }
    })
}
