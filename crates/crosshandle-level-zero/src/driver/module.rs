//! Modules and their kernels.

use super::{
    DeviceHandle, DriverContext, Handle, KernelHandle, ModuleHandle, check, description, list_of,
    name_of,
};
use crosshandle_handle::BackendKind;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{ArgumentKind, number};
use level_zero_sys::{
    ZE_KERNEL_INDIRECT_ACCESS_FLAG_DEVICE, ZE_KERNEL_INDIRECT_ACCESS_FLAG_HOST,
    ZE_KERNEL_INDIRECT_ACCESS_FLAG_SHARED, ze_kernel_properties_t, ze_module_build_log_handle_t,
    ze_module_constants_t, ze_module_desc_t, ze_module_format_t, ze_result_t,
};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

/// The maximum size of a specialization constant, in bytes. Drivers read as many bytes as the
/// constant's type has.
const CONSTANT_BYTES: usize = 8;

/// The format of a program image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModuleFormat {
    SpirV,
    Native,
}

/// A program image with its compiler flags and specialization constants.
pub(crate) struct Input<'a> {
    pub bytes: &'a [u8],
    pub flags: CString,
    pub constants: &'a [(u32, Vec<u8>)],
}

/// The values of specialization constants, in the form that the driver takes.
struct Constants {
    numbers: Vec<u32>,
    _values: Vec<[u8; CONSTANT_BYTES]>,
    places: Vec<*const c_void>,
}

impl Constants {
    fn new(constants: &[(u32, Vec<u8>)]) -> Self {
        let padded = |(_, value): &(u32, Vec<u8>)| {
            let mut padded = [0; CONSTANT_BYTES];
            let len = value.len().min(CONSTANT_BYTES);
            padded[..len].copy_from_slice(&value[..len]);
            padded
        };
        let values: Vec<_> = constants.iter().map(padded).collect();
        Self {
            numbers: constants.iter().map(|(number, _)| *number).collect(),
            places: values.iter().map(|value| value.as_ptr().cast()).collect(),
            _values: values,
        }
    }

    fn description(&mut self) -> ze_module_constants_t {
        ze_module_constants_t {
            numConstants: self.numbers.len() as u32,
            pConstantIds: self.numbers.as_ptr(),
            pConstantValues: self.places.as_mut_ptr(),
        }
    }
}

/// A program on a device.
pub(crate) struct Module {
    context: Arc<DriverContext>,
    handle: ModuleHandle,
    /// Whether the module is destroyed with this value.
    is_ours: bool,
}

