//! Kernels, and what they are called with.

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
    /// The address of memory that the process has mapped; may be null.
    Address(usize),
    /// Bytes of local memory, which each work-group has for itself.
    Local(usize),
}

/// What a parameter of a kernel takes.
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
    /// Locked from the first argument of a launch until that is submitted: the arguments are a part of
    /// the kernel.
    kernel: Mutex<cl_kernel>,
    raw: cl_kernel,
    info: KernelInfo,
}

/// What a kernel needs, and the limits that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// The kernel's name.
    pub name: String,
    /// The number of its parameters.
    pub parameters: usize,
    /// The most work-items of a work-group.
    pub group_items: usize,
    /// The only size of work-groups that the source allows; zeros if it allows any.
    pub required_size: [usize; 3],
    /// Work-items of a work-group should be a multiple of this.
    pub size_multiple: usize,
    /// Bytes of local memory, without that of arguments.
    pub local_memory: u64,
    /// Bytes of a work-item's own memory.
    pub private_memory: u64,
    /// The most work-items of a sub-group; 0 if the runtime does not say.
    pub subgroup_size: usize,
    /// The only size of sub-groups that the source allows; 0 if it allows any.
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
        // Kernels may follow addresses that lie in memory to any memory of the process.
        let allowed = CL_TRUE;
        // SAFETY: the kernel lives, and the value has the size that is said.
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

    /// Returns what the kernel needs.
    pub fn info(&self) -> &KernelInfo {
        &self.info
    }

    /// Returns the runtime.
    pub fn runtime(&self) -> &'static Runtime {
        self.program.runtime()
    }

    /// Returns the `cl_kernel`.
    pub fn raw(&self) -> usize {
        self.raw.0.expose_provenance()
    }

    pub(crate) fn handle(&self) -> cl_kernel {
        self.raw
    }

    /// Returns the size of the sub-groups of a work-group of this size; 0 if the runtime does not say.
    pub fn subgroup_size_of(&self, local: [usize; 3]) -> usize {
        subgroup_size(self.runtime(), self.raw, local).unwrap_or(0)
    }

    /// Refuses arguments that the kernel does not take, as far as the runtime says.
    ///
    /// # Errors
    /// Returns the index of the first that does not suit, or of the first that is missing, and the
    /// runtime's code.
    pub fn check_arguments<'a>(
        &self,
        arguments: impl ExactSizeIterator<Item = Argument<'a>>,
    ) -> Result<(), (usize, Failure)> {
        self.with_arguments(arguments, |_| Ok(()))
    }

    /// Returns what a parameter takes; `None` beyond the last. The runtime is asked by trying.
    pub fn parameter(&self, index: usize) -> Option<Parameter> {
        if index >= self.info.parameters {
            return None;
        }
        let takes = |argument| self.check_argument(index, argument).is_ok();
        Some(match () {
            // First, since the runtime takes an address for local memory too.
            () if takes(Argument::Local(1)) => Parameter::Local,
            () if takes(Argument::Address(0)) => Parameter::Address,
            () => self.object_parameter(index),
        })
    }

    /// Returns whether a parameter takes an image or a sampler, which is never null, or else a value.
    fn object_parameter(&self, index: usize) -> Parameter {
        let null = [0; size_of::<usize>()];
        let refusal = self.check_argument(index, Argument::Value(&null)).err();
        match refusal.map(|failure| failure.code) {
            Some(CL_INVALID_MEM_OBJECT) => Parameter::Image,
            Some(CL_INVALID_SAMPLER) => Parameter::Sampler,
            _ => Parameter::Value,
        }
    }

    /// Refuses an argument that a parameter does not take, as far as the runtime says.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn check_argument(&self, index: usize, argument: Argument<'_>) -> Result<(), Failure> {
        let number = cl_uint::try_from(index);
        let number = number.map_err(|_| Failure::new("clSetKernelArg", CL_INVALID_ARG_INDEX))?;
        let kernel = self.lock();
        self.set(*kernel, number, argument)
    }

    /// Sets the arguments, and calls `then` while no other thread can set others.
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
        // SAFETY: the kernel lives, and a value has as many bytes as is said. The runtime does not follow
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
        // SAFETY: made for this, and released once; launches keep it as long as they need it.
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
            // SAFETY: the kernel lives, and the place has as many bytes.
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

/// Returns the name of a kernel that other code has made with the same runtime.
///
/// # Errors
/// Fails with the runtime's code.
///
/// # Safety
/// `raw` is a living `cl_kernel` of the runtime.
pub unsafe fn name_of(runtime: &'static Runtime, raw: usize) -> Result<String, Failure> {
    name(runtime, cl_kernel(ptr::with_exposed_provenance_mut(raw)))
}

/// Returns the `cl_program` of a kernel that other code has made with the same runtime.
///
/// # Errors
/// Fails with the runtime's code.
///
/// # Safety
/// `raw` is a living `cl_kernel` of the runtime.
pub unsafe fn program_of(runtime: &'static Runtime, raw: usize) -> Result<usize, Failure> {
    let kernel = cl_kernel(ptr::with_exposed_provenance_mut(raw));
    value("clGetKernelInfo", |size, place, written| {
        // SAFETY: the kernel lives, and the place has as many bytes.
        unsafe {
            (runtime.library.clGetKernelInfo)(kernel, CL_KERNEL_PROGRAM, size, place, written)
        }
    })
}

/// Releases a kernel that other code has made and given away.
///
/// # Safety
/// `raw` is a living `cl_kernel` of the runtime, and a reference of it is the caller's to give away.
pub unsafe fn release(runtime: &'static Runtime, raw: usize) {
    let kernel = cl_kernel(ptr::with_exposed_provenance_mut(raw));
    // SAFETY: promised by the caller.
    unsafe { (runtime.library.clReleaseKernel)(kernel) };
}

fn name(runtime: &'static Runtime, kernel: cl_kernel) -> Result<String, Failure> {
    let name = bytes("clGetKernelInfo", |size, place, written| {
        // SAFETY: the kernel lives, and the place has as many bytes.
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
        // SAFETY: kernel and device live, and the place has as many bytes.
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
        // SAFETY: kernel and device live, and input and place have as many bytes.
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
