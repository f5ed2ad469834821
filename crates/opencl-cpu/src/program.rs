//! Programs, which the runtime compiles and links from images.

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

/// Program code in one of the forms that the runtime accepts.
#[derive(Clone, Copy, Debug)]
pub enum Image<'a> {
    /// OpenCL C source.
    Source(&'a str),
    /// A SPIR-V module, with pairs of a specialization constant's number and its value.
    SpirV(&'a [u8], &'a [(u32, Vec<u8>)]),
    /// A binary that the runtime or its offline compiler has made.
    Binary(&'a [u8]),
}

/// An image, and the options for compiling it.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// The image.
    pub image: Image<'a>,
    /// The compiler's options in OpenCL's syntax.
    pub options: &'a str,
}

/// A built program.
pub struct Program {
    runtime: &'static Runtime,
    program: cl_program,
    log: String,
}

/// A program under construction, which is released unless it is built.
struct Draft {
    runtime: &'static Runtime,
    program: cl_program,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        // SAFETY: the program was created here and is released once.
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
        // SAFETY: the context is alive, and each image has the given size.
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
        // SAFETY: the program is alive, and the value has the given size.
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
            // SAFETY: the program and the device are alive, and `place` has room for `size` bytes.
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

    /// Compiles and links a single image.
    fn build(&self, options: &CStr) -> Result<(), Failure> {
        // SAFETY: the program, the device and the options are alive, and there is no callback.
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

    /// Compiles the image for a later link.
    fn compile(&self, options: &CStr) -> Result<(), Failure> {
        // SAFETY: the program, the device and the options are alive, and there are no headers and
        // no callback.
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

/// Returns the sizes of specialization constants in bytes, in the order of their numbers. OpenCL
/// has no query for the size, so the function tries sizes.
///
/// # Errors
/// Fails with the runtime's code, for example for a constant that the module does not have.
///
/// # Safety
/// The requirements are those of [`Program::build`].
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

fn c_text(text: &str) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure::new("clBuildProgram", CL_INVALID_VALUE))
}

impl Program {
    /// Builds a program from one image, or links it from several with these linker options. The
    /// program is for this device. If the device is a part, the program is also valid for all parts
    /// of the same division.
    ///
    /// # Errors
    /// Fails with the runtime's code. If the compiler failed, the error contains its output.
    ///
    /// # Safety
    /// SPIR-V modules and binaries must be well-formed, because runtimes trust their contents.
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
        // SAFETY: the context, the device, the programs and the options are alive, and there is no
        // callback.
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

    /// Adopts a program that other code has built with the same runtime. The result takes over the
    /// caller's reference if `owned` is true, and retains a reference otherwise. It releases the
    /// reference when it is dropped.
    ///
    /// # Safety
    /// `raw` must be a live `cl_program` of the runtime. If `owned` is true, the caller must own a
    /// reference and pass it on.
    pub unsafe fn adopt(runtime: &'static Runtime, raw: usize, owned: bool) -> Self {
        let program = cl_program(ptr::with_exposed_provenance_mut(raw));
        if !owned {
            // SAFETY: the caller guarantees that the program is alive.
            unsafe { (runtime.library.clRetainProgram)(program) };
        }
        Draft { runtime, program }.into_program()
    }

    /// Returns the runtime of the program.
    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    /// Returns the compiler's output, which may be empty.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// Returns the `cl_program` as a number.
    pub fn raw(&self) -> usize {
        self.program.0.expose_provenance()
    }

    /// Returns the kernel with this name.
    ///
    /// # Errors
    /// Fails with the runtime's code. If the program has no such kernel,
    /// [`is_unknown_name`](Failure::is_unknown_name) returns true.
    pub fn kernel(self: &Arc<Self>, name: &CStr) -> Result<Kernel, Failure> {
        let mut code = CL_SUCCESS;
        // SAFETY: the program is alive, and the name ends with a zero.
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

    /// Returns the program as a binary, from which it can be built again on this machine.
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
        // SAFETY: there is one device, and its place has room for the whole binary.
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
            // SAFETY: the program is alive, and `place` has room for `size` bytes.
            unsafe {
                (self.runtime.library.clGetProgramInfo)(self.program, name, size, place, written)
            }
        })
    }

    /// Returns the address and the length in bytes of a global variable. Returns `None` if the
    /// program has no variable of this name, or the runtime lacks the query.
    pub fn variable(&self, name: &CStr) -> Option<(*mut c_void, usize)> {
        let find = self.runtime.extra.variable_pointer?;
        let (mut len, mut start) = (0, ptr::null_mut());
        // SAFETY: the device and the program are alive, and the name ends with a zero.
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
        // SAFETY: this object owns the reference and releases it once. Kernels have their own
        // references.
        unsafe { (self.runtime.library.clReleaseProgram)(self.program) };
    }
}
