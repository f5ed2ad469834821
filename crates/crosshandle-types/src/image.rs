//! Images and samplers: their formats, sizes and limits.

use crate::error::{Error, Result};

/// The limits of images on a device (`Device::images`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageLimits {
    /// Maximum length of an image of one dimension, in pixels.
    pub size_1d: usize,
    /// Maximum size of an image of two dimensions, in pixels.
    pub size_2d: [usize; 2],
    /// Maximum size of an image of three dimensions, in pixels.
    pub size_3d: [usize; 3],
    /// Maximum number of images in an array.
    pub layers: usize,
    /// Maximum length of a row in an array, in pixels.
    pub layer_1d: usize,
    /// Maximum size of a rectangle in an array, in pixels.
    pub layer_2d: [usize; 2],
    /// Maximum number of images that a kernel reads.
    pub read_arguments: u32,
    /// Maximum number of images that a kernel writes.
    pub write_arguments: u32,
    /// Maximum number of images that a kernel both reads and writes.
    pub read_write_arguments: u32,
    /// Maximum number of samplers of a kernel.
    pub samplers: u32,
    /// The limits of image views, for devices whose kernels access images by
    /// number.
    pub views: Option<ViewLimits>,
}

/// The limits of image views on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ViewLimits {
    /// Maximum length of memory that is viewed as an image of one dimension, in pixels.
    pub linear_1d: usize,
    /// Maximum size of memory that is viewed as an image of two dimensions, in pixels.
    pub linear_2d: [usize; 2],
    /// Maximum distance between the starts of two rows of viewed memory, in bytes.
    pub linear_pitch: usize,
    /// Number of bytes of which the row distance of viewed memory must be a multiple.
    pub pitch_alignment: usize,
    /// Alignment of the start of viewed memory, in bytes.
    pub start_alignment: usize,
    /// Maximum length of an image with several levels and one dimension, in pixels.
    pub levels_1d: usize,
    /// Maximum size of an image with several levels and two dimensions, in pixels.
    pub levels_2d: [usize; 2],
    /// Maximum edge length of a cube, in pixels, or 0 if the device has no cubes.
    pub cube: usize,
    /// Maximum anisotropy of a view.
    pub anisotropy: u32,
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
    /// The six squares of a cube, as layers: right, left, top, bottom, front, back.
    Cube,
}

/// The channels of a pixel, in their order in memory: red, green, blue, alpha (opacity). An `x` is
/// an unused channel.
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
    /// One channel, which kernels read as the value of all four channels.
    Intensity,
    /// One channel, which kernels read as red, green and blue.
    Luminance,
    Rx,
    Rgx,
    Rgbx,
    /// Colours that are stored with a gamma curve. Kernels read them without the curve.
    Srgba,
}

/// The type of a channel. Kernels read normalised numbers (`Snorm`, `Unorm`) as fractions from −1
/// or 0 to 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "each is the name of its type")]
pub enum ChannelType {
    SnormInt8,
    SnormInt16,
    UnormInt8,
    UnormInt16,
    /// Three channels of 5, 6 and 5 bits, stored in 16 bits.
    UnormShort565,
    /// Three channels of 5 bits each, stored in 16 bits.
    UnormShort555,
    /// Three channels of 10 bits each, stored in 32 bits.
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

impl ChannelType {
    /// Returns whether kernels read a channel as an integer.
    pub fn is_integer(self) -> bool {
        matches!(
            self,
            Self::SignedInt8
                | Self::SignedInt16
                | Self::SignedInt32
                | Self::UnsignedInt8
                | Self::UnsignedInt16
                | Self::UnsignedInt32
        )
    }
}

/// The format of a pixel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ImageFormat {
    /// The channels of a pixel.
    pub order: ChannelOrder,
    /// The type of each channel.
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

/// A description of an image: its dimensions, pixel format and size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ImageDescription {
    /// The dimensions.
    pub kind: ImageKind,
    /// The format of a pixel.
    pub format: ImageFormat,
    /// The size in pixels. It is at least 1 in each dimension, and exactly 1 in dimensions that the
    /// image does not have. The number of layers of an array is in the dimension after those of its
    /// images.
    pub extent: [usize; 3],
}

impl ImageDescription {
    /// Creates the description of an image.
    pub fn new(kind: ImageKind, format: ImageFormat, extent: [usize; 3]) -> Self {
        Self {
            kind,
            format,
            extent,
        }
    }

