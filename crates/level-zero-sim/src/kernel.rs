//! Kernels and their launches.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use level_zero_sys::*;
use opencl_cpu::{Argument, Parameter, Shape};

use crate::call::{
    Few, INVALID_ARGUMENT, INVALID_ENUMERATION, INVALID_GLOBAL_WIDTH_DIMENSION,
    INVALID_GROUP_SIZE_DIMENSION, INVALID_KERNEL_ARGUMENT_INDEX, INVALID_KERNEL_ARGUMENT_SIZE,
    INVALID_KERNEL_NAME, INVALID_NULL_POINTER, OUT_OF_DEVICE_MEMORY, Result, UNKNOWN, entry,
    present, read, read_all, write,
};
use crate::context::Context;
use crate::device_info::{ARGUMENT_BYTES, GROUP_SIZE, LOCAL_MEMORY};
use crate::handles::{self, Object};
use crate::image::{Image, Sampler};
use crate::ledger::Resource;
use crate::list::List;
use crate::module::Module;
use crate::runtime_queue;
use crate::space::{self, Region, Use, UseCount};
use crate::work::Work;

/// Maximum number of work-items in a suggested group.
const GOOD_GROUP: u32 = 256;
/// Maximum number of groups in a cooperative launch. The OpenCL runtime finishes one group before
/// it begins the next, so no group can wait for another.
const COOPERATIVE_GROUPS: u32 = 1;

pub(crate) struct Kernel {
    module: Arc<Module>,
    _module_use: Use,
    kernel: opencl_cpu::Kernel,
    parameters: Vec<Parameter>,
    state: Mutex<State>,
    pub(crate) use_count: UseCount,
}

/// The state that a launch copies when it is appended.
struct State {
    arguments: Vec<Option<Given>>,
    group: Option<[u32; 3]>,
    offset: [u32; 3],
}

/// An argument that was set.
#[derive(Clone)]
enum Given {
    Value(Few<u8>),
    Address(usize),
    Local(usize),
    /// An image, and the OpenCL runtime's handle of it.
    Image(Arc<Image>, [u8; size_of::<usize>()]),
    /// A sampler, and the OpenCL runtime's handle of it.
    Sampler(Arc<Sampler>, [u8; size_of::<usize>()]),
}

impl Given {
    /// Returns the argument in the OpenCL runtime's form.
    fn argument(&self) -> Argument<'_> {
        match self {
            Self::Value(bytes) => Argument::Value(bytes),
            Self::Address(address) => Argument::Address(*address),
            Self::Local(size) => Argument::Local(*size),
            Self::Image(_, handle) | Self::Sampler(_, handle) => Argument::Value(handle),
        }
    }
}

impl Object for Kernel {
    const NAME: &'static str = "kernel";

    fn resource(&self) -> Resource {
        Resource::Kernel
    }

    fn context(&self) -> Option<&Arc<Context>> {
        self.module.context()
    }
}

impl Kernel {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the group size that the source requires, if it requires one.
    fn required(&self) -> Option<[u32; 3]> {
        let required = self.kernel.info().required_size;
        (required != [0; 3]).then(|| required.map(|size| size as u32))
    }

    /// Returns the maximum number of work-items of a group.
    fn group_items(&self) -> u32 {
        GROUP_SIZE.min(u32::try_from(self.kernel.info().group_items).unwrap_or(u32::MAX))
    }

    /// Returns an error if the object belongs to another context.
    fn check_context(&self, object: &impl Object) -> Result<()> {
        let contexts = object.context().zip(self.module.context());
        match contexts.is_some_and(|(theirs, own)| Arc::ptr_eq(theirs, own)) {
            true => Ok(()),
            false => Err(INVALID_ARGUMENT),
        }
    }

