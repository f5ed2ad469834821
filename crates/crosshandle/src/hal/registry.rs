//! The backends of this build.

use super::Backend;

/// Returns all backends of this build, the host first.
pub(crate) fn all() -> &'static [&'static dyn Backend] {
    &[
        &super::host::HostBackend,
        #[cfg(feature = "cuda")]
        &super::cuda::CudaBackend,
        #[cfg(feature = "level-zero")]
        &super::level_zero::LevelZeroBackend,
    ]
}
