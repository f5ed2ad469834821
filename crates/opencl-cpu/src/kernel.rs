//! Kernels, their parameters and their arguments.

use crate::Runtime;
use crate::failure::{Failure, check};
use crate::program::Program;
use crate::runtime::{bytes, text, value};
use crate::types::*;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument<'a> {
    /// The bytes of a value.
    Value(&'a [u8]),
    /// The address of memory that the process has mapped. It may be null.
    Address(usize),
    /// Size of local memory in bytes. Each work-group has local memory of its own.
    Local(usize),
}

/// The kind of argument that a parameter of a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A value.
    Value,
    /// An address.
    Address,
    /// Local memory.
    Local,
    /// An image.
    Image,
    /// A sampler.
    Sampler,
}

/// A kernel of a program. Any thread may use it.
pub struct Kernel {
    program: Arc<Program>,
    /// Locked from the first argument of a launch until the launch is submitted, because the kernel
    /// object stores the arguments.
    kernel: Mutex<cl_kernel>,
    raw: cl_kernel,
    info: KernelInfo,
}

/// The requirements of a kernel, and its limits on this device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// The kernel's name.
    pub name: String,
    /// The number of parameters.
    pub parameters: usize,
    /// The maximum number of work-items of a work-group.
    pub group_items: usize,
    /// The work-group size that the source requires, or zeros if it allows any.
    pub required_size: [usize; 3],
    /// The preferred multiple for the number of work-items of a work-group.
    pub size_multiple: usize,
    /// Size of local memory in bytes, without that of arguments.
    pub local_memory: u64,
    /// Size of a work-item's private memory, in bytes.
    pub private_memory: u64,
    /// The maximum number of work-items of a sub-group, or 0 if the runtime does not report it.
    pub subgroup_size: usize,
    /// The sub-group size that the source requires, or 0 if it allows any.
    pub required_subgroup_size: usize,
}

impl Kernel {
    pub(crate) fn new(program: Arc<Program>, kernel: cl_kernel) -> Result<Self, Failure> {
        let runtime = program.runtime();
        let info = KernelInfo::read(runtime, kernel);
        let kernel = Self {
            program,
            info: info.clone().unwrap_or_else(|_| KernelInfo::nothing()),
            kernel: Mutex::new(kernel),
            raw: kernel,
        };
        info?;
        // Kernels may follow an address that they find in memory to any memory of the process.
        let allowed = CL_TRUE;
        // SAFETY: the kernel is alive, and `allowed` has the given size.
        let code = unsafe {
            (runtime.library.clSetKernelExecInfo)(
                kernel.raw,
                CL_KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM,
                size_of::<cl_uint>(),
                (&raw const allowed).cast(),
            )
        };
        check("clSetKernelExecInfo", code)?;
        Ok(kernel)
    }

    /// Returns the requirements and limits of the kernel.
    pub fn info(&self) -> &KernelInfo {
        &self.info
    }

