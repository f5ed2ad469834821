//! The OpenCL declarations that this crate uses, under the names of `CL/cl.h`.

use std::ffi::{c_char, c_void};

pub(crate) type cl_int = i32;
pub(crate) type cl_uint = u32;
pub(crate) type cl_bitfield = u64;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) struct $name(pub(crate) *mut c_void);

        impl $name {
            #[allow(dead_code, reason = "not every kind is asked for")]
            pub(crate) const NULL: Self = Self(std::ptr::null_mut());

            #[allow(dead_code, reason = "not every kind is asked for")]
            pub(crate) fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        // SAFETY: a handle is only a number here, and OpenCL accepts handles on any thread.
        unsafe impl Send for $name {}
        // SAFETY: a handle is only a number here, and OpenCL accepts handles on any thread.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    cl_platform_id
    cl_device_id
    cl_context
    cl_program
    cl_kernel
    cl_command_queue
    cl_event
    cl_mem
    cl_sampler
    /// Of the extension `cl_khr_command_buffer`.
    cl_command_buffer_khr
}

pub(crate) const CL_SUCCESS: cl_int = 0;
pub(crate) const CL_MEM_OBJECT_ALLOCATION_FAILURE: cl_int = -4;
pub(crate) const CL_OUT_OF_RESOURCES: cl_int = -5;
pub(crate) const CL_OUT_OF_HOST_MEMORY: cl_int = -6;
pub(crate) const CL_IMAGE_FORMAT_NOT_SUPPORTED: cl_int = -10;
pub(crate) const CL_INVALID_VALUE: cl_int = -30;
pub(crate) const CL_INVALID_MEM_OBJECT: cl_int = -38;
pub(crate) const CL_INVALID_IMAGE_FORMAT_DESCRIPTOR: cl_int = -39;
pub(crate) const CL_INVALID_IMAGE_SIZE: cl_int = -40;
pub(crate) const CL_INVALID_SAMPLER: cl_int = -41;
pub(crate) const CL_INVALID_KERNEL_NAME: cl_int = -46;
pub(crate) const CL_INVALID_ARG_INDEX: cl_int = -49;
pub(crate) const CL_INVALID_ARG_VALUE: cl_int = -50;
pub(crate) const CL_INVALID_ARG_SIZE: cl_int = -51;

pub(crate) const CL_FALSE: cl_uint = 0;
pub(crate) const CL_TRUE: cl_uint = 1;

pub(crate) const CL_PLATFORM_NAME: cl_uint = 0x0902;
pub(crate) const CL_DEVICE_TYPE_CPU: cl_bitfield = 1 << 1;

pub(crate) const CL_DEVICE_MAX_COMPUTE_UNITS: cl_uint = 0x1002;
pub(crate) const CL_DEVICE_MAX_WORK_GROUP_SIZE: cl_uint = 0x1004;
pub(crate) const CL_DEVICE_MAX_WORK_ITEM_SIZES: cl_uint = 0x1005;
pub(crate) const CL_DEVICE_MAX_READ_IMAGE_ARGS: cl_uint = 0x100E;
pub(crate) const CL_DEVICE_MAX_WRITE_IMAGE_ARGS: cl_uint = 0x100F;
pub(crate) const CL_DEVICE_IMAGE2D_MAX_WIDTH: cl_uint = 0x1011;
pub(crate) const CL_DEVICE_IMAGE2D_MAX_HEIGHT: cl_uint = 0x1012;
pub(crate) const CL_DEVICE_IMAGE3D_MAX_WIDTH: cl_uint = 0x1013;
pub(crate) const CL_DEVICE_IMAGE3D_MAX_HEIGHT: cl_uint = 0x1014;
pub(crate) const CL_DEVICE_IMAGE3D_MAX_DEPTH: cl_uint = 0x1015;
pub(crate) const CL_DEVICE_IMAGE_SUPPORT: cl_uint = 0x1016;
pub(crate) const CL_DEVICE_MAX_PARAMETER_SIZE: cl_uint = 0x1017;
pub(crate) const CL_DEVICE_MAX_SAMPLERS: cl_uint = 0x1018;
pub(crate) const CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE: cl_uint = 0x1020;
pub(crate) const CL_DEVICE_LOCAL_MEM_SIZE: cl_uint = 0x1023;
pub(crate) const CL_DEVICE_COMPILER_AVAILABLE: cl_uint = 0x1028;
pub(crate) const CL_DEVICE_NAME: cl_uint = 0x102B;
pub(crate) const CL_DRIVER_VERSION: cl_uint = 0x102D;
pub(crate) const CL_DEVICE_EXTENSIONS: cl_uint = 0x1030;
pub(crate) const CL_DEVICE_IMAGE_MAX_ARRAY_SIZE: cl_uint = 0x1041;
pub(crate) const CL_DEVICE_PARTITION_MAX_SUB_DEVICES: cl_uint = 0x1043;
pub(crate) const CL_DEVICE_PARTITION_PROPERTIES: cl_uint = 0x1044;
pub(crate) const CL_DEVICE_PARTITION_AFFINITY_DOMAIN: cl_uint = 0x1045;
pub(crate) const CL_DEVICE_PARTITION_TYPE: cl_uint = 0x1046;
pub(crate) const CL_DEVICE_MAX_READ_WRITE_IMAGE_ARGS: cl_uint = 0x104C;
pub(crate) const CL_DEVICE_SVM_CAPABILITIES: cl_uint = 0x1053;
pub(crate) const CL_DEVICE_IL_VERSION: cl_uint = 0x105B;
pub(crate) const CL_DEVICE_MAX_NUM_SUB_GROUPS: cl_uint = 0x105C;
pub(crate) const CL_DEVICE_SUB_GROUP_SIZES_INTEL: cl_uint = 0x4108;
pub(crate) const CL_DEVICE_SVM_FINE_GRAIN_SYSTEM: cl_bitfield = 1 << 3;

