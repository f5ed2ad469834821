//! Programs, with their functions and variables.
//!
//! For all calls, the program's context must be current (see `Driver::enter`). If the driver lacks
//! functions for programs, its devices run no programs, and none of these calls is used.

use super::library::ProgramLibrary;
use super::{
    Code, DeviceAddress, Driver, FunctionHandle, INVALID_VALUE, ModuleHandle, NOT_FOUND, SUCCESS,
};
use crosshandle_handle::BackendKind;
use crosshandle_types::error::{Error, Result};
use cudarc::driver::sys::{CUjit_option, CUjitInputType, CUlinkState};
use std::ffi::{CStr, c_uint, c_void};
use std::ptr;

/// Maximum number of bytes that are kept of the compiler's output. Longer output is cut off.
const COMPILER_LOG_BYTES: usize = 16 << 10;

/// The format of an image's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ImageKind {
    Ptx,
    Cubin,
    Fatbin,
}

/// An image in the form that the driver takes. Assembly ends with a zero, and the headers of a
/// binary give its length.
pub(crate) struct Image<'a> {
    pub kind: ImageKind,
    pub bytes: &'a [u8],
}

/// Options of the compiler, with buffers for its output.
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
            info: vec![0; COMPILER_LOG_BYTES],
            errors: vec![0; COMPILER_LOG_BYTES],
        };
        let (info, errors) = (options.info.as_mut_ptr(), options.errors.as_mut_ptr());
        options.set(CUjit_option::CU_JIT_INFO_LOG_BUFFER, info.cast());
        options.set_number(
            CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            COMPILER_LOG_BYTES,
        );
        options.set(CUjit_option::CU_JIT_ERROR_LOG_BUFFER, errors.cast());
        options.set_number(
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            COMPILER_LOG_BYTES,
        );
        if let Some(registers) = max_registers {
            options.set_number(CUjit_option::CU_JIT_MAX_REGISTERS, registers as usize);
        }
        options
    }

    fn set(&mut self, name: CUjit_option, value: *mut c_void) {
        self.names.push(name as c_uint);
        self.values.push(value);
    }

    /// Sets an option to a number, which the driver takes as the value of a pointer.
    fn set_number(&mut self, name: CUjit_option, value: usize) {
        self.set(name, ptr::without_provenance_mut(value));
    }

    fn len(&self) -> c_uint {
        self.names.len() as c_uint
    }
}

/// Returns the text up to its first zero.
fn text_of(log: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(log).unwrap_or_default();
    text.to_string_lossy().trim().to_owned()
}

impl Driver {
    /// Returns whether the driver has all functions for programs.
    pub(crate) fn has_programs(&self) -> bool {
        self.library.programs.is_some()
    }

    pub(super) fn programs(&self) -> Result<&ProgramLibrary> {
        let programs = self.library.programs.as_ref();
        programs.ok_or_else(|| Error::Unsupported("this driver does not support programs".into()))
    }

    /// Returns the error for an image that the driver refused.
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

    /// Loads a program. Also returns the compiler's output.
    pub(crate) fn load_module(
        &self,
        image: &Image<'_>,
        max_registers: Option<u32>,
    ) -> Result<(ModuleHandle, String)> {
        let programs = self.programs()?;
        let mut options = Options::new(max_registers);
        let mut module = ModuleHandle::NONE;
        // SAFETY: the result, the options and the buffers that they name are live. The image has
        // the form that the driver requires.
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
        Ok((module, text_of(&options.info)))
    }

    /// Loads a program that is linked from several images.
    pub(crate) fn link_modules(
        &self,
        images: &[Image<'_>],
        max_registers: Option<u32>,
    ) -> Result<(ModuleHandle, String)> {
        let programs = self.programs()?;
        let mut options = Options::new(max_registers);
        let mut state: CUlinkState = ptr::null_mut();
        // SAFETY: the result, the options and the buffers that they name are live. The buffers stay
        // live until the state is destroyed below.
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
        // SAFETY: created above and destroyed once. Its binary is not used any more.
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
            // SAFETY: the state is live. The driver only reads the image, which has this length.
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
        let mut module = ModuleHandle::NONE;
        // SAFETY: the result is live. The driver has just created the binary, which is valid until
        // the state is destroyed.
        let code = unsafe {
            (programs.module_load)(&mut module, binary, 0, ptr::null_mut(), ptr::null_mut())
        };
        if code != SUCCESS {
            return Err(self.refusal("cuModuleLoadDataEx", code, options));
        }
        Ok(module)
    }

    /// Unloads a program.
    ///
    /// # Safety
    /// No handle of the program or of its functions is used any more.
    pub(crate) unsafe fn unload_module(&self, module: ModuleHandle) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check("cuModuleUnload", unsafe {
            (self.programs()?.module_unload)(module)
        })
    }

    /// Returns a function of a program.
    pub(crate) fn function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle> {
        let mut function = FunctionHandle::NONE;
        // SAFETY: the result and the name are live. The handle stands for a loaded program.
        let code =
            unsafe { (self.programs()?.module_get_function)(&mut function, module, name.as_ptr()) };
        self.check_symbol("cuModuleGetFunction", name, code)?;
        Ok(function)
    }

    /// Returns the address of a variable, and its length in bytes.
    pub(crate) fn variable(
        &self,
        module: ModuleHandle,
        name: &CStr,
    ) -> Result<(DeviceAddress, usize)> {
        let (mut start, mut len) = (0, 0);
        // SAFETY: the results and the name are live. The handle stands for a loaded program.
        let code = unsafe {
            (self.programs()?.module_get_global)(&mut start, &mut len, module, name.as_ptr())
        };
        self.check_symbol("cuModuleGetGlobal", name, code)?;
        Ok((start, len))
    }

    fn check_symbol(&self, operation: &'static str, name: &CStr, code: Code) -> Result<()> {
        // The driver reports an empty name, or the name of another kind of symbol, as invalid.
        if matches!(code, NOT_FOUND | INVALID_VALUE) {
            return Err(Error::NoSymbol(name.to_string_lossy().into_owned()));
        }
        self.check(operation, code)
    }
}
