//! A library with OpenCL's functions, which is a runtime itself or the loader that finds runtimes.

use crate::types::*;
use libloading::os::unix::{Library as Loaded, RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{OsStr, c_char, c_void};

macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The OpenCL functions that this crate uses, under their C names. All belong to OpenCL
        /// 2.1, and callers must follow its contract.
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        pub(crate) struct Library {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            /// Loads a library and finds its functions. `name` is a path, or a name that the
            /// dynamic linker looks up. The library is never unloaded, because a runtime's threads
            /// execute its code.
            pub(crate) fn load(name: &OsStr) -> Result<Self, String> {
                // SAFETY: this loads a runtime that the user installed or named, whose constructors
                // are sound.
                let library = unsafe { Loaded::open(Some(name), RTLD_LAZY | RTLD_LOCAL) };
                let library = library.map_err(|error| cause(&error))?;
                // SAFETY: each type is that of the function in CL/cl.h.
                let functions = unsafe {
                    Self {
                        $($name: find(&library, stringify!($name))?,)*
                    }
                };
                let _: *mut c_void = library.into_raw();
                Ok(functions)
            }
        }
    };
}

/// Loads a library that stays loaded.
pub(crate) fn keep(name: &OsStr) -> Result<(), String> {
    // SAFETY: this loads a loader that the user installed, whose constructors are sound.
    let library = unsafe { Loaded::open(Some(name), RTLD_LAZY | RTLD_LOCAL) };
    let _: *mut c_void = library.map_err(|error| cause(&error))?.into_raw();
    Ok(())
}

/// Returns the dynamic linker's message.
fn cause(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// Returns a function of the library.
///
/// # Safety
/// `T` must be a function pointer of the type that CL/cl.h declares for `name`.
unsafe fn find<T: Copy>(library: &Loaded, name: &str) -> Result<T, String> {
    // SAFETY: the caller guarantees the type, and keeps the library loaded while it uses the
    // result.
    match unsafe { library.get::<T>(name) } {
        Ok(found) => Ok(*found),
        Err(_) => Err(format!("it has no {name}, which OpenCL 2.1 has")),
    }
}

functions! {
    clGetPlatformIDs(cl_uint, *mut cl_platform_id, *mut cl_uint) -> cl_int;
    clGetPlatformInfo(cl_platform_id, cl_uint, usize, *mut c_void, *mut usize) -> cl_int;
    clGetDeviceIDs(cl_platform_id, cl_bitfield, cl_uint, *mut cl_device_id, *mut cl_uint) -> cl_int;
    clGetDeviceInfo(cl_device_id, cl_uint, usize, *mut c_void, *mut usize) -> cl_int;
    clCreateSubDevices(cl_device_id, *const usize, cl_uint, *mut cl_device_id, *mut cl_uint) -> cl_int;
    clReleaseDevice(cl_device_id) -> cl_int;
    clCreateContext(*const isize, cl_uint, *const cl_device_id, ContextCallback, *mut c_void, *mut cl_int) -> cl_context;
    clReleaseContext(cl_context) -> cl_int;
    clGetExtensionFunctionAddressForPlatform(cl_platform_id, *const c_char) -> *mut c_void;
    clCreateProgramWithSource(cl_context, cl_uint, *const *const c_char, *const usize, *mut cl_int) -> cl_program;
    clCreateProgramWithIL(cl_context, *const c_void, usize, *mut cl_int) -> cl_program;
    clCreateProgramWithBinary(cl_context, cl_uint, *const cl_device_id, *const usize, *const *const u8, *mut cl_int, *mut cl_int) -> cl_program;
    clSetProgramSpecializationConstant(cl_program, cl_uint, usize, *const c_void) -> cl_int;
    clBuildProgram(cl_program, cl_uint, *const cl_device_id, *const c_char, BuildCallback, *mut c_void) -> cl_int;
    clCompileProgram(cl_program, cl_uint, *const cl_device_id, *const c_char, cl_uint, *const cl_program, *const *const c_char, BuildCallback, *mut c_void) -> cl_int;
    clLinkProgram(cl_context, cl_uint, *const cl_device_id, *const c_char, cl_uint, *const cl_program, BuildCallback, *mut c_void, *mut cl_int) -> cl_program;
    clGetProgramInfo(cl_program, cl_uint, usize, *mut c_void, *mut usize) -> cl_int;
    clGetProgramBuildInfo(cl_program, cl_device_id, cl_uint, usize, *mut c_void, *mut usize) -> cl_int;
    clRetainProgram(cl_program) -> cl_int;
    clReleaseProgram(cl_program) -> cl_int;
    clCreateKernel(cl_program, *const c_char, *mut cl_int) -> cl_kernel;
    clReleaseKernel(cl_kernel) -> cl_int;
    clSetKernelArg(cl_kernel, cl_uint, usize, *const c_void) -> cl_int;
    clSetKernelArgSVMPointer(cl_kernel, cl_uint, *const c_void) -> cl_int;
    clSetKernelExecInfo(cl_kernel, cl_uint, usize, *const c_void) -> cl_int;
    clGetKernelInfo(cl_kernel, cl_uint, usize, *mut c_void, *mut usize) -> cl_int;
    clGetKernelWorkGroupInfo(cl_kernel, cl_device_id, cl_uint, usize, *mut c_void, *mut usize) -> cl_int;
    clGetKernelSubGroupInfo(cl_kernel, cl_device_id, cl_uint, usize, *const c_void, usize, *mut c_void, *mut usize) -> cl_int;
    clCreateCommandQueueWithProperties(cl_context, cl_device_id, *const cl_bitfield, *mut cl_int) -> cl_command_queue;
    clReleaseCommandQueue(cl_command_queue) -> cl_int;
    clEnqueueNDRangeKernel(cl_command_queue, cl_kernel, cl_uint, *const usize, *const usize, *const usize, cl_uint, *const cl_event, *mut cl_event) -> cl_int;
    clCreateBuffer(cl_context, cl_bitfield, usize, *mut c_void, *mut cl_int) -> cl_mem;
    clCreateImage(cl_context, cl_bitfield, *const cl_image_format, *const cl_image_desc, *mut c_void, *mut cl_int) -> cl_mem;
    clGetImageInfo(cl_mem, cl_uint, usize, *mut c_void, *mut usize) -> cl_int;
    clReleaseMemObject(cl_mem) -> cl_int;
    clCreateSamplerWithProperties(cl_context, *const cl_bitfield, *mut cl_int) -> cl_sampler;
    clReleaseSampler(cl_sampler) -> cl_int;
    clEnqueueReadImage(cl_command_queue, cl_mem, cl_uint, *const usize, *const usize, usize, usize, *mut c_void, cl_uint, *const cl_event, *mut cl_event) -> cl_int;
    clEnqueueWriteImage(cl_command_queue, cl_mem, cl_uint, *const usize, *const usize, usize, usize, *const c_void, cl_uint, *const cl_event, *mut cl_event) -> cl_int;
    clEnqueueCopyImage(cl_command_queue, cl_mem, cl_mem, *const usize, *const usize, *const usize, cl_uint, *const cl_event, *mut cl_event) -> cl_int;
    clFlush(cl_command_queue) -> cl_int;
    clFinish(cl_command_queue) -> cl_int;
    clWaitForEvents(cl_uint, *const cl_event) -> cl_int;
    clSetEventCallback(cl_event, cl_int, EventCallback, *mut c_void) -> cl_int;
    clGetEventInfo(cl_event, cl_uint, usize, *mut c_void, *mut usize) -> cl_int;
    clReleaseEvent(cl_event) -> cl_int;
}
