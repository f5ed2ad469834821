//! Programs, their functions, and what launches these.
//!
//! In all calls the program's context must be current (see `Driver::enter`). Where the driver has
//! not all functions for programs, none is asked for: its devices run none.

use super::library::ProgramLibrary;
use super::stream::StreamHandle;
use super::{Code, DeviceAddress, Driver, SUCCESS};
use crate::error::{Error, Result};
use crate::handle::BackendKind;
use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUjit_option, CUjitInputType, CUlaunchAttribute,
    CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUlinkState, CUmodule,
};
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;

const INVALID_VALUE: Code = 1;
const NOT_FOUND: Code = 500;
const LAUNCH_OUT_OF_RESOURCES: Code = 701;
const COOPERATIVE_LAUNCH_TOO_LARGE: Code = 720;

/// Bytes of what the compiler says that are kept.
const LOG: usize = 16 << 10;

/// A program. Only a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct ModuleHandle(pub(in super::super) CUmodule);

// SAFETY: the driver lets any thread use a module; here it is only a value.
unsafe impl Send for ModuleHandle {}
// SAFETY: as above.
unsafe impl Sync for ModuleHandle {}

/// A function of a program. Only a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct FunctionHandle(pub(in super::super) CUfunction);

// SAFETY: the driver lets any thread use a function; here it is only a value.
unsafe impl Send for FunctionHandle {}
// SAFETY: as above.
unsafe impl Sync for FunctionHandle {}

/// What the bytes of an image are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum ImageKind {
    Ptx,
    Cubin,
    Fatbin,
}

/// An image that the driver can be given: assembly ends with a zero, and what is binary is as long
/// as its headers say.
pub(in super::super) struct Image<'a> {
    pub(in super::super) kind: ImageKind,
    pub(in super::super) bytes: &'a [u8],
}

/// Options of the compiler, with room for what it says.
struct Options {
    names: Vec<c_uint>,
    values: Vec<*mut c_void>,
    info: Vec<u8>,
    errors: Vec<u8>,
}

impl Options {
    fn new(max_registers: Option<u32>) -> Self {
        let mut options = Self {
            names: Vec::new(),
            values: Vec::new(),
            info: vec![0; LOG],
            errors: vec![0; LOG],
        };
        let (info, errors) = (options.info.as_mut_ptr(), options.errors.as_mut_ptr());
        options.set(CUjit_option::CU_JIT_INFO_LOG_BUFFER, info.cast());
        options.set_number(CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, LOG);
        options.set(CUjit_option::CU_JIT_ERROR_LOG_BUFFER, errors.cast());
        options.set_number(CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, LOG);
        if let Some(registers) = max_registers {
            options.set_number(CUjit_option::CU_JIT_MAX_REGISTERS, registers as usize);
        }
        options
    }

    fn set(&mut self, name: CUjit_option, value: *mut c_void) {
        self.names.push(name as c_uint);
        self.values.push(value);
    }

    /// Numbers are passed as the values of pointers.
    fn set_number(&mut self, name: CUjit_option, value: usize) {
        self.set(name, ptr::without_provenance_mut(value));
    }

    fn len(&self) -> c_uint {
        self.names.len() as c_uint
    }
}

/// Text up to its first zero.
fn text_of(log: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(log).unwrap_or_default();
    text.to_string_lossy().trim().to_owned()
}

impl Driver {
    /// Whether it has all functions for programs.
    pub(in super::super) fn has_programs(&self) -> bool {
        self.library.programs.is_some()
    }

    fn programs(&self) -> Result<&ProgramLibrary> {
        let programs = self.library.programs.as_ref();
        programs.ok_or_else(|| Error::Unsupported("this driver runs no programs".into()))
    }

    /// Why an image is no program.
    fn refusal(&self, operation: &'static str, code: Code, options: &Options) -> Error {
        if let Err(error @ Error::OutOfMemory { .. }) = self.check_memory(operation, 0, code) {
            return error;
        }
        Error::Program {
            backend: BackendKind::Cuda,
            operation,
            code: i64::from(code),
            name: self.name_of(code),
            log: text_of(&options.errors),
        }
    }

