//! Drivers and devices.

use crate::{BackendBlob, BackendContext, NativeDevice, NativeRecording};
use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_types::error::Result;
use crosshandle_types::{
    AffinityDomain, DeviceInfo, ImageLimits, KernelLimits, NativeRuntime, Partition,
    PartitionLimits,
};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A driver, which may be absent.
pub trait Backend: Sync {
    /// Returns the kind by which handles name the backend.
    fn kind(&self) -> BackendKind;

    /// Returns the devices in the driver's order. The list is empty if the driver is absent.
    fn devices(&self) -> Vec<Arc<dyn BackendDevice>>;

    /// Returns a description of the driver, or what was looked for and where if the driver is
    /// absent.
    fn status(&self) -> std::result::Result<String, String>;

    /// Returns whether a descriptor is memory of the driver, which a process without the driver can
    /// keep alive by this descriptor. `note` is the blob of the memory's exporter. Host memory in
    /// memfd files belongs to no driver. The caller got both from another process. Calls no driver,
    /// and works if the driver is absent.
    fn owns_descriptor(&self, file: BorrowedFd<'_>, note: &BackendBlob) -> bool;

    /// Returns the reason why the device's work of a process may continue after the process has
    /// ended, if a service does the work of several processes in one.
    fn work_outlives_process(&self) -> Option<String> {
        None
    }

    /// Returns whether kernels of two processes can run on one device at the same time. The text
    /// says why. Returns `None` if code on the backend's devices cannot use events.
    fn runs_processes_together(&self) -> Option<std::result::Result<String, String>> {
        None
    }
}

/// A device of a driver.
pub trait BackendDevice: Send + Sync {
    /// Returns the device's description, which does not change.
    fn info(&self) -> &DeviceInfo;

    /// Returns the current number of free bytes of the device's memory, if known.
    fn free_memory(&self) -> Option<u64>;

    /// Returns whether contexts on this device can map the memory of `device`: the same device, or
    /// one that is close enough.
    fn reaches(&self, device: DeviceUuid) -> bool;

    /// Returns the limits of kernels, or the reason why this device runs none. May search for the
    /// runtime that runs kernels. Returns `None` if the backend runs no kernels.
    fn kernels(&self) -> Option<std::result::Result<&KernelLimits, String>> {
        None
    }

    /// Returns the limits of kernels if they are known without a search.
    fn loaded_kernels(&self) -> Option<&KernelLimits> {
        self.kernels()?.ok()
    }

    /// Returns the runtime that compiles and runs kernels, if it is not the driver itself.
    fn kernel_runtime(&self) -> Option<&dyn BackendRuntime> {
        None
    }

    /// Returns the limits of images, or the reason why this device has none. May search for the
    /// runtime that provides images. Returns `None` if the backend has no images.
    fn images(&self) -> Option<std::result::Result<&ImageLimits, String>> {
        None
    }

    /// Returns the means to divide the device, if the backend has any.
    fn partitions(&self) -> Option<&dyn BackendPartitions> {
        None
    }

    /// Returns whether a forked child can create contexts. Most drivers lose their threads in the
    /// child.
    fn survives_fork(&self) -> bool {
        false
    }

    /// Creates a context on the device.
    fn create_context(&self) -> Result<Arc<dyn BackendContext>>;

    /// Returns the native view of the device, if programs may call the driver too.
    fn native(&self) -> Option<&dyn NativeDevice> {
        None
    }
}

/// A runtime that compiles and runs the kernels of a device in place of the driver.
pub trait BackendRuntime {
    /// Returns the runtime's own objects, or the reason why there are none. May search for the
    /// runtime.
    fn native(&self) -> std::result::Result<NativeRuntime, String>;

    /// Returns a description of the runtime, if it is installed.
    fn description(&self) -> Option<String>;

    /// Creates an empty recording, to which the program appends commands of the runtime.
    fn create_recording(&self) -> Result<Arc<dyn NativeRecording>>;

    /// Creates the runtime's object for memory that it uses in place.
    ///
    /// # Safety
    /// The memory stays valid for reads and writes until the result is dropped and no command of
    /// the runtime uses the object.
    unsafe fn create_memory(
        &self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<Arc<dyn BackendRuntimeMemory>>;
}

/// A runtime's object for memory of this process.
pub trait BackendRuntimeMemory: Send + Sync {
    /// Returns the runtime's object.
    fn raw(&self) -> usize;
}

/// The means to divide a device into parts.
pub trait BackendPartitions {
    /// Returns how the device can be divided, or the reason why it cannot. May search for the
    /// runtime that runs kernels.
    fn limits(&self) -> std::result::Result<PartitionLimits, String>;

    /// Divides the device within its [limits](Self::limits). The parts have the identity and the
    /// memory of the whole device. Contexts of a part run kernels only on the part's compute units.
    fn divide(&self, how: &Partition) -> Result<Vec<Arc<dyn BackendDevice>>>;

    /// Returns what the compute units of this part share, if the device was divided by affinity.
    fn affinity(&self) -> Option<AffinityDomain>;
}
