//! Events of pools: fences, by which the host learns how far a list is, and host fences, at which a
//! list waits for the host. They belong to this process alone.

use super::{
    DriverContext, EventHandle, Handle, PoolHandle, check, check_memory, description, log_failure,
};
use crate::error::Result;
use crate::hal::level_zero::tuning::{EVENTS_PER_POOL, MIN_FREE_FENCES};
use crate::os::process;
use crate::sync::Mutex;
use level_zero_sys::{
    ZE_EVENT_POOL_FLAG_HOST_VISIBLE, ZE_EVENT_POOL_FLAG_IPC, ZE_EVENT_SCOPE_FLAG_HOST,
    ze_event_pool_flags_t, ze_result_t,
};
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The side that signals an event. Intel's driver turns an event that an in-order list signals into
/// a counter, which the host can't signal any more and lists can't wait for until another list
/// signals. So an event is never used for both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signaller {
    List,
    Host,
}

/// All event pools of a context.
#[derive(Default)]
pub(super) struct EventPools {
    state: Mutex<PoolState>,
    /// Free fences, written with the lock held; read without it to find out whether a pool is due.
    free_fences: AtomicUsize,
}

#[derive(Default)]
struct PoolState {
    pools: Vec<PoolHandle>,
    fences: Vec<EventHandle>,
    host_fences: Vec<EventHandle>,
    /// Events that cannot be used again: they are signalled still, or may be signalled late.
    spent: Vec<EventHandle>,
}

impl PoolState {
    fn free(&mut self, signaller: Signaller) -> &mut Vec<EventHandle> {
        match signaller {
            Signaller::List => &mut self.fences,
            Signaller::Host => &mut self.host_fences,
        }
    }
}

impl EventPools {
    fn change<T>(&self, change: impl FnOnce(&mut PoolState) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.free_fences
            .store(state.fences.len(), Ordering::Relaxed);
        result
    }

    /// Takes an event that is not signalled. Allocates a pool, without a lock of its own, if none is
    /// free.
    fn take(&self, context: &DriverContext, signaller: Signaller) -> Result<EventHandle> {
        loop {
            if let Some(event) = self.change(|state| state.free(signaller).pop()) {
                return Ok(event);
            }
            self.grow(context, signaller)?;
        }
    }

    /// Allocates another pool, with all its events.
    #[cold]
    fn grow(&self, context: &DriverContext, signaller: Signaller) -> Result<()> {
        let pool = create_pool(context, EVENTS_PER_POOL, 0)?;
        let mut events = Vec::new();
        for index in 0..EVENTS_PER_POOL {
            match create_event(context, pool, index) {
                Ok(event) => events.push(event),
                Err(error) if events.is_empty() => {
                    destroy_pool(context, pool);
                    return Err(error);
                }
                Err(_) => break,
            }
        }
        self.change(|state| {
            state.pools.push(pool);
            state.free(signaller).append(&mut events);
        });
        Ok(())
    }

    /// Destroys all events and pools: their context ends, so that none is in use.
    pub(super) fn destroy(&self, context: &DriverContext) {
        let PoolState {
            pools,
            fences,
            host_fences,
            spent,
        } = mem::take(&mut *self.state.lock());
        for event in fences.into_iter().chain(host_fences).chain(spent) {
            destroy_event(context, event);
        }
        for pool in pools {
            destroy_pool(context, pool);
        }
    }
}

/// Fences by their handles alone, for command lists, which keep many. A caller gives back each fence
/// that it took, in one of three ways: [`return_fence`](DriverContext::return_fence),
/// [`recycle_fence`](DriverContext::recycle_fence) or [`lose_fence`](DriverContext::lose_fence).
impl DriverContext {
    /// Allocates another pool if few fences are free. To be called before a lock is taken under
    /// which fences are needed.
    #[inline]
    pub(crate) fn stock_fences(&self) {
        if self.events.free_fences.load(Ordering::Relaxed) < MIN_FREE_FENCES
            && let Err(error) = self.events.grow(self, Signaller::List)
        {
            // The submission fails, or does without a fence, if it finds none.
            tracing::debug!(%error, "no pool of events");
        }
    }

    /// Takes a fence that is not signalled.
    pub(crate) fn take_fence(&self) -> Result<EventHandle> {
        self.events.take(self, Signaller::List)
    }

    /// Gives back a fence that is in no list and not signalled.
    pub(crate) fn return_fence(&self, fence: EventHandle) {
        self.events.change(|state| state.fences.push(fence));
    }

    /// Gives back a fence that its list has signalled.
    pub(crate) fn recycle_fence(&self, fence: EventHandle) {
        match reset(self, fence) {
            true => self.return_fence(fence),
            false => self.lose_fence(fence),
        }
    }

    /// Keeps a fence until the context ends: a list may signal it at any time.
    pub(crate) fn lose_fence(&self, fence: EventHandle) {
        self.events.change(|state| state.spent.push(fence));
    }

