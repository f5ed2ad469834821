//! Kernels on a GPU.

use crate::device::Gpu;
use crate::driver::DriverKernel;
use crosshandle_hal::BackendKernel;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Mutex, MutexGuard};
use crosshandle_types::{ArgumentKind, KernelArguments, KernelProperties};
use level_zero_sys::ze_result_t;
use std::ffi::CStr;
use std::sync::Arc;

/// The number of work-items for which a good group size is requested. It is large, and a multiple
/// of all common sizes.
const MANY_THREADS: u32 = 1 << 20;

/// A kernel of the driver.
pub(super) struct LevelZeroKernel {
    pub(super) gpu: Arc<Gpu>,
    /// Held from the first setting for a launch until the launch is appended, because the driver
    /// reads the settings only then.
    inner: Mutex<ConfiguredKernel>,
    raw: usize,
    name: String,
    properties: KernelProperties,
    /// The kinds and lengths of the arguments that the driver accepted last. Arguments with the
    /// same kinds and lengths are not checked again.
    accepted: Mutex<Vec<(ArgumentKind, usize)>>,
}

/// A kernel with its current settings.
pub(super) struct ConfiguredKernel {
    pub(super) kernel: DriverKernel,
    /// The current global offset.
    pub(super) offset: [u32; 3],
}

impl LevelZeroKernel {
    pub(super) fn new(gpu: &Arc<Gpu>, kernel: DriverKernel, name: &CStr) -> Result<Self> {
        let limits = gpu
            .kernels()
            .map_err(|reason| Error::Unsupported(reason.into()))?;
        let (found, largest, multiple) = kernel.properties()?;
        let required = [
            found.requiredGroupSizeX,
            found.requiredGroupSizeY,
            found.requiredGroupSizeZ,
        ];
        let some = |number: u32| (number != 0).then_some(number);
        let own = found.localMemSize;
        let most = some(largest).unwrap_or(u32::MAX).min(limits.block_threads);
        let properties = KernelProperties {
            shared_memory: own as usize,
            dynamic_shared_memory: limits.shared_memory.saturating_sub(own) as usize,
            local_memory: found.privateMemSize as usize + found.spillMemSize as usize,
            parameter_count: Some(found.numKernelArgs as usize),
            required_block: (!required.contains(&0)).then_some(required),
            subgroup: some(found.maxSubgroupSize),
            required_subgroup: some(found.requiredSubgroupSize),
            block_multiple: some(multiple),
            ..KernelProperties::new(most)
        };
        Ok(Self {
            gpu: Arc::clone(gpu),
            raw: kernel.handle().0.expose_provenance(),
            inner: Mutex::new(ConfiguredKernel {
                kernel,
                offset: [0; 3],
            }),
            name: name.to_string_lossy().into_owned(),
            properties,
            accepted: Mutex::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ConfiguredKernel> {
        self.inner.lock()
    }

    /// Returns the number of groups and the group size for a launch of `threads` work-items. All
    /// groups must have the same size. The driver's suggestion is used if it divides the
    /// work-items. Otherwise the size is the next smaller divisor.
    pub(super) fn groups(
        &self,
        inner: &ConfiguredKernel,
        threads: [usize; 3],
    ) -> Result<([u32; 3], [u32; 3])> {
        let size = match self.properties.required_block {
            Some(required) => required,
            None => match threads.map(u32::try_from) {
                [Ok(x), Ok(y), Ok(z)] => inner.kernel.suggest_group_size([x, y, z])?,
                _ => [self.properties.block_multiple.unwrap_or(1), 1, 1],
            },
        };
        let mut groups = [0; 3];
        let mut sizes = [0; 3];
        for (index, count) in threads.into_iter().enumerate() {
            let size = largest_divisor(count, size[index]);
            sizes[index] = size;
            groups[index] = u32::try_from(count / size as usize).map_err(|_| {
                Error::invalid(format!(
                    "{count} threads in a dimension are too many for groups of {size}"
                ))
            })?;
        }
        Ok((groups, sizes))
    }
}

/// Returns the largest number up to `most` that divides `count`.
fn largest_divisor(count: usize, most: u32) -> u32 {
    let mut sizes = (1..=most.max(1)).rev();
    sizes
        .find(|size| count.is_multiple_of(*size as usize))
        .unwrap_or(1)
}

impl BackendKernel for LevelZeroKernel {
    fn properties(&self) -> &KernelProperties {
        &self.properties
    }

    fn check_arguments(&self, given: &KernelArguments) -> Result<()> {
        // For shared memory, the length does not matter.
        let shape = |(kind, bytes): (ArgumentKind, &[u8])| (kind, bytes.len());
        let mut accepted = self.accepted.lock();
        if given.kinds().map(shape).eq(accepted.iter().copied()) {
            return Ok(());
        }
        let inner = self.lock();
        for (index, argument) in given.kinds().enumerate() {
            // Addresses are checked only with the launch, because memory may be allocated and freed
            // until then.
            let code = inner.kernel.set_argument(index as u32, argument, false);
            if code != ze_result_t::ZE_RESULT_SUCCESS {
                return Err(Error::invalid(format!(
                    "argument {index} does not suit parameter {index} of kernel '{}': \
                     zeKernelSetArgumentValue returns {:#x}",
                    self.name, code.0
                )));
            }
        }
        drop(inner);
        *accepted = given.kinds().map(shape).collect();
        Ok(())
    }

    fn suggest_block(&self, _dynamic_shared: usize, limit: u32) -> Result<u32> {
        let [x, y, z] = self
            .lock()
            .kernel
            .suggest_group_size([MANY_THREADS, 1, 1])?;
        Ok(x.saturating_mul(y).saturating_mul(z).clamp(1, limit.max(1)))
    }

    fn concurrent_blocks(&self, threads: u32, _dynamic_shared: usize, _units: u32) -> Result<u32> {
        let size = self.properties.required_block.unwrap_or([threads, 1, 1]);
        let inner = self.lock();
        inner.kernel.set_group_size(size)?;
        inner.kernel.cooperative_groups()
    }

    fn raw(&self) -> usize {
        self.raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_divide_all_threads() {
        assert_eq!(largest_divisor(1000, 256), 250);
        assert_eq!(largest_divisor(1 << 40, 256), 256);
        assert_eq!(largest_divisor(7, 0), 1);
        assert_eq!(largest_divisor(1_000_003, 1024), 1);
    }
}
