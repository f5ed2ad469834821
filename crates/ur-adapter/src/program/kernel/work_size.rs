//! The sizes of launches, in work-items and in work-groups. UR and the devices order the dimensions
//! in the same way. Dimensions that a launch does not have are 1.

use crate::abi::failure::{Failure, Result};
use crate::program::KernelMetadata;
use crosshandle::kernel::KernelLimits;
use unified_runtime_sys::ur_result_t;

/// The limits for the work-groups of a kernel on one device.
pub(crate) struct GroupLimits {
    /// The limits of the device.
    pub(crate) device: KernelLimits,
    /// The maximum number of work-items in a group of this kernel.
    pub(crate) items: usize,
    /// The compiler's metadata for the kernel.
    pub(crate) metadata: KernelMetadata,
}

/// Reads a size in one to three dimensions from the caller's array. The remaining dimensions become
/// `rest`. Returns `None` if `first` is null.
///
/// # Errors
/// Returns `INVALID_WORK_DIMENSION` if `dimensions` is not 1, 2 or 3.
///
/// # Safety
/// The caller must ensure that `first` is null or points to `dimensions` readable elements.
pub(crate) unsafe fn read(
    dimensions: u32,
    first: *const usize,
    rest: usize,
) -> Result<Option<[usize; 3]>> {
    check_dimensions(dimensions)?;
    if first.is_null() {
        return Ok(None);
    }
    let mut sizes = [rest; 3];
    for (index, size) in sizes.iter_mut().take(dimensions as usize).enumerate() {
        // SAFETY: the caller ensures that a non-null `first` points to `dimensions` readable
        // elements.
        *size = unsafe { first.add(index).read() };
    }
    Ok(Some(sizes))
}

/// Checks the number of dimensions.
///
/// # Errors
/// Returns `INVALID_WORK_DIMENSION` if the number is not 1, 2 or 3.
fn check_dimensions(dimensions: u32) -> Result<()> {
    if (1..=3).contains(&dimensions) {
        return Ok(());
    }
    Err(Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_WORK_DIMENSION,
        "the number of dimensions must be 1 to 3",
    ))
}

fn wrong_group(message: String) -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_WORK_GROUP_SIZE,
        message,
    )
}

impl GroupLimits {
    fn device_block(&self) -> [usize; 3] {
        self.device.block.map(|size| size as usize)
    }

    /// Returns the maximum number of work-items in each dimension, and in a whole work-group.
    fn largest(&self) -> ([usize; 3], usize) {
        let mut sizes = self.device_block();
        if let Some(largest) = self.metadata.largest_size {
            for (size, largest) in sizes.iter_mut().zip(largest) {
                *size = (*size).min(largest.max(1));
            }
        }
        let linear = self.metadata.most_items.filter(|most| *most != 0);
        (sizes, self.items.min(linear.unwrap_or(usize::MAX)))
    }

    /// Chooses a work-group size that divides the work-items evenly.
    ///
    /// If the kernel requires a size, that size is returned. Otherwise the group has at most
    /// `wanted` work-items. The first dimension receives as many of them as possible, then the
    /// second.
    pub(crate) fn choose(&self, global: [usize; 3], wanted: usize) -> [usize; 3] {
        if let Some(required) = self.metadata.required_size {
            return required;
        }
        let (sizes, items) = self.largest();
        let mut left = items.min(wanted).max(1);
        let mut local = [1; 3];
        for ((local, global), size) in local.iter_mut().zip(global).zip(sizes) {
            *local = largest_divisor(global, left.min(size));
            left /= *local;
        }
        local
    }

    /// Checks that the kernel and the device support a work-group size.
    ///
    /// # Errors
    /// Returns `INVALID_WORK_GROUP_SIZE` if the size is not supported. Returns `OUT_OF_RESOURCES`
    /// if only this kernel's use of resources rules the size out.
    pub(crate) fn check(&self, local: [usize; 3], global: [usize; 3]) -> Result<()> {
        let mut pairs = global.into_iter().zip(local);
        if !pairs.all(|(global, local)| local != 0 && global % local == 0) {
            return Err(wrong_group(format!(
                "{global:?} work-items are not made of groups of {local:?}"
            )));
        }
        if let Some(required) = self.metadata.required_size
            && required != local
        {
            return Err(wrong_group(format!(
                "the kernel requires groups of {required:?} work-items, not {local:?}"
            )));
        }
        let (sizes, items) = self.largest();
        let count = local
            .iter()
            .try_fold(1_usize, |all, size| all.checked_mul(*size));
        let exceeds = local.iter().zip(sizes).any(|(local, size)| *local > size);
        match count {
            Some(count) if count <= items && !exceeds => Ok(()),
            Some(count)
                if !exceeds
                    && count <= self.device.block_threads as usize
                    && self
                        .metadata
                        .most_items
                        .is_none_or(|most| most == 0 || count <= most) =>
            {
                Err(Failure::new(
                    ur_result_t::UR_RESULT_ERROR_OUT_OF_RESOURCES,
                    format!(
                        "groups of {count} work-items need more registers than there are; this \
                         kernel can have {items}"
                    ),
                ))
            }
            _ => Err(wrong_group(format!(
                "groups of {local:?} work-items are larger than {sizes:?}, or than {items} in total"
            ))),
        }
    }