    /// Loads a program. With it comes what the compiler said.
    pub(in super::super) fn load_module(
        &self,
        image: &Image<'_>,
        max_registers: Option<u32>,
    ) -> Result<(ModuleHandle, String)> {
        let programs = self.programs()?;
        let mut options = Options::new(max_registers);
        let mut module = ptr::null_mut();
        // SAFETY: result, options and the buffers that they name are live; the image is as the
        // driver wants it.
        let code = unsafe {
            (programs.module_load)(
                &mut module,
                image.bytes.as_ptr().cast(),
                options.len(),
                options.names.as_mut_ptr(),
                options.values.as_mut_ptr(),
            )
        };
        if code != SUCCESS {
            return Err(self.refusal("cuModuleLoadDataEx", code, &options));
        }
        Ok((ModuleHandle(module), text_of(&options.info)))
    }

    /// Loads a program that is linked from several images.
    pub(in super::super) fn link_modules(
        &self,
        images: &[Image<'_>],
        max_registers: Option<u32>,
    ) -> Result<(ModuleHandle, String)> {
        let programs = self.programs()?;
        let mut options = Options::new(max_registers);
        let mut state: CUlinkState = ptr::null_mut();
        // SAFETY: result, options and the buffers that they name are live; the buffers stay so
        // until the state is destroyed below.
        let code = unsafe {
            (programs.link_create)(
                options.len(),
                options.names.as_mut_ptr(),
                options.values.as_mut_ptr(),
                &mut state,
            )
        };
        if code != SUCCESS {
            return Err(self.refusal("cuLinkCreate", code, &options));
        }
        let linked = self.link_into(programs, state, images, &options);
        // SAFETY: created above, and destroyed once; nobody uses its binary any more.
        let code = unsafe { (programs.link_destroy)(state) };
        self.note("cuLinkDestroy", code);
        linked.map(|module| (module, text_of(&options.info)))
    }

    fn link_into(
        &self,
        programs: &ProgramLibrary,
        state: CUlinkState,
        images: &[Image<'_>],
        options: &Options,
    ) -> Result<ModuleHandle> {
        for image in images {
            let kind = match image.kind {
                ImageKind::Ptx => CUjitInputType::CU_JIT_INPUT_PTX,
                ImageKind::Cubin => CUjitInputType::CU_JIT_INPUT_CUBIN,
                ImageKind::Fatbin => CUjitInputType::CU_JIT_INPUT_FATBINARY,
            };
            // SAFETY: the state is live; the driver only reads the image, of this length.
            let code = unsafe {
                (programs.link_add_data)(
                    state,
                    kind as c_uint,
                    image.bytes.as_ptr().cast_mut().cast(),
                    image.bytes.len(),
                    ptr::null(),
                    0,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            };
            if code != SUCCESS {
                return Err(self.refusal("cuLinkAddData", code, options));
            }
        }
        let (mut binary, mut len) = (ptr::null_mut(), 0);
        // SAFETY: state and results are live.
        let code = unsafe { (programs.link_complete)(state, &mut binary, &mut len) };
        if code != SUCCESS {
            return Err(self.refusal("cuLinkComplete", code, options));
        }
        let mut module = ptr::null_mut();
        // SAFETY: the result is live, and the binary what the driver just made, until the state is
        // destroyed.
        let code = unsafe {
            (programs.module_load)(&mut module, binary, 0, ptr::null_mut(), ptr::null_mut())
        };
        if code != SUCCESS {
            return Err(self.refusal("cuModuleLoadDataEx", code, options));
        }
        Ok(ModuleHandle(module))
    }

    /// # Safety
    /// Nothing uses the program any more, and it is unloaded once.
    pub(in super::super) unsafe fn unload_module(&self, module: ModuleHandle) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check("cuModuleUnload", unsafe {
            (self.programs()?.module_unload)(module.0)
        })
    }

    /// # Safety
    /// The program is loaded.
    pub(in super::super) unsafe fn function(
        &self,
        module: ModuleHandle,
        name: &CStr,
    ) -> Result<FunctionHandle> {
        let mut function = ptr::null_mut();
        // SAFETY: the result is live, and the program loaded, as the caller promises.
        let code = unsafe {
            (self.programs()?.module_get_function)(&mut function, module.0, name.as_ptr())
        };
        self.check_symbol("cuModuleGetFunction", name, code)?;
        Ok(FunctionHandle(function))
    }

    /// Where a variable is, and its bytes.
    ///
    /// # Safety
    /// The program is loaded.
    pub(in super::super) unsafe fn variable(
        &self,
        module: ModuleHandle,
        name: &CStr,
    ) -> Result<(DeviceAddress, usize)> {
        let (mut start, mut len) = (0, 0);
        // SAFETY: the results are live, and the program loaded, as the caller promises.
        let code = unsafe {
            (self.programs()?.module_get_global)(&mut start, &mut len, module.0, name.as_ptr())
        };
        self.check_symbol("cuModuleGetGlobal", name, code)?;
        Ok((start, len))
    }

    fn check_symbol(&self, operation: &'static str, name: &CStr, code: Code) -> Result<()> {
        // The driver calls a name invalid that is empty or that of something else.
        if matches!(code, NOT_FOUND | INVALID_VALUE) {
            return Err(Error::NoSymbol(name.to_string_lossy().into_owned()));
        }
        self.check(operation, code)
    }

    /// Makes sure that a function is on the device. Drivers may put that off to its first launch,
    /// and may then wait for all that runs there.
    ///
    /// # Safety
    /// As for [`function_attribute`](Self::function_attribute).
    pub(in super::super) unsafe fn load_function(&self, function: FunctionHandle) -> Result<()> {
        let Some(load) = self.programs()?.func_load else {
            return Ok(());
        };
        // SAFETY: promised by the caller.
        self.check("cuFuncLoad", unsafe { load(function.0) })
    }

    /// # Safety
    /// The function's program is loaded.
    pub(in super::super) unsafe fn function_attribute(
        &self,
        function: FunctionHandle,
        attribute: CUfunction_attribute,
    ) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the result is live, and the program loaded, as the caller promises.
        self.check("cuFuncGetAttribute", unsafe {
            (self.programs()?.func_get_attribute)(&mut value, attribute as c_uint, function.0)
        })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Lets launches of a function ask for so many bytes of dynamic shared memory.
    ///
    /// # Safety
    /// As for [`function_attribute`](Self::function_attribute).
    pub(in super::super) unsafe fn allow_shared_memory(
        &self,
        function: FunctionHandle,
        bytes: u32,
    ) -> Result<()> {
        let attribute =
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as c_uint;
        // SAFETY: promised by the caller.
        self.check("cuFuncSetAttribute", unsafe {
            (self.programs()?.func_set_attribute)(function.0, attribute, bytes as c_int)
        })
    }

    /// Offset and size of a function's parameters, in bytes; `None` if the driver can't tell.
    ///
    /// # Safety
    /// As for [`function_attribute`](Self::function_attribute).
    pub(in super::super) unsafe fn parameters(
        &self,
        function: FunctionHandle,
    ) -> Result<Option<Vec<(usize, usize)>>> {
        let Some(get) = self.programs()?.func_get_param_info else {
            return Ok(None);
        };
        let mut parameters = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the results are live, and the program loaded, as the caller promises.
            let code = unsafe { get(function.0, parameters.len(), &mut offset, &mut size) };
            if code == INVALID_VALUE {
                // There are no more.
                return Ok(Some(parameters));
            }
            self.check("cuFuncGetParamInfo", code)?;
            parameters.push((offset, size));
        }
    }

    /// Blocks of so many threads that a compute unit runs at a time.
    ///
    /// # Safety
    /// As for [`function_attribute`](Self::function_attribute).
    pub(in super::super) unsafe fn blocks_per_unit(
        &self,
        function: FunctionHandle,
        threads: u32,
        dynamic_shared: usize,
    ) -> Result<u32> {
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: the result is live, and the program loaded, as the caller promises.
        self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
            (self.programs()?.occupancy_blocks)(&mut blocks, function.0, threads, dynamic_shared)
        })?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Threads of a block, at most `limit`, with which most of them run at a time.
    ///
    /// # Safety
    /// As for [`function_attribute`](Self::function_attribute).
    pub(in super::super) unsafe fn suggest_block(
        &self,
        function: FunctionHandle,
        dynamic_shared: usize,
        limit: u32,
    ) -> Result<u32> {
        let (mut blocks, mut threads) = (0, 0);
        let limit = c_int::try_from(limit).unwrap_or(c_int::MAX);
        // SAFETY: the results are live, and the program loaded, as the caller promises.
        self.check("cuOccupancyMaxPotentialBlockSize", unsafe {
            (self.programs()?.occupancy_block_size)(
                &mut blocks,
                &mut threads,
                function.0,
                None,
                dynamic_shared,
                limit,
            )
        })?;
        Ok(u32::try_from(threads).unwrap_or(0))
    }

