//! The runtime in use: a device with the CPU's threads, and the device's context.

use crate::failure::{Failure, check};
use crate::image::ImageLimits;
use crate::library::Library;
use crate::recording::{CreateRecording, EnqueueRecording, FinishRecording, RecordingFunctions};
use crate::search;
use crate::types::*;
use std::ffi::{CStr, OsStr, OsString, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

/// The OpenCL runtime of this process. A process has at most one, and never unloads it.
pub struct Runtime {
    pub(crate) library: Library,
    pub(crate) device: cl_device_id,
    pub(crate) context: cl_context,
    platform: cl_platform_id,
    path: OsString,
    platform_name: String,
    device_name: String,
    version: String,
    extensions: String,
    limits: Limits,
    pub(crate) extra: Extra,
    /// The number of the process that loaded the runtime.
    process: u32,
}

/// A SPIR-V module without functions. It has a header, the capabilities for addresses and kernels,
/// and the memory model.
const EMPTY_MODULE: [u32; 12] = [
    0x0723_0203,
    0x0001_0000,
    0,
    1,
    0,
    0x0002_0011,
    4,
    0x0002_0011,
    6,
    0x0003_000E,
    2,
    2,
];

static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();

/// Functions of extensions, as far as the runtime has them.
#[derive(Clone, Copy)]
pub(crate) struct Extra {
    pub(crate) variable_pointer: Option<VariablePointer>,
    pub(crate) suggested_size: Option<SuggestedSize>,
    pub(crate) concurrent_groups: Option<ConcurrentGroups>,
    pub(crate) recordings: Option<RecordingFunctions>,
}

/// The type of `clGetDeviceGlobalVariablePointerINTEL`.
pub(crate) type VariablePointer = unsafe extern "C" fn(
    cl_device_id,
    cl_program,
    *const std::ffi::c_char,
    *mut usize,
    *mut *mut c_void,
) -> cl_int;

/// The type of `clGetKernelSuggestedLocalWorkSizeKHR`.
pub(crate) type SuggestedSize = unsafe extern "C" fn(
    cl_command_queue,
    cl_kernel,
    cl_uint,
    *const usize,
    *const usize,
    *mut usize,
) -> cl_int;

/// The type of `clGetKernelMaxConcurrentWorkGroupCountINTEL`.
pub(crate) type ConcurrentGroups = unsafe extern "C" fn(
    cl_command_queue,
    cl_kernel,
    cl_uint,
    *const usize,
    *const usize,
    *mut usize,
) -> cl_int;

/// The limits of kernels on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of work-items of a work-group, in total.
    pub group_items: usize,
    /// Maximum number of work-items of a work-group, in each dimension.
    pub group_sizes: [usize; 3],
    /// Size of a work-group's local memory, in bytes.
    pub local_memory: u64,
    /// Maximum size of a program's constants, in bytes.
    pub constant_memory: u64,
    /// Maximum size of all arguments of a launch, in bytes.
    pub argument_bytes: usize,
    /// The sizes of sub-groups in ascending order. It is empty if the runtime does not report them.
    pub subgroup_sizes: Vec<usize>,
    /// Maximum number of sub-groups of a work-group, or 0 without sub-groups.
    pub subgroups: u32,
    /// The limits of images, or `None` if the device has no images or does not report the limits.
    pub images: Option<ImageLimits>,
    /// The versions of supported intermediate languages, separated by spaces, for example
    /// `SPIR-V_1.4`.
    pub intermediate_languages: String,
}

impl Runtime {
    /// Returns the runtime of this process. The first call searches for a runtime. The error says
    /// where it searched and what to install. The outcome is kept, so the search happens only once.
    pub fn get() -> Result<&'static Self, &'static str> {
        match RUNTIME.get_or_init(search::find) {
            Ok(runtime) => Ok(runtime),
            Err(reason) => Err(reason),
        }
    }

