//! Programs: device code that clients pass to the adapter, and its build state.

mod build;
mod info;
pub(crate) mod kernel;
mod link;
mod metadata;
mod ptx;
mod spirv;
mod symbols;

pub(crate) use metadata::KernelMetadata;

use crate::abi::boundary::{
    Argument2, Argument4, Call, List, MaybeIn, Out, enter, entry_points, list, not_null,
};
use crate::abi::description;
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::native::{of_driver, ownership};
use crate::abi::object::{Handle, Handles, Object, Ref, Shared, release, retain};
use crate::abi::stub::Reason;
use crate::abi::unsupported::{Kernels, SpecializationConstants};
use crate::context::Context;
use crate::discovery::Device;
use crate::discovery::platform;
use build::Build;
use link::Part;
use metadata::{Metadata, MetadataArgument};
use std::ffi::c_void;
use std::sync::{Arc, MutexGuard};
use unified_runtime_sys::{
    ur_device_handle_t, ur_native_handle_t, ur_program_build_status_t as status,
    ur_program_dditable_t, ur_program_exp_dditable_t, ur_program_handle_t, ur_program_handle_t_,
    ur_program_native_properties_t, ur_result_t, ur_specialization_constant_info_t,
};

/// A UR program handle: images for one or more devices, and the loaded programs that were built
/// from them.
pub(crate) struct Program {
    context: Ref<Context>,
    images: Vec<DeviceImage>,
    metadata: Metadata,
    /// The values of the specialization constants that the caller has set, each with its id. Only
    /// SPIR-V programs have them.
    constants: Lock<Vec<(u32, Vec<u8>)>>,
}

/// The image of a program for one device, and its build state.
struct DeviceImage {
    device: Ref<Device>,
    /// The bytes of the image. The bytes are empty if the program was linked, or was created from a
    /// native handle.
    bytes: Arc<[u8]>,
    /// Whether the bytes are in an intermediate language, from which the driver makes the binary.
    is_intermediate: bool,
    /// The images for a later link, if the program was linked with unresolved symbols allowed.
    parts: Vec<Part>,
    build: Lock<Build>,
}

impl Object for Program {
    type Opaque = ur_program_handle_t_;
}

impl DeviceImage {
    /// Returns whether the image has been neither compiled nor built.
    fn is_new(&self) -> bool {
        self.build().status == status::UR_PROGRAM_BUILD_STATUS_NONE
    }

    /// Creates an image that has been neither compiled nor built.
    fn new(device: &Ref<Device>, bytes: &[u8]) -> Self {
        Self {
            device: Ref::clone(device),
            bytes: bytes.into(),
            is_intermediate: false,
            parts: Vec::new(),
            build: Lock::default(),
        }
    }

    /// Creates the image of a program that needs no further build.
    fn of_loaded(device: &Ref<Device>, build: Build) -> Self {
        Self {
            build: Lock::new(build),
            ..Self::new(device, &[])
        }
    }

    /// Locks and returns the build state of the image.
    fn build(&self) -> MutexGuard<'_, Build> {
        self.build.lock()
    }
}

impl Program {
    pub(crate) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    /// Returns the compiler's metadata for a kernel.
    pub(crate) fn metadata(&self, kernel: &str) -> KernelMetadata {
        self.metadata.kernel(kernel)
    }

    /// Returns the loaded program for each device for which this program was built.
    pub(crate) fn loaded(&self) -> Vec<(Ref<Device>, crosshandle::kernel::Program)> {
        let loaded = |image: &DeviceImage| {
            let program = image.build().program().cloned()?;
            Some((Ref::clone(&image.device), program))
        };
        self.images.iter().filter_map(loaded).collect()
    }

    fn new(context: Ref<Context>, images: Vec<DeviceImage>, metadata: Metadata) -> Self {
        Self {
            context,
            images,
            metadata,
            constants: Lock::default(),
        }
    }

    /// Creates a program from a program in `crosshandle` that is loaded on a device.
    fn of_loaded(
        context: &Shared<Context>,
        device: &Ref<Device>,
        loaded: crosshandle::kernel::Program,
    ) -> Self {
        let image = DeviceImage::of_loaded(device, Build::done(loaded, ""));
        Self::new(context.to_ref(), vec![image], Metadata::default())
    }

    /// Returns the SPIR-V module from which the program was created. Returns `None` if the program
    /// was not created from SPIR-V.
    fn module(&self) -> Option<&[u8]> {
        let bytes = &self.images.first()?.bytes;
        spirv::is_module(bytes).then_some(bytes)
    }

