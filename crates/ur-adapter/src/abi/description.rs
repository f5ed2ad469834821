//! The description of an adapter: its backend, and the constant properties that it reports.

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

/// The environment variable that overrides the UR backend that the adapter reports. It is for
/// clients that do not know the adapter's own backend. The values are `opencl`, `cuda`, `hip` and
/// `native_cpu`.
pub const REPORTED_BACKEND_VARIABLE: &str = "CROSSHANDLE_UR_BACKEND";

/// The backend of an adapter, and the constant properties that the adapter reports.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The backend whose devices the adapter exposes.
    pub backend: BackendKind,
    /// The UR backend that the adapter reports. [`REPORTED_BACKEND_VARIABLE`] overrides it.
    pub ur_backend: ur_backend_t,
    /// The type of the adapter's devices.
    pub device_type: ur_device_type_t,
    /// The name of the adapter's single platform.
    pub platform_name: &'static str,
    /// The queue kind: the number by which clients distinguish native queues. On Level Zero, 1 is
    /// an immediate command list and 0 is a command queue. `None` if the backend has only one kind.
    pub queue_kind: Option<i32>,
    /// The targets of program images for the devices, in order of preference. The list is empty if
    /// the devices run no programs.
    pub program_targets: &'static [&'static CStr],
    /// Whether the devices accept programs in SPIR-V form.
    pub takes_spirv: bool,
    /// Whether the devices accept programs in text form.
    pub takes_text: bool,
    /// Whether the device compilers implement assertions in kernels. If not, the SYCL runtime
    /// implements them.
    pub has_assert: bool,
    /// Whether a device's architecture version is a CUDA compute capability.
    pub has_compute_capability: bool,
    /// Whether the devices may support image views.
    pub has_views: bool,
    /// Whether a device can run command buffers even if its driver has no graphs.
    pub replays_graphs: bool,
    /// Whether launch offsets must fit into 32 bits. The adapter checks this itself, because the
    /// driver rejects a larger offset only when it runs the command.
    pub has_narrow_offsets: bool,
    /// Converts the driver's error code to a UR result. `None` if UR has no results for these
    /// codes.
    pub result_of_code: Option<fn(i64) -> ur_result_t>,
}

impl Description {
    /// The adapter for the host device. The device runs programs if an OpenCL runtime is installed.
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
    /// If this adapter reports the Level Zero backend, SYCL implements fills by kernels. A program
    /// without device code does not contain these kernels. For such a program, set
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

/// Sets the adapter's description. Calls after the first one have no effect.
pub(crate) fn set(description: Description) {
    DESCRIPTION.get_or_init(|| description);
}

/// Returns the adapter's description. The loader fetches a table, which sets the description,
/// before it can call an entry point.
pub(crate) fn get() -> &'static Description {
    DESCRIPTION.get_or_init(|| Description::HOST)
}

/// Returns whether clients may treat the adapter's native handles as OpenCL objects.
pub(crate) fn is_reported_as_opencl() -> bool {
    reported_backend() == ur_backend_t::UR_BACKEND_OPENCL
}

/// Returns the UR backend that the adapter reports.
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
                    "{REPORTED_BACKEND_VARIABLE}={name} is ignored: use opencl, cuda, hip or native_cpu"
                );
                own
            }
        }
    })
}