impl Module {
    /// Compiles images, links them if there are several, and returns the module with the compiler's
    /// output.
    ///
    /// # Safety
    /// The images are valid, because drivers trust their contents.
    pub(crate) unsafe fn create(
        context: &Arc<DriverContext>,
        device: DeviceHandle,
        format: ModuleFormat,
        inputs: &[Input<'_>],
    ) -> Result<(Self, String)> {
        let mut constants: Vec<_> = inputs
            .iter()
            .map(|one| Constants::new(one.constants))
            .collect();
        let constants: Vec<_> = constants.iter_mut().map(Constants::description).collect();
        let mut desc = description!(ze_module_desc_t, ZE_STRUCTURE_TYPE_MODULE_DESC);
        desc.format = match format {
            ModuleFormat::SpirV => ze_module_format_t::ZE_MODULE_FORMAT_IL_SPIRV,
            ModuleFormat::Native => ze_module_format_t::ZE_MODULE_FORMAT_NATIVE,
        };
        if let ([input], [constants]) = (inputs, &constants[..]) {
            desc.inputSize = input.bytes.len();
            desc.pInputModule = input.bytes.as_ptr();
            desc.pBuildFlags = input.flags.as_ptr();
            desc.pConstants = match constants.numConstants {
                0 => ptr::null(),
                _ => constants,
            };
            // SAFETY: promised by the caller. Everything that the description points to is live
            // during the call.
            return unsafe { Self::create_as(context, device, &desc) };
        }
        let sizes: Vec<_> = inputs.iter().map(|input| input.bytes.len()).collect();
        let mut modules: Vec<_> = inputs.iter().map(|input| input.bytes.as_ptr()).collect();
        let mut flags: Vec<_> = inputs.iter().map(|input| input.flags.as_ptr()).collect();
        let mut constants: Vec<_> = constants.iter().map(ptr::from_ref).collect();
        let mut program = description!(
            ze_module_program_exp_desc_t,
            ZE_STRUCTURE_TYPE_MODULE_PROGRAM_EXP_DESC
        );
        program.count = inputs.len() as u32;
        program.inputSizes = sizes.as_ptr();
        program.pInputModules = modules.as_mut_ptr();
        program.pBuildFlags = flags.as_mut_ptr();
        program.pConstants = constants.as_mut_ptr();
        desc.pNext = (&raw const program).cast();
        // SAFETY: as above.
        unsafe { Self::create_as(context, device, &desc) }
    }

    /// # Safety
    /// The description is complete, and its images are valid.
    unsafe fn create_as(
        context: &Arc<DriverContext>,
        device: DeviceHandle,
        desc: &ze_module_desc_t,
    ) -> Result<(Self, String)> {
        let (mut handle, mut log) = (ptr::null_mut(), ptr::null_mut());
        let create = context.driver.loader.zeModuleCreate;
        // SAFETY: our context and one of its devices, a description that the caller promised to be
        // valid, and live results.
        let code = unsafe { create(context.handle.0, device.0, desc, &mut handle, &mut log) };
        let log = take_log(context, log);
        if code != ze_result_t::ZE_RESULT_SUCCESS {
            return Err(refusal(code, log));
        }
        let module = Self {
            context: Arc::clone(context),
            handle: Handle(handle),
            is_ours: true,
        };
        Ok((module, log))
    }

    /// Adopts a module that other code created.
    ///
    /// # Safety
    /// `handle` is a module of this context's driver and lives as long as the result. If `is_given`
    /// is true, no other code destroys the module.
    pub(crate) unsafe fn adopt(
        context: &Arc<DriverContext>,
        handle: ModuleHandle,
        is_given: bool,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            handle,
            is_ours: is_given,
        }
    }

    pub(crate) fn context(&self) -> &Arc<DriverContext> {
        &self.context
    }

    pub(crate) fn handle(&self) -> ModuleHandle {
        self.handle
    }

    /// Returns the address and the length in bytes of a variable, or `None` if the module has no
    /// variable of that name.
    pub(crate) fn variable(&self, name: &CStr) -> Result<Option<(*mut u8, usize)>> {
        let get = self.context.driver.loader.zeModuleGetGlobalPointer;
        let (mut len, mut start) = (0, ptr::null_mut());
        // SAFETY: our module, a name that ends with a zero byte, and live results.
        let code = unsafe { get(self.handle.0, name.as_ptr(), &mut len, &mut start) };
        if code == ze_result_t::ZE_RESULT_ERROR_INVALID_GLOBAL_NAME {
            return Ok(None);
        }
        check("zeModuleGetGlobalPointer", code)?;
        Ok(Some((start.cast(), len)))
    }

    /// Returns the names of all kernels.
    pub(crate) fn kernel_names(&self) -> Result<Vec<String>> {
        let get = self.context.driver.loader.zeModuleGetKernelNames;
        let names = list_of("zeModuleGetKernelNames", ptr::null(), |count, items| {
            // SAFETY: our module, and room for `count` items.
            unsafe { get(self.handle.0, count, items) }
        })?;
        let names = names
            .into_iter()
            .filter(|name: &*const c_char| !name.is_null());
        // SAFETY: the driver's names end with a zero byte and live as long as the module.
        let text = |name: *const c_char| unsafe { CStr::from_ptr(name) }.to_string_lossy();
        Ok(names.map(|name| text(name).into_owned()).collect())
    }