    /// Returns the size of all pixels in bytes, without padding of the driver, or `None` if the
    /// size overflows.
    pub fn bytes(&self) -> Option<usize> {
        let mut sizes = self.extent.iter();
        sizes.try_fold(self.format.pixel_bytes(), |bytes, size| {
            bytes.checked_mul(*size)
        })
    }

    /// Returns the maximum number of levels for an image of this size. Each level is half as large
    /// as the one before, and the last is one pixel.
    pub fn most_levels(&self) -> u32 {
        let dimensions = match self.kind {
            ImageKind::OneD | ImageKind::OneDArray => 1,
            ImageKind::TwoD | ImageKind::TwoDArray | ImageKind::Cube => 2,
            ImageKind::ThreeD => 3,
        };
        let longest = self.extent[..dimensions].iter().max();
        longest.map_or(1, |longest| usize::BITS - longest.leading_zeros())
    }

    /// Returns the description of a level of the image. The first level has number 0.
    pub fn level(&self, number: u32) -> Self {
        let dimensions = match self.kind {
            ImageKind::OneD | ImageKind::OneDArray => 1,
            ImageKind::TwoD | ImageKind::TwoDArray | ImageKind::Cube => 2,
            ImageKind::ThreeD => 3,
        };
        let mut extent = self.extent;
        for size in &mut extent[..dimensions] {
            *size = size.checked_shr(number).unwrap_or(0).max(1);
        }
        Self { extent, ..*self }
    }

    /// Rejects a size that the device does not support.
    pub fn check(&self, limits: &ImageLimits) -> Result<()> {
        let most = match self.kind {
            ImageKind::OneD => [limits.size_1d, 1, 1],
            ImageKind::TwoD => [limits.size_2d[0], limits.size_2d[1], 1],
            ImageKind::ThreeD => limits.size_3d,
            ImageKind::OneDArray => [limits.layer_1d, limits.layers, 1],
            ImageKind::TwoDArray => [limits.layer_2d[0], limits.layer_2d[1], limits.layers],
            ImageKind::Cube => {
                let edge = limits.views.map_or(0, |views| views.cube);
                [edge, edge, 6]
            }
        };
        let mut pairs = self.extent.iter().zip(most);
        let is_whole =
            self.kind != ImageKind::Cube || self.extent[0] == self.extent[1] && self.extent[2] == 6;
        let fits = is_whole && pairs.all(|(size, most)| (1..=most).contains(size));
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

/// A part of an image, in pixels. The layers of an array are in the dimension after those of its
/// images.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ImagePart {
    /// The first pixel in each dimension.
    pub origin: [usize; 3],
    /// The size in each dimension. The part is empty if one of them is 0.
    pub extent: [usize; 3],
}

impl ImagePart {
    /// Returns whether the part has no pixels.
    pub fn is_empty(&self) -> bool {
        self.extent.contains(&0)
    }

    /// Rejects a part that is not inside an image of this size.
    pub fn check(&self, image: [usize; 3]) -> Result<()> {
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

/// The value that a sampler returns for coordinates outside an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Addressing {
    /// Undefined. Kernels must not read outside the image.
    None,
    /// The nearest pixel of the image.
    ClampToEdge,
    /// The border colour, which is transparent or opaque black.
    Clamp,
    /// The pixel of an image that repeats in every direction.
    Repeat,
    /// The pixel of an image that repeats in every direction, with every second copy mirrored.
    MirroredRepeat,
}

/// The value that a sampler returns for coordinates between pixels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Filter {
    /// The nearest pixel.
    Nearest,
    /// The mean of the surrounding pixels, weighted by distance.
    Linear,
}

/// A description of a sampler, which determines how kernels read images.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SamplerDescription {
    /// Whether coordinates are fractions of the image's size instead of pixel numbers.
    pub is_normalized: bool,
    /// The value of coordinates outside the image.
    pub addressing: Addressing,
    /// The value of coordinates between pixels.
    pub filter: Filter,
}

/// The way in which kernels read an image through a view.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    /// Whether coordinates are fractions of the image's size instead of pixel numbers.
    pub is_normalized: bool,
    /// The value of coordinates outside the image, for each dimension.
    pub addressing: [Addressing; 3],
    /// The value of coordinates between pixels.
    pub filter: Filter,
    /// The value of coordinates between levels.
    pub level_filter: Filter,
    /// The first and the last level that kernels read.
    pub levels: [f32; 2],
    /// Maximum ratio of length to width of the area of the image that is combined into one value. 0
    /// and 1 stand for no anisotropy.
    pub anisotropy: u32,
    /// Whether values near the edges of a cube's side include pixels of the adjacent sides.
    pub is_seamless: bool,
}

