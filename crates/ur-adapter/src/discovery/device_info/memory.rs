//! Device properties for memory, and for access to memory by the host and by other devices.

use super::Answer::{self, Truth, U32, U64, Unsupported};
use crate::discovery::Device;
use unified_runtime_sys::{
    UR_DEVICE_USM_ACCESS_CAPABILITY_FLAG_ACCESS as ACCESS,
    UR_DEVICE_USM_ACCESS_CAPABILITY_FLAG_ATOMIC_ACCESS as ATOMIC_ACCESS,
    UR_DEVICE_USM_ACCESS_CAPABILITY_FLAG_ATOMIC_CONCURRENT_ACCESS as ATOMIC_CONCURRENT_ACCESS,
    UR_DEVICE_USM_ACCESS_CAPABILITY_FLAG_CONCURRENT_ACCESS as CONCURRENT_ACCESS,
    ur_device_info_t as name, ur_device_mem_cache_type_t as cache,
};

/// The host and the devices can access the memory concurrently, with atomic operations between
/// them.
const FULL_ACCESS: u32 = ACCESS | ATOMIC_ACCESS | CONCURRENT_ACCESS | ATOMIC_CONCURRENT_ACCESS;

/// The device can access host memory directly. Its atomic operations are not atomic with respect to
/// atomic operations on the host.
const HOST_ACCESS: u32 = ACCESS | ATOMIC_ACCESS | CONCURRENT_ACCESS;

pub(super) fn answer<'a>(device: &'a Device, asked: name) -> Option<Answer<'a>> {
    let info = device.inner().info();
    let is_unified = info.capabilities.unified_memory;
    Some(match asked {
        name::UR_DEVICE_INFO_GLOBAL_MEM_SIZE => U64(info.total_memory),
        name::UR_DEVICE_INFO_GLOBAL_MEM_FREE => {
            device.inner().free_memory().map_or(Unsupported, U64)
        }
        name::UR_DEVICE_INFO_MAX_MEM_ALLOC_SIZE => U64(info.max_allocation),
        // The unit is bits. A sub-buffer may start at any byte.
        name::UR_DEVICE_INFO_MEM_BASE_ADDR_ALIGN => U32(u8::BITS),
        name::UR_DEVICE_INFO_GLOBAL_MEM_CACHE_TYPE => U32(match info.cache_size {
            None => cache::UR_DEVICE_MEM_CACHE_TYPE_NONE.0,
            Some(_) => cache::UR_DEVICE_MEM_CACHE_TYPE_READ_WRITE_CACHE.0,
        }),
        name::UR_DEVICE_INFO_GLOBAL_MEM_CACHELINE_SIZE => U32(info.cache_line.unwrap_or(0)),
        name::UR_DEVICE_INFO_GLOBAL_MEM_CACHE_SIZE => U64(info.cache_size.unwrap_or(0)),
        name::UR_DEVICE_INFO_ERROR_CORRECTION_SUPPORT => Truth(info.capabilities.error_correction),
        name::UR_DEVICE_INFO_HOST_UNIFIED_MEMORY => Truth(is_unified),
        name::UR_DEVICE_INFO_MEMORY_CLOCK_RATE => info.memory_clock_rate.map_or(Unsupported, U32),
        name::UR_DEVICE_INFO_MEMORY_BUS_WIDTH => info.memory_bus_width.map_or(Unsupported, U32),
        name::UR_DEVICE_INFO_MAX_MEMORY_BANDWIDTH => {
            match (info.memory_clock_rate, info.memory_bus_width) {
                // The memory transfers data twice in each clock cycle. The rate is in MHz and the
                // width in bits. The result is in bytes per second.
                (Some(rate), Some(width)) => {
                    U64(2 * u64::from(rate) * 1_000_000 * u64::from(width) / 8)
                }
                _ => Unsupported,
            }
        }
        name::UR_DEVICE_INFO_MEM_CHANNEL_SUPPORT => Truth(false),

        name::UR_DEVICE_INFO_USM_DEVICE_SUPPORT => U32(FULL_ACCESS),
        name::UR_DEVICE_INFO_USM_HOST_SUPPORT | name::UR_DEVICE_INFO_USM_SINGLE_SHARED_SUPPORT => {
            U32(if is_unified { FULL_ACCESS } else { HOST_ACCESS })
        }
        // All devices of a driver have equal access to the host part of shared memory.
        name::UR_DEVICE_INFO_USM_CROSS_SHARED_SUPPORT => {
            U32(if is_unified { FULL_ACCESS } else { HOST_ACCESS })
        }
        name::UR_DEVICE_INFO_USM_SYSTEM_SHARED_SUPPORT => {
            U32(if is_unified { FULL_ACCESS } else { 0 })
        }
        name::UR_DEVICE_INFO_USM_POOL_SUPPORT | name::UR_DEVICE_INFO_VIRTUAL_MEMORY_SUPPORT => {
            Truth(true)
        }
        _ => return None,
    })
}
