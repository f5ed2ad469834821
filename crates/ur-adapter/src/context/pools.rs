//! Memory pools, and the default pools of a context's devices.

use super::{Context, ContextState};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::{Object, Ref, Shared, release_once};
use crate::discovery::Device;
use crosshandle::memory::{MemoryPool, MemoryPoolOptions, MemoryPoolUsage};
use std::ptr;
use std::sync::{Arc, Weak};
use unified_runtime_sys::{ur_context_handle_t, ur_result_t, ur_usm_pool_handle_t_};

/// A UR handle to a memory pool, which consists of one pool for each of its devices.
pub(crate) struct Pool {
    state: Weak<ContextState>,
    context: Weak<Shared<Context>>,
    /// Keeps the context alive. `None` for a default pool, which the context itself owns.
    _keep: Option<Ref<Context>>,
    /// The pool in `crosshandle` for each device.
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
            let pool = MemoryPool::new(context.on(device)?, options);
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

    /// Creates a pool for one device.
    ///
    /// # Errors
    /// Returns `INVALID_DEVICE` for a device that is not in the context.
    pub(crate) fn for_device(
        context: &Shared<Context>,
        device: &Shared<Device>,
        options: MemoryPoolOptions,
    ) -> Result<Ref<Self>> {
        Self::create(context, std::iter::once(device), options, true)
    }

    /// Creates a pool for all devices of a context.
    ///
    /// # Errors
    /// Returns an error from `crosshandle` if a device's pool cannot be created.
    pub(crate) fn for_all_devices(
        context: &Shared<Context>,
        options: MemoryPoolOptions,
    ) -> Result<Ref<Self>> {
        let devices = context.devices().map(|device| &**device);
        Self::create(context, devices, options, true)
    }

    /// Returns the pool that provides memory on a device if the caller names no pool.
    pub(crate) fn current_of(
        context: &Shared<Context>,
        device: &Shared<Device>,
    ) -> Result<Ref<Self>> {
        let pools = &context.state().usm.device_pools;
        pools.current_of(context, device)
    }

    /// Returns the pool in `crosshandle` for a device.
    ///
    /// # Errors
    /// Returns `INVALID_CONTEXT` if this pool belongs to another context, or `INVALID_DEVICE` if it
    /// is not a pool for this device.
    #[inline]
    pub(crate) fn on(&self, context: &Context, device: &Shared<Device>) -> Result<&MemoryPool> {
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

    /// Returns the pools in `crosshandle`, one for each device.
    pub(crate) fn members(&self) -> impl Iterator<Item = &MemoryPool> {
        self.members.iter().map(|(_, pool)| pool)
    }

    /// Returns the handle of the context. Returns null if the context no longer exists.
    pub(crate) fn context_handle(&self) -> ur_context_handle_t {
        let context = self.context.upgrade();
        context.map_or(ptr::null_mut(), |context| context.handle())
    }

    /// Calls `of` with the usage on each device, and returns the sum of the results.
    pub(crate) fn sum(&self, of: impl Fn(MemoryPoolUsage) -> usize) -> usize {
        self.members().map(|pool| of(pool.usage())).sum()
    }

    /// Returns the maximum size of the pool in bytes. It is limited to the size of the devices'
    /// memory.
    pub(crate) fn limit(&self) -> usize {
        let limits = self.members.iter().map(|(device, pool)| {
            let memory = device.inner().info().total_memory as usize;
            pool.limit().min(memory)
        });
        limits.fold(0, usize::saturating_add)
    }
}

/// The default pool and the current pool of each device in a context.
#[derive(Default)]
pub(crate) struct DevicePools {
    devices: Lock<Vec<DevicePool>>,
}

/// The default pool and the current pool of one device.
struct DevicePool {
    device: Ref<Device>,
    default: DefaultPool,
    /// The current pool, if the user has set one and it still exists.
    set: Weak<Shared<Pool>>,
}

/// A default pool. UR holds a reference to the pool as long as the context exists.
struct DefaultPool(Ref<Pool>);

impl DefaultPool {
    fn new(pool: Ref<Pool>) -> Self {
        Shared::hand_out(Ref::clone(&pool));
        Self(pool)
    }
}

impl Drop for DefaultPool {
    fn drop(&mut self) {
        // SAFETY: `DefaultPool::new` gave UR a reference to the pool. It is released only here.
        let released = unsafe { release_once::<Pool>(self.0.handle()) };
        debug_assert!(released.is_ok(), "the handle is not null");
    }
}

impl DevicePools {
    /// Calls `f` with the pools of a device. Creates the default pool if it does not exist yet.
    fn with<R>(
        &self,
        context: &Shared<Context>,
        device: &Shared<Device>,
        f: impl FnOnce(&mut DevicePool) -> R,
    ) -> Result<R> {
        let mut devices = self.devices.lock();
        let found = devices
            .iter()
            .position(|pools| ptr::eq(&*pools.device, device));
        let place = match found {
            Some(place) => place,
            None => {
                let options = MemoryPoolOptions::new().keep(0);
                let default = Pool::create(context, std::iter::once(device), options, false)?;
                devices.push(DevicePool {
                    device: device.to_ref(),
                    default: DefaultPool::new(default),
                    set: Weak::new(),
                });
                devices.len() - 1
            }
        };
        Ok(f(&mut devices[place]))
    }

    pub(crate) fn default_of(
        &self,
        context: &Shared<Context>,
        device: &Shared<Device>,
    ) -> Result<Ref<Pool>> {
        self.with(context, device, |pools| Ref::clone(&pools.default.0))
    }

    /// Returns the current pool of a device. If no current pool is set, returns the default pool.
    pub(crate) fn current_of(
        &self,
        context: &Shared<Context>,
        device: &Shared<Device>,
    ) -> Result<Ref<Pool>> {
        self.with(context, device, |pools| {
            let set = pools.set.upgrade();
            set.unwrap_or_else(|| Ref::clone(&pools.default.0))
        })
    }

    /// Sets the current pool of a device.
    ///
    /// # Errors
    /// Returns the same errors as [`Pool::on`].
    pub(crate) fn set(
        &self,
        context: &Shared<Context>,
        device: &Shared<Device>,
        pool: &Shared<Pool>,
    ) -> Result<()> {
        pool.on(context, device)?;
        let pool = Ref::downgrade(&pool.to_ref());
        self.with(context, device, |pools| pools.set = pool)
    }

    pub(crate) fn is_default(&self, pool: &Shared<Pool>) -> bool {
        let devices = self.devices.lock();
        devices.iter().any(|pools| ptr::eq(&*pools.default.0, pool))
    }
}
