//! Launches of kernels.

use super::submission::{Submission, WaitList};
use crate::abi::boundary::{List, MaybeOut, entry_points, not_null};
use crate::abi::chain;
use crate::abi::description;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::program::enter_with_kernels;
use crate::program::kernel::{
    Arguments, Kernel, Packed, pack, pack_whole, read_arguments, read_sizes,
};
use crate::queue::Queue;
use crate::queue::destination::Destination;
use crosshandle::{Command, kernel::LaunchShape};
use unified_runtime_sys::{
    UR_KERNEL_LAUNCH_FLAG_COOPERATIVE, UR_KERNEL_LAUNCH_FLAGS_MASK, ur_command_t,
    ur_event_handle_t, ur_exp_kernel_arg_properties_t, ur_kernel_launch_cluster_property_t,
    ur_kernel_launch_ext_properties_t, ur_kernel_launch_workgroup_property_t, ur_result_t,
    ur_structure_type_t,
};

/// The properties of a launch, apart from its sizes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Properties {
    is_cooperative: bool,
    /// The size of a cluster in the order of SYCL, which is the reverse of the device's order.
    cluster: Option<[u32; 3]>,
    /// The bytes of local memory of a work-group that precede the local memory of arguments.
    local_memory: usize,
}

impl Properties {
    /// Reads a chain of launch properties.
    ///
    /// # Errors
    /// Returns `INVALID_ENUMERATION` for an unknown property.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`chain::each`].
    unsafe fn read(first: *const ur_kernel_launch_ext_properties_t) -> Result<Self> {
        let mut this = Self::default();
        // SAFETY: the caller upholds this function's contract.
        for (stype, place) in unsafe { chain::each(first.cast()) } {
            match stype {
                ur_structure_type_t::UR_STRUCTURE_TYPE_KERNEL_LAUNCH_EXT_PROPERTIES => {
                    // SAFETY: the type determines the structure.
                    let flags =
                        unsafe { (*place.cast::<ur_kernel_launch_ext_properties_t>()).flags };
                    if flags & UR_KERNEL_LAUNCH_FLAGS_MASK != 0 {
                        return Err(Failure::ENUMERATION);
                    }
                    // The other flag only permits an optimization that this adapter does not use.
                    this.is_cooperative |= flags & UR_KERNEL_LAUNCH_FLAG_COOPERATIVE != 0;
                }
                ur_structure_type_t::UR_STRUCTURE_TYPE_KERNEL_LAUNCH_CLUSTER_PROPERTY => {
                    let place = place.cast::<ur_kernel_launch_cluster_property_t>();
                    // SAFETY: the type determines the structure.
                    this.cluster = Some(unsafe { (*place).clusterDim });
                }
                ur_structure_type_t::UR_STRUCTURE_TYPE_KERNEL_LAUNCH_WORKGROUP_PROPERTY => {
                    let place = place.cast::<ur_kernel_launch_workgroup_property_t>();
                    // SAFETY: the type determines the structure.
                    this.local_memory = unsafe { (*place).workgroup_mem_size };
                }
                _ => return Err(Failure::ENUMERATION),
            }
        }
        Ok(this)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) dimensions: u32,
    pub(crate) offset: [usize; 3],
    pub(crate) global: [usize; 3],
    pub(crate) local: Option<[usize; 3]>,
}

impl Sizes {
    /// Reads the sizes of a launch. The offset and the local size may be null.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_POINTER` or `INVALID_WORK_DIMENSION`.
    ///
    /// # Safety
    /// The caller must ensure that each pointer is null or points to `dimensions` numbers.
    pub(crate) unsafe fn read(
        dimensions: u32,
        offset: *const usize,
        global: *const usize,
        local: *const usize,
    ) -> Result<Self> {
        not_null(global)?;
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            Ok(Self {
                dimensions,
                offset: read_sizes(dimensions, offset, 0)?.unwrap_or_default(),
                global: read_sizes(dimensions, global, 1)?.ok_or(Failure::NULL_POINTER)?,
                local: read_sizes(dimensions, local, 1)?,
            })
        }
    }
}

entry_points! {
    in enter_with_kernels;

    pub(super) fn launch(
        queue: Handle<Queue>,
        kernel: Handle<Kernel>,
        dimensions: u32,
        offset: *const usize,
        global: *const usize,
        local: *const usize,
        arguments(argument_count, first_argument): List<ur_exp_kernel_arg_properties_t>,
        properties: *const ur_kernel_launch_ext_properties_t,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        // SAFETY: the caller passes `dimensions` numbers, or null.
        let sizes = unsafe { Sizes::read(dimensions, offset, global, local) }?;
        let submission = Submission::new(queue, waits, event)?;
        // SAFETY: the caller passes a chain of properties and arguments that match their types. It
        // is responsible for the kernel's use of the arguments.
        let command = unsafe {
            let properties = Properties::read(properties)?;
            let arguments = read_arguments(&submission, arguments)?;
            launch_command(&submission, kernel, &sizes, &properties, &arguments)?
        };
        submission.submit(ur_command_t::UR_COMMAND_KERNEL_LAUNCH, command, false)
    }
}

/// Converts an offset to the type that kernels take.
///
/// # Errors
/// Returns `INVALID_VALUE` for an offset that does not fit into 32 bits.
fn narrow(offset: [usize; 3]) -> Result<[u32; 3]> {
    let mut narrow = [0; 3];
    for (narrow, offset) in narrow.iter_mut().zip(offset) {
        *narrow = u32::try_from(offset).map_err(|_| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                format!("an offset of {offset} work-items does not fit into 32 bits"),
            )
        })?;
    }
    Ok(narrow)
}