impl From<SamplerDescription> for Sampling {
    fn from(sampler: SamplerDescription) -> Self {
        Self {
            is_normalized: sampler.is_normalized,
            addressing: [sampler.addressing; 3],
            filter: sampler.filter,
            level_filter: Filter::Nearest,
            levels: [0.0; 2],
            anisotropy: 0,
            is_seamless: false,
        }
    }
}

impl Sampling {
    /// Rejects sampling that no view of such pixels supports.
    pub fn check(&self, format: ImageFormat, limits: &ViewLimits) -> Result<()> {
        let is_linear = self.filter == Filter::Linear || self.level_filter == Filter::Linear;
        if is_linear && format.channel.is_integer() {
            return Err(Error::invalid(format!(
                "pixels of {:?} have no mean: read them with the filter `Nearest`",
                format.channel
            )));
        }
        let [first, last] = self.levels;
        if !(first.is_finite() && last.is_finite() && first >= 0.0 && first <= last) {
            return Err(Error::invalid(format!(
                "{:?} are not the first and the last of an image's levels",
                self.levels
            )));
        }
        if self.anisotropy > limits.anisotropy.max(1) {
            return Err(Error::invalid(format!(
                "this device has no anisotropy of {}, but at most {}",
                self.anisotropy, limits.anisotropy
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ImageLimits = ImageLimits {
        size_1d: 100,
        size_2d: [100, 90],
        size_3d: [50, 40, 30],
        layers: 20,
        layer_1d: 80,
        layer_2d: [70, 60],
        read_arguments: 8,
        write_arguments: 8,
        read_write_arguments: 0,
        samplers: 16,
        views: None,
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
        assert!(fits(ImageKind::OneDArray, [80, 20, 1]));
        assert!(!fits(ImageKind::OneDArray, [81, 20, 1]));
        assert!(fits(ImageKind::TwoDArray, [70, 60, 20]));
        assert!(!fits(ImageKind::TwoDArray, [70, 60, 21]));
        assert!(!fits(ImageKind::TwoDArray, [70, 61, 20]));
        // A device without views has no cubes.
        assert!(!fits(ImageKind::Cube, [4, 4, 6]));
        assert!(!fits(ImageKind::ThreeD, [usize::MAX; 3]));
    }

    #[test]
    fn levels_end_with_one_pixel() {
        let pixel = format(ChannelOrder::R, ChannelType::Float);
        let image = ImageDescription::new(ImageKind::TwoD, pixel, [20, 5, 1]);
        assert_eq!(image.most_levels(), 5);
        assert_eq!(image.level(1).extent, [10, 2, 1]);
        assert_eq!(image.level(4).extent, [1; 3]);
        assert_eq!(image.level(u32::MAX).extent, [1; 3]);
        let rows = ImageDescription::new(ImageKind::OneDArray, pixel, [9, 100, 1]);
        assert_eq!((rows.most_levels(), rows.level(3).extent), (4, [1, 100, 1]));
    }

    #[test]
    fn what_cannot_be_sampled_is_refused() {
        let limits = ViewLimits {
            linear_1d: 1,
            linear_2d: [1; 2],
            linear_pitch: 1,
            pitch_alignment: 1,
            start_alignment: 1,
            levels_1d: 1,
            levels_2d: [1; 2],
            cube: 1,
            anisotropy: 16,
        };
        let nearest = Sampling::from(SamplerDescription {
            is_normalized: false,
            addressing: Addressing::Clamp,
            filter: Filter::Nearest,
        });
        let linear = Sampling {
            filter: Filter::Linear,
            ..nearest
        };
        let check = |sampling: Sampling, channel| {
            let format = format(ChannelOrder::R, channel);
            sampling.check(format, &limits).is_ok()
        };
        assert!(check(nearest, ChannelType::SignedInt8) && check(linear, ChannelType::Float));
        assert!(check(linear, ChannelType::UnormInt8) && !check(linear, ChannelType::SignedInt8));
        for levels in [[1.0, 0.0], [-1.0, 0.0], [0.0, f32::NAN], [f32::INFINITY; 2]] {
            assert!(!check(Sampling { levels, ..nearest }, ChannelType::Float));
        }
        let steep = |anisotropy| Sampling {
            anisotropy,
            ..nearest
        };
        assert!(check(steep(16), ChannelType::Float) && !check(steep(17), ChannelType::Float));
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