    /// Reads an argument in the form that its parameter requires. `value` may be null.
    fn read(&self, parameter: Parameter, size: usize, value: *const c_void) -> Result<Given> {
        let is_null = value.is_null();
        match parameter {
            Parameter::Value if size > ARGUMENT_BYTES as usize => Err(INVALID_KERNEL_ARGUMENT_SIZE),
            Parameter::Local if size == 0 => Err(INVALID_KERNEL_ARGUMENT_SIZE),
            Parameter::Local if !is_null => Err(INVALID_ARGUMENT),
            Parameter::Local => Ok(Given::Local(size)),
            Parameter::Address if size != size_of::<usize>() => Err(INVALID_KERNEL_ARGUMENT_SIZE),
            Parameter::Address if is_null => Ok(Given::Address(0)),
            Parameter::Address => {
                // SAFETY: the contract of entry points: `value` points to as many bytes as an
                // address has.
                let address = unsafe { value.cast::<usize>().read_unaligned() };
                // Other addresses are refused, as on a device without shared system memory.
                let is_known = address == 0
                    || space::find(address).is_some()
                    || self.module.has_variable_at(address);
                match is_known {
                    true => Ok(Given::Address(address)),
                    false => Err(INVALID_ARGUMENT),
                }
            }
            Parameter::Image | Parameter::Sampler if size != size_of::<usize>() => {
                Err(INVALID_KERNEL_ARGUMENT_SIZE)
            }
            Parameter::Image => {
                let image = handles::get::<Image, _>(read(value.cast::<ze_image_handle_t>())?)?;
                self.check_context(&*image)?;
                let handle = image.object.raw().to_ne_bytes();
                Ok(Given::Image(image, handle))
            }
            Parameter::Sampler => {
                let sampler = read(value.cast::<ze_sampler_handle_t>())?;
                let sampler = handles::get::<Sampler, _>(sampler)?;
                self.check_context(&*sampler)?;
                let handle = sampler.object.raw().to_ne_bytes();
                Ok(Given::Sampler(sampler, handle))
            }
            Parameter::Value if is_null => Ok(Given::Value(Few::from_elem(0, size))),
            Parameter::Value => Ok(Given::Value(read_all(value.cast(), size as u32)?)),
        }
    }

    /// Creates a launch of this many groups with the current arguments, and returns it with the
    /// memory that it uses.
    fn launch(self: &Arc<Self>, groups: [u32; 3]) -> Result<(Launch, Few<Arc<Region>>)> {
        let state = self.state();
        let arguments = state.arguments.iter().cloned();
        let arguments = arguments
            .collect::<Option<Vec<_>>>()
            .ok_or(INVALID_ARGUMENT)?;
        let group = state.group.ok_or(INVALID_GROUP_SIZE_DIMENSION)?;
        let offset = state.offset.map(|number| number as usize);
        drop(state);
        let (mut local, mut regions) = (self.kernel.info().local_memory, Few::new());
        for argument in &arguments {
            match argument {
                Given::Local(size) => local = local.saturating_add(*size as u64),
                Given::Address(address) => regions.extend(space::find(*address)),
                Given::Value(_) | Given::Image(..) | Given::Sampler(..) => {}
            }
        }
        if local > u64::from(LOCAL_MEMORY) {
            return Err(OUT_OF_DEVICE_MEMORY);
        }
        let all = [0, 1, 2].map(|index| groups[index] as usize * group[index] as usize);
        let launch = Launch {
            kernel: Arc::clone(self),
            arguments,
            shape: Shape {
                offset,
                global: all,
                local: Some(group.map(|size| size as usize)),
            },
        };
        Ok((launch, regions))
    }
}

/// A launch, with the arguments that were set when it was appended.
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    arguments: Vec<Given>,
    shape: Shape,
}

impl Launch {
    /// Runs the kernel and waits for it. Returns `false` if the OpenCL runtime refused it.
    pub(crate) fn run(&self) -> bool {
        if self.shape.global.contains(&0) {
            return true;
        }
        let kernel = &self.kernel.kernel;
        runtime_queue::run(kernel.runtime(), |queue| {
            let arguments = self.arguments.iter().map(Given::argument);
            // SAFETY: the program that appended the launch guarantees that the kernel's accesses
            // are sound. The command keeps the driver's memory and the objects among the arguments
            // alive.
            unsafe { queue.launch(kernel, &self.shape, arguments) }
        })
    }

    /// Marks the kernel, its images and its samplers as used while the result lives.
    pub(crate) fn uses(&self) -> Few<Use> {
        let objects = self.arguments.iter().filter_map(|argument| match argument {
            Given::Image(image, _) => Some(image.use_count.take()),
            Given::Sampler(sampler, _) => Some(sampler.use_count.take()),
            Given::Value(_) | Given::Address(_) | Given::Local(_) => None,
        });
        objects.chain([self.kernel.use_count.take()]).collect()
    }
}