    /// Returns the number of work-groups in each dimension.
    ///
    /// # Errors
    /// Returns `OUT_OF_RESOURCES` if a number exceeds the limit of the device.
    pub(crate) fn groups(&self, local: [usize; 3], global: [usize; 3]) -> Result<[u32; 3]> {
        let mut groups = [0; 3];
        for (index, place) in groups.iter_mut().enumerate() {
            let count = global[index] / local[index].max(1);
            *place = u32::try_from(count)
                .ok()
                .filter(|count| *count <= self.device.grid[index])
                .ok_or_else(|| {
                    Failure::new(
                        ur_result_t::UR_RESULT_ERROR_OUT_OF_RESOURCES,
                        format!(
                            "{count} groups in dimension {index} exceed the device's limit of {}",
                            self.device.grid[index]
                        ),
                    )
                })?;
        }
        Ok(groups)
    }
}

/// Returns the largest divisor of `number` that is at most `limit`.
fn largest_divisor(number: usize, limit: usize) -> usize {
    let limit = limit.min(number).max(1);
    (1..=limit)
        .rev()
        .find(|size| number.is_multiple_of(*size))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(metadata: KernelMetadata) -> GroupLimits {
        let device = KernelLimits {
            block_threads: 1024,
            block: [1024, 1024, 64],
            grid: [u32::MAX, 65535, 65535],
            ..Default::default()
        };
        GroupLimits {
            device,
            items: 512,
            metadata,
        }
    }

    #[test]
    fn divisors_are_the_largest() {
        assert_eq!(largest_divisor(1000, 256), 250);
        assert_eq!(largest_divisor(1024, 256), 256);
        assert_eq!(largest_divisor(7, 256), 7);
        assert_eq!(largest_divisor(1_000_003, 1024), 1);
        assert_eq!(largest_divisor(0, 16), 1);
    }

    #[test]
    fn there_are_one_to_three_dimensions() {
        let sizes = [4_usize, 5, 6];
        // SAFETY: each pointer is null or points to three elements, and `read` rejects more than
        // three dimensions before it reads.
        unsafe {
            assert_eq!(read(2, sizes.as_ptr(), 1).unwrap(), Some([4, 5, 1]));
            assert_eq!(read(3, std::ptr::null(), 1).unwrap(), None);
            assert!(read(0, sizes.as_ptr(), 1).is_err());
            assert!(read(4, sizes.as_ptr(), 1).is_err());
        }
    }

    #[test]
    fn chosen_groups_are_allowed() {
        let limits = limits(KernelMetadata::default());
        for global in [
            [1, 1, 1],
            [1000, 1, 1],
            [640, 480, 3],
            [1, 7, 64],
            [4096; 3],
        ] {
            let local = limits.choose(global, 256);
            assert!(limits.check(local, global).is_ok(), "{global:?} {local:?}");
        }
        assert_eq!(limits.choose([4096, 4096, 1], 256), [256, 1, 1]);
        assert_eq!(limits.choose([8, 8, 8], 256), [8, 8, 4]);
        assert!(limits.check([3, 1, 1], [10, 1, 1]).is_err());
        assert!(limits.check([0, 1, 1], [10, 1, 1]).is_err());
        assert!(limits.check([513, 1, 1], [513, 1, 1]).is_err());
        assert_eq!(limits.groups([2, 1, 1], [10, 3, 1]).unwrap(), [5, 3, 1]);
        assert!(limits.groups([1, 1, 1], [1, 1 << 20, 1]).is_err());
    }

    #[test]
    fn what_the_compiler_said_counts() {
        let required = limits(KernelMetadata {
            required_size: Some([8, 2, 1]),
            ..KernelMetadata::default()
        });
        let most = limits(KernelMetadata {
            largest_size: Some([16, 16, 1]),
            most_items: Some(64),
            ..KernelMetadata::default()
        });
        assert_eq!(required.choose([16, 16, 1], 256), [8, 2, 1]);
        assert!(required.check([8, 2, 1], [16, 16, 1]).is_ok());
        assert!(required.check([4, 4, 1], [16, 16, 1]).is_err());
        assert_eq!(most.choose([1024, 1024, 1], 256), [16, 4, 1]);
        assert!(most.check([16, 8, 1], [1024, 1024, 1]).is_err());
        assert!(most.check([32, 1, 1], [1024, 1024, 1]).is_err());
    }
}