    /// Returns the runtime of this process if an earlier search found one.
    pub fn loaded() -> Option<&'static Self> {
        RUNTIME.get()?.as_ref().ok()
    }

    /// Returns whether this process is a forked child of the process that loaded the runtime. Such
    /// a child must not use it.
    pub(crate) fn is_elsewhere(&self) -> bool {
        std::process::id() != self.process
    }

    /// Loads a library, and uses the first suitable device of the first suitable platform.
    pub(crate) fn load(path: &OsStr) -> Result<Self, String> {
        let library = Library::load(path)?;
        let mut reason = "it has no CPU device".to_owned();
        for platform in platforms(&library)? {
            for device in devices(&library, platform) {
                match serves(&library, device) {
                    Ok(()) => return Self::start(library, platform, device, path),
                    Err(lack) => reason = lack,
                }
            }
        }
        Err(reason)
    }

    fn start(
        library: Library,
        platform: cl_platform_id,
        device: cl_device_id,
        path: &OsStr,
    ) -> Result<Self, String> {
        let mut code = CL_SUCCESS;
        // SAFETY: the device is alive, and there are no properties and no callback.
        let context = unsafe {
            (library.clCreateContext)(ptr::null(), 1, &device, None, ptr::null_mut(), &mut code)
        };
        check("clCreateContext", code).map_err(|failure| failure.to_string())?;
        let taken = takes_spirv(&library, context);
        if taken.is_err() {
            // SAFETY: the context was created above, and no other code uses it.
            unsafe { (library.clReleaseContext)(context) };
        }
        taken?;
        let text = |name| device_text(&library, device, name).unwrap_or_default();
        let limits = limits(&library, device).map_err(|failure| failure.to_string())?;
        Ok(Self {
            device,
            context,
            platform,
            path: path.to_owned(),
            platform_name: platform_text(&library, platform, CL_PLATFORM_NAME).unwrap_or_default(),
            device_name: text(CL_DEVICE_NAME),
            version: text(CL_DRIVER_VERSION),
            extensions: text(CL_DEVICE_EXTENSIONS),
            limits,
            extra: Extra::find(&library, platform),
            process: std::process::id(),
            library,
        })
    }

    /// Returns the path of the library through which the runtime was found.
    pub fn path(&self) -> &OsStr {
        &self.path
    }

    /// Returns the name that the vendor gave the platform.
    pub fn platform_name(&self) -> &str {
        &self.platform_name
    }

    /// Returns the name of the device.
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// Returns the runtime's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the names of the device's extensions, separated by spaces.
    pub fn extensions(&self) -> &str {
        &self.extensions
    }

    /// Returns the limits of kernels.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns OpenCL's platform, device and context handles as numbers.
    pub fn raw(&self) -> (usize, usize, usize) {
        let number = |pointer: *mut c_void| pointer.expose_provenance();
        (
            number(self.platform.0),
            number(self.device.0),
            number(self.context.0),
        )
    }
}

impl Extra {
    fn find(library: &Library, platform: cl_platform_id) -> Self {
        let find = |name: &CStr| {
            // SAFETY: the platform is alive, and the name ends with a zero.
            let found = unsafe {
                (library.clGetExtensionFunctionAddressForPlatform)(platform, name.as_ptr())
            };
            (!found.is_null()).then_some(found)
        };
        let recordings = || {
            // SAFETY: the extension defines these types for the functions of these names.
            unsafe {
                Some(RecordingFunctions {
                    create: std::mem::transmute::<*mut c_void, CreateRecording>(find(
                        c"clCreateCommandBufferKHR",
                    )?),
                    finalize: std::mem::transmute::<*mut c_void, FinishRecording>(find(
                        c"clFinalizeCommandBufferKHR",
                    )?),
                    enqueue: std::mem::transmute::<*mut c_void, EnqueueRecording>(find(
                        c"clEnqueueCommandBufferKHR",
                    )?),
                    release: std::mem::transmute::<*mut c_void, FinishRecording>(find(
                        c"clReleaseCommandBufferKHR",
                    )?),
                })
            }
        };
        // SAFETY: the extensions define these types for the functions of these names.
        unsafe {
            Self {
                recordings: recordings(),
                variable_pointer: find(c"clGetDeviceGlobalVariablePointerINTEL")
                    .map(|found| std::mem::transmute::<*mut c_void, VariablePointer>(found)),
                suggested_size: find(c"clGetKernelSuggestedLocalWorkSizeKHR")
                    .or_else(|| find(c"clGetKernelSuggestedLocalWorkSizeINTEL"))
                    .map(|found| std::mem::transmute::<*mut c_void, SuggestedSize>(found)),
                concurrent_groups: find(c"clGetKernelMaxConcurrentWorkGroupCountINTEL")
                    .map(|found| std::mem::transmute::<*mut c_void, ConcurrentGroups>(found)),
            }
        }
    }
}

fn platforms(library: &Library) -> Result<Vec<cl_platform_id>, String> {
    let mut count = 0;
    // SAFETY: the call only returns the number of platforms.
    let code = unsafe { (library.clGetPlatformIDs)(0, ptr::null_mut(), &mut count) };
    if code != CL_SUCCESS || count == 0 {
        return Err(format!("it finds no platform (code {code})"));
    }
    let mut all = vec![cl_platform_id::NULL; count as usize];
    // SAFETY: `all` has room for `count` handles.
    let code = unsafe { (library.clGetPlatformIDs)(count, all.as_mut_ptr(), ptr::null_mut()) };
    check("clGetPlatformIDs", code).map_err(|failure| failure.to_string())?;
    all.retain(|platform| !platform.is_null());
    Ok(all)
}

