//! Ways to divide a device into parts.

use crate::error::{Error, Result};
use std::fmt;

/// A way to divide a device into parts, each with compute units of its own.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Partition {
    /// As many parts as possible, each with this many compute units. The remaining units belong to
    /// no part.
    Equally(u32),
    /// One part for each of these numbers of compute units. The remaining units belong to no part.
    ByCounts(Vec<u32>),
    /// One part for each set of compute units that share a resource.
    ByAffinity(AffinityDomain),
}

/// A resource that compute units share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AffinityDomain {
    /// Memory that is near to the compute units.
    Numa,
    /// A cache of the fourth level.
    L4Cache,
    /// A cache of the third level.
    L3Cache,
    /// A cache of the second level.
    L2Cache,
    /// A cache of the first level.
    L1Cache,
    /// The first resource of this list, from the top, by which the device can be divided.
    NextPartitionable,
}

/// The ways in which a device can be divided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionLimits {
    /// Maximum number of parts, or 0 for a device that cannot be divided further.
    pub parts: u32,
    /// Number of compute units that are divided. This is the number that the kernel runtime uses,
    /// which can differ from [`DeviceInfo::compute_units`](crate::DeviceInfo::compute_units).
    pub compute_units: u32,
    /// Whether the device can be divided [equally](Partition::Equally).
    pub equally: bool,
    /// Whether the device can be divided [by counts](Partition::ByCounts).
    pub by_counts: bool,
    /// The resources [by which](Partition::ByAffinity) the device can be divided.
    pub by_affinity: Vec<AffinityDomain>,
}

impl Partition {
    /// Rejects a partition that a device with these limits does not support.
    pub fn check(&self, limits: &PartitionLimits) -> Result<()> {
        let units = limits.compute_units;
        let can = match self {
            Self::Equally(_) => limits.equally,
            Self::ByCounts(_) => limits.by_counts,
            Self::ByAffinity(domain) => limits.by_affinity.contains(domain),
        };
        if !can {
            return Err(Error::Unsupported(format!(
                "this device cannot be divided {self}"
            )));
        }
        let counts = match self {
            Self::Equally(count) => std::slice::from_ref(count),
            Self::ByCounts(counts) => counts,
            Self::ByAffinity(_) => return Ok(()),
        };
        if counts.is_empty() || counts.contains(&0) {
            return Err(Error::invalid(
                "there is at least one part, and each has at least one compute unit",
            ));
        }
        let asked: u64 = counts.iter().copied().map(u64::from).sum();
        if asked > units.into() {
            return Err(Error::invalid(format!(
                "parts with {asked} compute units were asked for, but the device has {units}"
            )));
        }
        let parts = match self {
            Self::Equally(count) => u64::from(units / count),
            _ => counts.len() as u64,
        };
        if parts > limits.parts.into() {
            return Err(Error::invalid(format!(
                "{parts} parts were asked for, but the device is divided into {} at most",
                limits.parts
            )));
        }
        Ok(())
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equally(count) => write!(f, "into parts of {count} compute units"),
            Self::ByCounts(counts) => write!(f, "into parts of {counts:?} compute units"),
            Self::ByAffinity(domain) => write!(f, "by {domain:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_limits_allow_passes() {
        let limits = PartitionLimits {
            parts: 3,
            compute_units: 8,
            equally: true,
            by_counts: true,
            by_affinity: vec![AffinityDomain::Numa],
        };
        let check = |partition: &Partition| partition.check(&limits);
        for good in [
            Partition::Equally(8),
            Partition::Equally(3),
            Partition::ByCounts(vec![1, 7]),
            Partition::ByCounts(vec![1]),
            Partition::ByAffinity(AffinityDomain::Numa),
        ] {
            assert!(check(&good).is_ok(), "{good:?}");
        }
        for bad in [
            Partition::Equally(0),
            Partition::Equally(9),
            Partition::Equally(2),
            Partition::ByCounts(vec![]),
            Partition::ByCounts(vec![1, 0]),
            Partition::ByCounts(vec![4, 5]),
            Partition::ByCounts(vec![u32::MAX; 3]),
            Partition::ByCounts(vec![1; 4]),
        ] {
            let refused = check(&bad);
            assert!(
                matches!(refused, Err(Error::InvalidArgument(_))),
                "{bad:?}: {refused:?}"
            );
        }
        let elsewhere = Partition::ByAffinity(AffinityDomain::NextPartitionable);
        assert!(matches!(check(&elsewhere), Err(Error::Unsupported(_))));
        let nothing = PartitionLimits {
            equally: false,
            ..limits.clone()
        };
        let refused = Partition::Equally(1).check(&nothing);
        assert!(matches!(refused, Err(Error::Unsupported(_))));
    }
}