    /// Returns the image for a device.
    ///
    /// # Errors
    /// Returns `INVALID_DEVICE` if the program has no image for the device.
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

    /// Returns the loaded program for a device.
    ///
    /// # Errors
    /// Returns `INVALID_DEVICE` if the program has no image for the device. Returns
    /// `INVALID_PROGRAM_EXECUTABLE` if the image has not been built.
    fn on(&self, device: &Shared<Device>) -> Result<crosshandle::kernel::Program> {
        let image = self.image(device)?;
        let program = image.build().program().cloned();
        program.ok_or_else(not_built)
    }

    /// Returns the memory of a global variable on a device.
    ///
    /// # Errors
    /// Returns `INVALID_VALUE` if the variable does not exist. Otherwise returns the same errors as
    /// [`on`](Self::on).
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

/// Returns the failure for a program that is not built.
pub(crate) fn not_built() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_PROGRAM_EXECUTABLE,
        "the program is not built for this device",
    )
}

/// Runs the body of an entry point for programs or kernels. Returns an error without running the
/// body if the adapter's devices do not support kernels.
pub(crate) fn enter_with_kernels(body: impl FnOnce(&Call) -> Result<()>) -> ur_result_t {
    enter(|call| {
        let description = description::get();
        let device = platform().devices().first();
        match device.map(|device| device.inner().kernels()) {
            _ if description.program_targets.is_empty() => Err(Failure::unsupported(Kernels::TEXT)),
            Some(Err(error)) => Err(error.into()),
            _ => body(call),
        }
    })
}

entry_points! {
    in enter_with_kernels;

    fn create_with_binary(
        context: Handle<Context>,
        images(count, devices, lengths, binaries): Binaries,
        metadata: MetadataArgument,
        created: Out<ur_program_handle_t>,
    ) {
        let images = images.into_iter().map(|(device, bytes)| {
            context.on(device)?;
            if !build::is_image(bytes) {
                return Err(Failure::new(
                    ur_result_t::UR_RESULT_ERROR_INVALID_BINARY,
                    "this is neither assembly nor a binary that the device's driver can load",
                ));
            }
            Ok(DeviceImage::new(&device.to_ref(), bytes))
        });
        let images = images.collect::<Result<Vec<_>>>()?;
        let metadata = images.iter().fold(metadata, |known, image| known.with_image(&image.bytes));
        let program = Program::new(context.to_ref(), images, metadata);
        created.put(Shared::hand_out(Shared::new(program)))
    }

    fn create_with_il(
        context: Handle<Context>,
        module(first, length): Module,
        metadata: MetadataArgument,
        created: Out<ur_program_handle_t>,
    ) {
        match description::get().takes_spirv {
            true => spirv::check(module)?,
            false => build::check_assembly(module)?,
        }
        let image = |device| DeviceImage {
            is_intermediate: true,
            ..DeviceImage::new(device, module)
        };
        let images = context.devices().map(image).collect();
        let metadata = metadata.with_image(module);
        let program = Program::new(context.to_ref(), images, metadata);
        created.put(Shared::hand_out(Shared::new(program)))
    }

    fn set_specialization_constants(
        program: Handle<Program>,
        constants(count, first): List<ur_specialization_constant_info_t>,
    ) {
        if constants.is_empty() {
            return Err(Failure::SIZE);
        }
        if !description::get().takes_spirv {
            return Err(Failure::unsupported(SpecializationConstants::TEXT));
        }
        let module = program.module().ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_PROGRAM,
                "this program was not created from SPIR-V, so it has no specialization constants",
            )
        })?;
        let known = spirv::constants(module);
        let mut values = Vec::with_capacity(constants.len());
        for constant in constants {
            if constant.pValue.is_null() {
                return Err(Failure::new(
                    ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                    format!("the value of specialization constant {} is null", constant.id),
                ));
            }
            // SAFETY: the caller passes `size` readable bytes at `pValue`.
            let value = unsafe { list(constant.pValue.cast::<u8>(), constant.size) }?;
            spirv::check_constant(&known, constant.id, value)?;
            values.push((constant.id, value.to_vec()));
        }
        let mut set = program.constants.lock();
        set.retain(|(number, _)| values.iter().all(|(new, _)| new != number));
        set.extend(values);
        Ok(())
    }

    /// Returns the driver's program on the first device for which the program was built.
    ///
    /// The driver has no program before the build. So if the program has been neither compiled nor
    /// built, this call builds it for its first device, without options.
    fn get_native_handle(program: Handle<Program>, native: Out<ur_native_handle_t>) {
        if let Some(image) = program.images.first()
            && program.images.iter().all(DeviceImage::is_new)
        {
            image.load(program, "")?;
        }
        let loaded = program.loaded();
        let (_, program) = loaded.first().ok_or_else(|| {
            Failure::unsupported("a program has no native handle before it is built: build it first")
        })?;
        native.put(program.native().raw())
    }

    /// Creates a program on the context's first device from a native handle. The native handle does
    /// not specify a device.
    fn create_with_native_handle(
        native: ur_native_handle_t,
        context: Handle<Context>,
        properties: MaybeIn<ur_program_native_properties_t>,
        created: Out<ur_program_handle_t>,
    ) {
        if native == 0 {
            return Err(Failure::argument("0 is not the native handle of a program"));
        }
        let is_owned = properties.is_some_and(|properties| properties.isNativeHandleOwned != 0);
        let (device, inner) = context.first();
        // SAFETY: the caller guarantees that the native handle is valid as long as the program
        // exists.
        let loaded = unsafe { crosshandle::kernel::Program::adopt(inner, of_driver(native), ownership(is_owned)) }?;
        let program = Program::of_loaded(context, device, loaded);
        created.put(Shared::hand_out(Shared::new(program)))
    }
}

