//! Access of one device to the memory of another.

use crate::boundary::enter;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crate::query::Query;
use std::ffi::c_void;
use std::ptr;
use unified_runtime_sys::{ur_device_handle_t, ur_exp_peer_info_t, ur_result_t};

/// Whether one device can access the memory of the other: its own, that of another where all
/// memory is the host's, and that of a peer.
///
/// # Safety
/// The handles are null or devices'.
unsafe fn reaches(device: ur_device_handle_t, peer: ur_device_handle_t) -> Result<bool> {
    // SAFETY: as promised to this function.
    let (device, peer) = unsafe {
        (
            Shared::<Device>::from_handle(device)?,
            Shared::<Device>::from_handle(peer)?,
        )
    };
    let is_unified = |device: &Device| device.inner().info().capabilities.unified_memory;
    Ok(ptr::eq(device, peer)
        || (is_unified(device) && is_unified(peer))
        || device.inner().reaches(peer.inner()))
}

/// What can be accessed always can, so that there is nothing to enable or to disable.
pub(super) unsafe extern "C" fn enable(
    device: ur_device_handle_t,
    peer: ur_device_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes devices' handles.
        if unsafe { reaches(device, peer) }? {
            return Ok(());
        }
        Err(Failure::unsupported(
            "this device cannot access the other one's memory",
        ))
    })
}

pub(super) unsafe extern "C" fn get_info(
    device: ur_device_handle_t,
    peer: ur_device_handle_t,
    name: ur_exp_peer_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes devices' handles and a place for the answer.
        let (reaches, query) =
            unsafe { (reaches(device, peer)?, Query::new(size, value, size_ret)?) };
        match name {
            ur_exp_peer_info_t::UR_EXP_PEER_INFO_UR_PEER_ACCESS_SUPPORT
            | ur_exp_peer_info_t::UR_EXP_PEER_INFO_UR_PEER_ATOMICS_SUPPORT => {
                query.value(i32::from(reaches))
            }
            _ => Err(Failure::ENUMERATION),
        }
    })
}
