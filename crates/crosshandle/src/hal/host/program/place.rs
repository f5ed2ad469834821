//! Where kernels run: on the whole device, or on a part of it.

use super::error;
use crate::error::{Error, Result};
use crate::types::{AffinityDomain, NativeRuntime, Partition, PartitionLimits};
use opencl_cpu::{Affinity, Device, Runtime};

/// What runs the kernels of a context. The default is the whole device, whose runtime is looked for when it is
/// needed.
#[derive(Clone, Default)]
pub(in crate::hal::host) struct Place(Option<Device>);

impl Place {
    /// Returns the runtime's device.
    pub(super) fn device(&self) -> Result<Device> {
        self.look().map_err(Error::Unsupported)
    }

    fn look(&self) -> std::result::Result<Device, String> {
        match &self.0 {
            Some(part) => Ok(part.clone()),
            None => Ok(Runtime::get()?.device()),
        }
    }

    /// Returns the runtime's own objects.
    pub(in crate::hal::host) fn native(&self) -> std::result::Result<NativeRuntime, String> {
        let (platform, device, context) = self.look()?.raw();
        Ok(NativeRuntime {
            platform,
            device,
            context,
        })
    }

    /// Returns how the device can be divided, or why it cannot.
    pub(in crate::hal::host) fn partitions(&self) -> std::result::Result<PartitionLimits, String> {
        let limits = self.look()?.partitions();
        let limits = limits.map_err(|failure| failure.to_string())?;
        Ok(PartitionLimits {
            parts: limits.parts,
            equally: limits.equally,
            by_counts: limits.by_counts,
            by_affinity: limits.by_affinity.into_iter().map(domain).collect(),
        })
    }

    /// Divides the device. Returns the parts, each with the number of its compute units.
    pub(in crate::hal::host) fn partition(&self, how: &Partition) -> Result<Vec<(Self, u32)>> {
        let how = match how {
            Partition::Equally(units) => opencl_cpu::Partition::Equally(*units),
            Partition::ByCounts(counts) => opencl_cpu::Partition::ByCounts(counts.clone()),
            Partition::ByAffinity(domain) => opencl_cpu::Partition::ByAffinity(affinity(*domain)),
        };
        let parts = self.device()?.partition(&how).map_err(error)?;
        let sized = parts.into_iter().map(|part| {
            let units = part.compute_units().map_err(error)?;
            Ok((Self(Some(part)), units))
        });
        sized.collect()
    }

    /// Returns what the compute units of a part share, if that is by what the whole was divided.
    pub(in crate::hal::host) fn affinity(&self) -> Option<AffinityDomain> {
        self.0.as_ref()?.affinity().map(domain)
    }
}

fn domain(affinity: Affinity) -> AffinityDomain {
    match affinity {
        Affinity::Numa => AffinityDomain::Numa,
        Affinity::L4Cache => AffinityDomain::L4Cache,
        Affinity::L3Cache => AffinityDomain::L3Cache,
        Affinity::L2Cache => AffinityDomain::L2Cache,
        Affinity::L1Cache => AffinityDomain::L1Cache,
        Affinity::Next => AffinityDomain::NextPartitionable,
    }
}

fn affinity(domain: AffinityDomain) -> Affinity {
    match domain {
        AffinityDomain::Numa => Affinity::Numa,
        AffinityDomain::L4Cache => Affinity::L4Cache,
        AffinityDomain::L3Cache => Affinity::L3Cache,
        AffinityDomain::L2Cache => Affinity::L2Cache,
        AffinityDomain::L1Cache => Affinity::L1Cache,
        AffinityDomain::NextPartitionable => Affinity::Next,
    }
}
