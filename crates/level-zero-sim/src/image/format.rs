//! Translates Level Zero's pixel formats to those of the OpenCL runtime.

use level_zero_sys::{
    ze_image_format_layout_t as layouts, ze_image_format_swizzle_t as swizzles, ze_image_format_t,
    ze_image_format_type_t as types, ze_result_t,
};
use opencl_cpu::{ChannelOrder, ChannelType};

use crate::call::Result;

const UNSUPPORTED: ze_result_t = ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT;

/// Returns the OpenCL runtime's format.
pub(super) fn translate(format: &ze_image_format_t) -> Result<(ChannelOrder, ChannelType)> {
    let (channels, bits) = match format.layout {
        layouts::ZE_IMAGE_FORMAT_LAYOUT_8 => (1, 8),
        layouts::ZE_IMAGE_FORMAT_LAYOUT_16 => (1, 16),
        layouts::ZE_IMAGE_FORMAT_LAYOUT_32 => (1, 32),
        layouts::ZE_IMAGE_FORMAT_LAYOUT_8_8 => (2, 8),
        layouts::ZE_IMAGE_FORMAT_LAYOUT_16_16 => (2, 16),
        layouts::ZE_IMAGE_FORMAT_LAYOUT_32_32 => (2, 32),
        layouts::ZE_IMAGE_FORMAT_LAYOUT_8_8_8_8 => (4, 8),
        layouts::ZE_IMAGE_FORMAT_LAYOUT_16_16_16_16 => (4, 16),
        layouts::ZE_IMAGE_FORMAT_LAYOUT_32_32_32_32 => (4, 32),
        _ => return Err(UNSUPPORTED),
    };
    let channel = match (format.type_, bits) {
        (types::ZE_IMAGE_FORMAT_TYPE_UINT, 8) => ChannelType::UnsignedInt8,
        (types::ZE_IMAGE_FORMAT_TYPE_UINT, 16) => ChannelType::UnsignedInt16,
        (types::ZE_IMAGE_FORMAT_TYPE_UINT, _) => ChannelType::UnsignedInt32,
        (types::ZE_IMAGE_FORMAT_TYPE_SINT, 8) => ChannelType::SignedInt8,
        (types::ZE_IMAGE_FORMAT_TYPE_SINT, 16) => ChannelType::SignedInt16,
        (types::ZE_IMAGE_FORMAT_TYPE_SINT, _) => ChannelType::SignedInt32,
        (types::ZE_IMAGE_FORMAT_TYPE_UNORM, 8) => ChannelType::UnormInt8,
        (types::ZE_IMAGE_FORMAT_TYPE_UNORM, 16) => ChannelType::UnormInt16,
        (types::ZE_IMAGE_FORMAT_TYPE_SNORM, 8) => ChannelType::SnormInt8,
        (types::ZE_IMAGE_FORMAT_TYPE_SNORM, 16) => ChannelType::SnormInt16,
        (types::ZE_IMAGE_FORMAT_TYPE_FLOAT, 16) => ChannelType::HalfFloat,
        (types::ZE_IMAGE_FORMAT_TYPE_FLOAT, 32) => ChannelType::Float,
        _ => return Err(UNSUPPORTED),
    };
    let order = match (channels, [format.x, format.y, format.z, format.w]) {
        (1, [swizzles::ZE_IMAGE_FORMAT_SWIZZLE_R, ..]) => ChannelOrder::R,
        (1, [.., swizzles::ZE_IMAGE_FORMAT_SWIZZLE_A]) => ChannelOrder::A,
        (2, [_, swizzles::ZE_IMAGE_FORMAT_SWIZZLE_G, ..]) => ChannelOrder::Rg,
        (2, [.., swizzles::ZE_IMAGE_FORMAT_SWIZZLE_A]) => ChannelOrder::Ra,
        (4, [swizzles::ZE_IMAGE_FORMAT_SWIZZLE_R, ..]) => ChannelOrder::Rgba,
        (4, [swizzles::ZE_IMAGE_FORMAT_SWIZZLE_B, ..]) => ChannelOrder::Bgra,
        (
            4,
            [
                swizzles::ZE_IMAGE_FORMAT_SWIZZLE_A,
                swizzles::ZE_IMAGE_FORMAT_SWIZZLE_R,
                ..,
            ],
        ) => ChannelOrder::Argb,
        (4, [swizzles::ZE_IMAGE_FORMAT_SWIZZLE_A, ..]) => ChannelOrder::Abgr,
        _ => return Err(UNSUPPORTED),
    };
    Ok((order, channel))
}
