//! Device properties that describe the computing power.

use super::Answer::{self, U32, Unsupported};
use crate::discovery::Device;
use unified_runtime_sys::ur_device_info_t as name;

pub(super) fn answer<'a>(device: &'a Device, asked: name) -> Option<Answer<'a>> {
    let info = device.inner().info();
    // Returns how many elements of `bytes` bytes one instruction processes.
    let vector = |bytes: u32| U32((info.vector_width.unwrap_or(0) / bytes).max(1));
    Some(match asked {
        name::UR_DEVICE_INFO_MAX_COMPUTE_UNITS | name::UR_DEVICE_INFO_NUM_COMPUTE_UNITS => {
            U32(info.compute_units)
        }
        name::UR_DEVICE_INFO_MAX_CLOCK_FREQUENCY => U32(info.clock_rate.unwrap_or(0)),
        name::UR_DEVICE_INFO_ADDRESS_BITS => U32(usize::BITS),

        name::UR_DEVICE_INFO_PREFERRED_VECTOR_WIDTH_CHAR
        | name::UR_DEVICE_INFO_NATIVE_VECTOR_WIDTH_CHAR => vector(1),
        name::UR_DEVICE_INFO_PREFERRED_VECTOR_WIDTH_SHORT
        | name::UR_DEVICE_INFO_NATIVE_VECTOR_WIDTH_SHORT => vector(2),
        name::UR_DEVICE_INFO_PREFERRED_VECTOR_WIDTH_INT
        | name::UR_DEVICE_INFO_NATIVE_VECTOR_WIDTH_INT
        | name::UR_DEVICE_INFO_PREFERRED_VECTOR_WIDTH_FLOAT
        | name::UR_DEVICE_INFO_NATIVE_VECTOR_WIDTH_FLOAT => vector(4),
        name::UR_DEVICE_INFO_PREFERRED_VECTOR_WIDTH_LONG
        | name::UR_DEVICE_INFO_NATIVE_VECTOR_WIDTH_LONG
        | name::UR_DEVICE_INFO_PREFERRED_VECTOR_WIDTH_LONG_LONG
        | name::UR_DEVICE_INFO_NATIVE_VECTOR_WIDTH_LONG_LONG => vector(8),
        name::UR_DEVICE_INFO_PREFERRED_VECTOR_WIDTH_DOUBLE
        | name::UR_DEVICE_INFO_NATIVE_VECTOR_WIDTH_DOUBLE => {
            if info.capabilities.double_precision {
                vector(8)
            } else {
                U32(0)
            }
        }
        name::UR_DEVICE_INFO_PREFERRED_VECTOR_WIDTH_HALF
        | name::UR_DEVICE_INFO_NATIVE_VECTOR_WIDTH_HALF => {
            if info.capabilities.half_precision {
                vector(2)
            } else {
                U32(0)
            }
        }

        // All queues share the compute units.
        name::UR_DEVICE_INFO_MAX_COMPUTE_QUEUE_INDICES => U32(1),

        name::UR_DEVICE_INFO_CURRENT_CLOCK_THROTTLE_REASONS
        | name::UR_DEVICE_INFO_FAN_SPEED
        | name::UR_DEVICE_INFO_MIN_POWER_LIMIT
        | name::UR_DEVICE_INFO_MAX_POWER_LIMIT => Unsupported,
        _ => return None,
    })
}
