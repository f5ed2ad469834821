//! Drivers and devices.

use crate::{BackendContext, NativeDevice};
use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{
    AffinityDomain, DeviceInfo, ImageLimits, KernelLimits, NativeRuntime, Partition,
    PartitionLimits,
};
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

    /// Returns the limits of kernels, or the reason why the device runs none. May search for the
    /// runtime that runs kernels.
    fn kernels(&self) -> std::result::Result<&KernelLimits, String>;

    /// Returns the limits of kernels if they are known without a search.
    fn loaded_kernels(&self) -> Option<&KernelLimits> {
        self.kernels().ok()
    }

    /// Returns the native objects of the runtime that compiles and runs kernels, if it is not the
    /// driver itself.
    fn native_runtime(&self) -> std::result::Result<NativeRuntime, String> {
        Err("the driver itself runs this device's kernels".into())
    }

    /// Returns a description of the runtime that compiles and runs kernels. Returns `None` if
    /// [`kernels`](Self::kernels) has no limits, or if the driver itself runs the kernels.
    fn kernel_runtime(&self) -> Option<String> {
        None
    }

    /// Returns the limits of images, or the reason why the device has none. May search for the
    /// runtime that provides images.
    fn images(&self) -> std::result::Result<&ImageLimits, String> {
        Err(format!("{} has no images", self.info().name))
    }

    /// Returns how the device can be divided, or the reason why it cannot. May search for the
    /// runtime that runs kernels.
    fn partitions(&self) -> std::result::Result<PartitionLimits, String> {
        Err(format!("{} cannot be divided", self.info().name))
    }

    /// Divides the device within its [limits](Self::partitions). The parts have the identity and
    /// the memory of the whole device. Contexts of a part run kernels only on the part's compute
    /// units.
    fn partition(&self, _how: &Partition) -> Result<Vec<Arc<dyn BackendDevice>>> {
        Err(Error::Unsupported(format!(
            "{} cannot be divided",
            self.info().name
        )))
    }

    /// Returns what the compute units of a part share, if the device was divided by affinity.
    fn affinity(&self) -> Option<AffinityDomain> {
        None
    }

    /// Creates a context on the device.
    fn create_context(&self) -> Result<Arc<dyn BackendContext>>;

    /// Returns the native view of the device, if programs may call the driver too.
    fn native(&self) -> Option<&dyn NativeDevice> {
        None
    }
}
