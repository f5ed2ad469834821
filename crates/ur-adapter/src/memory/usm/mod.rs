//! Unified shared memory (USM): pointers that the host and the devices share. Each context has a
//! [table](crate::context::allocations) of its allocations.
//!
//! - `allocate`, `request`: allocating and freeing, and the descriptions of allocations.
//! - `info`: properties of pointers.
//! - `pool`, `pool_exp`: memory pools, and their experimental part.
//! - `user_memory`: registering the user's memory with a context.
//! - `copy`, `peers`: copies without a queue, and access between devices.

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

/// The entry points for access between devices.
pub(crate) const P2P_TABLE: ur_usm_p2p_exp_dditable_t = ur_usm_p2p_exp_dditable_t {
    pfnEnablePeerAccessExp: Some(peers::enable),
    // Devices cannot lose access to memory, so disabling does the same as enabling.
    pfnDisablePeerAccessExp: Some(peers::enable),
    pfnPeerAccessGetInfoExp: Some(peers::get_info),
};
