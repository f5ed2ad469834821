//! Discovery: the adapter, its platform and its devices. Each process has one adapter with one
//! platform, there from the first call on.

pub(crate) mod adapter;
pub(crate) mod device;
mod device_info;
pub(crate) mod platform;

use crate::abi::description;
use crate::abi::lock::Lock;
use crate::abi::object::{Object, Ref, Shared};
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

/// A device.
pub(crate) struct Device {
    inner: crosshandle::Device,
    /// The queues on the device, for `urDeviceWaitExp`.
    queues: Lock<Vec<Weak<dyn Finish>>>,
}

impl Object for Device {
    type Opaque = ur_device_handle_t_;
}

/// Something that takes commands, as a queue does.
pub(crate) trait Finish: Send + Sync {
    /// Waits until all commands that were submitted are done.
    ///
    /// # Errors
    /// The failure of one of them.
    fn finish(&self) -> crosshandle::Result<()>;
}

/// Returns the adapter of this process. It is never destroyed: the loader releases it at a time when
/// other threads may still use what it made.
pub(crate) fn adapter() -> &'static Ref<Adapter> {
    static ADAPTER: OnceLock<Ref<Adapter>> = OnceLock::new();
    ADAPTER.get_or_init(|| {
        let platform = Shared::new(Platform::discover());
        Shared::new(Adapter { platform })
    })
}

/// Returns the platform of this process.
pub(crate) fn platform() -> &'static Ref<Platform> {
    &adapter().platform
}

impl Platform {
    /// Looks for the devices of the adapter's backend.
    fn discover() -> Self {
        let backend = description::get().backend;
        let devices = crosshandle::Device::all()
            .into_iter()
            .filter(|device| device.info().backend == backend)
            .map(Device::create)
            .collect();
        Self { devices }
    }

    /// Returns the devices, in the library's order.
    pub(crate) fn devices(&self) -> &[Ref<Device>] {
        &self.devices
    }
}

impl Device {
    /// Makes a device to which UR refers once and for all.
    pub(crate) fn create(inner: crosshandle::Device) -> Ref<Self> {
        let device = Shared::new(Self {
            inner,
            queues: Lock::default(),
        });
        Shared::hand_out(Ref::clone(&device));
        device
    }

    /// Returns whether there is a driver, with objects that programs may use too.
    pub(crate) fn has_driver(&self) -> bool {
        self.inner.native().is_some()
    }

    /// Returns the library's device.
    pub(crate) fn inner(&self) -> &crosshandle::Device {
        &self.inner
    }

    /// Lets `urDeviceWaitExp` wait for a queue too, while the queue exists.
    pub(crate) fn register_queue(&self, queue: Weak<dyn Finish>) {
        let mut queues = self.queues.lock();
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(queue);
    }

    /// Returns the queues that exist.
    fn queues(&self) -> Vec<Arc<dyn Finish>> {
        self.queues
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }
}
