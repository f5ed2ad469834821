//! Pixel formats, and their equivalents in the driver.

use crate::driver::sys::CUarray_format as formats;
use crate::driver::{ArrayShape, Pixel};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{ChannelOrder, ChannelType, ImageDescription, ImageFormat, ImageKind};

/// Returns the driver's pixel type for a format. The driver has no channel order: a channel is
/// known by its position.
pub(super) fn pixel(format: ImageFormat) -> Result<Pixel> {
    translate(format).ok_or_else(|| {
        Error::Unsupported(format!(
            "the CUDA driver has no images of {:?} pixels of {:?}: it supports `R`, `Rg` and `Rgba`, of integers and \
             floats of whole bytes",
            format.order, format.channel
        ))
    })
}

fn translate(format: ImageFormat) -> Option<Pixel> {
    let channels = match format.order {
        ChannelOrder::R => 1,
        ChannelOrder::Rg => 2,
        ChannelOrder::Rgba => 4,
        _ => return None,
    };
    // Normalised numbers are integers that textures read as fractions.
    let format = match format.channel {
        ChannelType::UnsignedInt8 | ChannelType::UnormInt8 => formats::CU_AD_FORMAT_UNSIGNED_INT8,
        ChannelType::SignedInt8 | ChannelType::SnormInt8 => formats::CU_AD_FORMAT_SIGNED_INT8,
        ChannelType::UnsignedInt16 | ChannelType::UnormInt16 => {
            formats::CU_AD_FORMAT_UNSIGNED_INT16
        }
        ChannelType::SignedInt16 | ChannelType::SnormInt16 => formats::CU_AD_FORMAT_SIGNED_INT16,
        ChannelType::UnsignedInt32 => formats::CU_AD_FORMAT_UNSIGNED_INT32,
        ChannelType::SignedInt32 => formats::CU_AD_FORMAT_SIGNED_INT32,
        ChannelType::HalfFloat => formats::CU_AD_FORMAT_HALF,
        ChannelType::Float => formats::CU_AD_FORMAT_FLOAT,
        ChannelType::UnormShort565 | ChannelType::UnormShort555 | ChannelType::UnormInt101010 => {
            return None;
        }
    };
    Some(Pixel { format, channels })
}

/// Returns the array shape for an image. The driver always has layers in the third dimension.
pub(super) fn shape(image: &ImageDescription) -> ArrayShape {
    let [x, y, z] = image.extent;
    let (height, depth) = match image.kind {
        ImageKind::OneD => (0, 0),
        ImageKind::TwoD => (y, 0),
        ImageKind::ThreeD | ImageKind::TwoDArray | ImageKind::Cube => (y, z),
        ImageKind::OneDArray => (0, y),
    };
    ArrayShape {
        width: x,
        height,
        depth,
        is_layered: matches!(image.kind, ImageKind::OneDArray | ImageKind::TwoDArray),
        is_cube: image.kind == ImageKind::Cube,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_are_as_large_as_those_of_the_program() {
        let orders = [ChannelOrder::R, ChannelOrder::Rg, ChannelOrder::Rgba];
        for order in orders {
            for channel in [
                ChannelType::UnormInt8,
                ChannelType::SnormInt16,
                ChannelType::SignedInt8,
                ChannelType::UnsignedInt16,
                ChannelType::SignedInt32,
                ChannelType::HalfFloat,
                ChannelType::Float,
            ] {
                let format = ImageFormat { order, channel };
                assert_eq!(pixel(format).unwrap().bytes(), format.pixel_bytes());
            }
        }
        for (order, channel) in [
            (ChannelOrder::Rgb, ChannelType::Float),
            (ChannelOrder::Bgra, ChannelType::UnormInt8),
            (ChannelOrder::Rgba, ChannelType::UnormShort565),
        ] {
            let refused = pixel(ImageFormat { order, channel }).unwrap_err();
            assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        }
    }

    #[test]
    fn layers_are_in_the_third_dimension() {
        let format = ImageFormat {
            order: ChannelOrder::R,
            channel: ChannelType::Float,
        };
        for (kind, extent, wanted) in [
            (ImageKind::OneD, [7, 1, 1], (7, 0, 0, false)),
            (ImageKind::TwoD, [7, 5, 1], (7, 5, 0, false)),
            (ImageKind::ThreeD, [7, 5, 3], (7, 5, 3, false)),
            (ImageKind::OneDArray, [7, 5, 1], (7, 0, 5, true)),
            (ImageKind::TwoDArray, [7, 5, 3], (7, 5, 3, true)),
            (ImageKind::Cube, [7, 7, 6], (7, 7, 6, false)),
        ] {
            let shape = shape(&ImageDescription::new(kind, format, extent));
            let found = (shape.width, shape.height, shape.depth, shape.is_layered);
            assert_eq!(found, wanted, "{kind:?}");
            assert_eq!(shape.is_cube, kind == ImageKind::Cube);
        }
    }
}
