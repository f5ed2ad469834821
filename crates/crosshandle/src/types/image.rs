//! Images and samplers: their formats, sizes and limits.

use crate::error::{Error, Result};

/// The limits of images on a device ([`Device::images`](crate::Device::images)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ImageLimits {
    /// The longest image of one dimension, in pixels.
    pub size_1d: usize,
    /// The largest image of two dimensions, in pixels.
    pub size_2d: [usize; 2],
    /// The largest image of three dimensions, in pixels.
    pub size_3d: [usize; 3],
    /// The most images of an array.
    pub layers: usize,
    /// The most images that a kernel reads.
    pub read_arguments: u32,
    /// The most images that a kernel writes.
    pub write_arguments: u32,
    /// The most images that a kernel both reads and writes.
    pub read_write_arguments: u32,
    /// The most samplers of a kernel.
    pub samplers: u32,
}

/// The dimensions of an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ImageKind {
    /// A row.
    OneD,
    /// A rectangle.
    TwoD,
    /// A cuboid.
    ThreeD,
    /// Rows of equal length.
    OneDArray,
    /// Rectangles of equal size.
    TwoDArray,
}

/// The channels of a pixel, in their order in memory: red, green, blue, alpha (opacity). An `x` is a channel
/// that is there but not used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "each is the name of its channels")]
pub enum ChannelOrder {
    A,
    R,
    Rg,
    Ra,
    Rgb,
    Rgba,
    Bgra,
    Argb,
    Abgr,
    /// One channel, which kernels read as all four.
    Intensity,
    /// One channel, which kernels read as red, green and blue.
    Luminance,
    Rx,
    Rgx,
    Rgbx,
    /// Colours with a gamma curve, which kernels read without.
    Srgba,
}

/// The type of a channel. Kernels read normalised numbers (`Snorm`, `Unorm`) as fractions, from −1 or 0 to 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "each is the name of its type")]
pub enum ChannelType {
    SnormInt8,
    SnormInt16,
    UnormInt8,
    UnormInt16,
    /// Three channels of 5, 6 and 5 bits in 16.
    UnormShort565,
    /// Three channels of 5 bits each in 16.
    UnormShort555,
    /// Three channels of 10 bits each in 32.
    UnormInt101010,
    SignedInt8,
    SignedInt16,
    SignedInt32,
    UnsignedInt8,
    UnsignedInt16,
    UnsignedInt32,
    HalfFloat,
    Float,
}

/// The format of a pixel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ImageFormat {
    /// Its channels.
    pub order: ChannelOrder,
    /// The type of each.
    pub channel: ChannelType,
}

impl ImageFormat {
    /// Returns the size of a pixel in bytes.
    pub fn pixel_bytes(self) -> usize {
        let channels = match self.order {
            ChannelOrder::A
            | ChannelOrder::R
            | ChannelOrder::Intensity
            | ChannelOrder::Luminance => 1,
            ChannelOrder::Rg | ChannelOrder::Ra | ChannelOrder::Rx => 2,
            ChannelOrder::Rgb | ChannelOrder::Rgx => 3,
            ChannelOrder::Rgba
            | ChannelOrder::Bgra
            | ChannelOrder::Argb
            | ChannelOrder::Abgr
            | ChannelOrder::Rgbx
            | ChannelOrder::Srgba => 4,
        };
        match self.channel {
            ChannelType::UnormShort565 | ChannelType::UnormShort555 => 2,
            ChannelType::UnormInt101010 => 4,
            ChannelType::SnormInt8
            | ChannelType::UnormInt8
            | ChannelType::SignedInt8
            | ChannelType::UnsignedInt8 => channels,
            ChannelType::SnormInt16
            | ChannelType::UnormInt16
            | ChannelType::SignedInt16
            | ChannelType::UnsignedInt16
            | ChannelType::HalfFloat => 2 * channels,
            ChannelType::SignedInt32 | ChannelType::UnsignedInt32 | ChannelType::Float => {
                4 * channels
            }
        }
    }
}

/// A description of an image: its dimensions, its pixels, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ImageDescription {
    /// The dimensions.
    pub kind: ImageKind,
    /// The format of a pixel.
    pub format: ImageFormat,
    /// The size in pixels, at least 1 in each dimension and exactly 1 in those that the image does not have. An
    /// array has its layers in the dimension after those of its images.
    pub extent: [usize; 3],
}

impl ImageDescription {
    /// Describes an image.
    pub fn new(kind: ImageKind, format: ImageFormat, extent: [usize; 3]) -> Self {
        Self {
            kind,
            format,
            extent,
        }
    }

    /// Returns the bytes of all pixels, without any that a driver adds; `None` beyond all memory.
    pub fn bytes(&self) -> Option<usize> {
        let mut sizes = self.extent.iter();
        sizes.try_fold(self.format.pixel_bytes(), |bytes, size| {
            bytes.checked_mul(*size)
        })
    }