fn devices(library: &Library, platform: cl_platform_id) -> Vec<cl_device_id> {
    let (kind, mut count) = (CL_DEVICE_TYPE_CPU, 0);
    // SAFETY: the call only returns the number of devices.
    let code = unsafe { (library.clGetDeviceIDs)(platform, kind, 0, ptr::null_mut(), &mut count) };
    if code != CL_SUCCESS || count == 0 {
        return Vec::new();
    }
    let mut all = vec![cl_device_id::NULL; count as usize];
    // SAFETY: the platform is alive, and `all` has room for `count` handles.
    let code = unsafe {
        (library.clGetDeviceIDs)(platform, kind, count, all.as_mut_ptr(), ptr::null_mut())
    };
    if code != CL_SUCCESS {
        return Vec::new();
    }
    all.retain(|device| !device.is_null());
    all
}

/// Checks that a device has everything that this crate needs. The error says what the device lacks.
fn serves(library: &Library, device: cl_device_id) -> Result<(), String> {
    let value = |name| device_value(library, device, name).unwrap_or(0);
    let text = |name| device_text(library, device, name).unwrap_or_default();
    let found = Abilities {
        shared: value(CL_DEVICE_SVM_CAPABILITIES),
        has_compiler: device_value(library, device, CL_DEVICE_COMPILER_AVAILABLE) == Ok(CL_TRUE),
        languages: text(CL_DEVICE_IL_VERSION),
    };
    let lack = found.lack();
    lack.map_or(Ok(()), |lack| {
        Err(format!("its device '{}' has {lack}", text(CL_DEVICE_NAME)))
    })
}

/// The abilities of a device that decide whether it is suitable.
struct Abilities {
    shared: cl_bitfield,
    has_compiler: bool,
    /// The supported intermediate languages, separated by spaces.
    languages: String,
}

impl Abilities {
    fn lack(&self) -> Option<&'static str> {
        if self.shared & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM == 0 {
            return Some(
                "no fine-grained system shared virtual memory, so that kernels could not work on shared \
                 memory in place",
            );
        }
        if !self.has_compiler {
            return Some("no compiler");
        }
        let mut languages = self.languages.split_ascii_whitespace();
        let has_spirv = languages.any(|language| language.starts_with("SPIR-V_"));
        (!has_spirv).then_some("no compiler for SPIR-V")
    }
}

/// Checks that the context's runtime accepts SPIR-V, whatever its devices report. A module without
/// functions is enough for this check.
fn takes_spirv(library: &Library, context: cl_context) -> Result<(), String> {
    let mut code = CL_SUCCESS;
    // SAFETY: the context is alive, and the module has the given size. The runtime copies the
    // bytes.
    let program = unsafe {
        (library.clCreateProgramWithIL)(
            context,
            EMPTY_MODULE.as_ptr().cast(),
            size_of_val(&EMPTY_MODULE),
            &mut code,
        )
    };
    check("clCreateProgramWithIL", code)
        .map_err(|failure| format!("it takes no SPIR-V: {failure}"))?;
    // SAFETY: the program was created above, and no other code uses it.
    unsafe { (library.clReleaseProgram)(program) };
    Ok(())
}

fn limits(library: &Library, device: cl_device_id) -> Result<Limits, Failure> {
    let sizes = device_bytes(library, device, CL_DEVICE_MAX_WORK_ITEM_SIZES)?;
    let mut group_sizes = [1; 3];
    for (place, size) in group_sizes.iter_mut().zip(numbers(&sizes)) {
        *place = size;
    }
    let subgroups = device_bytes(library, device, CL_DEVICE_SUB_GROUP_SIZES_INTEL);
    let mut subgroup_sizes = numbers(&subgroups.unwrap_or_default());
    subgroup_sizes.sort_unstable();
    Ok(Limits {
        group_items: device_value(library, device, CL_DEVICE_MAX_WORK_GROUP_SIZE)?,
        group_sizes,
        local_memory: device_value(library, device, CL_DEVICE_LOCAL_MEM_SIZE)?,
        constant_memory: device_value(library, device, CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE)?,
        argument_bytes: device_value(library, device, CL_DEVICE_MAX_PARAMETER_SIZE)?,
        subgroup_sizes,
        subgroups: device_value(library, device, CL_DEVICE_MAX_NUM_SUB_GROUPS).unwrap_or(0),
        // Kernels also run on a device without images.
        images: image_limits(library, device).ok().flatten(),
        intermediate_languages: device_text(library, device, CL_DEVICE_IL_VERSION)
            .unwrap_or_default(),
    })
}

