//! The description of an adapter: its backend, and the fixed properties that it reports.

use super::failure;
use crosshandle::handle::BackendKind;
use std::env;
use std::ffi::CStr;
use std::sync::OnceLock;
use unified_runtime_sys::{
    UR_DEVICE_BINARY_TARGET_NVPTX64, UR_DEVICE_BINARY_TARGET_SPIRV64,
    UR_DEVICE_BINARY_TARGET_SPIRV64_GEN, UR_DEVICE_BINARY_TARGET_SPIRV64_X86_64, ur_backend_t,
    ur_device_type_t, ur_result_t,
};

/// The environment variable that makes an adapter report another UR backend than its own: `opencl`,
/// `cuda`, `hip` or `native_cpu`. Some clients do not know the adapter's own backend.
pub const REPORTED_BACKEND_VARIABLE: &str = "CROSSHANDLE_UR_BACKEND";

/// An adapter: its devices, and the properties that it reports.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The backend whose devices the adapter shows.
    pub backend: BackendKind,
    /// The UR backend that the adapter reports. [`REPORTED_BACKEND_VARIABLE`] overrides it.
    pub ur_backend: ur_backend_t,
    /// The type of the devices.
    pub device_type: ur_device_type_t,
    /// The name of the only platform.
    pub platform_name: &'static str,
    /// The number that tells clients the kind of a native queue. On Level Zero, 1 is an immediate
    /// command list and 0 is a command queue. `None` if the backend has only one kind.
    pub queue_kind: Option<i32>,
    /// The targets of program images for the devices, best first. The list is empty if the devices
    /// run no programs.
    pub program_targets: &'static [&'static CStr],
    /// Whether the devices accept programs in SPIR-V.
    pub takes_spirv: bool,
    /// Whether the devices accept programs as text.
    pub takes_text: bool,
    /// Whether compilers for the devices implement assertions of kernels. If not, SYCL does.
    pub has_assert: bool,
    /// Whether the version of a device's architecture is a compute capability of CUDA.
    pub has_compute_capability: bool,
    /// Whether the devices may have image views.
    pub has_views: bool,
    /// Whether devices without graphs of their driver can run command buffers.
    pub replays_graphs: bool,
    /// Whether offsets of launches must fit into 32 bits. The driver would refuse larger ones only
    /// when it runs the command.
    pub has_narrow_offsets: bool,
    /// Converts the driver's code of an error, if UR has results for the codes.
    pub result_of_code: Option<fn(i64) -> ur_result_t>,
}

impl Description {
    /// The adapter for the host device. It runs programs if an OpenCL runtime is installed.
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
        takes_text: true,
        has_assert: true,
        has_compute_capability: false,
        has_views: false,
        replays_graphs: true,
        has_narrow_offsets: false,
        result_of_code: None,
    };

    /// The adapter for Level Zero devices.
    ///
    /// If the adapter reports the Level Zero backend, SYCL implements fills by kernels, which
    /// programs without device code do not contain. To avoid that, set
    /// [`REPORTED_BACKEND_VARIABLE`].
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
        takes_text: false,
        has_assert: false,
        has_compute_capability: false,
        has_views: false,
        replays_graphs: true,
        has_narrow_offsets: true,
        result_of_code: Some(failure::of_level_zero),
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
        takes_text: true,
        has_assert: true,
        has_compute_capability: true,
        has_views: true,
        replays_graphs: false,
        has_narrow_offsets: false,
        result_of_code: None,
    };
}

static DESCRIPTION: OnceLock<Description> = OnceLock::new();

/// Sets the adapter's description. Only the first call has an effect.
pub(crate) fn set(description: Description) {
    DESCRIPTION.get_or_init(|| description);
}

/// Returns the adapter's description. The loader has taken a table before it can call an entry
/// point.
pub(crate) fn get() -> &'static Description {
    DESCRIPTION.get_or_init(|| Description::HOST)
}

/// Returns whether clients may treat native handles as OpenCL objects.
pub(crate) fn is_reported_as_opencl() -> bool {
    reported_backend() == ur_backend_t::UR_BACKEND_OPENCL
}

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
