//! The entry points for devices, except those for sub-devices.

use super::{Adapter, Device, Platform, platform};
use super::{device_info, partition};
use crate::abi::boundary::{MaybeOut, Out, OutList, entry_points, list, not_null};
use crate::abi::description;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Ref, Shared};
use crate::abi::query::Answer;
use crosshandle::native::NativeRuntime;
use std::ffi::CStr;
use unified_runtime_sys::{
    ur_device_binary_t, ur_device_dditable_t, ur_device_exp_dditable_t, ur_device_handle_t,
    ur_device_info_t, ur_device_native_properties_t, ur_device_type_t, ur_native_handle_t,
    ur_result_t,
};

entry_points! {
    fn get(
        platform: Handle<Platform>,
        kind: ur_device_type_t,
        devices(count, first): OutList<ur_device_handle_t>,
        available: MaybeOut<u32>,
    ) {
        let found = if matches(kind)? {
            platform.devices()
        } else {
            &[]
        };
        match (devices.count, devices.is_null()) {
            (0, false) => return Err(Failure::SIZE),
            (0, true) if available.is_none() => return Err(Failure::VALUE),
            (1.., true) => return Err(Failure::NULL_POINTER),
            _ => {}
        }
        devices.put(found.iter().map(|device| device.handle()));
        available.map_or(Ok(()), |place| place.put(found.len() as u32))
    }

    fn get_info(
        device: Handle<Device>,
        name: ur_device_info_t,
        query(size, value, size_ret): Answer,
    ) {
        device_info::answer(device, name)?.write(query)
    }

    fn select_binary(
        device: Handle<Device>,
        binaries: *const ur_device_binary_t,
        count: u32,
        selected: Out<u32>,
    ) {
        not_null(binaries)?;
        if count == 0 {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller passes `count` descriptions, each with a null-terminated target name.
        let chosen = unsafe { choose(device, list(binaries, count as usize)?) };
        selected.put(chosen?)
    }

    fn get_native_handle(device: Handle<Device>, native: Out<ur_native_handle_t>) {
        native.put(native_of(device))
    }

    fn create_with_native_handle(
        native: ur_native_handle_t,
        adapter: Handle<Adapter>,
        properties: *const ur_device_native_properties_t,
        created: Out<ur_device_handle_t>,
    ) {
        let devices = platform().all_devices();
        let device = devices
            .iter()
            .find(|device| native_of(device) == native)
            .ok_or_else(|| Failure::argument("this native handle does not belong to a device of this adapter"))?;
        created.put(match device.part {
            // The caller receives an additional reference to a sub-device.
            Some(_) => Shared::hand_out(Ref::clone(device)),
            None => device.handle(),
        })
    }

    fn get_global_timestamps(
        device: Handle<Device>,
        on_device: MaybeOut<u64>,
        on_host: MaybeOut<u64>,
    ) {
        // All devices in `crosshandle` take their timestamps from the same host clock.
        let now = device.inner.timestamp();
        let mut places = on_device.iter().chain(&on_host);
        places.try_for_each(|place| place.put(now))
    }

    fn wait(device: Handle<Device>) {
        // Wait for all queues, even if one of them reports an error.
        let results = device.queues().into_iter().map(|queue| queue.finish());
        Ok(results.fold(Ok(()), crosshandle::Result::and)?)
    }
}

/// Returns whether the adapter's devices match the requested device type.
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

/// Selects a program image for a device. Targets are tried in the adapter's order of preference.
/// The result is the index of the first image for the best available target.
///
/// # Errors
/// Returns `INVALID_BINARY` if the device runs no kernels, or if no image has a supported target.
///
/// # Safety
/// The caller must ensure that each target name is null or a null-terminated string.
unsafe fn choose(device: &Device, binaries: &[ur_device_binary_t]) -> Result<u32> {
    let refusal = |why: String| Failure::new(ur_result_t::UR_RESULT_ERROR_INVALID_BINARY, why);
    if let Err(reason) = device.inner.kernels() {
        return Err(refusal(format!(
            "these devices cannot run the kernels of any image: {reason}"
        )));
    }
    let suits = |binary: &ur_device_binary_t, target: &CStr| {
        let name = binary.pDeviceTargetSpec;
        // SAFETY: the caller ensures that a non-null name is a null-terminated string.
        !name.is_null() && target == unsafe { CStr::from_ptr(name) }
    };
    let mut targets = description::get().program_targets.iter();
    let chosen = targets.find_map(|target| {
        let mut binaries = binaries.iter();
        binaries.position(|binary| suits(binary, target))
    });
    chosen
        .map(|index| index as u32)
        .ok_or_else(|| refusal("no image has a target that these devices support".into()))
}

/// Returns the native handle of a device. If clients expect OpenCL, it is the OpenCL device.
/// Otherwise it is the driver's device, or the UR handle if the device has no driver.
fn native_of(device: &Shared<Device>) -> ur_native_handle_t {
    let own = device.handle() as ur_native_handle_t;
    if let Some(runtime) = opencl_of(&device.inner) {
        return runtime.device;
    }
    let native = device.inner.native();
    native.map_or(own, |native| native.raw())
}

/// Returns the OpenCL objects behind a device. Returns `None` if clients do not expect native
/// handles to be OpenCL objects, or if the device has no OpenCL runtime.
pub(crate) fn opencl_of(device: &crosshandle::Device) -> Option<NativeRuntime> {
    if !description::is_reported_as_opencl() {
        return None;
    }
    device.native_runtime().ok()
}

/// The entry points for devices.
pub(crate) const TABLE: ur_device_dditable_t = ur_device_dditable_t {
    pfnGet: Some(get),
    pfnGetInfo: Some(get_info),
    pfnRetain: Some(partition::retain),
    pfnRelease: Some(partition::release),
    pfnPartition: Some(partition::partition),
    pfnSelectBinary: Some(select_binary),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnCreateWithNativeHandle: Some(create_with_native_handle),
    pfnGetGlobalTimestamps: Some(get_global_timestamps),
};

/// The experimental entry points for devices.
pub(crate) const EXP_TABLE: ur_device_exp_dditable_t = ur_device_exp_dditable_t {
    pfnWaitExp: Some(wait),
};
