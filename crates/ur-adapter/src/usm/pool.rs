//! Memory pools.

use crate::boundary::{enter, not_null, put};
use crate::chain;
use crate::context::{Context, ContextState};
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::{Object, Ref, Shared, release};
use crate::query::Query;
use crosshandle::{MemoryPool, MemoryPoolOptions, MemoryPoolUsage};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use unified_runtime_sys::{
    UR_USM_POOL_FLAG_USE_NATIVE_MEMORY_POOL_EXP, UR_USM_POOL_FLAGS_MASK, ur_context_handle_t,
    ur_result_t, ur_structure_type_t, ur_usm_pool_desc_t, ur_usm_pool_handle_t,
    ur_usm_pool_handle_t_, ur_usm_pool_info_t, ur_usm_pool_limits_desc_t,
};

/// A memory pool.
pub(crate) struct Pool {
    state: Weak<ContextState>,
    context: Weak<Shared<Context>>,
    /// A pool that the context itself has doesn't keep it.
    _keep: Option<Ref<Context>>,
    /// One for each device that it is for.
    members: Vec<(Ref<Device>, MemoryPool)>,
}

impl Object for Pool {
    type Opaque = ur_usm_pool_handle_t_;
}

impl Pool {
    fn create<'a>(
        context: &Shared<Context>,
        devices: impl Iterator<Item = &'a Shared<Device>>,
        options: MemoryPoolOptions,
        keeps_context: bool,
    ) -> Result<Ref<Self>> {
        let member = |device: &Shared<Device>| {
            let pool = context.on(device)?.create_memory_pool(options);
            Ok((device.to_ref(), pool))
        };
        let members = devices.map(member).collect::<Result<_>>()?;
        let context = context.to_ref();
        Ok(Shared::new(Self {
            state: Arc::downgrade(context.state()),
            context: Ref::downgrade(&context),
            _keep: keeps_context.then_some(context),
            members,
        }))
    }

    /// A pool for one device, as `desc` describes it.
    ///
    /// # Safety
    /// As [`options`].
    pub(super) unsafe fn for_device(
        context: &Shared<Context>,
        device: &Shared<Device>,
        desc: *const ur_usm_pool_desc_t,
    ) -> Result<Ref<Self>> {
        // SAFETY: as promised to this function.
        let options = unsafe { options(desc) }?;
        Self::create(context, std::iter::once(device), options, true)
    }

    /// The pool that memory of a device comes from where no other is named.
    pub(crate) fn current_of(
        context: &Shared<Context>,
        device: &Shared<Device>,
    ) -> Result<Ref<Self>> {
        let pools = &context.state().usm.device_pools;
        pools.current_of(context, device)
    }

    /// Its memory on a device.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` for a pool of another context than this one, `INVALID_DEVICE` for one of
    /// another device.
    #[inline]
    pub(super) fn on(&self, context: &Context, device: &Shared<Device>) -> Result<&MemoryPool> {
        if !ptr::eq(self.state.as_ptr(), Arc::as_ptr(context.state())) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_CONTEXT,
                "this pool belongs to another context",
            ));
        }
        self.members
            .iter()
            .find(|(own, _)| ptr::eq(&**own, device))
            .map(|(_, pool)| pool)
            .ok_or_else(|| {
                Failure::new(
                    ur_result_t::UR_RESULT_ERROR_INVALID_DEVICE,
                    "this pool belongs to another device",
                )
            })
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &MemoryPool> {
        self.members.iter().map(|(_, pool)| pool)
    }

    fn sum(&self, of: impl Fn(MemoryPoolUsage) -> usize) -> usize {
        self.members().map(|pool| of(pool.usage())).sum()
    }

    /// The most that it may have: no more than the devices do.
    fn limit(&self) -> usize {
        let limits = self.members.iter().map(|(device, pool)| {
            let memory = device.inner().info().total_memory as usize;
            pool.limit().min(memory)
        });
        limits.fold(0, usize::saturating_add)
    }
}

/// What a description asks for. Pools that are called native are those of
/// `sycl::ext::oneapi::experimental`, whose limits are the size of the pool and what it keeps;
/// those of the others are what they say.
///
/// # Safety
/// `desc` is null or points to a description, with a valid chain.
unsafe fn options(desc: *const ur_usm_pool_desc_t) -> Result<MemoryPoolOptions> {
    // SAFETY: as promised to this function.
    let desc = unsafe { desc.as_ref() }.ok_or(Failure::NULL_POINTER)?;
    if desc.flags & UR_USM_POOL_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    let is_native = desc.flags & UR_USM_POOL_FLAG_USE_NATIVE_MEMORY_POOL_EXP != 0;
    let mut options = MemoryPoolOptions::new();
    if is_native {
        options = options.keep(0);
    }
    // SAFETY: as promised to this function.
    for (stype, next) in unsafe { chain::each(desc.pNext) } {
        match stype {
            ur_structure_type_t::UR_STRUCTURE_TYPE_USM_POOL_LIMITS_DESC => {
                // SAFETY: the type says which structure it is.
                let limits = unsafe { &*next.cast::<ur_usm_pool_limits_desc_t>() };
                let (first, second) = (limits.maxPoolableSize, limits.minDriverAllocSize);
                options = match (is_native, first) {
                    (true, 0) => options.keep(second),
                    (true, limit) => options.limit(limit).keep(second),
                    (false, largest) => options.keep_each(largest).first_segment(second),
                };
            }
            ur_structure_type_t::UR_STRUCTURE_TYPE_USM_POOL_BUFFER_DESC => {
                return Err(Failure::unsupported(
                    "this adapter makes pools of memory of its own only",
                ));
            }
            _ => {}
        }
    }
    Ok(options)
}

