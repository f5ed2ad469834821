//! Devices. They are there from the first call on and never go; sub-devices, which would, don't
//! exist.

mod info;

use crate::adapter::Adapter;
use crate::boundary::{enter, list, not_null, put, put_optional};
use crate::description;
use crate::failure::{Failure, Result};
use crate::object::{Object, Ref, Shared};
use crate::platform::{Platform, platform};
use crate::query::Query;
use crate::queue::QueueState;
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use unified_runtime_sys::{
    ur_adapter_handle_t, ur_device_binary_t, ur_device_dditable_t, ur_device_exp_dditable_t,
    ur_device_handle_t, ur_device_handle_t_, ur_device_info_t, ur_device_native_properties_t,
    ur_device_partition_properties_t, ur_device_type_t, ur_native_handle_t, ur_platform_handle_t,
    ur_result_t,
};

/// A device.
pub(crate) struct Device {
    inner: crosshandle::Device,
    /// For `urDeviceWaitExp`.
    queues: Mutex<Vec<Weak<QueueState>>>,
}

impl Object for Device {
    type Opaque = ur_device_handle_t_;
}

impl Device {
    /// A device to which UR refers once and for all.
    pub(crate) fn create(inner: crosshandle::Device) -> Ref<Self> {
        let device = Shared::new(Self {
            inner,
            queues: Mutex::default(),
        });
        Shared::hand_out(Ref::clone(&device));
        device
    }

    /// Whether there is a driver, with objects that programs may use too.
    pub(crate) fn has_driver(&self) -> bool {
        self.inner.native().is_some()
    }

    /// The library's device.
    pub(crate) fn inner(&self) -> &crosshandle::Device {
        &self.inner
    }

    /// Lets `urDeviceWaitExp` wait for a queue too, for as long as it is there.
    pub(crate) fn register_queue(&self, queue: &Arc<QueueState>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(Arc::downgrade(queue));
    }

    fn queues(&self) -> Vec<Arc<QueueState>> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.iter().filter_map(Weak::upgrade).collect()
    }
}

unsafe extern "C" fn get(
    handle: ur_platform_handle_t,
    kind: ur_device_type_t,
    count: u32,
    devices: *mut ur_device_handle_t,
    available: *mut u32,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a platform's handle.
        let platform = unsafe { Shared::<Platform>::from_handle(handle) }?;
        let found = if matches(kind)? {
            platform.devices()
        } else {
            &[]
        };
        match (count, devices.is_null()) {
            (0, false) => return Err(Failure::SIZE),
            (0, true) if available.is_null() => return Err(Failure::VALUE),
            (1.., true) => return Err(Failure::NULL_POINTER),
            _ => {}
        }
        for (place, device) in found.iter().take(count as usize).enumerate() {
            // SAFETY: there is room for `count` handles, by the caller's promise.
            unsafe { devices.add(place).write(device.handle()) };
        }
        // SAFETY: null or valid, by the caller's promise.
        unsafe { put_optional(available, found.len() as u32) };
        Ok(())
    })
}

/// Whether a search for devices of a type finds the adapter's.
fn matches(kind: ur_device_type_t) -> Result<bool> {
    match kind {
        ur_device_type_t::UR_DEVICE_TYPE_DEFAULT | ur_device_type_t::UR_DEVICE_TYPE_ALL => Ok(true),
        ur_device_type_t::UR_DEVICE_TYPE_GPU
        | ur_device_type_t::UR_DEVICE_TYPE_CPU
        | ur_device_type_t::UR_DEVICE_TYPE_FPGA
        | ur_device_type_t::UR_DEVICE_TYPE_MCA
        | ur_device_type_t::UR_DEVICE_TYPE_VPU
        | ur_device_type_t::UR_DEVICE_TYPE_CUSTOM => Ok(kind == description::get().device_type),
        _ => Err(Failure::ENUMERATION),
    }
}

unsafe extern "C" fn get_info(
    handle: ur_device_handle_t,
    name: ur_device_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a device's handle and a place for the answer.
        let (device, query) = unsafe {
            (
                Shared::<Device>::from_handle(handle)?,
                Query::new(size, value, size_ret)?,
            )
        };
        info::answer(device, name)?.write(query)
    })
}

/// `Retain` and `Release`: a device that is no sub-device is not counted.
unsafe extern "C" fn keep(handle: ur_device_handle_t) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a device's handle.
        unsafe { Shared::<Device>::from_handle(handle) }?;
        Ok(())
    })
}

