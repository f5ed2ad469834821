//! Programs: images that the runtime compiles and links.

use crate::failure::{Failure, check};
use crate::kernel::Kernel;
use crate::promises;
use crate::runtime::{bytes, text};
use crate::types::*;
use crate::{Device, Runtime};
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::Arc;

/// Code for the runtime.
#[derive(Clone, Copy, Debug)]
pub enum Image<'a> {
    /// OpenCL C.
    Source(&'a str),
    /// A SPIR-V module, with the values of specialization constants by their numbers.
    SpirV(&'a [u8], &'a [(u32, Vec<u8>)]),
    /// What the runtime itself made of a program, or its compiler beforehand.
    Binary(&'a [u8]),
}

/// An image, and how it is compiled.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// The image.
    pub image: Image<'a>,
    /// The options of the compiler, as OpenCL names them.
    pub options: &'a str,
}

/// A program that is built.
pub struct Program {
    runtime: &'static Runtime,
    program: cl_program,
    log: String,
}

/// A program that is released, unless it is built.
struct Draft {
    runtime: &'static Runtime,
    program: cl_program,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        // SAFETY: made here, and released once.
        unsafe { (self.runtime.library.clReleaseProgram)(self.program) };
    }
}

impl Draft {
    fn create(device: &Device, image: Image<'_>) -> Result<Self, Failure> {
        let runtime = device.runtime();
        let library = &runtime.library;
        let (context, mut code) = (device.context(), CL_SUCCESS);
        let module = match image {
            Image::SpirV(module, _) => promises::removed(module),
            _ => Cow::default(),
        };
        // SAFETY: the context lives, and each image has as many bytes as is said.
        let (operation, program) = unsafe {
            match image {
                Image::Source(source) => (
                    "clCreateProgramWithSource",
                    (library.clCreateProgramWithSource)(
                        context,
                        1,
                        &source.as_ptr().cast(),
                        &source.len(),
                        &mut code,
                    ),
                ),
                Image::SpirV(..) => (
                    "clCreateProgramWithIL",
                    (library.clCreateProgramWithIL)(
                        context,
                        module.as_ptr().cast(),
                        module.len(),
                        &mut code,
                    ),
                ),
                Image::Binary(binary) => (
                    "clCreateProgramWithBinary",
                    (library.clCreateProgramWithBinary)(
                        context,
                        1,
                        &runtime.device,
                        &binary.len(),
                        &binary.as_ptr(),
                        ptr::null_mut(),
                        &mut code,
                    ),
                ),
            }
        };
        check(operation, code)?;
        Ok(Self { runtime, program })
    }

    fn set_constant(&self, number: u32, value: &[u8]) -> Result<(), Failure> {
        // SAFETY: the program lives, and the value has as many bytes.
        let code = unsafe {
            (self.runtime.library.clSetProgramSpecializationConstant)(
                self.program,
                number,
                value.len(),
                value.as_ptr().cast(),
            )
        };
        check("clSetProgramSpecializationConstant", code)
    }

    fn log(&self) -> String {
        let log = bytes("clGetProgramBuildInfo", |size, place, written| {
            // SAFETY: program and device live, and the place has as many bytes.
            unsafe {
                (self.runtime.library.clGetProgramBuildInfo)(
                    self.program,
                    self.runtime.device,
                    CL_PROGRAM_BUILD_LOG,
                    size,
                    place,
                    written,
                )
            }
        });
        text(&log.unwrap_or_default())
    }

    fn check(&self, operation: &'static str, code: cl_int) -> Result<(), Failure> {
        check(operation, code).map_err(|failure| Failure {
            log: self.log(),
            ..failure
        })
    }

    /// Compiles and links the image by itself.
    fn build(&self, options: &CStr) -> Result<(), Failure> {
        // SAFETY: program, device and options live; there is no callback.
        let code = unsafe {
            (self.runtime.library.clBuildProgram)(
                self.program,
                1,
                &self.runtime.device,
                options.as_ptr(),
                None,
                ptr::null_mut(),
            )
        };
        self.check("clBuildProgram", code)
    }

    /// Compiles the image, so that it can be linked.
    fn compile(&self, options: &CStr) -> Result<(), Failure> {
        // SAFETY: program, device and options live; there are no headers and no callback.
        let code = unsafe {
            (self.runtime.library.clCompileProgram)(
                self.program,
                1,
                &self.runtime.device,
                options.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
                None,
                ptr::null_mut(),
            )
        };
        self.check("clCompileProgram", code)
    }

    fn into_program(self) -> Program {
        let program = Program {
            runtime: self.runtime,
            program: self.program,
            log: self.log(),
        };
        std::mem::forget(self);
        program
    }
}

/// Returns the bytes of the values of specialization constants, by the constants' numbers. The runtime is
/// asked by trying.
///
/// # Errors
/// Fails with the runtime's code, also for a constant that the module does not have.
///
/// # Safety
/// As for [`Program::build`].
pub unsafe fn constant_sizes(
    runtime: &'static Runtime,
    module: &[u8],
    numbers: &[u32],
) -> Result<Vec<usize>, Failure> {
    let draft = Draft::create(&runtime.device(), Image::SpirV(module, &[]))?;
    let size = |number: &u32| {
        let mut refusal = None;
        for size in [1, 2, 4, 8] {
            match draft.set_constant(*number, &[0; 8][..size]) {
                Ok(()) => return Ok(size),
                Err(failure) => refusal = Some(failure),
            }
        }
        Err(refusal.unwrap_or_else(|| {
            Failure::new("clSetProgramSpecializationConstant", CL_INVALID_VALUE)
        }))
    };
    numbers.iter().map(size).collect()
}