    /// Returns the module in the driver's own format.
    pub(crate) fn binary(&self) -> Result<Vec<u8>> {
        let get = self.context.driver.loader.zeModuleGetNativeBinary;
        let mut len = 0;
        // SAFETY: our module, and a live result.
        let code = unsafe { get(self.handle.0, &mut len, ptr::null_mut()) };
        check("zeModuleGetNativeBinary", code)?;
        let mut bytes = vec![0; len];
        // SAFETY: our module, and a buffer of `len` bytes.
        let code = unsafe { get(self.handle.0, &mut len, bytes.as_mut_ptr()) };
        check("zeModuleGetNativeBinary", code)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Returns the kernel with a name, or `None` if the module has no kernel of that name.
    pub(crate) fn kernel(self: &Arc<Self>, name: &CStr) -> Result<Option<DriverKernel>> {
        let loader = &self.context.driver.loader;
        let mut desc = description!(ze_kernel_desc_t, ZE_STRUCTURE_TYPE_KERNEL_DESC);
        desc.pKernelName = name.as_ptr();
        let mut handle = ptr::null_mut();
        // SAFETY: our module, a live description whose name ends with a zero byte, and a live
        // result.
        let code = unsafe { (loader.zeKernelCreate)(self.handle.0, &desc, &mut handle) };
        if code == ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_NAME {
            return Ok(None);
        }
        check("zeKernelCreate", code)?;
        let kernel = DriverKernel {
            module: Arc::clone(self),
            handle: Handle(handle),
        };
        // A kernel may follow addresses that are stored in memory or in values, and these may lead
        // to any memory of the driver.
        let all = ZE_KERNEL_INDIRECT_ACCESS_FLAG_HOST
            | ZE_KERNEL_INDIRECT_ACCESS_FLAG_DEVICE
            | ZE_KERNEL_INDIRECT_ACCESS_FLAG_SHARED;
        // SAFETY: our kernel.
        let code = unsafe { (loader.zeKernelSetIndirectAccess)(handle, all) };
        check("zeKernelSetIndirectAccess", code)?;
        Ok(Some(kernel))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        self.context.release("a module", |context| {
            // SAFETY: ours. Its kernels keep the module alive, so none exist.
            let code = unsafe { (context.driver.loader.zeModuleDestroy)(self.handle.0) };
            check("zeModuleDestroy", code)
        });
    }
}

/// Returns the compiler's output and destroys the driver's copy of it.
fn take_log(context: &DriverContext, log: ze_module_build_log_handle_t) -> String {
    if log.is_null() {
        return String::new();
    }
    let loader = &context.driver.loader;
    let mut len = 0;
    let get = loader.zeModuleBuildLogGetString;
    // SAFETY: the driver has just created the log, and the result is live.
    let code = unsafe { get(log, &mut len, ptr::null_mut()) };
    let mut bytes = vec![0_u8; len];
    if code == ze_result_t::ZE_RESULT_SUCCESS && len > 0 {
        // SAFETY: as above, with a buffer of `len` bytes.
        unsafe { get(log, &mut len, bytes.as_mut_ptr().cast()) };
    }
    // SAFETY: the log is destroyed only once.
    super::log_failure("zeModuleBuildLogDestroy", unsafe {
        (loader.zeModuleBuildLogDestroy)(log)
    });
    let end = bytes.iter().position(|byte| *byte == 0);
    bytes.truncate(end.unwrap_or(bytes.len()));
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Returns the error for a module that the driver has rejected.
fn refusal(code: ze_result_t, log: String) -> Error {
    match code {
        ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY
        | ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY => Error::OutOfMemory {
            bytes: 0,
            code: Some(i64::from(code.0)),
            limit: None,
        },
        code => Error::Program {
            backend: BackendKind::LevelZero,
            operation: "zeModuleCreate",
            code: i64::from(code.0),
            name: name_of(code).into(),
            log,
        },
    }
}

/// A kernel of a module. Its settings apply to all later launches, so callers use it from one
/// thread at a time.
pub(crate) struct DriverKernel {
    module: Arc<Module>,
    handle: KernelHandle,
}

/// The arguments of a launch, as [`KernelArguments`](crosshandle_types::KernelArguments) stores
/// them.
pub(super) type Arguments<'a> = dyn Iterator<Item = (ArgumentKind, &'a [u8])> + 'a;

impl DriverKernel {
    pub(crate) fn handle(&self) -> KernelHandle {
        self.handle
    }

