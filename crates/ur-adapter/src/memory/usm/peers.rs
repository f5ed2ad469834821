//! Access by one device to the memory of another device.

use crate::abi::boundary::entry_points;
use crate::abi::failure::Failure;
use crate::abi::object::{Handle, Shared};
use crate::abi::query::Answer;
use crate::discovery::Device;
use std::ptr;
use unified_runtime_sys::ur_exp_peer_info_t;

/// Returns whether a device can access the memory of another device. This is the case if both
/// devices are the same, if both use host memory, or if the driver supports peer access.
fn reaches(device: &Shared<Device>, peer: &Shared<Device>) -> bool {
    let is_unified = |device: &Device| device.inner().info().capabilities.unified_memory;
    ptr::eq(device, peer)
        || (is_unified(device) && is_unified(peer))
        || device.inner().reaches(peer.inner())
}

entry_points! {
    /// Checks that the device can access the peer's memory. This access is always enabled, so the
    /// call changes nothing.
    pub(super) fn enable(device: Handle<Device>, peer: Handle<Device>) {
        if reaches(device, peer) {
            return Ok(());
        }
        Err(Failure::unsupported("this device cannot access the memory of the other device"))
    }

    pub(super) fn get_info(
        device: Handle<Device>,
        peer: Handle<Device>,
        name: ur_exp_peer_info_t,
        query(size, value, size_ret): Answer,
    ) {
        match name {
            ur_exp_peer_info_t::UR_EXP_PEER_INFO_UR_PEER_ACCESS_SUPPORT
            | ur_exp_peer_info_t::UR_EXP_PEER_INFO_UR_PEER_ATOMICS_SUPPORT => {
                query.value(i32::from(reaches(device, peer)))
            }
            _ => Err(Failure::ENUMERATION),
        }
    }
}