fn append(
    list: ze_command_list_handle_t,
    kernel: ze_kernel_handle_t,
    groups: *const ze_group_count_t,
    most: u32,
    signal: ze_event_handle_t,
    waits: (u32, *mut ze_event_handle_t),
) -> Result<()> {
    let list = handles::get::<List, _>(list)?;
    let kernel = handles::get::<Kernel, _>(kernel)?;
    let groups = read(groups)?;
    let groups = [groups.groupCountX, groups.groupCountY, groups.groupCountZ];
    let all = groups.into_iter().try_fold(1_u32, u32::checked_mul);
    if all.is_none_or(|all| all > most) || !list.computes_on(&kernel.module.device) {
        return Err(INVALID_ARGUMENT);
    }
    let (launch, regions) = kernel.launch(groups)?;
    list.append(Work::Launch(Arc::new(launch)), regions, signal, waits)
}

/// Returns the largest number up to `most` that divides `number`.
fn divisor(number: u32, most: u32) -> u32 {
    let mut sizes = (1..=most.min(number)).rev();
    sizes.find(|size| number.is_multiple_of(*size)).unwrap_or(1)
}

/// Fills the structures that are chained to a kernel's properties. Unknown structures are skipped.
fn fill_chain(kernel: &Kernel, first: *mut c_void) -> Result<()> {
    let mut next = first.cast::<ze_base_properties_t>();
    while !next.is_null() {
        let base = read(next.cast_const())?;
        match base.stype {
            ze_structure_type_t::ZE_STRUCTURE_TYPE_KERNEL_PREFERRED_GROUP_SIZE_PROPERTIES => {
                let place = next.cast::<ze_kernel_preferred_group_size_properties_t>();
                let mut value = read(place.cast_const())?;
                value.preferredMultiple = kernel.kernel.info().size_multiple as u32;
                write(place, value)?;
            }
            ze_structure_type_t::ZE_STRUCTURE_TYPE_KERNEL_MAX_GROUP_SIZE_EXT_PROPERTIES => {
                let place = next.cast::<ze_kernel_max_group_size_properties_ext_t>();
                let mut value = read(place.cast_const())?;
                value.maxGroupSize = kernel.group_items();
                write(place, value)?;
            }
            _ => {}
        }
        next = base.pNext.cast();
    }
    Ok(())
}