    /// Returns the runtime of the kernel.
    pub fn runtime(&self) -> &'static Runtime {
        self.program.runtime()
    }

    /// Returns the `cl_kernel` as a number.
    pub fn raw(&self) -> usize {
        self.raw.0.expose_provenance()
    }

    pub(crate) fn handle(&self) -> cl_kernel {
        self.raw
    }

    /// Checks that the kernel accepts the arguments, as far as the runtime checks them.
    ///
    /// # Errors
    /// Returns the index of the first wrong or missing argument, and the runtime's code.
    pub fn check_arguments<'a>(
        &self,
        arguments: impl ExactSizeIterator<Item = Argument<'a>>,
    ) -> Result<(), (usize, Failure)> {
        self.with_arguments(arguments, |_| Ok(()))
    }

    /// Returns the kind of a parameter, or `None` after the last one. OpenCL has no query for the
    /// kind, so the function tries arguments.
    pub fn parameter(&self, index: usize) -> Option<Parameter> {
        if index >= self.info.parameters {
            return None;
        }
        let takes = |argument| self.check_argument(index, argument).is_ok();
        Some(match () {
            // Local memory is tried first, because the runtime accepts an address for it too.
            () if takes(Argument::Local(1)) => Parameter::Local,
            () if takes(Argument::Address(0)) => Parameter::Address,
            () => self.object_parameter(index),
        })
    }

    /// Returns whether a parameter takes an image, a sampler or a value. Images and samplers are
    /// never null.
    fn object_parameter(&self, index: usize) -> Parameter {
        let null = [0; size_of::<usize>()];
        let refusal = self.check_argument(index, Argument::Value(&null)).err();
        match refusal.map(|failure| failure.code) {
            Some(CL_INVALID_MEM_OBJECT) => Parameter::Image,
            Some(CL_INVALID_SAMPLER) => Parameter::Sampler,
            _ => Parameter::Value,
        }
    }

    /// Checks that a parameter accepts the argument, as far as the runtime checks it.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn check_argument(&self, index: usize, argument: Argument<'_>) -> Result<(), Failure> {
        let number = cl_uint::try_from(index);
        let number = number.map_err(|_| Failure::new("clSetKernelArg", CL_INVALID_ARG_INDEX))?;
        let kernel = self.lock();
        self.set(*kernel, number, argument)
    }

    /// Sets the arguments and calls `then`. No other thread can set arguments in between.
    pub(crate) fn with_arguments<'a>(
        &self,
        arguments: impl ExactSizeIterator<Item = Argument<'a>>,
        then: impl FnOnce(cl_kernel) -> Result<(), Failure>,
    ) -> Result<(), (usize, Failure)> {
        let count = arguments.len();
        if count != self.info.parameters {
            let failure = Failure::new("clSetKernelArg", CL_INVALID_ARG_INDEX);
            return Err((count.min(self.info.parameters), failure));
        }
        let kernel = self.lock();
        for (index, argument) in arguments.enumerate() {
            self.set(*kernel, index as cl_uint, argument)
                .map_err(|failure| (index, failure))?;
        }
        then(*kernel).map_err(|failure| (count, failure))
    }

    fn lock(&self) -> MutexGuard<'_, cl_kernel> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(
        &self,
        kernel: cl_kernel,
        index: cl_uint,
        argument: Argument<'_>,
    ) -> Result<(), Failure> {
        let library = &self.runtime().library;
        // SAFETY: the kernel is alive, and a value has the given size. The runtime does not follow
        // an address before the kernel runs.
        let (operation, code) = unsafe {
            match argument {
                Argument::Value(value) => (
                    "clSetKernelArg",
                    (library.clSetKernelArg)(kernel, index, value.len(), value.as_ptr().cast()),
                ),
                Argument::Address(address) => (
                    "clSetKernelArgSVMPointer",
                    (library.clSetKernelArgSVMPointer)(
                        kernel,
                        index,
                        ptr::with_exposed_provenance(address),
                    ),
                ),
                Argument::Local(len) => (
                    "clSetKernelArg",
                    (library.clSetKernelArg)(kernel, index, len, ptr::null()),
                ),
            }
        };
        check(operation, code)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.runtime().is_elsewhere() {
            return;
        }
        // SAFETY: the kernel was created for this object and is released once. Launches have their
        // own references.
        unsafe { (self.runtime().library.clReleaseKernel)(self.raw) };
    }
}

impl KernelInfo {
    fn nothing() -> Self {
        Self {
            name: String::new(),
            parameters: 0,
            group_items: 0,
            required_size: [0; 3],
            size_multiple: 1,
            local_memory: 0,
            private_memory: 0,
            subgroup_size: 0,
            required_subgroup_size: 0,
        }
    }

    fn read(runtime: &'static Runtime, kernel: cl_kernel) -> Result<Self, Failure> {
        let count: cl_uint = value("clGetKernelInfo", |size, place, written| {
            // SAFETY: the kernel is alive, and `place` has room for `size` bytes.
            unsafe {
                (runtime.library.clGetKernelInfo)(kernel, CL_KERNEL_NUM_ARGS, size, place, written)
            }
        })?;
        let items: usize = group_info(runtime, kernel, CL_KERNEL_WORK_GROUP_SIZE)?;
        let required = group_info(runtime, kernel, CL_KERNEL_COMPILE_WORK_GROUP_SIZE)?;
        Ok(Self {
            name: name(runtime, kernel)?,
            parameters: count as usize,
            group_items: items,
            required_size: required,
            size_multiple: group_info(
                runtime,
                kernel,
                CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
            )?,
            local_memory: group_info(runtime, kernel, CL_KERNEL_LOCAL_MEM_SIZE)?,
            private_memory: group_info(runtime, kernel, CL_KERNEL_PRIVATE_MEM_SIZE)?,
            subgroup_size: subgroup_size(runtime, kernel, [items.max(1), 1, 1]).unwrap_or(0),
            required_subgroup_size: required_subgroup_size(runtime, kernel).unwrap_or(0),
        })
    }
}

