//! What the suite expects of a backend's driver where the contract leaves it open.

use crosshandle::handle::BackendKind;

/// The expectations of one backend.
pub(crate) struct Expectations {
    /// Number of pieces in a case with many pieces.
    pub(crate) pieces: usize,
    /// Whether the driver keeps descriptors for its memory, on both sides.
    pub(crate) keeps_descriptors: bool,
    /// Whether the driver opens memory by its own handles, so that a descriptor alone is not
    /// enough.
    pub(crate) has_driver_handles: bool,
}

impl Expectations {
    pub(crate) fn of(backend: BackendKind) -> Self {
        match backend {
            BackendKind::LevelZero => Self {
                pieces: 150,
                keeps_descriptors: true,
                has_driver_handles: true,
            },
            // The driver maps pieces slowly while several processes use the GPU: 1,000 pieces took
            // more than 10 s next to seven other cases.
            BackendKind::Cuda => Self {
                pieces: 300,
                ..Self::USUAL
            },
            _ => Self::USUAL,
        }
    }

    const USUAL: Self = Self {
        pieces: 1000,
        keeps_descriptors: false,
        has_driver_handles: false,
    };
}
