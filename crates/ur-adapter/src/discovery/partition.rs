//! Sub-devices, which are created by partitioning a device. Their handles are reference-counted.

use super::Device;
use crate::abi::boundary::{
    Argument, Call, MaybeOut, OutList, enter, entry_points, list, not_null,
};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::{Handle, Ref, Shared, release_once, retain_once};
use crosshandle::{
    Error,
    device::{AffinityDomain, Partition},
};
use std::sync::Arc;
use unified_runtime_sys::{
    UR_DEVICE_AFFINITY_DOMAIN_FLAG_L1_CACHE, UR_DEVICE_AFFINITY_DOMAIN_FLAG_L2_CACHE,
    UR_DEVICE_AFFINITY_DOMAIN_FLAG_L3_CACHE, UR_DEVICE_AFFINITY_DOMAIN_FLAG_L4_CACHE,
    UR_DEVICE_AFFINITY_DOMAIN_FLAG_NEXT_PARTITIONABLE, UR_DEVICE_AFFINITY_DOMAIN_FLAG_NUMA,
    ur_device_affinity_domain_flags_t, ur_device_handle_t, ur_device_partition_properties_t,
    ur_device_partition_property_t, ur_device_partition_t, ur_result_t,
};

/// The relation of a sub-device to its parent device.
pub(super) struct Part {
    /// The parent device, which was partitioned.
    pub(super) whole: Ref<Device>,
    /// The way in which the parent device was partitioned.
    how: Partition,
}

/// The affinity domains by which a device can be partitioned, with UR's flags.
const DOMAINS: [(AffinityDomain, ur_device_affinity_domain_flags_t); 6] = [
    (AffinityDomain::Numa, UR_DEVICE_AFFINITY_DOMAIN_FLAG_NUMA),
    (
        AffinityDomain::L4Cache,
        UR_DEVICE_AFFINITY_DOMAIN_FLAG_L4_CACHE,
    ),
    (
        AffinityDomain::L3Cache,
        UR_DEVICE_AFFINITY_DOMAIN_FLAG_L3_CACHE,
    ),
    (
        AffinityDomain::L2Cache,
        UR_DEVICE_AFFINITY_DOMAIN_FLAG_L2_CACHE,
    ),
    (
        AffinityDomain::L1Cache,
        UR_DEVICE_AFFINITY_DOMAIN_FLAG_L1_CACHE,
    ),
    (
        AffinityDomain::NextPartitionable,
        UR_DEVICE_AFFINITY_DOMAIN_FLAG_NEXT_PARTITIONABLE,
    ),
];

/// Returns UR's flag for an affinity domain. Returns 0 if UR has no flag for it.
pub(super) fn flag(domain: AffinityDomain) -> ur_device_affinity_domain_flags_t {
    let found = DOMAINS.iter().find(|(known, _)| *known == domain);
    found.map_or(0, |(_, flag)| *flag)
}

impl Part {
    /// Returns the way in which the parent device was partitioned. Each pair consists of UR's
    /// partition kind and its value.
    pub(super) fn properties(&self) -> Vec<[u32; 2]> {
        use ur_device_partition_t as kinds;
        match &self.how {
            Partition::Equally(units) => vec![[kinds::UR_DEVICE_PARTITION_EQUALLY.0, *units]],
            Partition::ByCounts(counts) => {
                let counts = counts.iter().copied();
                counts
                    .map(|units| [kinds::UR_DEVICE_PARTITION_BY_COUNTS.0, units])
                    .collect()
            }
            Partition::ByAffinity(domain) => vec![[
                kinds::UR_DEVICE_PARTITION_BY_AFFINITY_DOMAIN.0,
                flag(*domain),
            ]],
        }
    }
}