    /// Waits until a fence is signalled, at most for `timeout`; returns whether it is. The caller
    /// keeps the fence meanwhile.
    pub(crate) fn wait_for_fence(&self, fence: EventHandle, timeout: Duration) -> Result<bool> {
        let wait = self.driver.loader.zeEventHostSynchronize;
        // SAFETY: an event of a pool of this context; those are destroyed with the context only.
        let code = unsafe { wait(fence.0, timeout.as_nanos() as u64) };
        match code {
            ze_result_t::ZE_RESULT_NOT_READY => Ok(false),
            code => check("zeEventHostSynchronize", code).map(|()| true),
        }
    }
}

/// An event of a pool that is signalled once. Dropping it gives it back; no command may use it then.
pub(crate) struct PooledEvent {
    context: Arc<DriverContext>,
    handle: EventHandle,
    signaller: Signaller,
}

impl PooledEvent {
    pub(crate) fn take(context: &Arc<DriverContext>, signaller: Signaller) -> Result<Self> {
        Ok(Self {
            handle: context.events.take(context, signaller)?,
            context: Arc::clone(context),
            signaller,
        })
    }

    pub(crate) fn handle(&self) -> EventHandle {
        self.handle
    }

    /// Signals a host fence, so that the list that waits for it goes on.
    pub(crate) fn signal(&self) -> Result<()> {
        let signal = self.context.driver.loader.zeEventHostSignal;
        // SAFETY: an event of this context, which `self` keeps.
        check("zeEventHostSignal", unsafe { signal(self.handle.0) })
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        let is_reset = reset(&self.context, self.handle);
        self.context.events.change(|state| match is_reset {
            true => state.free(self.signaller).push(self.handle),
            false => state.spent.push(self.handle),
        });
    }
}

/// An event for the program, which may do with it what it likes. So it has a pool of its own and is
/// not used again.
pub(crate) struct ProgramEvent {
    context: Arc<DriverContext>,
    pool: PoolHandle,
    event: EventHandle,
}

impl ProgramEvent {
    pub(crate) fn create(context: &Arc<DriverContext>) -> Result<Self> {
        // Intel's driver makes no counters of events that could be shared. A list that waits already
        // would learn nothing of a counter's signal.
        let pool = create_pool(context, 1, ZE_EVENT_POOL_FLAG_IPC);
        let pool = pool.or_else(|_| create_pool(context, 1, 0))?;
        let event = create_event(context, pool, 0).inspect_err(|_| destroy_pool(context, pool))?;
        let context = Arc::clone(context);
        Ok(Self {
            context,
            pool,
            event,
        })
    }

    pub(crate) fn handle(&self) -> EventHandle {
        self.event
    }

    pub(crate) fn context(&self) -> &Arc<DriverContext> {
        &self.context
    }
}

impl Drop for ProgramEvent {
    fn drop(&mut self) {
        self.context.release("an event for the program", |context| {
            destroy_event(context, self.event);
            destroy_pool(context, self.pool);
            Ok(())
        });
    }
}

fn create_pool(
    context: &DriverContext,
    count: u32,
    flags: ze_event_pool_flags_t,
) -> Result<PoolHandle> {
    let mut desc = description!(ze_event_pool_desc_t, ZE_STRUCTURE_TYPE_EVENT_POOL_DESC);
    desc.flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE | flags;
    desc.count = count;
    let mut pool = ptr::null_mut();
    let create = context.driver.loader.zeEventPoolCreate;
    // SAFETY: our context, all its devices, and a live result.
    let code = unsafe { create(context.handle.0, &desc, 0, ptr::null_mut(), &mut pool) };
    check_memory("zeEventPoolCreate", 0, code)?;
    Ok(Handle(pool))
}

fn create_event(context: &DriverContext, pool: PoolHandle, index: u32) -> Result<EventHandle> {
    let mut desc = description!(ze_event_desc_t, ZE_STRUCTURE_TYPE_EVENT_DESC);
    desc.index = index;
    desc.signal = ZE_EVENT_SCOPE_FLAG_HOST;
    desc.wait = ZE_EVENT_SCOPE_FLAG_HOST;
    let mut event = ptr::null_mut();
    // SAFETY: a place of a pool of ours, and a live result.
    let code = unsafe { (context.driver.loader.zeEventCreate)(pool.0, &desc, &mut event) };
    check_memory("zeEventCreate", 0, code)?;
    Ok(Handle(event))
}

/// Makes an event one that is not signalled; returns whether the driver did. No command uses it any
/// more.
fn reset(context: &DriverContext, event: EventHandle) -> bool {
    let reset = context.driver.loader.zeEventHostReset;
    // SAFETY: an event of a pool of ours, in no command's use.
    log_failure("zeEventHostReset", unsafe { reset(event.0) })
}

fn destroy_event(context: &DriverContext, event: EventHandle) {
    let destroy = context.driver.loader.zeEventDestroy;
    // SAFETY: an event of a pool of ours; the callers are its last users.
    log_failure("zeEventDestroy", unsafe { destroy(event.0) });
}

fn destroy_pool(context: &DriverContext, pool: PoolHandle) {
    let destroy = context.driver.loader.zeEventPoolDestroy;
    // SAFETY: a pool of ours; the callers have destroyed its events.
    log_failure("zeEventPoolDestroy", unsafe { destroy(pool.0) });
}
