//! Kernels on a GPU.

use super::CudaProgram;
use crate::device::Gpu;
use crate::driver::sys::CUfunction_attribute as Attribute;
use crate::driver::{FunctionHandle, Grid, StreamHandle};
use crosshandle_hal::{BackendKernel, Launch};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{KernelParameter, KernelProperties};
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes of shared memory that a launch may use without permission from the driver.
const FREE_SHARED_MEMORY: u32 = 48 << 10;

/// Number of blocks in a cluster that every device with clusters supports.
const SMALL_CLUSTER: u64 = 8;

/// A function of a program. It keeps the program loaded.
pub(super) struct CudaKernel {
    program: Arc<CudaProgram>,
    function: FunctionHandle,
    properties: KernelProperties,
    allowed: Mutex<Allowed>,
}

/// The launches that the driver permits for a function. Permissions are only added, never removed.
struct Allowed {
    /// Maximum dynamic shared memory, in bytes.
    shared_memory: u32,
    large_clusters: bool,
}

impl CudaKernel {
    /// Wraps a function of the driver. The device's context is current.
    pub(super) fn new(program: &Arc<CudaProgram>, function: FunctionHandle) -> Result<Self> {
        let gpu = program.gpu();
        let driver = gpu.driver();
        driver.load_function(function)?;
        let number = |attribute| driver.function_attribute(function, attribute);
        let parameters = driver.parameters(function)?;
        let parameters = parameters.map(|all| {
            let parameter = |(offset, size)| KernelParameter::new(offset, size);
            all.into_iter().map(parameter).collect::<Vec<_>>()
        });
        let shared_memory = number(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let available = gpu.kernels().map_or(0, |limits| limits.shared_memory);
        Ok(Self {
            program: Arc::clone(program),
            function,
            properties: KernelProperties {
                block_threads: number(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
                registers: number(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
                shared_memory: shared_memory as usize,
                dynamic_shared_memory: available.saturating_sub(shared_memory) as usize,
                local_memory: number(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)? as usize,
                constant_memory: number(Attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)? as usize,
                assembly_version: version(number(Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION)?),
                binary_version: version(number(Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?),
                parameter_count: parameters.as_ref().map(Vec::len),
                parameters,
                ..KernelProperties::new(0)
            },
            allowed: Mutex::new(Allowed {
                shared_memory: FREE_SHARED_MEMORY.saturating_sub(shared_memory),
                large_clusters: false,
            }),
        })
    }

    /// Permits launches with up to `bytes` bytes of dynamic shared memory.
    fn allow(&self, bytes: u32) -> Result<()> {
        // The lock may be held across this call. The call waits for nothing, because `new` loaded
        // the function onto the device.
        let mut allowed = self.allowed.lock();
        if bytes > allowed.shared_memory {
            let driver = self.program.gpu().driver();
            driver.allow_shared_memory(self.function, bytes)?;
            allowed.shared_memory = bytes;
        }
        Ok(())
    }

    /// Permits launches with clusters of this shape. The driver later refuses shapes that it cannot
    /// run.
    fn allow_cluster(&self, cluster: [u32; 3]) -> Result<()> {
        let sizes = cluster.into_iter().map(u64::from);
        if sizes.fold(1, u64::saturating_mul) <= SMALL_CLUSTER {
            return Ok(());
        }
        let mut allowed = self.allowed.lock();
        if !allowed.large_clusters {
            let driver = self.program.gpu().driver();
            driver.allow_large_clusters(self.function)?;
            allowed.large_clusters = true;
        }
        Ok(())
    }

    /// Permits launches with `bytes` bytes of dynamic shared memory, unless the kernel can never
    /// use that much. The driver reports no block counts for an amount that is not permitted.
    fn allow_possible(&self, bytes: usize) -> Result<()> {
        match u32::try_from(bytes) {
            Ok(bytes) if bytes as usize <= self.properties.dynamic_shared_memory => {
                self.allow(bytes)
            }
            _ => Ok(()),
        }
    }
}

/// Splits a version that the driver reports as one number. For example, 90 is 9.0.
fn version(number: u32) -> (u32, u32) {
    (number / 10, number % 10)
}

impl BackendKernel for CudaKernel {
    fn properties(&self) -> &KernelProperties {
        &self.properties
    }

    fn suggest_block(&self, dynamic_shared: usize, limit: u32) -> Result<u32> {
        let gpu = self.program.gpu();
        let _current = gpu.enter()?;
        self.allow_possible(dynamic_shared)?;
        let driver = gpu.driver();
        driver.suggest_block(self.function, dynamic_shared, limit)
    }

    fn concurrent_blocks(&self, threads: u32, dynamic_shared: usize, units: u32) -> Result<u32> {
        let gpu = self.program.gpu();
        let _current = gpu.enter()?;
        self.allow_possible(dynamic_shared)?;
        let driver = gpu.driver();
        let each = driver.blocks_per_unit(self.function, threads, dynamic_shared)?;
        Ok(each.saturating_mul(units))
    }

    fn raw(&self) -> usize {
        self.function.number()
    }
}

/// A launch in the form that the driver accepts. It borrows the arguments of a [`Launch`].
pub(crate) struct DriverLaunch {
    pub function: FunctionHandle,
    pub grid: Grid,
    /// The addresses of the arguments' bytes, which belong to the borrowed launch.
    pub arguments: Vec<*mut c_void>,
}

/// Converts a launch to the form that the driver accepts, and obtains the permissions that it
/// needs. The device's context is current.
pub(crate) fn driver_launch(gpu: &Gpu, launch: &Launch) -> Result<DriverLaunch> {
    let kernel: &dyn Any = &*launch.kernel;
    let kernel = kernel
        .downcast_ref::<CudaKernel>()
        .filter(|kernel| kernel.program.gpu().is_in_context_of(gpu))
        .ok_or_else(|| {
            Error::invalid("this kernel is loaded in another of the driver's contexts")
        })?;
    let shape = &launch.shape;
    let dynamic_shared = u32::try_from(shape.shared_memory);
    let dynamic_shared =
        dynamic_shared.map_err(|_| Error::invalid("so much shared memory has no device"))?;
    kernel.allow(dynamic_shared)?;
    if let Some(cluster) = shape.cluster {
        kernel.allow_cluster(cluster)?;
    }
    let arguments: Vec<*mut c_void> = launch
        .arguments
        .iter()
        .map(|argument| argument.as_ptr().cast_mut().cast())
        .collect();
    let grid = Grid {
        blocks: shape.grid,
        threads: shape.block,
        cluster: shape.cluster,
        dynamic_shared,
        is_cooperative: shape.is_cooperative,
    };
    Ok(DriverLaunch {
        function: kernel.function,
        grid,
        arguments,
    })
}

/// Submits a launch. The device's context is current.
///
/// # Safety
/// The launch stays valid until the stream has passed it. The launch is sound, as its creator
/// promised.
pub(crate) unsafe fn launch(gpu: &Gpu, stream: StreamHandle, launch: &Launch) -> Result<()> {
    let DriverLaunch {
        function,
        grid,
        mut arguments,
    } = driver_launch(gpu, launch)?;
    // SAFETY: promised by the caller. The kernel keeps its program.
    unsafe { gpu.driver().launch(stream, function, grid, &mut arguments) }
}