    /// Refuses a size that there cannot be.
    pub(crate) fn check(&self, limits: &ImageLimits) -> Result<()> {
        let most = match self.kind {
            ImageKind::OneD => [limits.size_1d, 1, 1],
            ImageKind::TwoD => [limits.size_2d[0], limits.size_2d[1], 1],
            ImageKind::ThreeD => limits.size_3d,
            ImageKind::OneDArray => [limits.size_1d, limits.layers, 1],
            ImageKind::TwoDArray => [limits.size_2d[0], limits.size_2d[1], limits.layers],
        };
        let mut pairs = self.extent.iter().zip(most);
        let fits = pairs.all(|(size, most)| (1..=most).contains(size));
        match self.bytes() {
            Some(_) if fits => Ok(()),
            _ => Err(Error::invalid(format!(
                "an image of {:?} pixels is none that this device has: at least one, and at most \
                 {most:?}",
                self.extent
            ))),
        }
    }
}

/// A part of an image, in pixels. An array has its layers in the dimension after those of its images.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ImagePart {
    /// The first pixel in each dimension.
    pub origin: [usize; 3],
    /// The size in each dimension; the part is empty if one is 0.
    pub extent: [usize; 3],
}

impl ImagePart {
    /// Returns whether there are no pixels.
    pub fn is_empty(&self) -> bool {
        self.extent.contains(&0)
    }

    /// Refuses a part that is not inside an image of this size.
    pub(crate) fn check(&self, image: [usize; 3]) -> Result<()> {
        let is_inside = |index: usize| {
            let end = self.origin[index].checked_add(self.extent[index]);
            end.is_some_and(|end| end <= image[index])
        };
        match (0..3).all(is_inside) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{:?} pixels from {:?} on are not inside an image of {image:?}",
                self.extent, self.origin
            ))),
        }
    }
}

/// What a sampler answers for pixels that are outside an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Addressing {
    /// They are not asked for.
    None,
    /// The nearest pixel of the image.
    ClampToEdge,
    /// The border's colour, which is transparent or opaque black.
    Clamp,
    /// The image is repeated.
    Repeat,
    /// The image is repeated, every other time as in a mirror.
    MirroredRepeat,
}

/// What a sampler answers for a place between pixels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Filter {
    /// The nearest pixel.
    Nearest,
    /// The mean of those around, by their distances.
    Linear,
}

/// A description of a sampler: how kernels read images.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SamplerDescription {
    /// Coordinates are fractions of the image's size, not numbers of its pixels.
    pub is_normalized: bool,
    /// What it answers outside the image.
    pub addressing: Addressing,
    /// What it answers between pixels.
    pub filter: Filter,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ImageLimits = ImageLimits {
        size_1d: 100,
        size_2d: [100, 90],
        size_3d: [50, 40, 30],
        layers: 20,
        read_arguments: 8,
        write_arguments: 8,
        read_write_arguments: 0,
        samplers: 16,
    };

    fn format(order: ChannelOrder, channel: ChannelType) -> ImageFormat {
        ImageFormat { order, channel }
    }

    #[test]
    fn pixels_are_as_large_as_their_channels() {
        for (order, channel, bytes) in [
            (ChannelOrder::R, ChannelType::UnormInt8, 1),
            (ChannelOrder::Rg, ChannelType::HalfFloat, 4),
            (ChannelOrder::Rgb, ChannelType::UnormShort565, 2),
            (ChannelOrder::Rgbx, ChannelType::UnormInt101010, 4),
            (ChannelOrder::Rgba, ChannelType::Float, 16),
        ] {
            assert_eq!(format(order, channel).pixel_bytes(), bytes, "{order:?}");
        }
    }

    #[test]
    fn sizes_are_those_that_the_device_has() {
        let pixel = format(ChannelOrder::Rgba, ChannelType::Float);
        let fits = |kind, extent| {
            ImageDescription::new(kind, pixel, extent)
                .check(&LIMITS)
                .is_ok()
        };
        assert!(fits(ImageKind::OneD, [100, 1, 1]) && !fits(ImageKind::OneD, [101, 1, 1]));
        assert!(!fits(ImageKind::OneD, [1, 2, 1]) && !fits(ImageKind::OneD, [0, 1, 1]));
        assert!(fits(ImageKind::TwoD, [100, 90, 1]) && !fits(ImageKind::TwoD, [100, 90, 2]));
        assert!(fits(ImageKind::ThreeD, [50, 40, 30]) && !fits(ImageKind::ThreeD, [50, 41, 30]));
        assert!(fits(ImageKind::OneDArray, [100, 20, 1]));
        assert!(!fits(ImageKind::TwoDArray, [100, 90, 21]));
        assert!(!fits(ImageKind::ThreeD, [usize::MAX; 3]));
    }

    #[test]
    fn parts_are_inside() {
        let part = |origin, extent| ImagePart { origin, extent };
        assert!(part([1, 2, 0], [3, 2, 1]).check([4, 4, 1]).is_ok());
        assert!(part([2, 2, 0], [3, 2, 1]).check([4, 4, 1]).is_err());
        assert!(
            part([usize::MAX, 0, 0], [2, 1, 1])
                .check([4, 4, 1])
                .is_err()
        );
        assert!(part([0; 3], [1, 0, 1]).is_empty());
    }
}
