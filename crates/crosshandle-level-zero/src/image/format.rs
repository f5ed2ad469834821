//! Translation of pixel formats to those of the driver.

use crosshandle_types::{ChannelOrder, ChannelType, ImageFormat};
use level_zero_sys::{
    ze_image_format_layout_t as layouts, ze_image_format_swizzle_t as swizzles, ze_image_format_t,
    ze_image_format_type_t as types,
};

/// Returns the driver's format, or `None` if the driver has none.
pub(super) fn translate(format: ImageFormat) -> Option<ze_image_format_t> {
    let (bits, type_) = match format.channel {
        ChannelType::SnormInt8 => (8, types::ZE_IMAGE_FORMAT_TYPE_SNORM),
        ChannelType::SnormInt16 => (16, types::ZE_IMAGE_FORMAT_TYPE_SNORM),
        ChannelType::UnormInt8 => (8, types::ZE_IMAGE_FORMAT_TYPE_UNORM),
        ChannelType::UnormInt16 => (16, types::ZE_IMAGE_FORMAT_TYPE_UNORM),
        ChannelType::SignedInt8 => (8, types::ZE_IMAGE_FORMAT_TYPE_SINT),
        ChannelType::SignedInt16 => (16, types::ZE_IMAGE_FORMAT_TYPE_SINT),
        ChannelType::SignedInt32 => (32, types::ZE_IMAGE_FORMAT_TYPE_SINT),
        ChannelType::UnsignedInt8 => (8, types::ZE_IMAGE_FORMAT_TYPE_UINT),
        ChannelType::UnsignedInt16 => (16, types::ZE_IMAGE_FORMAT_TYPE_UINT),
        ChannelType::UnsignedInt32 => (32, types::ZE_IMAGE_FORMAT_TYPE_UINT),
        ChannelType::HalfFloat => (16, types::ZE_IMAGE_FORMAT_TYPE_FLOAT),
        ChannelType::Float => (32, types::ZE_IMAGE_FORMAT_TYPE_FLOAT),
        ChannelType::UnormShort565 | ChannelType::UnormShort555 | ChannelType::UnormInt101010 => {
            return None;
        }
    };
    let [red, green, blue, alpha] = [
        swizzles::ZE_IMAGE_FORMAT_SWIZZLE_R,
        swizzles::ZE_IMAGE_FORMAT_SWIZZLE_G,
        swizzles::ZE_IMAGE_FORMAT_SWIZZLE_B,
        swizzles::ZE_IMAGE_FORMAT_SWIZZLE_A,
    ];
    let (zero, one) = (
        swizzles::ZE_IMAGE_FORMAT_SWIZZLE_0,
        swizzles::ZE_IMAGE_FORMAT_SWIZZLE_1,
    );
    // For each channel of a kernel's pixel, the channel in memory that it reads.
    let (channels, [x, y, z, w]) = match format.order {
        ChannelOrder::R => (1, [red, zero, zero, one]),
        ChannelOrder::A => (1, [zero, zero, zero, alpha]),
        ChannelOrder::Rg => (2, [red, green, zero, one]),
        ChannelOrder::Ra => (2, [red, zero, zero, alpha]),
        ChannelOrder::Rgba => (4, [red, green, blue, alpha]),
        ChannelOrder::Bgra => (4, [blue, green, red, alpha]),
        ChannelOrder::Argb => (4, [alpha, red, green, blue]),
        ChannelOrder::Abgr => (4, [alpha, blue, green, red]),
        // The core API has no channels that stand for several channels or for none, and no gamma
        // curves.
        ChannelOrder::Rgb
        | ChannelOrder::Intensity
        | ChannelOrder::Luminance
        | ChannelOrder::Rx
        | ChannelOrder::Rgx
        | ChannelOrder::Rgbx
        | ChannelOrder::Srgba => return None,
    };
    let layout = match (channels, bits) {
        (1, 8) => layouts::ZE_IMAGE_FORMAT_LAYOUT_8,
        (1, 16) => layouts::ZE_IMAGE_FORMAT_LAYOUT_16,
        (1, _) => layouts::ZE_IMAGE_FORMAT_LAYOUT_32,
        (2, 8) => layouts::ZE_IMAGE_FORMAT_LAYOUT_8_8,
        (2, 16) => layouts::ZE_IMAGE_FORMAT_LAYOUT_16_16,
        (2, _) => layouts::ZE_IMAGE_FORMAT_LAYOUT_32_32,
        (_, 8) => layouts::ZE_IMAGE_FORMAT_LAYOUT_8_8_8_8,
        (_, 16) => layouts::ZE_IMAGE_FORMAT_LAYOUT_16_16_16_16,
        _ => layouts::ZE_IMAGE_FORMAT_LAYOUT_32_32_32_32,
    };
    Some(ze_image_format_t {
        layout,
        type_,
        x,
        y,
        z,
        w,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_driver_must_have_is_there() {
        for channel in [ChannelType::UnormInt8, ChannelType::Float] {
            let order = ChannelOrder::Rgba;
            assert!(translate(ImageFormat { order, channel }).is_some());
            let order = ChannelOrder::Luminance;
            assert!(translate(ImageFormat { order, channel }).is_none());
        }
        let (order, channel) = (ChannelOrder::Bgra, ChannelType::UnormInt8);
        let format = translate(ImageFormat { order, channel }).unwrap();
        assert_eq!(format.layout, layouts::ZE_IMAGE_FORMAT_LAYOUT_8_8_8_8);
        assert_eq!(format.x, swizzles::ZE_IMAGE_FORMAT_SWIZZLE_B);
    }
}
