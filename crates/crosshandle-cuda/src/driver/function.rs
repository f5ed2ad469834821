//! Functions of programs, and their launches.
//!
//! For all calls, the program's context must be current (see `Driver::enter`).

use super::{Code, Driver, FunctionHandle, INVALID_VALUE, StreamHandle};
use crosshandle_types::error::{Error, Result};
use cudarc::driver::sys::{
    CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchConfig,
};
use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;

const LAUNCH_OUT_OF_RESOURCES: Code = 701;
const COOPERATIVE_LAUNCH_TOO_LARGE: Code = 720;
const INVALID_CLUSTER_SIZE: Code = 912;

impl Driver {
    /// Ensures that a function is loaded on the device. Otherwise the driver may load it at its
    /// first launch, and may then wait for all work of the device.
    pub(crate) fn load_function(&self, function: FunctionHandle) -> Result<()> {
        let Some(load) = self.programs()?.func_load else {
            return Ok(());
        };
        self.check("cuFuncLoad", load(function))
    }

    /// Returns an attribute of a function, or 0 if the attribute is negative.
    pub(crate) fn function_attribute(
        &self,
        function: FunctionHandle,
        attribute: CUfunction_attribute,
    ) -> Result<u32> {
        let mut value = 0;
        let get = self.programs()?.func_get_attribute;
        let code = get(&mut value, attribute as c_uint, function);
        self.check("cuFuncGetAttribute", code)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Allows launches of a function to request up to `bytes` bytes of dynamic shared memory.
    pub(crate) fn allow_shared_memory(&self, function: FunctionHandle, bytes: u32) -> Result<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        self.set_function_attribute(function, attribute, bytes)
    }

    /// Allows launches of a function to request larger clusters than all devices with clusters
    /// support.
    pub(crate) fn allow_large_clusters(&self, function: FunctionHandle) -> Result<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        self.set_function_attribute(function, attribute, 1)
    }

    fn set_function_attribute(
        &self,
        function: FunctionHandle,
        attribute: CUfunction_attribute,
        value: u32,
    ) -> Result<()> {
        let set = self.programs()?.func_set_attribute;
        let code = set(function, attribute as c_uint, value as c_int);
        self.check("cuFuncSetAttribute", code)
    }

    /// Returns the offset and the size in bytes of each parameter of a function. Returns `None` if
    /// the driver cannot report them.
    pub(crate) fn parameters(
        &self,
        function: FunctionHandle,
    ) -> Result<Option<Vec<(usize, usize)>>> {
        let Some(get) = self.programs()?.func_get_param_info else {
            return Ok(None);
        };
        let mut parameters = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            let code = get(function, parameters.len(), &mut offset, &mut size);
            if code == INVALID_VALUE {
                // There are no more parameters.
                return Ok(Some(parameters));
            }
            self.check("cuFuncGetParamInfo", code)?;
            parameters.push((offset, size));
        }
    }

    /// Returns the number of blocks of `threads` threads that a compute unit can run at the same
    /// time.
    pub(crate) fn blocks_per_unit(
        &self,
        function: FunctionHandle,
        threads: u32,
        dynamic_shared: usize,
    ) -> Result<u32> {
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let get = self.programs()?.occupancy_blocks;
        let code = get(&mut blocks, function, threads, dynamic_shared);
        self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Returns the number of threads per block, at most `limit`, with which the most threads run at
    /// the same time.
    pub(crate) fn suggest_block(
        &self,
        function: FunctionHandle,
        dynamic_shared: usize,
        limit: u32,
    ) -> Result<u32> {
        let (mut blocks, mut threads) = (0, 0);
        let limit = c_int::try_from(limit).unwrap_or(c_int::MAX);
        let get = self.programs()?.occupancy_block_size;
        let code = get(
            &mut blocks,
            &mut threads,
            function,
            None,
            dynamic_shared,
            limit,
        );
        self.check("cuOccupancyMaxPotentialBlockSize", code)?;
        Ok(u32::try_from(threads).unwrap_or(0))
    }

    /// Launches a function.
    ///
    /// # Safety
    /// The function's program stays loaded until the stream has run this launch. There is one
    /// argument for each parameter, of the parameter's size. The function uses its arguments
    /// soundly.
    pub(crate) unsafe fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        grid: Grid,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let mut attributes: Vec<_> = grid.attributes().collect();
        let config = CUlaunchConfig {
            gridDimX: grid.blocks[0],
            gridDimY: grid.blocks[1],
            gridDimZ: grid.blocks[2],
            blockDimX: grid.threads[0],
            blockDimY: grid.threads[1],
            blockDimZ: grid.threads[2],
            sharedMemBytes: grid.dynamic_shared,
            hStream: ptr::with_exposed_provenance_mut(stream.number()),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as c_uint,
        };
        // SAFETY: promised by the caller. The configuration and the arguments are read before the
        // call returns.
        let code = unsafe {
            let arguments = arguments.as_mut_ptr();
            (self.programs()?.launch)(&config, function, arguments, ptr::null_mut())
        };
        self.check_launch("cuLaunchKernelEx", code)
    }

    /// Maps the status of a call that launches a function or prepares a launch.
    pub(super) fn check_launch(&self, operation: &'static str, code: Code) -> Result<()> {
        match code {
            COOPERATIVE_LAUNCH_TOO_LARGE => Err(Error::LimitReached {
                what: "the device cannot run that many blocks at the same time".into(),
                remedy: "launch at most `Kernel::concurrent_blocks` of them".into(),
            }),
            LAUNCH_OUT_OF_RESOURCES => Err(Error::LimitReached {
                what: "the device lacks the registers or the memory for blocks of this size".into(),
                remedy: "launch smaller blocks (`Kernel::suggested_block`)".into(),
            }),
            INVALID_CLUSTER_SIZE => Err(Error::LimitReached {
                what: "this device does not support clusters of this size for this kernel".into(),
                remedy: "launch smaller clusters, of up to 8 blocks".into(),
            }),
            code => self.check(operation, code),
        }
    }
}

/// The blocks and threads that a function runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    pub cluster: Option<[u32; 3]>,
    /// The dynamic shared memory of a block, in bytes.
    pub dynamic_shared: u32,
    pub is_cooperative: bool,
}

impl Grid {
    /// Returns the properties that the driver takes as attributes.
    pub(super) fn attributes(&self) -> impl Iterator<Item = CUlaunchAttribute> {
        let cooperative = self.is_cooperative.then(|| {
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attribute(id, [1, 0, 0])
        });
        let cluster = self.cluster.map(|cluster| {
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attribute(id, cluster)
        });
        cooperative.into_iter().chain(cluster)
    }
}

/// Returns an attribute of a launch whose value is one number or three numbers.
fn attribute(id: CUlaunchAttributeID, value: [u32; 3]) -> CUlaunchAttribute {
    let mut place = MaybeUninit::<CUlaunchAttributeValue>::zeroed();
    // SAFETY: the value is a union of 64 bytes, made of numbers and addresses for which zeros are
    // valid. The variants used here start with one number or consist of three numbers.
    let value = unsafe {
        place.as_mut_ptr().cast::<[u32; 3]>().write(value);
        place.assume_init()
    };
    CUlaunchAttribute {
        id,
        pad: [0; 4],
        value,
    }
}
