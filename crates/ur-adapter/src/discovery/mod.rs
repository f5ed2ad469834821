//! Discovery: the adapter, its platform and its devices. Each process has one adapter with one
//! platform, which exist from the first call on.

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

/// The adapter and its only platform.
pub(crate) struct Adapter {
    platform: Ref<Platform>,
}

impl Object for Adapter {
    type Opaque = ur_adapter_handle_t_;
}

/// All devices of the adapter's backend.
pub(crate) struct Platform {
    devices: Vec<Ref<Device>>,
}

impl Object for Platform {
    type Opaque = ur_platform_handle_t_;
}

/// A device, or a part of a device.
pub(crate) struct Device {
    inner: crosshandle::Device,
    /// The device of which this device is a part, if any.
    part: Option<Part>,
    /// The existing parts into which the device was divided.
    parts: Lock<Vec<Weak<Shared<Device>>>>,
    /// The queues on the device, for `urDeviceWaitExp`.
    queues: Lock<Vec<Weak<dyn Finish>>>,
}

impl Object for Device {
    type Opaque = ur_device_handle_t_;
}

/// An object that runs commands, such as a queue.
pub(crate) trait Finish: Send + Sync {
    /// Waits until all submitted commands are done.
    ///
    /// # Errors
    /// Returns the failure of a command, if any command has failed.
    fn finish(&self) -> crosshandle::Result<()>;
}

/// Returns the adapter of this process. The adapter is never destroyed, because the loader releases
/// it while other threads may still use its objects.
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
    /// Finds the devices of the adapter's backend.
    fn discover() -> Self {
        let backend = description::get().backend;
        let devices = crosshandle::Device::all()
            .into_iter()
            .filter(|device| device.info().backend == backend)
            .map(Device::create)
            .collect();
        Self { devices }
    }

    /// Returns the devices in the library's order, followed by their existing parts.
    pub(crate) fn all_devices(&self) -> Vec<Ref<Device>> {
        let mut all = self.devices.clone();
        self.devices
            .iter()
            .for_each(|device| device.list_parts(&mut all));
        all
    }

    /// Returns the devices, in the library's order.
    pub(crate) fn devices(&self) -> &[Ref<Device>] {
        &self.devices
    }
}

impl Device {
    /// Creates a device with a permanent reference from UR.
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

    /// Returns whether the device has a driver, with native objects that programs may use.
    pub(crate) fn has_driver(&self) -> bool {
        self.inner.native().is_some()
    }

    /// Returns the library's device.
    pub(crate) fn inner(&self) -> &crosshandle::Device {
        &self.inner
    }

    /// Returns the limits of image views, or `None` if the device supports no views. The host
    /// supports none, so this call does not load its OpenCL runtime.
    pub(crate) fn views(&self) -> Option<ViewLimits> {
        if !description::get().has_views {
            return None;
        }
        self.inner.images().ok()?.views
    }

    /// Returns the device of which this device is a part, if any.
    fn whole(&self) -> Option<&Ref<Self>> {
        self.part.as_ref().map(|part| &part.whole)
    }

    /// Returns the undivided device to which this device belongs, which may be this device itself.
    fn root(&self) -> &Self {
        self.whole().map_or(self, |whole| whole.root())
    }

    /// Returns whether two devices have the same memory, as parts of the same device have.
    pub(crate) fn shares_memory_with(&self, other: &Self) -> bool {
        std::ptr::eq(self.root(), other.root())
    }

    /// Returns whether a program for one of two devices also runs on the other.
    pub(crate) fn shares_programs_with(&self, other: &Self) -> bool {
        let context = |device: &Self| device.inner.native_runtime().ok().map(|own| own.context);
        std::ptr::eq(self, other)
            || (self.part.is_some() && other.part.is_some() && context(self) == context(other))
    }

    /// Adds all direct and indirect parts of the device to a list.
    fn list_parts(&self, list: &mut Vec<Ref<Self>>) {
        let parts: Vec<_> = self.parts.lock().iter().filter_map(Weak::upgrade).collect();
        for part in parts {
            part.list_parts(list);
            list.push(part);
        }
    }

    /// Registers a queue for `urDeviceWaitExp` on this device, and on the devices of which this
    /// device is a part. The registration ends with the queue.
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

    fn queues(&self) -> Vec<Arc<dyn Finish>> {
        self.queues
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }
}