/// Returns the name of a kernel that other code has created with the same runtime.
///
/// # Errors
/// Fails with the runtime's code.
///
/// # Safety
/// `raw` must be a live `cl_kernel` of the runtime.
pub unsafe fn name_of(runtime: &'static Runtime, raw: usize) -> Result<String, Failure> {
    name(runtime, cl_kernel(ptr::with_exposed_provenance_mut(raw)))
}

/// Returns the `cl_program` of a kernel that other code has created with the same runtime.
///
/// # Errors
/// Fails with the runtime's code.
///
/// # Safety
/// `raw` must be a live `cl_kernel` of the runtime.
pub unsafe fn program_of(runtime: &'static Runtime, raw: usize) -> Result<usize, Failure> {
    let kernel = cl_kernel(ptr::with_exposed_provenance_mut(raw));
    value("clGetKernelInfo", |size, place, written| {
        // SAFETY: the kernel is alive, and `place` has room for `size` bytes.
        unsafe {
            (runtime.library.clGetKernelInfo)(kernel, CL_KERNEL_PROGRAM, size, place, written)
        }
    })
}

/// Releases a reference to a kernel that other code has created.
///
/// # Safety
/// `raw` must be a live `cl_kernel` of the runtime, and the caller must own the released reference.
pub unsafe fn release(runtime: &'static Runtime, raw: usize) {
    let kernel = cl_kernel(ptr::with_exposed_provenance_mut(raw));
    // SAFETY: the caller guarantees that the kernel is alive, and owns the released reference.
    unsafe { (runtime.library.clReleaseKernel)(kernel) };
}

fn name(runtime: &'static Runtime, kernel: cl_kernel) -> Result<String, Failure> {
    let name = bytes("clGetKernelInfo", |size, place, written| {
        // SAFETY: the kernel is alive, and `place` has room for `size` bytes.
        unsafe {
            (runtime.library.clGetKernelInfo)(kernel, CL_KERNEL_FUNCTION_NAME, size, place, written)
        }
    })?;
    Ok(text(&name))
}

fn group_info<T: Default + Copy>(
    runtime: &'static Runtime,
    kernel: cl_kernel,
    name: cl_uint,
) -> Result<T, Failure> {
    value("clGetKernelWorkGroupInfo", |size, place, written| {
        // SAFETY: the kernel and the device are alive, and `place` has room for `size` bytes.
        unsafe {
            (runtime.library.clGetKernelWorkGroupInfo)(
                kernel,
                runtime.device,
                name,
                size,
                place,
                written,
            )
        }
    })
}

fn subgroup_info<T: Default + Copy>(
    runtime: &'static Runtime,
    kernel: cl_kernel,
    name: cl_uint,
    input: &[usize],
) -> Result<T, Failure> {
    let start: *const c_void = match input {
        [] => ptr::null(),
        input => input.as_ptr().cast(),
    };
    value("clGetKernelSubGroupInfo", |size, place, written| {
        // SAFETY: the kernel and the device are alive, and the input and `place` have the given
        // sizes.
        unsafe {
            (runtime.library.clGetKernelSubGroupInfo)(
                kernel,
                runtime.device,
                name,
                size_of_val(input),
                start,
                size,
                place,
                written,
            )
        }
    })
}

fn subgroup_size(
    runtime: &'static Runtime,
    kernel: cl_kernel,
    local: [usize; 3],
) -> Result<usize, Failure> {
    subgroup_info(
        runtime,
        kernel,
        CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE,
        &local,
    )
}

fn required_subgroup_size(runtime: &'static Runtime, kernel: cl_kernel) -> Result<usize, Failure> {
    subgroup_info(runtime, kernel, CL_KERNEL_COMPILE_SUB_GROUP_SIZE_INTEL, &[])
}