/// Returns a text as C has it.
fn c_text(text: &str) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure::new("clBuildProgram", CL_INVALID_VALUE))
}

impl Program {
    /// Makes a program of one image, or links it of several, with these options of the linker. It is for the
    /// device; for a part, it is for all parts of the same whole that came with it.
    ///
    /// # Errors
    /// Fails with the runtime's code, and with the compiler's output if that refused.
    ///
    /// # Safety
    /// SPIR-V and binaries are well-formed: runtimes trust what is in them.
    pub unsafe fn build(
        device: &Device,
        codes: &[Code<'_>],
        linker: &str,
    ) -> Result<Self, Failure> {
        let mut drafts = Vec::with_capacity(codes.len());
        for code in codes {
            let draft = Draft::create(device, code.image)?;
            if let Image::SpirV(_, constants) = code.image {
                let mut constants = constants.iter();
                constants.try_for_each(|(number, value)| draft.set_constant(*number, value))?;
            }
            let options = c_text(code.options)?;
            if let [_] = codes {
                draft.build(&options)?;
                return Ok(draft.into_program());
            }
            draft.compile(&options)?;
            drafts.push(draft);
        }
        Self::link(device, &drafts, &c_text(linker)?)
    }

    fn link(device: &Device, drafts: &[Draft], options: &CStr) -> Result<Self, Failure> {
        let runtime = device.runtime();
        let programs: Vec<_> = drafts.iter().map(|draft| draft.program).collect();
        let mut code = CL_SUCCESS;
        // SAFETY: context, device, programs and options live; there is no callback.
        let program = unsafe {
            (runtime.library.clLinkProgram)(
                device.context(),
                1,
                &runtime.device,
                options.as_ptr(),
                programs.len() as cl_uint,
                programs.as_ptr(),
                None,
                ptr::null_mut(),
                &mut code,
            )
        };
        if program.is_null() {
            return Err(Failure::new("clLinkProgram", code));
        }
        let linked = Draft { runtime, program };
        linked.check("clLinkProgram", code)?;
        Ok(linked.into_program())
    }

    /// Adopts a program that other code has built with the same runtime. It is retained if it is not
    /// `owned`, and released with the result.
    ///
    /// # Safety
    /// `raw` is a living `cl_program` of the runtime; the caller gives a reference of an owned one away.
    pub unsafe fn adopt(runtime: &'static Runtime, raw: usize, owned: bool) -> Self {
        let program = cl_program(ptr::with_exposed_provenance_mut(raw));
        if !owned {
            // SAFETY: it lives, as promised.
            unsafe { (runtime.library.clRetainProgram)(program) };
        }
        Draft { runtime, program }.into_program()
    }

    /// Returns the runtime.
    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    /// Returns the compiler's output; may be empty.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// Returns the `cl_program`.
    pub fn raw(&self) -> usize {
        self.program.0.expose_provenance()
    }

    /// Returns the kernel of a name.
    ///
    /// # Errors
    /// [`is_unknown_name`](Failure::is_unknown_name) if there is none.
    pub fn kernel(self: &Arc<Self>, name: &CStr) -> Result<Kernel, Failure> {
        let mut code = CL_SUCCESS;
        // SAFETY: the program lives, and the name ends with a zero.
        let kernel = unsafe {
            (self.runtime.library.clCreateKernel)(self.program, name.as_ptr(), &mut code)
        };
        check("clCreateKernel", code)?;
        Kernel::new(Arc::clone(self), kernel)
    }

    /// Returns the names of all kernels.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn kernel_names(&self) -> Result<Vec<String>, Failure> {
        let names = text(&self.info(CL_PROGRAM_KERNEL_NAMES)?);
        let names = names.split(';').filter(|name| !name.is_empty());
        Ok(names.map(str::to_owned).collect())
    }

    /// Returns the program as a binary, which can be built again on this machine.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn binary(&self) -> Result<Vec<u8>, Failure> {
        let sizes = self.info(CL_PROGRAM_BINARY_SIZES)?;
        let size = sizes
            .first_chunk()
            .map_or(0, |size| usize::from_ne_bytes(*size));
        let mut binary = vec![0_u8; size];
        let places = [binary.as_mut_ptr()];
        // SAFETY: there is one device, and its place has as many bytes as the binary.
        let code = unsafe {
            (self.runtime.library.clGetProgramInfo)(
                self.program,
                CL_PROGRAM_BINARIES,
                size_of_val(&places),
                places.as_ptr().cast_mut().cast(),
                ptr::null_mut(),
            )
        };
        check("clGetProgramInfo", code)?;
        Ok(binary)
    }

    fn info(&self, name: cl_uint) -> Result<Vec<u8>, Failure> {
        bytes("clGetProgramInfo", |size, place, written| {
            // SAFETY: the program lives, and the place has as many bytes.
            unsafe {
                (self.runtime.library.clGetProgramInfo)(self.program, name, size, place, written)
            }
        })
    }

    /// Returns the address and the length in bytes of a global variable; `None` if the program has none of
    /// that name, or the runtime does not tell.
    pub fn variable(&self, name: &CStr) -> Option<(*mut c_void, usize)> {
        let find = self.runtime.extra.variable_pointer?;
        let (mut len, mut start) = (0, ptr::null_mut());
        // SAFETY: device and program live, and the name ends with a zero.
        let code = unsafe {
            find(
                self.runtime.device,
                self.program,
                name.as_ptr(),
                &mut len,
                &mut start,
            )
        };
        (code == CL_SUCCESS && !start.is_null()).then_some((start, len))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        // SAFETY: this is its reference, and released once; kernels have references of their own.
        unsafe { (self.runtime.library.clReleaseProgram)(self.program) };
    }
}