    /// Launches a function.
    ///
    /// # Safety
    /// The function's program stays loaded until the stream is past this; there is an argument for
    /// each parameter, as large as that; and what the function does with them is sound.
    pub(in super::super) unsafe fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        grid: Grid,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let mut attributes = Vec::new();
        if grid.is_cooperative {
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attributes.push(attribute(id, [1, 0, 0]));
        }
        if let Some(cluster) = grid.cluster {
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes.push(attribute(id, cluster));
        }
        let config = CUlaunchConfig {
            gridDimX: grid.blocks[0],
            gridDimY: grid.blocks[1],
            gridDimZ: grid.blocks[2],
            blockDimX: grid.threads[0],
            blockDimY: grid.threads[1],
            blockDimZ: grid.threads[2],
            sharedMemBytes: grid.dynamic_shared,
            hStream: stream.0,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as c_uint,
        };
        // SAFETY: promised by the caller; configuration and arguments are read before the call
        // returns.
        let code = unsafe {
            let arguments = arguments.as_mut_ptr();
            (self.programs()?.launch)(&config, function.0, arguments, ptr::null_mut())
        };
        match code {
            COOPERATIVE_LAUNCH_TOO_LARGE => Err(Error::LimitReached {
                what: "so many blocks don't run at the same time".into(),
                remedy: "launch at most `Kernel::concurrent_blocks` of them".into(),
            }),
            LAUNCH_OUT_OF_RESOURCES => Err(Error::LimitReached {
                what: "the device has not the registers or the memory for such blocks".into(),
                remedy: "launch smaller ones (`Kernel::suggested_block`)".into(),
            }),
            code => self.check("cuLaunchKernelEx", code),
        }
    }
}

/// On what a function runs.
#[derive(Clone, Copy)]
pub(in super::super) struct Grid {
    pub(in super::super) blocks: [u32; 3],
    pub(in super::super) threads: [u32; 3],
    pub(in super::super) cluster: Option<[u32; 3]>,
    /// Bytes.
    pub(in super::super) dynamic_shared: u32,
    pub(in super::super) is_cooperative: bool,
}

/// An attribute of a launch whose value is one number or three.
fn attribute(id: CUlaunchAttributeID, value: [u32; 3]) -> CUlaunchAttribute {
    let mut place = MaybeUninit::<CUlaunchAttributeValue>::zeroed();
    // SAFETY: the value is a union of 64 bytes, of numbers and addresses for which zeros are good;
    // the variants in question begin with one number and consist of three of them.
    let value = unsafe {
        place.as_mut_ptr().cast::<[u32; 3]>().write(value);
        place.assume_init()
    };
    CUlaunchAttribute {
        id,
        pad: [0; 4],
        value,
    }
}
