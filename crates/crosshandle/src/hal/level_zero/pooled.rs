//! Events of pools: how the host learns that a command is done. They belong to this process alone.

use super::driver::{
    Core, Driver, EventHandle, Handle, PoolHandle, check, check_memory, description,
};
use crate::error::Result;
use crate::os::process;
use level_zero_sys::{
    ZE_EVENT_POOL_FLAG_HOST_VISIBLE, ZE_EVENT_POOL_FLAG_IPC, ZE_EVENT_SCOPE_FLAG_HOST,
    ze_event_pool_flags_t, ze_result_t,
};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Events of one pool of the driver's.
const COUNT: u32 = 64;

/// All pools of a context, and their events that are free.
#[derive(Default)]
pub(super) struct Pools(Mutex<State>);

#[derive(Default)]
struct State {
    pools: Vec<PoolHandle>,
    /// For lists to signal.
    free: Vec<EventHandle>,
    /// For the host to signal. Intel's driver makes counters of those that a list in order signals,
    /// which the host can't signal any more, and lists can't wait for until another list signals.
    gates: Vec<EventHandle>,
    /// Those that could not be reset, and so are signalled still, or may be signalled late.
    spent: Vec<EventHandle>,
}

impl Pools {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps one until the context goes: a list may signal it whenever.
    fn lose(&self, event: EventHandle) {
        self.state().spent.push(event);
    }

    /// Takes an event that is not signalled.
    fn take(&self, core: &Core, is_gate: bool) -> Result<EventHandle> {
        let mut state = self.state();
        if state.free_of(is_gate).is_empty() {
            state.grow(core, is_gate)?;
        }
        let event = state.free_of(is_gate).pop();
        Ok(event.expect("the pool has just grown"))
    }

    /// Ends all: their context goes, so all are free.
    pub(super) fn destroy(&self, driver: &Driver) {
        let State {
            pools,
            free,
            gates,
            spent,
        } = std::mem::take(&mut *self.state());
        for event in free.into_iter().chain(gates).chain(spent) {
            // SAFETY: ours, of a pool below, and in no command's use.
            let code = unsafe { (driver.loader.zeEventDestroy)(event.0) };
            warn("zeEventDestroy", code);
        }
        for pool in pools {
            // SAFETY: ours, and none of its events is left.
            let code = unsafe { (driver.loader.zeEventPoolDestroy)(pool.0) };
            warn("zeEventPoolDestroy", code);
        }
    }
}

fn warn(operation: &'static str, code: ze_result_t) {
    if let Err(error) = check(operation, code) {
        tracing::warn!(%error, "could not release");
    }
}

impl State {
    /// Makes another pool, with all its events.
    fn grow(&mut self, core: &Core, is_gate: bool) -> Result<()> {
        let pool = create_pool(core, COUNT, 0)?;
        self.pools.push(pool);
        for index in 0..COUNT {
            let event = create_event(core, pool, index)?;
            self.free_of(is_gate).push(event);
        }
        Ok(())
    }

    fn free_of(&mut self, is_gate: bool) -> &mut Vec<EventHandle> {
        match is_gate {
            true => &mut self.gates,
            false => &mut self.free,
        }
    }
}

fn create_pool(core: &Core, count: u32, flags: ze_event_pool_flags_t) -> Result<PoolHandle> {
    let mut desc = description!(ze_event_pool_desc_t, ZE_STRUCTURE_TYPE_EVENT_POOL_DESC);
    desc.flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE | flags;
    desc.count = count;
    let mut pool = ptr::null_mut();
    let create = core.driver.loader.zeEventPoolCreate;
    // SAFETY: our context, all its devices, and a live result.
    let code = unsafe { create(core.handle.0, &desc, 0, ptr::null_mut(), &mut pool) };
    check_memory("zeEventPoolCreate", 0, code)?;
    Ok(Handle(pool))
}

fn create_event(core: &Core, pool: PoolHandle, index: u32) -> Result<EventHandle> {
    let mut desc = description!(ze_event_desc_t, ZE_STRUCTURE_TYPE_EVENT_DESC);
    desc.index = index;
    desc.signal = ZE_EVENT_SCOPE_FLAG_HOST;
    desc.wait = ZE_EVENT_SCOPE_FLAG_HOST;
    let mut event = ptr::null_mut();
    // SAFETY: a place of a pool of ours, and a live result.
    let code = unsafe { (core.driver.loader.zeEventCreate)(pool.0, &desc, &mut event) };
    check_memory("zeEventCreate", 0, code)?;
    Ok(Handle(event))
}

/// An event for the program, which may do with it what it likes. So it has a pool of its own, and
/// is no other event afterwards.
pub(super) struct Shown {
    core: Arc<Core>,
    pool: PoolHandle,
    event: EventHandle,
}