/// The pools that the devices of a context have without being asked.
#[derive(Default)]
pub(super) struct DevicePools {
    devices: Mutex<Vec<DevicePool>>,
}

struct DevicePool {
    device: Ref<Device>,
    default: DefaultPool,
    /// The one that was set, if it is still there.
    set: Weak<Shared<Pool>>,
}

/// A pool to which UR refers for as long as the context is there.
struct DefaultPool(Ref<Pool>);

impl Drop for DefaultPool {
    fn drop(&mut self) {
        // SAFETY: the handle was handed out when this was made.
        unsafe { release::<Pool>(self.0.handle()) };
    }
}

impl DevicePools {
    fn with<R>(
        &self,
        context: &Shared<Context>,
        device: &Shared<Device>,
        f: impl FnOnce(&mut DevicePool) -> R,
    ) -> Result<R> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let found = devices
            .iter()
            .position(|pools| ptr::eq(&*pools.device, device));
        let place = match found {
            Some(place) => place,
            None => {
                let options = MemoryPoolOptions::new().keep(0);
                let default = Pool::create(context, std::iter::once(device), options, false)?;
                Shared::hand_out(Ref::clone(&default));
                devices.push(DevicePool {
                    device: device.to_ref(),
                    default: DefaultPool(default),
                    set: Weak::new(),
                });
                devices.len() - 1
            }
        };
        Ok(f(&mut devices[place]))
    }

    /// The pool that a device has from the start.
    pub(super) fn default_of(
        &self,
        context: &Shared<Context>,
        device: &Shared<Device>,
    ) -> Result<Ref<Pool>> {
        self.with(context, device, |pools| Ref::clone(&pools.default.0))
    }

    /// The pool that was set for a device, or else its default one.
    pub(super) fn current_of(
        &self,
        context: &Shared<Context>,
        device: &Shared<Device>,
    ) -> Result<Ref<Pool>> {
        self.with(context, device, |pools| {
            let set = pools.set.upgrade();
            set.unwrap_or_else(|| Ref::clone(&pools.default.0))
        })
    }

    pub(super) fn set(
        &self,
        context: &Shared<Context>,
        device: &Shared<Device>,
        pool: &Shared<Pool>,
    ) -> Result<()> {
        pool.on(context, device)?;
        let pool = Ref::downgrade(&pool.to_ref());
        self.with(context, device, |pools| pools.set = pool)
    }

    /// Whether a pool is the default one of a device.
    pub(super) fn is_default(&self, pool: &Shared<Pool>) -> bool {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.iter().any(|pools| ptr::eq(&*pools.default.0, pool))
    }
}

pub(super) unsafe extern "C" fn create(
    context: ur_context_handle_t,
    desc: *mut ur_usm_pool_desc_t,
    created: *mut ur_usm_pool_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle, and null or a description.
        let (context, options) = unsafe {
            let context = Shared::<Context>::from_handle(context)?;
            not_null(created)?;
            (context, options(desc)?)
        };
        let devices = context.devices().map(|device| &**device);
        let pool = Pool::create(context, devices, options, true)?;
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(pool)) }
    })
}

pub(super) unsafe extern "C" fn get_info(
    handle: ur_usm_pool_handle_t,
    name: ur_usm_pool_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a pool's handle and a place for the answer.
        let (pool, query) = unsafe {
            (
                Shared::<Pool>::from_handle(handle)?,
                Query::new(size, value, size_ret)?,
            )
        };
        answer(pool, name, query)
    })
}

pub(super) fn answer(pool: &Shared<Pool>, name: ur_usm_pool_info_t, query: Query) -> Result<()> {
    let bytes = match name {
        ur_usm_pool_info_t::UR_USM_POOL_INFO_REFERENCE_COUNT => {
            return query.value(pool.references());
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_CONTEXT => {
            let context = pool.context.upgrade();
            return query.value(context.map_or(ptr::null_mut(), |context| context.handle()));
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_RELEASE_THRESHOLD_EXP => {
            pool.members().map(MemoryPool::kept).sum()
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_MAXIMUM_SIZE_EXP => pool.limit(),
        ur_usm_pool_info_t::UR_USM_POOL_INFO_RESERVED_CURRENT_EXP => {
            pool.sum(|usage| usage.reserved)
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_RESERVED_HIGH_EXP => {
            pool.sum(|usage| usage.reserved_peak)
        }
        ur_usm_pool_info_t::UR_USM_POOL_INFO_USED_CURRENT_EXP => pool.sum(|usage| usage.used),
        ur_usm_pool_info_t::UR_USM_POOL_INFO_USED_HIGH_EXP => pool.sum(|usage| usage.used_peak),
        _ => return Err(Failure::ENUMERATION),
    };
    query.value(bytes)
}
