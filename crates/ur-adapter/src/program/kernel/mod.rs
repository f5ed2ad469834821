//! Kernels: functions in programs that devices can launch.

mod arguments;
mod info;
mod suggest;
mod work_size;

pub(crate) use arguments::{Argument, Arguments, Packed, pack, pack_whole, read as read_arguments};
pub(crate) use work_size::{GroupLimits, read as read_sizes};

use crate::abi::boundary::{MaybeIn, Out, Text, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::native::{of_driver, ownership};
use crate::abi::object::{Handle, MaybeHandle, Object, Ref, Shared, release, retain};
use crate::abi::stub::Stub;
use crate::abi::unsupported::SpecializationConstants;
use crate::context::Context;
use crate::discovery::Device;
use crate::program::{KernelMetadata, Program, enter_with_kernels, not_built, spirv};
use crosshandle::Error;
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_kernel_dditable_t, ur_kernel_exec_info_properties_t, ur_kernel_exec_info_t,
    ur_kernel_handle_t, ur_kernel_handle_t_, ur_kernel_native_properties_t, ur_native_handle_t,
    ur_result_t,
};

/// The suffix in the name of a kernel variant that takes launch offsets. SYCL compilers generate
/// these variants. A variant takes three additional 32-bit arguments, one for each dimension.
const WITH_OFFSET: &str = "_with_offset";

/// A UR kernel handle. The kernel is available on all devices for which its program was built.
pub(crate) struct Kernel {
    program: Ref<Program>,
    name: String,
    metadata: KernelMetadata,
    functions: Vec<Function>,
}

/// A kernel on one device.
pub(crate) struct Function {
    device: Ref<Device>,
    pub(crate) plain: crosshandle::kernel::Kernel,
    pub(crate) with_offset: Option<crosshandle::kernel::Kernel>,
}

impl Object for Kernel {
    type Opaque = ur_kernel_handle_t_;
}

impl Kernel {
    /// Looks up a kernel by its name in a built program.
    ///
    /// # Errors
    /// Returns `INVALID_PROGRAM_EXECUTABLE` if the program is not built. Returns
    /// `INVALID_KERNEL_NAME` if the program has no kernel with this name.
    fn create(program: &Ref<Program>, name: String) -> Result<Self> {
        let loaded = program.loaded();
        if loaded.is_empty() {
            return Err(not_built());
        }
        let functions = loaded.into_iter().map(|(device, program)| {
            let device_takes_offsets = device.inner().kernels()?.offsets;
            Ok(Function {
                device,
                plain: program.kernel(&name)?,
                with_offset: match device_takes_offsets {
                    true => None,
                    false => with_offset(&program, &name)?,
                },
            })
        });
        let functions = functions.collect::<Result<_, Error>>().map_err(|error| {
            let is_unknown = matches!(error, Error::NoSymbol(_));
            let failure = Failure::from(error);
            if is_unknown {
                failure.with_result(ur_result_t::UR_RESULT_ERROR_INVALID_KERNEL_NAME)
            } else {
                failure
            }
        })?;
        Ok(Self {
            program: Ref::clone(program),
            metadata: program.metadata(&name),
            name,
            functions,
        })
    }

    /// Creates a kernel from one of the driver's native kernels.
    fn of_native(
        program: &Ref<Program>,
        device: &Ref<Device>,
        plain: crosshandle::kernel::Kernel,
    ) -> Self {
        Self {
            program: Ref::clone(program),
            name: plain.name().to_owned(),
            metadata: program.metadata(plain.name()),
            functions: vec![Function {
                device: Ref::clone(device),
                plain,
                with_offset: None,
            }],
        }
    }

    /// Returns the program that contains the kernel.
    pub(crate) fn program(&self) -> &Ref<Program> {
        &self.program
    }

    /// Truncates values that are longer than their parameters in the SPIR-V module, because the
    /// kernel does not read the remaining bytes. Returns `None` if no value is too long.
    pub(crate) fn cut_off<'a>(&self, arguments: &Arguments<'a>) -> Option<Arguments<'a>> {
        let sizes = spirv::numbers(self.program.module()?, &self.name);
        let mut arguments = arguments.clone();
        let mut is_cut = false;
        for (argument, size) in arguments.iter_mut().zip(sizes) {
            if let (Some(Argument::Value(value)), Some(size)) = (argument, size)
                && value.len() > size
            {
                value.to_mut().truncate(size);
                is_cut = true;
            }
        }
        is_cut.then_some(arguments)
    }

    /// Returns the kernel on a device.
    ///
    /// # Errors
    /// Returns `INVALID_KERNEL` if the program was not built for the device.
    pub(crate) fn on(&self, device: &Shared<Device>) -> Result<&Function> {
        let mut functions = self.functions.iter();
        functions
            .find(|function| std::ptr::eq(&*function.device, device))
            .ok_or_else(|| {
                Failure::new(
                    ur_result_t::UR_RESULT_ERROR_INVALID_KERNEL,
                    "the kernel's program is not built for this device",
                )
            })
    }

    /// Returns the limits for the kernel's work-groups on a device.
    ///
    /// # Errors
    /// Returns the same errors as [`on`](Self::on).
    pub(crate) fn limits(&self, device: &Shared<Device>) -> Result<GroupLimits> {
        let function = self.on(device)?;
        Ok(GroupLimits {
            device: *device.inner().kernels()?,
            items: function.plain.properties().block_threads as usize,
            metadata: self.metadata.or_of(function.plain.properties()),
        })
    }

    /// Suggests a work-group size for a device. `local_memory` is the size in bytes of the local
    /// memory that each work-group uses.
    pub(crate) fn suggest(
        &self,
        device: &Shared<Device>,
        global: [usize; 3],
        local_memory: usize,
    ) -> Result<[usize; 3]> {
        let wanted = self.on(device)?.plain.suggested_block(local_memory)?;
        Ok(self.limits(device)?.choose(global, wanted as usize))
    }
}