pub(crate) const CL_DEVICE_PARTITION_EQUALLY: usize = 0x1086;
pub(crate) const CL_DEVICE_PARTITION_BY_COUNTS: usize = 0x1087;
pub(crate) const CL_DEVICE_PARTITION_BY_COUNTS_LIST_END: usize = 0;
pub(crate) const CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN: usize = 0x1088;

pub(crate) const CL_PROGRAM_BINARY_SIZES: cl_uint = 0x1165;
pub(crate) const CL_PROGRAM_BINARIES: cl_uint = 0x1166;
pub(crate) const CL_PROGRAM_KERNEL_NAMES: cl_uint = 0x1168;
pub(crate) const CL_PROGRAM_BUILD_LOG: cl_uint = 0x1183;

pub(crate) const CL_KERNEL_FUNCTION_NAME: cl_uint = 0x1190;
pub(crate) const CL_KERNEL_PROGRAM: cl_uint = 0x1194;
pub(crate) const CL_KERNEL_NUM_ARGS: cl_uint = 0x1191;
pub(crate) const CL_KERNEL_WORK_GROUP_SIZE: cl_uint = 0x11B0;
pub(crate) const CL_KERNEL_COMPILE_WORK_GROUP_SIZE: cl_uint = 0x11B1;
pub(crate) const CL_KERNEL_LOCAL_MEM_SIZE: cl_uint = 0x11B2;
pub(crate) const CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE: cl_uint = 0x11B3;
pub(crate) const CL_KERNEL_PRIVATE_MEM_SIZE: cl_uint = 0x11B4;
pub(crate) const CL_KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM: cl_uint = 0x11B7;
pub(crate) const CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE: cl_uint = 0x2033;
pub(crate) const CL_KERNEL_COMPILE_SUB_GROUP_SIZE_INTEL: cl_uint = 0x410A;

pub(crate) const CL_EVENT_COMMAND_EXECUTION_STATUS: cl_uint = 0x11D3;
pub(crate) const CL_COMPLETE: cl_int = 0;

pub(crate) const CL_MEM_READ_WRITE: cl_bitfield = 1;
pub(crate) const CL_MEM_USE_HOST_PTR: cl_bitfield = 1 << 3;
pub(crate) const CL_IMAGE_ELEMENT_SIZE: cl_uint = 0x1111;
pub(crate) const CL_MEM_OBJECT_IMAGE2D: cl_uint = 0x10F1;
pub(crate) const CL_MEM_OBJECT_IMAGE3D: cl_uint = 0x10F2;
pub(crate) const CL_MEM_OBJECT_IMAGE2D_ARRAY: cl_uint = 0x10F3;
pub(crate) const CL_MEM_OBJECT_IMAGE1D: cl_uint = 0x10F4;
pub(crate) const CL_MEM_OBJECT_IMAGE1D_ARRAY: cl_uint = 0x10F5;
pub(crate) const CL_SAMPLER_NORMALIZED_COORDS: cl_bitfield = 0x1152;
pub(crate) const CL_SAMPLER_ADDRESSING_MODE: cl_bitfield = 0x1153;
pub(crate) const CL_SAMPLER_FILTER_MODE: cl_bitfield = 0x1154;

/// The format of an image's pixels.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct cl_image_format {
    pub(crate) image_channel_order: cl_uint,
    pub(crate) image_channel_data_type: cl_uint,
}

/// The kind and the size of an image.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct cl_image_desc {
    pub(crate) image_type: cl_uint,
    pub(crate) image_width: usize,
    pub(crate) image_height: usize,
    pub(crate) image_depth: usize,
    pub(crate) image_array_size: usize,
    pub(crate) image_row_pitch: usize,
    pub(crate) image_slice_pitch: usize,
    pub(crate) num_mip_levels: cl_uint,
    pub(crate) num_samples: cl_uint,
    pub(crate) mem_object: cl_mem,
}

/// The type of a build's callback. This crate passes none.
pub(crate) type BuildCallback = Option<unsafe extern "C" fn(cl_program, *mut c_void)>;
/// The type of a context's callback for errors. This crate passes none.
pub(crate) type ContextCallback =
    Option<unsafe extern "C" fn(*const c_char, *const c_void, usize, *mut c_void)>;
/// The type of the callback for a command's completion.
pub(crate) type EventCallback = Option<unsafe extern "C" fn(cl_event, cl_int, *mut c_void)>;
