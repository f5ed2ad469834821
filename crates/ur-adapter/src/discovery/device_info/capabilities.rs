//! Device properties that describe the arithmetic and the queues.

use super::Answer::{self, Size, Truth, U32};
use crate::discovery::Device;
use crosshandle::device::Capabilities;
use unified_runtime_sys::{
    UR_DEVICE_FP_CAPABILITY_FLAG_CORRECTLY_ROUNDED_DIVIDE_SQRT,
    UR_DEVICE_FP_CAPABILITY_FLAG_DENORM, UR_DEVICE_FP_CAPABILITY_FLAG_FMA,
    UR_DEVICE_FP_CAPABILITY_FLAG_INF_NAN, UR_DEVICE_FP_CAPABILITY_FLAG_ROUND_TO_INF,
    UR_DEVICE_FP_CAPABILITY_FLAG_ROUND_TO_NEAREST, UR_DEVICE_FP_CAPABILITY_FLAG_ROUND_TO_ZERO,
    UR_MEMORY_ORDER_CAPABILITY_FLAGS_MASK, UR_MEMORY_SCOPE_CAPABILITY_FLAG_SYSTEM,
    UR_MEMORY_SCOPE_CAPABILITY_FLAGS_MASK, UR_QUEUE_FLAG_ON_DEVICE,
    UR_QUEUE_FLAG_ON_DEVICE_DEFAULT, UR_QUEUE_FLAGS_MASK, ur_device_fp_capability_flags_t,
    ur_device_info_t as name, ur_queue_flags_t,
};

/// The flags that queue creation supports. Queues that a device creates are not supported.
const QUEUE_FLAGS: ur_queue_flags_t =
    !(UR_QUEUE_FLAGS_MASK | UR_QUEUE_FLAG_ON_DEVICE | UR_QUEUE_FLAG_ON_DEVICE_DEFAULT);

pub(super) fn answer<'a>(device: &'a Device, asked: name) -> Option<Answer<'a>> {
    let capabilities = &device.inner().info().capabilities;
    Some(match asked {
        name::UR_DEVICE_INFO_AVAILABLE => Truth(true),
        name::UR_DEVICE_INFO_ENDIAN_LITTLE => Truth(cfg!(target_endian = "little")),
        name::UR_DEVICE_INFO_PROFILING_TIMER_RESOLUTION => {
            Size(capabilities.timer_resolution.as_nanos() as usize)
        }
        name::UR_DEVICE_INFO_QUEUE_PROPERTIES | name::UR_DEVICE_INFO_QUEUE_ON_HOST_PROPERTIES => {
            U32(QUEUE_FLAGS)
        }
        name::UR_DEVICE_INFO_QUEUE_ON_DEVICE_PROPERTIES => U32(0),
        name::UR_DEVICE_INFO_PREFERRED_INTEROP_USER_SYNC => Truth(false),

        name::UR_DEVICE_INFO_SINGLE_FP_CONFIG => U32(floating_point(capabilities)),
        name::UR_DEVICE_INFO_HALF_FP_CONFIG => U32(if capabilities.half_precision {
            floating_point(capabilities)
        } else {
            0
        }),
        name::UR_DEVICE_INFO_DOUBLE_FP_CONFIG => U32(if capabilities.double_precision {
            floating_point(capabilities)
        } else {
            0
        }),
        name::UR_DEVICE_INFO_ATOMIC_64 => Truth(true),
        name::UR_DEVICE_INFO_ATOMIC_MEMORY_ORDER_CAPABILITIES
        | name::UR_DEVICE_INFO_ATOMIC_FENCE_ORDER_CAPABILITIES => {
            U32(!UR_MEMORY_ORDER_CAPABILITY_FLAGS_MASK)
        }
        name::UR_DEVICE_INFO_ATOMIC_MEMORY_SCOPE_CAPABILITIES
        | name::UR_DEVICE_INFO_ATOMIC_FENCE_SCOPE_CAPABILITIES => {
            let all = !UR_MEMORY_SCOPE_CAPABILITY_FLAGS_MASK;
            U32(if capabilities.unified_memory {
                all
            } else {
                all & !UR_MEMORY_SCOPE_CAPABILITY_FLAG_SYSTEM
            })
        }

        _ => return None,
    })
}

/// Returns the floating-point capabilities of a device. All supported devices follow IEEE 754.
fn floating_point(capabilities: &Capabilities) -> ur_device_fp_capability_flags_t {
    let all = UR_DEVICE_FP_CAPABILITY_FLAG_CORRECTLY_ROUNDED_DIVIDE_SQRT
        | UR_DEVICE_FP_CAPABILITY_FLAG_ROUND_TO_NEAREST
        | UR_DEVICE_FP_CAPABILITY_FLAG_ROUND_TO_ZERO
        | UR_DEVICE_FP_CAPABILITY_FLAG_ROUND_TO_INF
        | UR_DEVICE_FP_CAPABILITY_FLAG_INF_NAN
        | UR_DEVICE_FP_CAPABILITY_FLAG_DENORM;
    if capabilities.fused_multiply_add {
        all | UR_DEVICE_FP_CAPABILITY_FLAG_FMA
    } else {
        all
    }
}