fn image_limits(library: &Library, device: cl_device_id) -> Result<Option<ImageLimits>, Failure> {
    if device_value::<cl_uint>(library, device, CL_DEVICE_IMAGE_SUPPORT)? != CL_TRUE {
        return Ok(None);
    }
    let size = |name| device_value::<usize>(library, device, name);
    let count = |name| device_value::<cl_uint>(library, device, name);
    Ok(Some(ImageLimits {
        size_2d: [
            size(CL_DEVICE_IMAGE2D_MAX_WIDTH)?,
            size(CL_DEVICE_IMAGE2D_MAX_HEIGHT)?,
        ],
        size_3d: [
            size(CL_DEVICE_IMAGE3D_MAX_WIDTH)?,
            size(CL_DEVICE_IMAGE3D_MAX_HEIGHT)?,
            size(CL_DEVICE_IMAGE3D_MAX_DEPTH)?,
        ],
        layers: size(CL_DEVICE_IMAGE_MAX_ARRAY_SIZE)?,
        read_arguments: count(CL_DEVICE_MAX_READ_IMAGE_ARGS)?,
        write_arguments: count(CL_DEVICE_MAX_WRITE_IMAGE_ARGS)?,
        read_write_arguments: count(CL_DEVICE_MAX_READ_WRITE_IMAGE_ARGS).unwrap_or(0),
        samplers: count(CL_DEVICE_MAX_SAMPLERS)?,
    }))
}

/// Converts bytes to numbers in native byte order.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<usize> {
    let (words, _) = bytes.as_chunks::<{ size_of::<usize>() }>();
    words
        .iter()
        .map(|word| usize::from_ne_bytes(*word))
        .collect()
}

pub(crate) fn value<T: Default + Copy>(
    operation: &'static str,
    query: impl FnOnce(usize, *mut c_void, *mut usize) -> cl_int,
) -> Result<T, Failure> {
    let mut value = MaybeUninit::<T>::zeroed();
    check(
        operation,
        query(size_of::<T>(), value.as_mut_ptr().cast(), ptr::null_mut()),
    )?;
    // SAFETY: all callers query numbers and handles, for which zeros are valid values.
    Ok(unsafe { value.assume_init() })
}

pub(crate) fn bytes(
    operation: &'static str,
    query: impl Fn(usize, *mut c_void, *mut usize) -> cl_int,
) -> Result<Vec<u8>, Failure> {
    let mut size = 0;
    check(operation, query(0, ptr::null_mut(), &mut size))?;
    let mut bytes = vec![0; size];
    if size != 0 {
        check(
            operation,
            query(size, bytes.as_mut_ptr().cast(), ptr::null_mut()),
        )?;
    }
    Ok(bytes)
}

/// Converts the bytes before the first zero to text.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let bytes = &bytes[..end.unwrap_or(bytes.len())];
    String::from_utf8_lossy(bytes).trim().to_owned()
}

pub(crate) fn device_bytes(
    library: &Library,
    device: cl_device_id,
    name: cl_uint,
) -> Result<Vec<u8>, Failure> {
    bytes("clGetDeviceInfo", |size, place, written| {
        // SAFETY: the device is alive, and `place` has room for `size` bytes.
        unsafe { (library.clGetDeviceInfo)(device, name, size, place, written) }
    })
}

fn device_text(library: &Library, device: cl_device_id, name: cl_uint) -> Result<String, Failure> {
    Ok(text(&device_bytes(library, device, name)?))
}

pub(crate) fn device_value<T: Default + Copy>(
    library: &Library,
    device: cl_device_id,
    name: cl_uint,
) -> Result<T, Failure> {
    value("clGetDeviceInfo", |size, place, written| {
        // SAFETY: the device is alive, and `place` has room for `size` bytes.
        unsafe { (library.clGetDeviceInfo)(device, name, size, place, written) }
    })
}

fn platform_text(
    library: &Library,
    platform: cl_platform_id,
    name: cl_uint,
) -> Result<String, Failure> {
    let bytes = bytes("clGetPlatformInfo", |size, place, written| {
        // SAFETY: the platform is alive, and `place` has room for `size` bytes.
        unsafe { (library.clGetPlatformInfo)(platform, name, size, place, written) }
    })?;
    Ok(text(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_serves_with_shared_memory_a_compiler_and_spirv() {
        let lack = |shared, has_compiler, languages: &str| {
            let languages = languages.to_owned();
            Abilities {
                shared,
                has_compiler,
                languages,
            }
            .lack()
        };
        let all = CL_DEVICE_SVM_FINE_GRAIN_SYSTEM | 1;
        assert_eq!(lack(all, true, "SPIR-V_1.0 SPIR-V_1.2"), None);
        assert!(lack(1, true, "SPIR-V_1.0").unwrap().contains("memory"));
        assert_eq!(lack(all, false, "SPIR-V_1.0"), Some("no compiler"));
        for languages in ["", "ESPIR-V_1.0", "SPIR"] {
            assert_eq!(lack(all, true, languages), Some("no compiler for SPIR-V"));
        }
    }
}
