//! Device properties for sub-devices. Only these queries load the runtime that partitions devices.

use super::Answer::{self, Handle, Numbers, Pairs, Truth, U32};
use crate::discovery::Device;
use crate::discovery::partition::{Part, flag};
use crosshandle::device::PartitionLimits;
use std::ptr;
use unified_runtime_sys::{ur_device_info_t as name, ur_device_partition_t};

pub(super) fn answer(device: &Device, asked: name) -> Option<Answer<'static>> {
    let part = device.part.as_ref();
    Some(match asked {
        name::UR_DEVICE_INFO_PARENT_DEVICE => {
            let whole = device.whole();
            Handle(whole.map_or(ptr::null_mut(), |whole| whole.handle().cast()))
        }
        name::UR_DEVICE_INFO_PARTITION_TYPE => Pairs(part.map_or_else(Vec::new, Part::properties)),
        // A program that was built for a sub-device also runs on the sub-devices that were created
        // together with it. A program that was built for an undivided device must be built again
        // for a sub-device.
        name::UR_DEVICE_INFO_BUILD_ON_SUBDEVICE => Truth(part.is_some()),
        name::UR_DEVICE_INFO_SUPPORTED_PARTITIONS => {
            let kinds = device.inner().partitions().map(|limits| kinds(&limits));
            Numbers(kinds.unwrap_or_default())
        }
        name::UR_DEVICE_INFO_PARTITION_MAX_SUB_DEVICES => {
            U32(device.inner().partitions().map_or(0, |limits| limits.parts))
        }
        name::UR_DEVICE_INFO_PARTITION_AFFINITY_DOMAIN => {
            let limits = device.inner().partitions();
            let flags = |limits: PartitionLimits| {
                let domains = limits.by_affinity.into_iter();
                domains.fold(0, |flags, domain| flags | flag(domain))
            };
            U32(limits.map_or(0, flags))
        }
        _ => return None,
    })
}

/// Returns the partition kinds that a device with these limits supports.
fn kinds(limits: &PartitionLimits) -> Vec<u32> {
    let known = [
        (
            limits.equally,
            ur_device_partition_t::UR_DEVICE_PARTITION_EQUALLY,
        ),
        (
            limits.by_counts,
            ur_device_partition_t::UR_DEVICE_PARTITION_BY_COUNTS,
        ),
        (
            !limits.by_affinity.is_empty(),
            ur_device_partition_t::UR_DEVICE_PARTITION_BY_AFFINITY_DOMAIN,
        ),
    ];
    let known = known.into_iter().filter(|(can, _)| *can);
    known.map(|(_, kind)| kind.0).collect()
}
