//! Programs: code for devices, as compilers leave it.

mod build;
mod info;
mod link;
mod metadata;
mod symbols;

pub(crate) use metadata::KernelMetadata;

use crate::boundary::{enter, list, not_null, put};
use crate::context::Context;
use crate::description;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::native::{of_driver, ownership};
use crate::object::{Object, Ref, Shared, from_handles, release, retain};
use crate::stub::Stub;
use crate::unsupported::{IntermediateLanguages, Kernels};
use build::Build;
use metadata::Metadata;
use std::sync::{Mutex, MutexGuard, PoisonError};
use unified_runtime_sys::{
    ur_context_handle_t, ur_device_handle_t, ur_native_handle_t, ur_program_dditable_t,
    ur_program_exp_dditable_t, ur_program_handle_t, ur_program_handle_t_,
    ur_program_native_properties_t, ur_program_properties_t, ur_result_t,
};

/// An image for each of some devices, with what was built of it.
pub(crate) struct Program {
    context: Ref<Context>,
    images: Vec<DeviceImage>,
    metadata: Metadata,
}

/// The image for a device.
struct DeviceImage {
    device: Ref<Device>,
    /// As they were given; none for a program that was linked or loaded elsewhere.
    bytes: Box<[u8]>,
    build: Mutex<Build>,
}

impl Object for Program {
    type Opaque = ur_program_handle_t_;
}

impl DeviceImage {
    fn build(&self) -> MutexGuard<'_, Build> {
        self.build.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Program {
    pub(crate) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    pub(crate) fn metadata(&self, kernel: &str) -> KernelMetadata {
        self.metadata.kernel(kernel)
    }

    /// The program as it is loaded on devices, those on which it is built.
    pub(crate) fn loaded(&self) -> Vec<(Ref<Device>, crosshandle::Program)> {
        let loaded = |image: &DeviceImage| {
            let program = image.build().program().cloned()?;
            Some((Ref::clone(&image.device), program))
        };
        self.images.iter().filter_map(loaded).collect()
    }

    /// The image for a device.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    fn image(&self, device: &Shared<Device>) -> Result<&DeviceImage> {
        let mut images = self.images.iter();
        let image = images.find(|image| std::ptr::eq(&*image.device, device));
        image.ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_DEVICE,
                "the program has no image for this device",
            )
        })
    }

    /// The program as it is loaded on a device.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INVALID_PROGRAM_EXECUTABLE` if it is not built.
    fn on(&self, device: &Shared<Device>) -> Result<crosshandle::Program> {
        let image = self.image(device)?;
        let program = image.build().program().cloned();
        program.ok_or_else(not_built)
    }

    /// The memory of a variable on a device.
    ///
    /// # Errors
    /// As [`on`](Self::on); `INVALID_VALUE` if there is no such variable.
    pub(crate) fn variable(
        &self,
        device: &Shared<Device>,
        name: &str,
    ) -> Result<crosshandle::MemoryRange> {
        let found = self.on(device)?.variable(self.metadata.variable(name));
        found.map_err(|error| match error {
            crosshandle::Error::NoSymbol(_) => {
                Failure::from(error).with_result(ur_result_t::UR_RESULT_ERROR_INVALID_VALUE)
            }
            error => error.into(),
        })
    }
}

pub(crate) fn not_built() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_PROGRAM_EXECUTABLE,
        "the program is not built for this device",
    )
}

/// Runs the body of an entry point about programs or kernels, if the adapter's devices run any.
pub(crate) fn enter_with_kernels(body: impl FnOnce() -> Result<()>) -> ur_result_t {
    use crate::stub::Reason;
    enter(|| match description::get().program_target {
        Some(_) => body(),
        None => Err(Failure::unsupported(Kernels::TEXT)),
    })
}

