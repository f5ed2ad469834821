//! The image object of this backend.

use crate::hal::DeviceImage;
use crate::hal::level_zero::driver::{DriverImage, ImageHandle};

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

impl DeviceImage for LevelZeroImage {
    fn raw(&self) -> usize {
        self.handle().0.expose_provenance()
    }
}
