//! Converts OpenCL's codes to errors.

use crate::types::*;
use std::fmt;

/// The failure of an OpenCL call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the call that failed.
    pub operation: &'static str,
    /// OpenCL's code, which is negative.
    pub code: i32,
    /// The output of the compiler or linker. It is empty for other calls.
    pub log: String,
}

impl Failure {
    pub(crate) fn new(operation: &'static str, code: cl_int) -> Self {
        Self {
            operation,
            code,
            log: String::new(),
        }
    }

    /// Returns OpenCL's name for the code.
    pub fn name(&self) -> &'static str {
        match self.code {
            -1 => "CL_DEVICE_NOT_FOUND",
            -2 => "CL_DEVICE_NOT_AVAILABLE",
            -3 => "CL_COMPILER_NOT_AVAILABLE",
            CL_OUT_OF_RESOURCES => "CL_OUT_OF_RESOURCES",
            CL_OUT_OF_HOST_MEMORY => "CL_OUT_OF_HOST_MEMORY",
            CL_MEM_OBJECT_ALLOCATION_FAILURE => "CL_MEM_OBJECT_ALLOCATION_FAILURE",
            -8 => "CL_MEM_COPY_OVERLAP",
            -9 => "CL_IMAGE_FORMAT_MISMATCH",
            CL_IMAGE_FORMAT_NOT_SUPPORTED => "CL_IMAGE_FORMAT_NOT_SUPPORTED",
            -11 => "CL_BUILD_PROGRAM_FAILURE",
            -14 => "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
            -15 => "CL_COMPILE_PROGRAM_FAILURE",
            -16 => "CL_LINKER_NOT_AVAILABLE",
            -17 => "CL_LINK_PROGRAM_FAILURE",
            CL_INVALID_VALUE => "CL_INVALID_VALUE",
            -34 => "CL_INVALID_CONTEXT",
            -36 => "CL_INVALID_COMMAND_QUEUE",
            CL_INVALID_MEM_OBJECT => "CL_INVALID_MEM_OBJECT",
            CL_INVALID_IMAGE_FORMAT_DESCRIPTOR => "CL_INVALID_IMAGE_FORMAT_DESCRIPTOR",
            CL_INVALID_IMAGE_SIZE => "CL_INVALID_IMAGE_SIZE",
            CL_INVALID_SAMPLER => "CL_INVALID_SAMPLER",
            -42 => "CL_INVALID_BINARY",
            -43 => "CL_INVALID_BUILD_OPTIONS",
            -44 => "CL_INVALID_PROGRAM",
            -45 => "CL_INVALID_PROGRAM_EXECUTABLE",
            CL_INVALID_KERNEL_NAME => "CL_INVALID_KERNEL_NAME",
            -47 => "CL_INVALID_KERNEL_DEFINITION",
            -48 => "CL_INVALID_KERNEL",
            CL_INVALID_ARG_INDEX => "CL_INVALID_ARG_INDEX",
            CL_INVALID_ARG_VALUE => "CL_INVALID_ARG_VALUE",
            CL_INVALID_ARG_SIZE => "CL_INVALID_ARG_SIZE",
            -52 => "CL_INVALID_KERNEL_ARGS",
            -53 => "CL_INVALID_WORK_DIMENSION",
            -54 => "CL_INVALID_WORK_GROUP_SIZE",
            -55 => "CL_INVALID_WORK_ITEM_SIZE",
            -56 => "CL_INVALID_GLOBAL_OFFSET",
            -59 => "CL_INVALID_OPERATION",
            -63 => "CL_INVALID_GLOBAL_WORK_SIZE",
            -66 => "CL_INVALID_COMPILER_OPTIONS",
            -67 => "CL_INVALID_LINKER_OPTIONS",
            -71 => "CL_INVALID_SPEC_ID",
            -72 => "CL_MAX_SIZE_RESTRICTION_EXCEEDED",
            _ => "CL_UNKNOWN",
        }
    }

    /// Returns whether the runtime ran out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        // `CL_OUT_OF_RESOURCES` is not in this list, because Intel's runtime returns it for
        // resources other than memory.
        matches!(
            self.code,
            CL_OUT_OF_HOST_MEMORY | CL_MEM_OBJECT_ALLOCATION_FAILURE
        )
    }

    /// Returns whether the runtime does not support images of this pixel format.
    pub fn is_unsupported_format(&self) -> bool {
        matches!(
            self.code,
            CL_IMAGE_FORMAT_NOT_SUPPORTED | CL_INVALID_IMAGE_FORMAT_DESCRIPTOR
        )
    }

    /// Returns whether the program has no kernel of the requested name.
    pub fn is_unknown_name(&self) -> bool {
        self.code == CL_INVALID_KERNEL_NAME
    }

    /// Returns whether an argument does not match its parameter, or the parameter does not exist.
    pub fn is_wrong_argument(&self) -> bool {
        matches!(
            self.code,
            CL_INVALID_ARG_INDEX
                | CL_INVALID_ARG_VALUE
                | CL_INVALID_ARG_SIZE
                | CL_INVALID_MEM_OBJECT
                | CL_INVALID_SAMPLER
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.operation, self.name(), self.code)?;
        if !self.log.is_empty() {
            write!(f, ": {}", self.log)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Returns an error unless the call succeeded.
pub(crate) fn check(operation: &'static str, code: cl_int) -> Result<(), Failure> {
    if code == CL_SUCCESS {
        return Ok(());
    }
    Err(Failure::new(operation, code))
}