    pub(crate) fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// Returns the kernel's properties, its maximum group size, and its preferred group size
    /// multiple. A value is 0 if the driver does not report it.
    pub(crate) fn properties(&self) -> Result<(ze_kernel_properties_t, u32, u32)> {
        let mut preferred = description!(
            ze_kernel_preferred_group_size_properties_t,
            ZE_STRUCTURE_TYPE_KERNEL_PREFERRED_GROUP_SIZE_PROPERTIES
        );
        let mut largest = description!(
            ze_kernel_max_group_size_properties_ext_t,
            ZE_STRUCTURE_TYPE_KERNEL_MAX_GROUP_SIZE_EXT_PROPERTIES
        );
        largest.pNext = (&raw mut preferred).cast();
        let mut properties =
            description!(ze_kernel_properties_t, ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES);
        properties.pNext = (&raw mut largest).cast();
        let get = self.module.context.driver.loader.zeKernelGetProperties;
        // SAFETY: our kernel, and a chain of live results. Drivers fill in those that they know.
        let code = unsafe { get(self.handle.0, &mut properties) };
        check("zeKernelGetProperties", code)?;
        properties.pNext = ptr::null_mut();
        Ok((
            properties,
            largest.maxGroupSize,
            preferred.preferredMultiple,
        ))
    }

    /// Sets an argument and returns the driver's code. If `addresses` is false, an address argument
    /// is set to null.
    pub(crate) fn set_argument(
        &self,
        index: u32,
        (kind, bytes): (ArgumentKind, &[u8]),
        addresses: bool,
    ) -> ze_result_t {
        let set = self.module.context.driver.loader.zeKernelSetArgumentValue;
        let (size, value) = match kind {
            ArgumentKind::Local => (number(bytes), ptr::null()),
            // Some drivers do not accept a null address as a value.
            ArgumentKind::Address if !addresses || number(bytes) == 0 => (bytes.len(), ptr::null()),
            ArgumentKind::Address | ArgumentKind::Value | ArgumentKind::Object => {
                (bytes.len(), bytes.as_ptr().cast())
            }
        };
        // SAFETY: our kernel, and a value of `size` bytes.
        unsafe { set(self.handle.0, index, size, value) }
    }

    /// Sets all arguments of the next launch.
    pub(crate) fn set_arguments(&self, arguments: &mut Arguments<'_>) -> Result<()> {
        for (index, argument) in arguments.enumerate() {
            let code = self.set_argument(index as u32, argument, true);
            check("zeKernelSetArgumentValue", code)?;
        }
        Ok(())
    }

    /// Sets the group size of later launches.
    pub(crate) fn set_group_size(&self, [x, y, z]: [u32; 3]) -> Result<()> {
        let set = self.module.context.driver.loader.zeKernelSetGroupSize;
        // SAFETY: our kernel.
        check("zeKernelSetGroupSize", unsafe {
            set(self.handle.0, x, y, z)
        })
    }

    /// Sets the global offset, which is the index of the first work-item in each dimension.
    pub(crate) fn set_offset(&self, [x, y, z]: [u32; 3]) -> Result<()> {
        let Some(set) = self.module.context.driver.loader.zeKernelSetGlobalOffsetExp else {
            return Err(Error::Unsupported("this driver knows no offsets".into()));
        };
        // SAFETY: our kernel.
        check("zeKernelSetGlobalOffsetExp", unsafe {
            set(self.handle.0, x, y, z)
        })
    }

    /// Returns the group size that the driver suggests for the given number of work-items.
    pub(crate) fn suggest_group_size(&self, [x, y, z]: [u32; 3]) -> Result<[u32; 3]> {
        let suggest = self.module.context.driver.loader.zeKernelSuggestGroupSize;
        let mut size = [0; 3];
        let [to_x, to_y, to_z] = &mut size;
        // SAFETY: our kernel, and live results.
        let code = unsafe { suggest(self.handle.0, x, y, z, to_x, to_y, to_z) };
        check("zeKernelSuggestGroupSize", code)?;
        Ok(size)
    }

    /// Returns the maximum number of groups that can wait for each other, for the current group
    /// size.
    pub(crate) fn cooperative_groups(&self) -> Result<u32> {
        let loader = &self.module.context.driver.loader;
        let mut count = 0;
        // SAFETY: our kernel, and a live result.
        let code =
            unsafe { (loader.zeKernelSuggestMaxCooperativeGroupCount)(self.handle.0, &mut count) };
        check("zeKernelSuggestMaxCooperativeGroupCount", code)?;
        Ok(count)
    }
}

impl Drop for DriverKernel {
    fn drop(&mut self) {
        self.module.context.release("a kernel", |context| {
            // SAFETY: ours. Launches keep the kernel alive until they have ended.
            let code = unsafe { (context.driver.loader.zeKernelDestroy)(self.handle.0) };
            check("zeKernelDestroy", code)
        });
    }
}
