//! Kernel launches.

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

/// The properties of a launch, except its sizes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Properties {
    is_cooperative: bool,
    /// The size of a cluster in work-groups. The dimensions are in SYCL's order, which is the
    /// reverse of the device's order.
    cluster: Option<[u32; 3]>,
    /// The size in bytes of the local memory that the launch requests in addition to its arguments.
    /// It precedes the local memory of the arguments.
    local_memory: usize,
}

impl Properties {
    /// Reads a chain of launch properties.
    ///
    /// # Errors
    /// Returns `INVALID_ENUMERATION` for an unknown property or an unknown flag.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`chain::each`], and each structure must match its
    /// type.
    unsafe fn read(first: *const ur_kernel_launch_ext_properties_t) -> Result<Self> {
        let mut this = Self::default();
        // SAFETY: the caller upholds this function's contract.
        for (stype, place) in unsafe { chain::each(first.cast()) } {
            match stype {
                ur_structure_type_t::UR_STRUCTURE_TYPE_KERNEL_LAUNCH_EXT_PROPERTIES => {
                    // SAFETY: the caller ensures that each structure in the chain matches its type.
                    let flags =
                        unsafe { (*place.cast::<ur_kernel_launch_ext_properties_t>()).flags };
                    if flags & UR_KERNEL_LAUNCH_FLAGS_MASK != 0 {
                        return Err(Failure::ENUMERATION);
                    }
                    // The only other flag permits an optimization that this adapter does not use.
                    this.is_cooperative |= flags & UR_KERNEL_LAUNCH_FLAG_COOPERATIVE != 0;
                }
                ur_structure_type_t::UR_STRUCTURE_TYPE_KERNEL_LAUNCH_CLUSTER_PROPERTY => {
                    let place = place.cast::<ur_kernel_launch_cluster_property_t>();
                    // SAFETY: the caller ensures that each structure in the chain matches its type.
                    this.cluster = Some(unsafe { (*place).clusterDim });
                }
                ur_structure_type_t::UR_STRUCTURE_TYPE_KERNEL_LAUNCH_WORKGROUP_PROPERTY => {
                    let place = place.cast::<ur_kernel_launch_workgroup_property_t>();
                    // SAFETY: the caller ensures that each structure in the chain matches its type.
                    this.local_memory = unsafe { (*place).workgroup_mem_size };
                }
                _ => return Err(Failure::ENUMERATION),
            }
        }
        Ok(this)
    }
}

/// The sizes of a launch in work-items, and the number of its dimensions.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) dimensions: u32,
    pub(crate) offset: [usize; 3],
    pub(crate) global: [usize; 3],
    pub(crate) local: Option<[usize; 3]>,
}

impl Sizes {
    /// Reads the sizes of a launch. `offset` and `local` may be null.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_POINTER` if `global` is null. Returns `INVALID_WORK_DIMENSION` if
    /// `dimensions` is not 1, 2 or 3.
    ///
    /// # Safety
    /// The caller must ensure that each pointer is null or points to `dimensions` readable
    /// elements.
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
        // SAFETY: each pointer is null or points to `dimensions` elements, as the caller
        // guarantees.
        let sizes = unsafe { Sizes::read(dimensions, offset, global, local) }?;
        let submission = Submission::new(queue, waits, event)?;
        // SAFETY: the caller passes a valid chain of properties, and arguments whose values match
        // their types. It guarantees that the kernel may run with these arguments.
        let command = unsafe {
            let properties = Properties::read(properties)?;
            let arguments = read_arguments(&submission, arguments)?;
            launch_command(&submission, kernel, &sizes, &properties, &arguments)?
        };
        submission.submit(ur_command_t::UR_COMMAND_KERNEL_LAUNCH, command, false)
    }
}

/// Converts a launch offset to 32 bits, which kernels with an offset parameter require.
///
/// # Errors
/// Returns `INVALID_VALUE` if an offset does not fit into 32 bits.
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

/// Returns the work-item counts that the chosen group size must divide.
///
/// If the launch has clusters, each count is divided by the size of the cluster. A group size that
/// divides the results gives a whole number of clusters. If the launch cannot be divided into such
/// clusters, returns all work-items.
fn items_of_one(global: [usize; 3], cluster: Option<[u32; 3]>) -> [usize; 3] {
    let cluster = cluster.unwrap_or([1; 3]).map(|groups| groups as usize);
    let pairs = || global.into_iter().zip(cluster);
    if !pairs().all(|(items, groups)| groups != 0 && items.is_multiple_of(groups)) {
        return global;
    }
    let mut items = pairs().map(|(items, groups)| items / groups);
    [(); 3].map(|()| items.next().unwrap_or(1))
}

/// Creates the command that launches a kernel.
///
/// # Safety
/// The caller must ensure that running the kernel with these arguments is sound until the command
/// is complete.
pub(crate) unsafe fn launch_command(
    destination: &dyn Destination,
    kernel: &Kernel,
    sizes: &Sizes,
    properties: &Properties,
    arguments: &Arguments<'_>,
) -> Result<Command> {
    let device = destination.device();
    if sizes.global.contains(&0) {
        // SYCL programs may launch a kernel with no work-items.
        return Ok(Command::marker());
    }
    let function = kernel.on(device)?;
    let limits = kernel.limits(device)?;
    // Sizes are checked before arguments, so errors in sizes take precedence.
    if let Some(local) = sizes.local {
        limits.check(local, sizes.global)?;
    }
    // A kernel without an offset variant does not read the ids of its work-items, so the offset has
    // no effect.
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
    // The local memory that the launch requests in addition to its arguments. If local arguments
    // are offsets into the local memory, `local_memory` already includes it.
    let beside = if takes_local {
        properties.local_memory
    } else {
        0
    };
    if local_memory > most || beside > most {
        return Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_OUT_OF_RESOURCES,
            format!(
                "{local_memory} bytes of local memory exceed the {most} bytes that a work-group can have"
            ),
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
                    "{:?} work-items exceed the limit of the device",
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
    // SAFETY: the caller upholds this function's contract. If the driver reports the kernel's
    // parameters, `pack` has checked the arguments against them.
    let command = unsafe { Command::launch(function, shape, packed) };
    if let Err(crosshandle::Error::InvalidArgument(_)) = &command
        && let Some(arguments) = kernel.cut_off(arguments)
    {
        // SAFETY: the caller upholds this function's contract. The remaining arguments are those
        // that the kernel takes.
        return unsafe { launch_command(destination, kernel, sizes, properties, &arguments) };
    }
    command.map_err(|error| {
        let result = match error {
            // The driver reports errors in arguments last.
            crosshandle::Error::InvalidArgument(_) if takes_local => {
                ur_result_t::UR_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE
            }
            // Sizes and arguments were checked above, so only a launch property can be wrong.
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
        // Cluster sizes that the driver refuses.
        for cluster in [[3, 1, 1], [0, 1, 1], [64, 1, 1]] {
            assert_eq!(items_of_one([32, 4, 1], Some(cluster)), [32, 4, 1]);
        }
    }
}
