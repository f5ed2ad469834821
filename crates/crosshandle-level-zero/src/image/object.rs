//! The image object of this backend.

use crate::driver::{DriverImage, ImageHandle};
use crosshandle_hal::BackendImage;

/// An image of the driver.
pub(super) struct LevelZeroImage {
    pub(super) image: DriverImage,
    /// The size of a pixel in bytes.
    pub(super) pixel: usize,
}

impl LevelZeroImage {
    pub(super) fn handle(&self) -> ImageHandle {
        self.image.handle()
    }
}

impl BackendImage for LevelZeroImage {
    fn raw(&self) -> usize {
        self.handle().0.expose_provenance()
    }
}
