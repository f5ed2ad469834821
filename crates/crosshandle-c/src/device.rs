//! Devices.

use crate::boundary::{entry, entry_object, entry_value, place, put_text, text};
use crate::error::crosshandle_result;
use crate::object::{close, get, object};
use crosshandle::Device;
use std::ffi::c_char;

/// A device that has memory and runs queues. Any thread may use it.
pub struct crosshandle_device {}
object!(crosshandle_device, Device, 1, "device");

/// The numeric properties of a device. Programs set nothing in it.
#[repr(C)]
pub struct crosshandle_device_info {
    /// The memory of the device, in bytes.
    pub total_memory: u64,
    /// Maximum size of one allocation, in bytes.
    pub max_allocation: u64,
    /// The number of the device among the devices of its backend, in this process.
    pub index: u32,
    /// The number of units that compute independently.
    pub compute_units: u32,
    /// The kind of the device in DLPack (`DLDeviceType`).
    pub dlpack_type: i32,
    /// Whether the host can access the memory of the device through its address.
    pub host_accessible_memory: bool,
    /// Whether the memory of the device can be shared with other processes.
    pub memory_sharing: bool,
    /// The identity of the device, the same in every process on this machine.
    pub uuid: [u8; 16],
}

/// Returns the number of devices that this process can use. Device 0 is the host.
///
/// Returns 0 on an error. The first call in a process loads the drivers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_device_count() -> usize {
    entry_value!(or 0; Ok(Device::all().len()))
}

/// Returns device `index` of the devices of this process.
///
/// Errors: `CROSSHANDLE_NO_DEVICE` if the index is not below `crosshandle_device_count`. The caller
/// closes the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_device_at(
    index: usize,
    device: *mut *mut crosshandle_device,
) -> crosshandle_result {
    entry_object! { device;
        let found = Device::all().into_iter().nth(index);
        found.ok_or(crosshandle::Error::NoDevice {
            name: index.to_string(),
            reason: "the index is not below the number of devices".into(),
        })?
    }
}

/// Finds a device by its name, such as `host`, `cuda:1` or `level_zero`. A name without a number is
/// that of the backend's first device.
///
/// Errors: `CROSSHANDLE_NO_DEVICE`; its message says what was looked for and where. The caller
/// closes the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_device_find(
    name: *const c_char,
    device: *mut *mut crosshandle_device,
) -> crosshandle_result {
    entry_object! { device;
        Device::find(text(name)?)?
    }
}

/// Copies the name by which `crosshandle_device_find` finds the device, such as `cuda:1`.
///
/// Writes at most `size` bytes to `name`, with a terminating zero. Stores the length of the whole
/// name, without the zero, in `length` unless that is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_device_name(
    device: *const crosshandle_device,
    name: *mut c_char,
    size: usize,
    length: *mut usize,
) -> crosshandle_result {
    entry! {
        put_text(&get(device)?.to_string(), name, size, length);
        Ok(())
    }
}

/// Copies the description of the device by its driver, such as the model of a GPU. The arguments
/// are those of `crosshandle_device_name`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_device_description(
    device: *const crosshandle_device,
    description: *mut c_char,
    size: usize,
    length: *mut usize,
) -> crosshandle_result {
    entry! {
        put_text(&get(device)?.info().name, description, size, length);
        Ok(())
    }
}

/// Returns the numeric properties of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_device_get_info(
    device: *const crosshandle_device,
    info: *mut crosshandle_device_info,
) -> crosshandle_result {
    entry! {
        let place = place(info)?;
        let info = get(device)?.info();
        place.write(crosshandle_device_info {
            total_memory: info.total_memory,
            max_allocation: info.max_allocation,
            index: info.index as u32,
            compute_units: info.compute_units,
            dlpack_type: info.dlpack_type,
            host_accessible_memory: info.capabilities.host_accessible_memory,
            memory_sharing: info.capabilities.memory_sharing,
            uuid: *info.uuid.as_bytes(),
        });
        Ok(())
    }
}

/// Closes the device object. Contexts on the device stay valid. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_device_close(
    device: *mut crosshandle_device,
) -> crosshandle_result {
    entry!(close(device).map(drop))
}
