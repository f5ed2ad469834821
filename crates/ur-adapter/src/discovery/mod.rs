//! Discovery of the adapter, its platform and its devices. Each process has one adapter with one
//! platform. Both are created on first use.

pub(crate) mod adapter;
pub(crate) mod device;
mod device_info;
mod partition;
pub(crate) mod platform;

use crate::abi::description;
use crate::abi::lock::Lock;
use crate::abi::object::{Object, Ref, Shared};
use crosshandle::image::ViewLimits;
use partition::Part;
use std::sync::{Arc, OnceLock, Weak};
use unified_runtime_sys::{ur_adapter_handle_t_, ur_device_handle_t_, ur_platform_handle_t_};

/// A UR adapter handle. The process has one adapter, which has one platform.
pub(crate) struct Adapter {
    platform: Ref<Platform>,
}

impl Object for Adapter {
    type Opaque = ur_adapter_handle_t_;
}

/// A UR platform handle. The platform has all devices of the adapter's backend.
pub(crate) struct Platform {
    devices: Vec<Ref<Device>>,
}

impl Object for Platform {
    type Opaque = ur_platform_handle_t_;
}

/// A UR device handle: a device or a sub-device.
pub(crate) struct Device {
    inner: crosshandle::Device,
    /// The relation to the parent device. `None` if this device is not a sub-device.
    part: Option<Part>,
    /// The sub-devices that were created from this device. Dropped ones may still be listed.
    parts: Lock<Vec<Weak<Shared<Device>>>>,
    /// The queues for which `urDeviceWaitExp` waits. Dropped ones may still be listed.
    queues: Lock<Vec<Weak<dyn Finish>>>,
}

impl Object for Device {
    type Opaque = ur_device_handle_t_;
}

/// An object that runs commands, for example a queue.
pub(crate) trait Finish: Send + Sync {
    /// Waits until all submitted commands are complete.
    ///
    /// # Errors
    /// Returns the error of a failed command.
    fn finish(&self) -> crosshandle::Result<()>;
}

/// Returns the adapter of this process. The adapter is never destroyed, because other threads may
/// still use its objects when the loader releases it.
pub(crate) fn adapter() -> &'static Ref<Adapter> {
    static ADAPTER: OnceLock<Ref<Adapter>> = OnceLock::new();
    ADAPTER.get_or_init(|| {
        let platform = Shared::new(Platform::discover());
        Shared::new(Adapter { platform })
    })
}

pub(crate) fn platform() -> &'static Ref<Platform> {
    &adapter().platform
}

impl Platform {
    /// Creates the platform with all devices of the adapter's backend.
    fn discover() -> Self {
        let backend = description::get().backend;
        let devices = crosshandle::Device::all()
            .into_iter()
            .filter(|device| device.info().backend == backend)
            .map(Device::create)
            .collect();
        Self { devices }
    }

    /// Returns the devices in the order of `crosshandle`, followed by all existing sub-devices.
    pub(crate) fn all_devices(&self) -> Vec<Ref<Device>> {
        let mut all = self.devices.clone();
        self.devices
            .iter()
            .for_each(|device| device.list_parts(&mut all));
        all
    }

    /// Returns the devices in the order of `crosshandle`, without sub-devices.
    pub(crate) fn devices(&self) -> &[Ref<Device>] {
        &self.devices
    }
}

impl Device {
    /// Creates a device that UR never releases: its reference count starts at 1.
    pub(crate) fn create(inner: crosshandle::Device) -> Ref<Self> {
        let device = Shared::new(Self {
            inner,
            part: None,
            parts: Lock::default(),
            queues: Lock::default(),
        });
        Shared::hand_out(Ref::clone(&device));
        device
    }

    /// Returns whether the device has a driver. If it does, its native handles are objects of the
    /// driver, and programs may pass them to the driver.
    pub(crate) fn has_driver(&self) -> bool {
        self.inner.native().is_some()
    }

    /// Returns the device from `crosshandle`.
    pub(crate) fn inner(&self) -> &crosshandle::Device {
        &self.inner
    }

    /// Returns the limits of image views. Returns `None` if the device does not support image
    /// views. On the host, the answer is known without loading the OpenCL runtime.
    pub(crate) fn views(&self) -> Option<ViewLimits> {
        if !description::get().has_views {
            return None;
        }
        self.inner.images().ok()?.views
    }

    /// Returns the parent device. Returns `None` if this device is not a sub-device.
    fn whole(&self) -> Option<&Ref<Self>> {
        self.part.as_ref().map(|part| &part.whole)
    }

    /// Returns the undivided device to which this device belongs. If this device is not a
    /// sub-device, returns this device.
    fn root(&self) -> &Self {
        self.whole().map_or(self, |whole| whole.root())
    }

    /// Returns whether two devices share memory. For example, all sub-devices of one device do.
    pub(crate) fn shares_memory_with(&self, other: &Self) -> bool {
        std::ptr::eq(self.root(), other.root())
    }

    /// Returns whether a program for one of two devices also runs on the other device.
    pub(crate) fn shares_programs_with(&self, other: &Self) -> bool {
        let context = |device: &Self| device.inner.native_runtime().ok().map(|own| own.context);
        std::ptr::eq(self, other)
            || (self.part.is_some() && other.part.is_some() && context(self) == context(other))
    }

    /// Appends all direct and indirect sub-devices of the device to a list.
    fn list_parts(&self, list: &mut Vec<Ref<Self>>) {
        let parts: Vec<_> = self.parts.lock().iter().filter_map(Weak::upgrade).collect();
        for part in parts {
            part.list_parts(list);
            list.push(part);
        }
    }

    /// Registers a queue for `urDeviceWaitExp` on this device and on its parent devices. The
    /// registration ends when the queue is dropped.
    pub(crate) fn register_queue(&self, queue: Weak<dyn Finish>) {
        if let Some(whole) = self.whole() {
            whole.register_queue(Weak::clone(&queue));
        }
        let mut queues = self.queues.lock();
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(queue);
    }

    /// Returns the registered queues that still exist.
    fn queues(&self) -> Vec<Arc<dyn Finish>> {
        self.queues
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }
}