/// An argument of an entry point that contains one binary for each device. The caller passes the
/// count, and the addresses of the lists of devices, lengths and binaries. The call fails with
/// `INVALID_NULL_POINTER` for a null list, with `INVALID_VALUE` for a null binary, and with
/// `INVALID_SIZE` for an empty list or binary.
struct Binaries;

impl Argument4 for Binaries {
    type A = u32;
    type B = *mut ur_device_handle_t;
    type C = *mut usize;
    type D = *mut *const u8;
    type Value<'a> = Vec<(&'a Shared<Device>, &'a [u8])>;

    unsafe fn read<'a>(
        count: u32,
        devices: Self::B,
        lengths: Self::C,
        binaries: Self::D,
        call: &'a Call,
    ) -> Result<Self::Value<'a>> {
        not_null(devices)?;
        not_null(lengths)?;
        not_null(binaries)?;
        if count == 0 {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller passes lists with `count` devices, lengths and binaries. Each binary
        // has the number of bytes that its length specifies.
        unsafe {
            let devices = Handles::<Device>::read(count, devices, call)?;
            let lengths = list(lengths, count as usize)?;
            let binaries = list(binaries, count as usize)?;
            let sized = binaries.iter().zip(lengths);
            let bytes = sized.map(|(binary, length)| match length {
                0 => Err(Failure::SIZE),
                _ if binary.is_null() => {
                    Err(Failure::of(ur_result_t::UR_RESULT_ERROR_INVALID_VALUE))
                }
                length => list(*binary, *length),
            });
            let images = devices.iter().zip(bytes);
            images.map(|(device, bytes)| Ok((device, bytes?))).collect()
        }
    }
}

/// An argument of an entry point that contains the bytes of a module. The caller passes the address
/// and the length. The call fails with `INVALID_NULL_POINTER` if the address is null, and with
/// `INVALID_SIZE` if the length is 0.
struct Module;

impl Argument2 for Module {
    type A = *const c_void;
    type B = usize;
    type Value<'a> = &'a [u8];

    unsafe fn read(first: Self::A, length: usize, _call: &Call) -> Result<&[u8]> {
        not_null(first)?;
        if length == 0 {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller passes `length` readable bytes.
        unsafe { list(first.cast(), length) }
    }
}

/// The entry points for programs.
pub(crate) const TABLE: ur_program_dditable_t = ur_program_dditable_t {
    pfnCreateWithIL: Some(create_with_il),
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
    pfnSetSpecializationConstants: Some(set_specialization_constants),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnCreateWithNativeHandle: Some(create_with_native_handle),
};

/// The experimental entry points for programs.
pub(crate) const EXP_TABLE: ur_program_exp_dditable_t = ur_program_exp_dditable_t {
    pfnDynamicLinkExp: Some(link::dynamic_link),
    pfnBuildExp: Some(build::build_exp),
    pfnCompileExp: Some(build::compile_exp),
    pfnLinkExp: Some(link::link_exp),
};