unsafe extern "C" fn create_with_binary(
    context: ur_context_handle_t,
    count: u32,
    devices: *mut ur_device_handle_t,
    lengths: *mut usize,
    binaries: *mut *const u8,
    properties: *const ur_program_properties_t,
    created: *mut ur_program_handle_t,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(devices)?;
        not_null(lengths)?;
        not_null(binaries)?;
        not_null(created)?;
        if count == 0 {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller passes as many devices, lengths and binaries, and null or properties.
        let (devices, lengths, binaries, metadata) = unsafe {
            let missing = ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE;
            (
                from_handles::<Device>(devices, count, missing)?,
                list(lengths, count as usize)?,
                list(binaries, count as usize)?,
                Metadata::read(properties)?,
            )
        };
        let mut images = Vec::new();
        for ((device, length), binary) in devices.zip(lengths).zip(binaries) {
            context.on(device)?;
            if *length == 0 {
                return Err(Failure::SIZE);
            }
            // SAFETY: the caller passes a binary of this length.
            let bytes = unsafe { list(*binary, *length) }?;
            if !build::is_image(bytes) {
                return Err(Failure::new(
                    ur_result_t::UR_RESULT_ERROR_INVALID_BINARY,
                    "this is neither assembly nor a binary that the device's driver loads",
                ));
            }
            images.push(DeviceImage {
                device: device.to_ref(),
                bytes: bytes.into(),
                build: Mutex::default(),
            });
        }
        let program = Shared::new(Program {
            context: context.to_ref(),
            images,
            metadata,
        });
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(program)) }
    })
}

/// The native handle is the driver's, on the first device on which the program is built.
unsafe extern "C" fn get_native_handle(
    handle: ur_program_handle_t,
    native: *mut ur_native_handle_t,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes a program's handle.
        let program = unsafe { Shared::<Program>::from_handle(handle) }?;
        not_null(native)?;
        let loaded = program.loaded();
        let (_, program) = loaded.first().ok_or_else(not_built)?;
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(native, program.native().raw()) }
    })
}

/// The program is on the context's first device: the driver's handle doesn't say where.
unsafe extern "C" fn create_with_native_handle(
    native: ur_native_handle_t,
    context: ur_context_handle_t,
    properties: *const ur_program_native_properties_t,
    created: *mut ur_program_handle_t,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes a context's handle, and null or properties.
        let (context, properties) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                properties.as_ref(),
            )
        };
        not_null(created)?;
        if native == 0 {
            return Err(Failure::argument("this is no program's native handle"));
        }
        let is_owned = properties.is_some_and(|properties| properties.isNativeHandleOwned != 0);
        let (device, inner) = context.first();
        // SAFETY: the caller vouches for the native handle, as long as the program lives.
        let loaded = unsafe { inner.adopt_program(of_driver(native), ownership(is_owned)) }?;
        let program = Shared::new(Program {
            context: context.to_ref(),
            images: vec![DeviceImage {
                device: Ref::clone(device),
                bytes: Box::default(),
                build: Mutex::new(Build::done(loaded, "")),
            }],
            metadata: Metadata::default(),
        });
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(program)) }
    })
}

pub(crate) const TABLE: ur_program_dditable_t = ur_program_dditable_t {
    pfnCreateWithIL: Stub::<IntermediateLanguages>::STUB,
    pfnCreateWithBinary: Some(create_with_binary),
    pfnBuild: Some(build::build),
    pfnCompile: Some(build::compile),
    pfnLink: Some(link::link),
    pfnRetain: Some(retain::<Program>),
    pfnRelease: Some(release::<Program>),
    pfnGetFunctionPointer: Some(symbols::get_function_pointer),
    pfnGetGlobalVariablePointer: Some(symbols::get_global_variable_pointer),
    pfnGetInfo: Some(info::get_info),
    pfnGetBuildInfo: Some(info::get_build_info),
    pfnSetSpecializationConstants: Stub::<IntermediateLanguages>::STUB,
    pfnGetNativeHandle: Some(get_native_handle),
    pfnCreateWithNativeHandle: Some(create_with_native_handle),
};

pub(crate) const EXP_TABLE: ur_program_exp_dditable_t = ur_program_exp_dditable_t {
    pfnDynamicLinkExp: Stub::<IntermediateLanguages>::STUB,
    pfnBuildExp: Some(build::build_exp),
    pfnCompileExp: Some(build::compile_exp),
    pfnLinkExp: Some(link::link_exp),
};