unsafe extern "C" fn partition(
    handle: ur_device_handle_t,
    properties: *const ur_device_partition_properties_t,
    _count: u32,
    _devices: *mut ur_device_handle_t,
    _available: *mut u32,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a device's handle, and null or properties.
        unsafe {
            Shared::<Device>::from_handle(handle)?;
            let properties = properties.as_ref().ok_or(Failure::NULL_POINTER)?;
            not_null(properties.pProperties)?;
        }
        Err(Failure::unsupported(
            "devices of this adapter have no sub-devices",
        ))
    })
}

unsafe extern "C" fn select_binary(
    handle: ur_device_handle_t,
    binaries: *const ur_device_binary_t,
    count: u32,
    selected: *mut u32,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a device's handle.
        unsafe { Shared::<Device>::from_handle(handle) }?;
        not_null(binaries)?;
        not_null(selected)?;
        if count == 0 {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller passes this many descriptions, each with a text for its target.
        let chosen = unsafe { choose(list(binaries, count as usize)?) };
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(selected, chosen?) }
    })
}

/// The first image for the adapter's devices.
///
/// # Errors
/// `INVALID_BINARY` if there is none.
///
/// # Safety
/// Each target is null or ends with a zero.
unsafe fn choose(binaries: &[ur_device_binary_t]) -> Result<u32> {
    let target = description::get().program_target;
    let suits = |binary: &ur_device_binary_t| {
        let name = binary.pDeviceTargetSpec;
        // SAFETY: not null, so it ends with a zero, by the caller's promise.
        !name.is_null() && target.is_some_and(|target| target == unsafe { CStr::from_ptr(name) })
    };
    let chosen = binaries.iter().position(suits);
    chosen.map(|index| index as u32).ok_or_else(|| {
        Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_BINARY,
            match target {
                Some(_) => "no image is for the target of these devices",
                None => "this adapter runs no kernels, so no image with kernels suits its devices",
            },
        )
    })
}

/// The driver's device; without a driver, the device's handle.
fn native_of(device: &Shared<Device>) -> ur_native_handle_t {
    let own = device.handle() as ur_native_handle_t;
    let native = device.inner.native();
    native.map_or(own, |native| native.raw())
}

unsafe extern "C" fn get_native_handle(
    handle: ur_device_handle_t,
    native: *mut ur_native_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a device's handle and a valid pointer.
        unsafe {
            let device = Shared::<Device>::from_handle(handle)?;
            put(native, native_of(device))
        }
    })
}

unsafe extern "C" fn create_with_native_handle(
    native: ur_native_handle_t,
    handle: ur_adapter_handle_t,
    _properties: *const ur_device_native_properties_t,
    created: *mut ur_device_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes an adapter's handle.
        unsafe { Shared::<Adapter>::from_handle(handle) }?;
        let device = platform()
            .devices()
            .iter()
            .find(|device| native_of(device) == native)
            .map(|device| device.handle())
            .ok_or_else(|| Failure::argument("this is no device's native handle"))?;
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, device) }
    })
}

unsafe extern "C" fn get_global_timestamps(
    handle: ur_device_handle_t,
    on_device: *mut u64,
    on_host: *mut u64,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a device's handle, and null or valid pointers.
        unsafe {
            let device = Shared::<Device>::from_handle(handle)?;
            // The library's timestamps of all devices are of one clock of the host.
            let now = device.inner.timestamp();
            put_optional(on_device, now);
            put_optional(on_host, now);
        }
        Ok(())
    })
}

unsafe extern "C" fn wait(handle: ur_device_handle_t) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a device's handle.
        let device = unsafe { Shared::<Device>::from_handle(handle) }?;
        // All are waited for, also if one has an error to report.
        let results = device
            .queues()
            .into_iter()
            .map(|queue| queue.inner().finish());
        Ok(results.fold(Ok(()), crosshandle::Result::and)?)
    })
}

pub(crate) const TABLE: ur_device_dditable_t = ur_device_dditable_t {
    pfnGet: Some(get),
    pfnGetInfo: Some(get_info),
    pfnRetain: Some(keep),
    pfnRelease: Some(keep),
    pfnPartition: Some(partition),
    pfnSelectBinary: Some(select_binary),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnCreateWithNativeHandle: Some(create_with_native_handle),
    pfnGetGlobalTimestamps: Some(get_global_timestamps),
};

pub(crate) const EXP_TABLE: ur_device_exp_dditable_t = ur_device_exp_dditable_t {
    pfnWaitExp: Some(wait),
};
