//! The backends of this build.

use super::Backend;

/// All backends of this build.
pub(crate) fn all() -> &'static [&'static dyn Backend] {
    &[
        &super::host::HostBackend,
        #[cfg(feature = "cuda")]
        &super::cuda::CudaBackend,
        #[cfg(feature = "level-zero")]
        &super::level_zero::LevelZeroBackend,
    ]
}
