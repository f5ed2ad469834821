//! The backends of this build.

use crosshandle_hal::Backend;

/// Returns all backends of this build, the host first.
pub(crate) fn all() -> &'static [&'static dyn Backend] {
    &[
        &crosshandle_host::HostBackend,
        #[cfg(feature = "cuda")]
        &crosshandle_cuda::CudaBackend,
        #[cfg(feature = "level-zero")]
        &crosshandle_level_zero::LevelZeroBackend,
    ]
}