/// Returns the numbers of work-items for which a group size is chosen.
///
/// With clusters, these are the work-items of one group in each cluster: a group size that divides
/// them results in whole clusters. If the launch cannot be divided into clusters of this size,
/// returns all work-items.
fn items_of_one(global: [usize; 3], cluster: Option<[u32; 3]>) -> [usize; 3] {
    let cluster = cluster.unwrap_or([1; 3]).map(|groups| groups as usize);
    let pairs = || global.into_iter().zip(cluster);
    if !pairs().all(|(items, groups)| groups != 0 && items.is_multiple_of(groups)) {
        return global;
    }
    let mut items = pairs().map(|(items, groups)| items / groups);
    [(); 3].map(|()| items.next().unwrap_or(1))
}

/// Returns the command that launches a kernel.
///
/// # Safety
/// The caller must ensure that running the kernel with these arguments is sound until the command
/// is done.
pub(crate) unsafe fn launch_command(
    destination: &dyn Destination,
    kernel: &Kernel,
    sizes: &Sizes,
    properties: &Properties,
    arguments: &Arguments<'_>,
) -> Result<Command> {
    let device = destination.device();
    if sizes.global.contains(&0) {
        // SYCL programs may launch a kernel without work-items.
        return Ok(Command::marker());
    }
    let function = kernel.on(device)?;
    let limits = kernel.limits(device)?;
    // Sizes are checked before arguments, so that their errors take precedence.
    if let Some(local) = sizes.local {
        limits.check(local, sizes.global)?;
    }
    // A kernel without a variant for offsets does not use the ids of its work-items.
    let (function, offset) = match &function.with_offset {
        Some(with_offset) if sizes.offset != [0; 3] => (with_offset, Some(narrow(sizes.offset)?)),
        _ => (&function.plain, None),
    };
    let takes_local = limits.device.local_arguments;
    let Packed {
        arguments: packed,
        local: local_memory,
    } = match takes_local {
        true => pack_whole(arguments, function.properties().parameter_count)?,
        false => {
            let parameters = function.properties().parameters.as_deref();
            pack(arguments, parameters, offset, properties.local_memory)?
        }
    };
    let most = function.properties().dynamic_shared_memory;
    // The local memory that the launch requests in addition to its arguments. `local_memory`
    // already includes it if arguments are offsets into local memory.
    let beside = if takes_local {
        properties.local_memory
    } else {
        0
    };
    if local_memory > most || beside > most {
        return Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_OUT_OF_RESOURCES,
            format!("{local_memory} bytes of local memory are more than the {most} of a group"),
        ));
    }
    let cluster = properties.cluster.map(|mut cluster| {
        cluster[..sizes.dimensions as usize].reverse();
        cluster
    });
    let local = match sizes.local {
        None if limits.device.block_choice
            && limits.metadata.required_size.is_none()
            && !properties.is_cooperative =>
        {
            None
        }
        None => {
            let items = items_of_one(sizes.global, cluster);
            let local = kernel.suggest(device, items, local_memory)?;
            limits.check(local, sizes.global)?;
            Some(local)
        }
        local => local,
    };
    let mut shape = match local {
        None if !limits.device.holds(sizes.global) => {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_OUT_OF_RESOURCES,
                format!(
                    "{:?} work-items are more than the device runs",
                    sizes.global
                ),
            ));
        }
        None => LaunchShape::threads(sizes.global),
        Some(local) => {
            let groups = limits.groups(local, sizes.global)?;
            LaunchShape::new(groups, local.map(|size| size as u32))
        }
    };
    shape = match takes_local {
        true => shape.shared_memory(properties.local_memory),
        false => shape.shared_memory(local_memory),
    };
    if description::get().has_narrow_offsets {
        narrow(sizes.offset)?;
    }
    if limits.device.offsets {
        shape = shape.offset(sizes.offset);
    }
    shape = shape.cooperative(properties.is_cooperative);
    if let Some(cluster) = cluster {
        shape = shape.cluster(cluster);
    }
    // SAFETY: the caller upholds this function's contract. If the driver reports the parameters,
    // the arguments match them.
    let command = unsafe { Command::launch(function, shape, packed) };
    if let Err(crosshandle::Error::InvalidArgument(_)) = &command
        && let Some(arguments) = kernel.cut_off(arguments)
    {
        // SAFETY: the caller upholds this function's contract. The kernel takes only this many
        // arguments.
        return unsafe { launch_command(destination, kernel, sizes, properties, &arguments) };
    }
    command.map_err(|error| {
        let result = match error {
            // The driver checks arguments last.
            crosshandle::Error::InvalidArgument(_) if takes_local => {
                ur_result_t::UR_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE
            }
            // Sizes and arguments were checked above, so a launch property is wrong.
            _ => ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
        };
        Failure::from(error).with_result(result)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_groups_make_whole_clusters() {
        assert_eq!(items_of_one([32, 4, 1], None), [32, 4, 1]);
        assert_eq!(items_of_one([32, 4, 1], Some([16, 2, 1])), [2, 2, 1]);
        // The driver refuses these cluster sizes.
        for cluster in [[3, 1, 1], [0, 1, 1], [64, 1, 1]] {
            assert_eq!(items_of_one([32, 4, 1], Some(cluster)), [32, 4, 1]);
        }
    }
}