/// Returns the variant of a kernel that takes launch offsets. Returns `None` if the program does
/// not contain one.
fn with_offset(
    program: &crosshandle::kernel::Program,
    name: &str,
) -> Result<Option<crosshandle::kernel::Kernel>, Error> {
    match program.kernel(&format!("{name}{WITH_OFFSET}")) {
        Ok(kernel) => Ok(Some(kernel)),
        Err(Error::NoSymbol(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

entry_points! {
    in enter_with_kernels;

    /// Creates a kernel from a native handle. Arguments that were set on the native kernel are not
    /// used.
    fn create_with_native_handle(
        native: ur_native_handle_t,
        context: Handle<Context>,
        program: MaybeHandle<Program>,
        properties: MaybeIn<ur_kernel_native_properties_t>,
        created: Out<ur_kernel_handle_t>,
    ) {
        if native == 0 {
            return Err(Failure::argument("0 is not the native handle of a kernel"));
        }
        let is_owned = properties.is_some_and(|properties| properties.isNativeHandleOwned != 0);
        let (device, inner) = context.first();
        // SAFETY: the caller guarantees that the native handle is a valid kernel of the driver.
        let adopted = unsafe { crosshandle::kernel::Kernel::adopt(inner, of_driver(native), ownership(is_owned)) }?;
        let (loaded, kernel) = adopted;
        let program = match program {
            Some(program) => program.to_ref(),
            None => Shared::new(Program::of_loaded(context, device, loaded)),
        };
        let kernel = Kernel::of_native(&program, device, kernel);
        created.put(Shared::hand_out(Shared::new(kernel)))
    }

    fn create(program: Handle<Program>, name: Text, created: Out<ur_kernel_handle_t>) {
        let name = name.to_string_lossy().into_owned();
        let kernel = Kernel::create(&program.to_ref(), name)?;
        created.put(Shared::hand_out(Shared::new(kernel)))
    }

    /// Returns the driver's kernel on the first device for which the program was built.
    fn get_native_handle(kernel: Handle<Kernel>, native: Out<ur_native_handle_t>) {
        let function = kernel.functions.first().ok_or_else(not_built)?;
        native.put(function.plain.native().raw())
    }

    /// Accepts hints about the memory and the caches that a kernel uses, and ignores them. Kernels
    /// may access all memory of the device anyway.
    fn set_exec_info(
        kernel: Handle<Kernel>,
        name: ur_kernel_exec_info_t,
        size: usize,
        properties: *const ur_kernel_exec_info_properties_t,
        value: *const c_void,
    ) {
        not_null(value)?;
        match name {
            ur_kernel_exec_info_t::UR_KERNEL_EXEC_INFO_USM_INDIRECT_ACCESS
            | ur_kernel_exec_info_t::UR_KERNEL_EXEC_INFO_USM_PTRS
            | ur_kernel_exec_info_t::UR_KERNEL_EXEC_INFO_CACHE_CONFIG => Ok(()),
            _ => Err(Failure::ENUMERATION),
        }
    }
}

/// The entry points for kernels.
pub(crate) const TABLE: ur_kernel_dditable_t = ur_kernel_dditable_t {
    pfnCreate: Some(create),
    pfnGetInfo: Some(info::get_info),
    pfnGetGroupInfo: Some(info::get_group_info),
    pfnGetSubGroupInfo: Some(info::get_sub_group_info),
    pfnRetain: Some(retain::<Kernel>),
    pfnRelease: Some(release::<Kernel>),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnCreateWithNativeHandle: Some(create_with_native_handle),
    pfnGetSuggestedLocalWorkSize: Some(suggest::local_work_size),
    pfnGetSuggestedLocalWorkSizeWithArgs: Some(suggest::local_work_size_with_args),
    pfnSetExecInfo: Some(set_exec_info),
    pfnSetSpecializationConstants: Stub::<SpecializationConstants>::STUB,
    pfnSuggestMaxCooperativeGroupCount: Some(suggest::max_cooperative_group_count),
};