impl Shown {
    pub(super) fn create(core: &Arc<Core>) -> Result<Self> {
        // Intel's driver makes no counters of events that could be shared, of which a list that waits
        // already would learn nothing.
        let pool = create_pool(core, 1, ZE_EVENT_POOL_FLAG_IPC);
        let pool = pool.or_else(|_| create_pool(core, 1, 0))?;
        let event = create_event(core, pool, 0).inspect_err(|_| {
            // SAFETY: ours, and it has no event.
            let code = unsafe { (core.driver.loader.zeEventPoolDestroy)(pool.0) };
            warn("zeEventPoolDestroy", code);
        })?;
        let core = Arc::clone(core);
        Ok(Self { core, pool, event })
    }

    pub(super) fn handle(&self) -> EventHandle {
        self.event
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.core.release("an event for the program", |core| {
            let loader = &core.driver.loader;
            // SAFETY: ours; who waits for it keeps it.
            unsafe {
                let code = (loader.zeEventDestroy)(self.event.0);
                warn("zeEventDestroy", code);
                check(
                    "zeEventPoolDestroy",
                    (loader.zeEventPoolDestroy)(self.pool.0),
                )
            }
        });
    }
}

/// An event that is not signalled at first, and is signalled once until it is reset. It goes back to
/// its pool when dropped; no command uses it then.
pub(super) struct Pooled {
    core: Arc<Core>,
    handle: EventHandle,
    is_gate: bool,
}

impl Pooled {
    /// One for lists to signal.
    pub(super) fn take(core: &Arc<Core>) -> Result<Self> {
        Self::take_one(core, false)
    }

    /// One for the host to signal.
    pub(super) fn take_gate(core: &Arc<Core>) -> Result<Self> {
        Self::take_one(core, true)
    }

    fn take_one(core: &Arc<Core>, is_gate: bool) -> Result<Self> {
        Ok(Self {
            handle: core.events.take(core, is_gate)?,
            core: Arc::clone(core),
            is_gate,
        })
    }

    pub(super) fn handle(&self) -> EventHandle {
        self.handle
    }

    /// Signals a gate, for a list that waits.
    pub(super) fn signal(&self) -> Result<()> {
        let signal = self.core.driver.loader.zeEventHostSignal;
        // SAFETY: ours, as long as this lives.
        check("zeEventHostSignal", unsafe { signal(self.handle.0) })
    }

    /// Waits until one is signalled that somebody else keeps meanwhile, but not longer than this:
    /// whether it is.
    pub(super) fn wait_for(core: &Core, handle: EventHandle, timeout: Duration) -> Result<bool> {
        let wait = core.driver.loader.zeEventHostSynchronize;
        // SAFETY: one of ours, as promised.
        let code = unsafe { wait(handle.0, timeout.as_nanos() as u64) };
        match code {
            ze_result_t::ZE_RESULT_NOT_READY => Ok(false),
            code => check("zeEventHostSynchronize", code).map(|()| true),
        }
    }

    /// Makes it one that is not signalled, if the driver does that. No command uses it any more.
    fn reset(core: &Core, handle: EventHandle) -> bool {
        let reset = core.driver.loader.zeEventHostReset;
        // SAFETY: ours, and in no command's use.
        let code = unsafe { reset(handle.0) };
        warn("zeEventHostReset", code);
        code == ze_result_t::ZE_RESULT_SUCCESS
    }

    /// One for lists to signal, as its handle alone, for those who keep many. To be given back with
    /// [`return_to_pool`](Self::return_to_pool), or [`lost`](Self::lose).
    pub(super) fn take_handle(core: &Core) -> Result<EventHandle> {
        core.events.take(core, false)
    }

    /// Gives one back that was taken as its handle, and is not signalled. No command uses it any
    /// more.
    pub(super) fn return_to_pool(core: &Core, handle: EventHandle) {
        core.events.state().free.push(handle);
    }

    /// Gives up one that was taken as its handle: a list may signal it as long as that lives.
    pub(super) fn lose(core: &Core, handle: EventHandle) {
        core.events.lose(handle);
    }

    /// Makes one that was taken as its handle ready to be used again, if it can be; else it is lost.
    /// No command uses it any more.
    pub(super) fn refresh(core: &Core, handle: EventHandle) -> Option<EventHandle> {
        let is_fresh = Self::reset(core, handle);
        if !is_fresh {
            Self::lose(core, handle);
        }
        is_fresh.then_some(handle)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        let is_reset = Self::reset(&self.core, self.handle);
        let mut state = self.core.events.state();
        match is_reset {
            true => state.free_of(self.is_gate).push(self.handle),
            false => state.spent.push(self.handle),
        }
    }
}
