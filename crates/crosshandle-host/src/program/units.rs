//! The compute units that run kernels: the whole device or a part of it.

use super::error;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{AffinityDomain, Partition, PartitionLimits};
use opencl_cpu::{Affinity, Device, Runtime};

/// The compute units that run the kernels of a context. The default is the whole device, whose
/// OpenCL runtime is loaded on first use.
#[derive(Clone, Default)]
pub(crate) struct Units(Option<Device>);

impl Units {
    /// Returns the runtime's device.
    pub(crate) fn device(&self) -> Result<Device> {
        self.look().map_err(Error::Unsupported)
    }

    pub(crate) fn look(&self) -> std::result::Result<Device, String> {
        match &self.0 {
            Some(part) => Ok(part.clone()),
            None => Ok(Runtime::get()?.device()),
        }
    }

    /// Returns the ways in which the device can be divided, or the reason why it cannot.
    pub(crate) fn partitions(&self) -> std::result::Result<PartitionLimits, String> {
        let device = self.look()?;
        let limits = device.partitions();
        let limits = limits.map_err(|failure| failure.to_string())?;
        let units = device.compute_units();
        Ok(PartitionLimits {
            parts: limits.parts,
            compute_units: units.map_err(|failure| failure.to_string())?,
            equally: limits.equally,
            by_counts: limits.by_counts,
            by_affinity: limits.by_affinity.into_iter().map(domain).collect(),
        })
    }

    /// Divides the device, and returns each part with its number of compute units.
    pub(crate) fn partition(&self, how: &Partition) -> Result<Vec<(Self, u32)>> {
        let whole = self.device()?;
        let how = match how {
            // Intel's runtime creates a single part only when it divides by counts.
            Partition::Equally(units)
                if whole
                    .compute_units()
                    .is_ok_and(|all| all / (*units).max(1) == 1) =>
            {
                opencl_cpu::Partition::ByCounts(vec![*units])
            }
            Partition::Equally(units) => opencl_cpu::Partition::Equally(*units),
            Partition::ByCounts(counts) => opencl_cpu::Partition::ByCounts(counts.clone()),
            Partition::ByAffinity(domain) => opencl_cpu::Partition::ByAffinity(affinity(*domain)),
        };
        let parts = whole.partition(&how).map_err(error)?;
        let sized = parts.into_iter().map(|part| {
            let units = part.compute_units().map_err(error)?;
            Ok((Self(Some(part)), units))
        });
        sized.collect()
    }

    /// Returns the resource that the compute units of this part share, if the device was divided by
    /// affinity.
    pub(crate) fn affinity(&self) -> Option<AffinityDomain> {
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
