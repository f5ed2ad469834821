//! Conversion of UR's image formats and image descriptions.

use crate::abi::failure::{Failure, Result};
use crosshandle::image::{ChannelOrder, ChannelType, ImageDescription, ImageFormat, ImageKind};
use unified_runtime_sys::{
    ur_image_channel_order_t as orders, ur_image_channel_type_t as types, ur_image_desc_t,
    ur_image_format_t, ur_mem_type_t as kinds, ur_result_t, ur_structure_type_t,
};

/// UR's channel orders and the corresponding ones in `crosshandle`, in the order of UR's values.
const ORDERS: [(orders, ChannelOrder); 15] = [
    (orders::UR_IMAGE_CHANNEL_ORDER_A, ChannelOrder::A),
    (orders::UR_IMAGE_CHANNEL_ORDER_R, ChannelOrder::R),
    (orders::UR_IMAGE_CHANNEL_ORDER_RG, ChannelOrder::Rg),
    (orders::UR_IMAGE_CHANNEL_ORDER_RA, ChannelOrder::Ra),
    (orders::UR_IMAGE_CHANNEL_ORDER_RGB, ChannelOrder::Rgb),
    (orders::UR_IMAGE_CHANNEL_ORDER_RGBA, ChannelOrder::Rgba),
    (orders::UR_IMAGE_CHANNEL_ORDER_BGRA, ChannelOrder::Bgra),
    (orders::UR_IMAGE_CHANNEL_ORDER_ARGB, ChannelOrder::Argb),
    (orders::UR_IMAGE_CHANNEL_ORDER_ABGR, ChannelOrder::Abgr),
    (
        orders::UR_IMAGE_CHANNEL_ORDER_INTENSITY,
        ChannelOrder::Intensity,
    ),
    (
        orders::UR_IMAGE_CHANNEL_ORDER_LUMINANCE,
        ChannelOrder::Luminance,
    ),
    (orders::UR_IMAGE_CHANNEL_ORDER_RX, ChannelOrder::Rx),
    (orders::UR_IMAGE_CHANNEL_ORDER_RGX, ChannelOrder::Rgx),
    (orders::UR_IMAGE_CHANNEL_ORDER_RGBX, ChannelOrder::Rgbx),
    (orders::UR_IMAGE_CHANNEL_ORDER_SRGBA, ChannelOrder::Srgba),
];

/// UR's channel types and the corresponding ones in `crosshandle`, in the order of UR's values.
const CHANNELS: [(types, ChannelType); 15] = [
    (
        types::UR_IMAGE_CHANNEL_TYPE_SNORM_INT8,
        ChannelType::SnormInt8,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_SNORM_INT16,
        ChannelType::SnormInt16,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_UNORM_INT8,
        ChannelType::UnormInt8,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_UNORM_INT16,
        ChannelType::UnormInt16,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_UNORM_SHORT_565,
        ChannelType::UnormShort565,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_UNORM_SHORT_555,
        ChannelType::UnormShort555,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_INT_101010,
        ChannelType::UnormInt101010,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_SIGNED_INT8,
        ChannelType::SignedInt8,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_SIGNED_INT16,
        ChannelType::SignedInt16,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_SIGNED_INT32,
        ChannelType::SignedInt32,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_UNSIGNED_INT8,
        ChannelType::UnsignedInt8,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_UNSIGNED_INT16,
        ChannelType::UnsignedInt16,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_UNSIGNED_INT32,
        ChannelType::UnsignedInt32,
    ),
    (
        types::UR_IMAGE_CHANNEL_TYPE_HALF_FLOAT,
        ChannelType::HalfFloat,
    ),
    (types::UR_IMAGE_CHANNEL_TYPE_FLOAT, ChannelType::Float),
];

/// Converts an image format from UR.
///
/// # Errors
/// Returns `UNSUPPORTED_IMAGE_FORMAT` if the channel order or the channel type is unknown.
pub(crate) fn format(given: &ur_image_format_t) -> Result<ImageFormat> {
    let order = ORDERS.iter().find(|(name, _)| *name == given.channelOrder);
    let channel = CHANNELS.iter().find(|(name, _)| *name == given.channelType);
    match (order, channel) {
        (Some((_, order)), Some((_, channel))) => Ok(ImageFormat {
            order: *order,
            channel: *channel,
        }),
        _ => Err(unsupported_format(
            "this combination of channels is not supported",
        )),
    }
}

pub(crate) fn unsupported_format(message: &'static str) -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT,
        message,
    )
}

pub(crate) fn wrong_description(message: &'static str) -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_IMAGE_FORMAT_DESCRIPTOR,
        message,
    )
}

/// Converts an image description from UR. Unused dimensions are ignored.
///
/// # Errors
/// Returns `INVALID_IMAGE_FORMAT_DESCRIPTOR` if the description is invalid, or
/// `UNSUPPORTED_IMAGE_FORMAT` if its format is unknown.
pub(crate) fn description(
    given: &ur_image_format_t,
    desc: &ur_image_desc_t,
    has_pointer: bool,
) -> Result<ImageDescription> {
    if desc.stype != ur_structure_type_t::UR_STRUCTURE_TYPE_IMAGE_DESC {
        return Err(wrong_description(
            "this structure is not an image description",
        ));
    }
    let (kind, extent) = match desc.type_ {
        kinds::UR_MEM_TYPE_IMAGE1D => (ImageKind::OneD, [desc.width, 1, 1]),
        kinds::UR_MEM_TYPE_IMAGE2D => (ImageKind::TwoD, [desc.width, desc.height, 1]),
        kinds::UR_MEM_TYPE_IMAGE3D => (ImageKind::ThreeD, [desc.width, desc.height, desc.depth]),
        kinds::UR_MEM_TYPE_IMAGE1D_ARRAY => (ImageKind::OneDArray, [desc.width, desc.arraySize, 1]),
        kinds::UR_MEM_TYPE_IMAGE2D_ARRAY => (
            ImageKind::TwoDArray,
            [desc.width, desc.height, desc.arraySize],
        ),
        _ => return Err(wrong_description("images of this type are not supported")),
    };
    if desc.numMipLevel != 0 || desc.numSamples != 0 {
        return Err(wrong_description(
            "images with several levels or samples are not supported",
        ));
    }
    if !has_pointer && (desc.rowPitch != 0 || desc.slicePitch != 0) {
        return Err(wrong_description("pitches require a host pointer"));
    }
    Ok(ImageDescription::new(kind, format(given)?, extent))
}

/// Returns UR's values for the channel order and the channel type of a format.
pub(crate) fn name_of(format: ImageFormat) -> [u32; 2] {
    let order = ORDERS.iter().find(|(_, order)| *order == format.order);
    let channel = CHANNELS
        .iter()
        .find(|(_, channel)| *channel == format.channel);
    [
        order.map_or(u32::MAX, |(name, _)| name.0),
        channel.map_or(u32::MAX, |(name, _)| name.0),
    ]
}