impl Device {
    /// Partitions a device into sub-devices.
    ///
    /// # Errors
    /// Returns `UNSUPPORTED_FEATURE` if the device cannot be partitioned in this way,
    /// `INVALID_DEVICE_PARTITION_COUNT` if the counts do not fit the device, or
    /// `DEVICE_PARTITION_FAILED` if the runtime fails.
    fn divide(whole: &Shared<Self>, how: &Partition) -> Result<Vec<Ref<Self>>> {
        let parts = whole.inner.partition(how).map_err(|error| {
            let result = match &error {
                Error::InvalidArgument(_) => {
                    Some(ur_result_t::UR_RESULT_ERROR_INVALID_DEVICE_PARTITION_COUNT)
                }
                Error::Driver { .. } => Some(ur_result_t::UR_RESULT_ERROR_DEVICE_PARTITION_FAILED),
                _ => None,
            };
            let failure = Failure::from(error);
            match result {
                Some(result) => failure.with_result(result),
                None => failure,
            }
        })?;
        let part = |inner: crosshandle::Device| {
            // For the "next partitionable" domain, the runtime chooses the domain and reports it
            // here.
            let how = match inner.affinity() {
                Some(domain) => Partition::ByAffinity(domain),
                None => how.clone(),
            };
            Shared::new(Self {
                inner,
                part: Some(Part {
                    whole: whole.to_ref(),
                    how,
                }),
                parts: Lock::default(),
                queues: Lock::default(),
            })
        };
        let parts: Vec<_> = parts.into_iter().map(part).collect();
        let mut known = whole.parts.lock();
        known.retain(|part| part.strong_count() > 0);
        known.extend(parts.iter().map(Arc::downgrade));
        Ok(parts)
    }
}

/// An argument of an entry point that describes how to partition a device.
///
/// The call fails with `INVALID_NULL_POINTER` if the properties are null, and with
/// `INVALID_ENUMERATION` for an unknown partition kind. It fails with `INVALID_VALUE` if the
/// properties do not describe exactly one partition.
pub(super) struct Way;

impl Argument for Way {
    type C = *const ur_device_partition_properties_t;
    type Value<'a> = Partition;

    unsafe fn read(properties: Self::C, _call: &Call) -> Result<Partition> {
        not_null(properties)?;
        // SAFETY: the caller ensures that a non-null pointer refers to valid properties.
        let properties = unsafe { &*properties };
        not_null(properties.pProperties)?;
        // SAFETY: the caller ensures that `pProperties` points to `PropCount` properties.
        way(unsafe { list(properties.pProperties, properties.PropCount) }?)
    }
}

fn way(properties: &[ur_device_partition_property_t]) -> Result<Partition> {
    let refuse = |why| {
        let result = ur_result_t::UR_RESULT_ERROR_INVALID_VALUE;
        Err(Failure::new(result, why))
    };
    let Some(first) = properties.first() else {
        return refuse("the properties do not say how to partition the device");
    };
    if properties
        .iter()
        .any(|property| property.type_ != first.type_)
    {
        return refuse("all properties must have the same partition type");
    }
    // SAFETY: all members of the union are integers of the same size.
    let number = |property: &ur_device_partition_property_t| unsafe { property.value.count };
    Ok(match first.type_ {
        ur_device_partition_t::UR_DEVICE_PARTITION_BY_COUNTS => {
            Partition::ByCounts(properties.iter().map(number).collect())
        }
        _ if properties.len() > 1 => {
            return refuse("only a partition by counts may have several properties");
        }
        ur_device_partition_t::UR_DEVICE_PARTITION_EQUALLY => Partition::Equally(number(first)),
        ur_device_partition_t::UR_DEVICE_PARTITION_BY_AFFINITY_DOMAIN => {
            let mut domains = DOMAINS.iter();
            match domains.find(|(_, flag)| *flag == number(first)) {
                Some((domain, _)) => Partition::ByAffinity(*domain),
                None => return refuse("the properties must name exactly one affinity domain"),
            }
        }
        ur_device_partition_t::UR_DEVICE_PARTITION_BY_CSLICE => {
            return Err(Failure::unsupported(
                "only Intel GPUs can be partitioned by compute slices",
            ));
        }
        _ => return Err(Failure::ENUMERATION),
    })
}

