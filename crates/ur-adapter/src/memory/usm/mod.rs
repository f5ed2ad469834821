//! Unified shared memory (USM): memory that the host and the devices access by the same pointers.
//! Each context has a [table](crate::context::allocations) of its allocations.
//!
//! - `allocate`, `request`: allocation, release, and the properties of requested allocations.
//! - `info`: queries about pointers.
//! - `pool`, `pool_exp`: memory pools, and their experimental entry points.
//! - `user_memory`: registration of the user's memory with a context.
//! - `copy`: copies for which the caller names no queue.
//! - `peers`: access between devices.

mod allocate;
mod copy;
mod info;
mod peers;
mod pool;
mod pool_exp;
mod request;
mod user_memory;

pub(crate) use allocate::{Request, allocate};

use crate::abi::object::{release, retain};
use crate::context::pools::Pool;
use unified_runtime_sys::{ur_usm_dditable_t, ur_usm_exp_dditable_t, ur_usm_p2p_exp_dditable_t};

/// The entry points for USM.
pub(crate) const TABLE: ur_usm_dditable_t = ur_usm_dditable_t {
    pfnHostAlloc: Some(allocate::host),
    pfnDeviceAlloc: Some(allocate::device),
    pfnSharedAlloc: Some(allocate::shared),
    pfnFree: Some(allocate::free),
    pfnGetMemAllocInfo: Some(info::get),
    pfnPoolCreate: Some(pool::create),
    pfnPoolRetain: Some(retain::<Pool>),
    pfnPoolRelease: Some(release::<Pool>),
    pfnPoolGetInfo: Some(pool::get_info),
};

/// The experimental entry points for USM.
pub(crate) const EXP_TABLE: ur_usm_exp_dditable_t = ur_usm_exp_dditable_t {
    pfnPoolCreateExp: Some(pool_exp::create),
    pfnPoolDestroyExp: Some(pool_exp::destroy),
    pfnPoolGetDefaultDevicePoolExp: Some(pool_exp::get_default_of_device),
    pfnPoolGetInfoExp: Some(pool_exp::get_info),
    pfnPoolSetInfoExp: Some(pool_exp::set_info),
    pfnPoolSetDevicePoolExp: Some(pool_exp::set_of_device),
    pfnPoolGetDevicePoolExp: Some(pool_exp::get_of_device),
    pfnPoolTrimToExp: Some(pool_exp::trim_to),
    pfnPitchedAllocExp: Some(allocate::pitched),
    pfnContextMemcpyExp: Some(copy::memcpy),
    pfnHostAllocUnregisterExp: Some(user_memory::unregister),
    pfnHostAllocRegisterExp: Some(user_memory::register),
    pfnImportExp: Some(user_memory::import),
    pfnReleaseExp: Some(user_memory::release),
};

/// The entry points for access between the memories of devices.
pub(crate) const P2P_TABLE: ur_usm_p2p_exp_dditable_t = ur_usm_p2p_exp_dditable_t {
    pfnEnablePeerAccessExp: Some(peers::enable),
    // Access cannot be disabled. Like enabling, disabling only checks that the access is possible.
    pfnDisablePeerAccessExp: Some(peers::enable),
    pfnPeerAccessGetInfoExp: Some(peers::get_info),
};