entry! {
    fn zeKernelCreate(
        module: ze_module_handle_t,
        desc: *const ze_kernel_desc_t,
        kernel: *mut ze_kernel_handle_t,
    ) {
        let module = handles::get::<Module, _>(module)?;
        let desc = read(desc)?;
        present(kernel)?;
        if desc.flags & !(ZE_KERNEL_FLAG_FORCE_RESIDENCY | ZE_KERNEL_FLAG_EXPLICIT_RESIDENCY) != 0 {
            return Err(INVALID_ENUMERATION);
        }
        if desc.pKernelName.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        // SAFETY: the contract of entry points: the string ends with a zero.
        let name = unsafe { CStr::from_ptr(desc.pKernelName) };
        let found = module.program.kernel(name).map_err(|failure| match failure.is_unknown_name() {
            true => INVALID_KERNEL_NAME,
            false => UNKNOWN,
        })?;
        let count = found.info().parameters;
        let created = Kernel {
            _module_use: module.use_count.take(),
            parameters: (0..count).filter_map(|index| found.parameter(index)).collect(),
            state: Mutex::new(State {
                arguments: vec![None; count],
                group: None,
                offset: [0; 3],
            }),
            kernel: found,
            use_count: UseCount::default(),
            module,
        };
        created.state().group = created.required();
        write(kernel, handles::create(Arc::new(created))?)
    }

    fn zeKernelDestroy(kernel: ze_kernel_handle_t) {
        let kernel = handles::take::<Kernel, _>(kernel, |_| Ok(()))?;
        kernel.use_count.check("the kernel");
        Ok(())
    }

    fn zeKernelSetGroupSize(kernel: ze_kernel_handle_t, x: u32, y: u32, z: u32) {
        let kernel = handles::get::<Kernel, _>(kernel)?;
        let size = [x, y, z];
        if size.contains(&0) {
            return Err(INVALID_ARGUMENT);
        }
        let items = size.into_iter().try_fold(1_u32, u32::checked_mul);
        let is_allowed = items.is_some_and(|items| items <= kernel.group_items())
            && kernel.required().is_none_or(|required| required == size);
        if !is_allowed {
            return Err(INVALID_GROUP_SIZE_DIMENSION);
        }
        kernel.state().group = Some(size);
        Ok(())
    }

    fn zeKernelSuggestGroupSize(
        kernel: ze_kernel_handle_t,
        all_x: u32,
        all_y: u32,
        all_z: u32,
        x: *mut u32,
        y: *mut u32,
        z: *mut u32,
    ) {
        let kernel = handles::get::<Kernel, _>(kernel)?;
        let all = [all_x, all_y, all_z];
        if all.contains(&0) {
            return Err(INVALID_GLOBAL_WIDTH_DIMENSION);
        }
        let size = kernel.required().unwrap_or_else(|| {
            let mut left = kernel.group_items().min(GOOD_GROUP);
            all.map(|count| {
                let size = divisor(count, left);
                left /= size;
                size
            })
        });
        write(x, size[0])?;
        write(y, size[1])?;
        write(z, size[2])
    }

    fn zeKernelSuggestMaxCooperativeGroupCount(kernel: ze_kernel_handle_t, count: *mut u32) {
        handles::get::<Kernel, _>(kernel)?;
        write(count, COOPERATIVE_GROUPS)
    }

    fn zeKernelSetArgumentValue(
        kernel: ze_kernel_handle_t,
        index: u32,
        size: usize,
        value: *const c_void,
    ) {
        let kernel = handles::get::<Kernel, _>(kernel)?;
        let index = index as usize;
        let parameter = kernel.parameters.get(index).ok_or(INVALID_KERNEL_ARGUMENT_INDEX)?;
        let argument = kernel.read(*parameter, size, value)?;
        if let Given::Value(bytes) = &argument {
            let checked = kernel.kernel.check_argument(index, Argument::Value(bytes));
            checked.map_err(|_| INVALID_KERNEL_ARGUMENT_SIZE)?;
        }
        kernel.state().arguments[index] = Some(argument);
        Ok(())
    }

    /// Accepts the flags, which have no effect because the OpenCL runtime's kernels may follow all
    /// addresses.
    fn zeKernelSetIndirectAccess(
        kernel: ze_kernel_handle_t,
        flags: ze_kernel_indirect_access_flags_t,
    ) {
        handles::get::<Kernel, _>(kernel)?;
        let known = ZE_KERNEL_INDIRECT_ACCESS_FLAG_HOST
            | ZE_KERNEL_INDIRECT_ACCESS_FLAG_DEVICE
            | ZE_KERNEL_INDIRECT_ACCESS_FLAG_SHARED;
        match flags & !known {
            0 => Ok(()),
            _ => Err(INVALID_ENUMERATION),
        }
    }

    fn zeKernelGetProperties(
        kernel: ze_kernel_handle_t,
        properties: *mut ze_kernel_properties_t,
    ) {
        let kernel = handles::get::<Kernel, _>(kernel)?;
        let mut value = read(properties.cast_const())?;
        let info = kernel.kernel.info();
        let required = kernel.required().unwrap_or_default();
        value.numKernelArgs = info.parameters as u32;
        value.requiredGroupSizeX = required[0];
        value.requiredGroupSizeY = required[1];
        value.requiredGroupSizeZ = required[2];
        value.requiredNumSubGroups = 0;
        value.requiredSubgroupSize = info.required_subgroup_size as u32;
        value.maxSubgroupSize = info.subgroup_size as u32;
        value.maxNumSubgroups = kernel.group_items() / value.maxSubgroupSize.max(1);
        value.localMemSize = u32::try_from(info.local_memory).unwrap_or(u32::MAX);
        value.privateMemSize = u32::try_from(info.private_memory).unwrap_or(u32::MAX);
        value.spillMemSize = 0;
        value.uuid = ze_kernel_uuid_t { kid: [0; 16], mid: [0; 16] };
        write(properties, value)?;
        fill_chain(&kernel, value.pNext)
    }

    fn zeKernelSetGlobalOffsetExp(kernel: ze_kernel_handle_t, x: u32, y: u32, z: u32) {
        let kernel = handles::get::<Kernel, _>(kernel)?;
        kernel.state().offset = [x, y, z];
        Ok(())
    }

    fn zeCommandListAppendLaunchKernel(
        list: ze_command_list_handle_t,
        kernel: ze_kernel_handle_t,
        groups: *const ze_group_count_t,
        signal: ze_event_handle_t,
        count: u32,
        waits: *mut ze_event_handle_t,
    ) {
        append(list, kernel, groups, u32::MAX, signal, (count, waits))
    }

    fn zeCommandListAppendLaunchCooperativeKernel(
        list: ze_command_list_handle_t,
        kernel: ze_kernel_handle_t,
        groups: *const ze_group_count_t,
        signal: ze_event_handle_t,
        count: u32,
        waits: *mut ze_event_handle_t,
    ) {
        append(list, kernel, groups, COOPERATIVE_GROUPS, signal, (count, waits))
    }
}