entry_points! {
    pub(super) fn partition(
        device: Handle<Device>,
        way: Way,
        devices(count, first): OutList<ur_device_handle_t>,
        available: MaybeOut<u32>,
    ) {
        let parts = Device::divide(device, &way)?;
        let number = parts.len();
        let wanted = if devices.is_null() { 0 } else { devices.count };
        devices.put(parts.into_iter().take(wanted).map(Shared::hand_out));
        available.map_or(Ok(()), |place| place.put(number as u32))
    }
}

/// The entry point `Retain`. Only sub-devices are counted, because other devices are never
/// destroyed.
pub(super) unsafe extern "C" fn retain(handle: ur_device_handle_t) -> ur_result_t {
    // SAFETY: the caller passes null or the handle of a living device.
    enter(
        |_| match unsafe { Shared::<Device>::from_handle(handle) }?.part {
            // SAFETY: the caller passes the handle of a living device.
            Some(_) => unsafe { retain_once::<Device>(handle) },
            None => Ok(()),
        },
    )
}

/// The entry point `Release`. Only sub-devices are counted, because other devices are never
/// destroyed.
pub(super) unsafe extern "C" fn release(handle: ur_device_handle_t) -> ur_result_t {
    // SAFETY: the caller passes null or the handle of a living device.
    enter(
        |_| match unsafe { Shared::<Device>::from_handle(handle) }?.part {
            // SAFETY: the caller passes a device handle on which UR holds a reference.
            Some(_) => unsafe { release_once::<Device>(handle) },
            None => Ok(()),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use unified_runtime_sys::ur_device_partition_value_t;

    fn property(type_: ur_device_partition_t, count: u32) -> ur_device_partition_property_t {
        let value = ur_device_partition_value_t { count };
        ur_device_partition_property_t { type_, value }
    }

    #[test]
    fn ways_are_read_and_told_again() {
        use ur_device_partition_t as kinds;
        let scene = crate::testing::Scene::new();
        let whole = scene.context().first().0;
        for (asked, wanted) in [
            (
                vec![property(kinds::UR_DEVICE_PARTITION_EQUALLY, 3)],
                Partition::Equally(3),
            ),
            (
                vec![property(kinds::UR_DEVICE_PARTITION_BY_COUNTS, 1); 2],
                Partition::ByCounts(vec![1, 1]),
            ),
            (
                vec![property(kinds::UR_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, 1)],
                Partition::ByAffinity(AffinityDomain::Numa),
            ),
        ] {
            let how = way(&asked).unwrap();
            assert_eq!(how, wanted);
            let whole = Ref::clone(whole);
            let told = Part { whole, how }.properties();
            let plain = asked
                .iter()
                // SAFETY: all members of the union are integers of the same size.
                .map(|property| [property.type_.0, unsafe { property.value.count }]);
            assert!(plain.eq(told));
        }
    }

    #[test]
    fn other_ways_are_refused() {
        use ur_device_partition_t as kinds;
        use ur_result_t as result;
        let equally = property(kinds::UR_DEVICE_PARTITION_EQUALLY, 1);
        let by_counts = property(kinds::UR_DEVICE_PARTITION_BY_COUNTS, 1);
        let by_affinity = |flags| property(kinds::UR_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, flags);
        for (asked, wanted) in [
            (vec![], result::UR_RESULT_ERROR_INVALID_VALUE),
            (
                vec![equally, by_counts],
                result::UR_RESULT_ERROR_INVALID_VALUE,
            ),
            (vec![equally; 2], result::UR_RESULT_ERROR_INVALID_VALUE),
            (vec![by_affinity(3)], result::UR_RESULT_ERROR_INVALID_VALUE),
            (vec![by_affinity(64)], result::UR_RESULT_ERROR_INVALID_VALUE),
            (
                vec![property(kinds::UR_DEVICE_PARTITION_BY_CSLICE, 0)],
                result::UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
            ),
            (
                vec![property(ur_device_partition_t(7), 1)],
                result::UR_RESULT_ERROR_INVALID_ENUMERATION,
            ),
        ] {
            assert_eq!(way(&asked).map_err(|failure| failure.result()), Err(wanted));
        }
    }
}
