//! Events from the driver's event pools, which only this process uses. *Fences* tell the host how
//! far a list has run. At a *host fence*, a list waits for the host.

use super::{
    DriverContext, EventHandle, Handle, PoolHandle, check, check_memory, description, log_failure,
};
use crosshandle_os::process;
use crosshandle_types::error::Result;
use crosshandle_types::sync::Mutex;
use level_zero_sys::{
    ZE_EVENT_POOL_FLAG_HOST_VISIBLE, ZE_EVENT_POOL_FLAG_IPC, ZE_EVENT_SCOPE_FLAG_HOST,
    ze_event_pool_flags_t, ze_result_t,
};
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Number of events in one of the driver's pools.
const EVENTS_PER_POOL: u32 = 64;

/// Number of free fences below which a submitter allocates another pool before it takes its list's
/// lock. A submission takes up to five fences. If other lists of the context take them first, the
/// pool is allocated under the lock.
const MIN_FREE_FENCES: usize = 16;

/// The side that signals an event.
///
/// If an in-order list signals an event, Intel's driver turns the event into a counter. The host
/// can then no longer signal it, and lists can wait for it only after another list has signalled
/// it. An event is therefore never signalled by both sides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signaller {
    List,
    Host,
}

/// All event pools of a context.
#[derive(Default)]
pub(super) struct EventPools {
    state: Mutex<PoolState>,
    /// The number of free fences. It is written under the lock. Submitters read it without the lock
    /// to find out whether a new pool is needed.
    free_fences: AtomicUsize,
}

#[derive(Default)]
struct PoolState {
    pools: Vec<PoolHandle>,
    fences: Vec<EventHandle>,
    host_fences: Vec<EventHandle>,
    /// Events that cannot be reused: they are still signalled, or a list may signal them later.
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

    /// Takes an event that is not signalled. If no event is free, allocates a pool, without holding
    /// the lock.
    fn take(&self, context: &DriverContext, signaller: Signaller) -> Result<EventHandle> {
        loop {
            if let Some(event) = self.change(|state| state.free(signaller).pop()) {
                return Ok(event);
            }
            self.grow(context, signaller)?;
        }
    }

    /// Allocates another pool with all its events.
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

    /// Destroys all events and pools. The context is being destroyed, so none of them is in use.
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

/// Access to fences by their handles alone, for command lists, which keep many. A caller returns
/// each fence that it took in one of three ways: [`return_fence`](DriverContext::return_fence),
/// [`recycle_fence`](DriverContext::recycle_fence) or [`lose_fence`](DriverContext::lose_fence).
impl DriverContext {
    /// Allocates another pool if few fences are free. Callers do this before they take a lock under
    /// which they need fences.
    #[inline]
    pub(crate) fn stock_fences(&self) {
        if self.events.free_fences.load(Ordering::Relaxed) < MIN_FREE_FENCES
            && let Err(error) = self.events.grow(self, Signaller::List)
        {
            // If no fence is free later, the submission fails or continues without a fence.
            tracing::debug!(%error, "no pool of events");
        }
    }

    /// Takes a fence that is not signalled.
    pub(crate) fn take_fence(&self) -> Result<EventHandle> {
        self.events.take(self, Signaller::List)
    }

    /// Returns a fence that is in no list and is not signalled.
    pub(crate) fn return_fence(&self, fence: EventHandle) {
        self.events.change(|state| state.fences.push(fence));
    }

    /// Returns a fence that its list has signalled.
    pub(crate) fn recycle_fence(&self, fence: EventHandle) {
        match reset(self, fence) {
            true => self.return_fence(fence),
            false => self.lose_fence(fence),
        }
    }

    /// Keeps a fence until the context is destroyed, because a list may signal it at any time.
    pub(crate) fn lose_fence(&self, fence: EventHandle) {
        self.events.change(|state| state.spent.push(fence));
    }

    /// Waits until a fence is signalled, for at most `timeout`. Returns whether the fence is
    /// signalled. The caller keeps the fence during the wait.
    pub(crate) fn wait_for_fence(&self, fence: EventHandle, timeout: Duration) -> Result<bool> {
        let wait = self.driver.loader.zeEventHostSynchronize;
        // SAFETY: the event is from a pool of this context, and pools are destroyed only with the
        // context.
        let code = unsafe { wait(fence.0, timeout.as_nanos() as u64) };
        match code {
            ze_result_t::ZE_RESULT_NOT_READY => Ok(false),
            code => check("zeEventHostSynchronize", code).map(|()| true),
        }
    }
}

/// An event from a pool that is signalled once. Dropping it returns it to its pool, so no command
/// may use it then.
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

    /// Signals a host fence, so that the list that waits for it continues.
    pub(crate) fn signal(&self) -> Result<()> {
        let signal = self.context.driver.loader.zeEventHostSignal;
        // SAFETY: the event is from this context, which `self` keeps alive.
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

/// An event that the program may use in any way. It therefore has a pool of its own and is never
/// reused.
pub(crate) struct ProgramEvent {
    context: Arc<DriverContext>,
    pool: PoolHandle,
    event: EventHandle,
}

impl ProgramEvent {
    pub(crate) fn create(context: &Arc<DriverContext>) -> Result<Self> {
        // Intel's driver does not turn events that could be shared into counters. If a list already
        // waits for a counter, a later signal would not reach it.
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
    // SAFETY: our context and all its devices, with a live result.
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
    // SAFETY: an index in a pool of ours, with a live result.
    let code = unsafe { (context.driver.loader.zeEventCreate)(pool.0, &desc, &mut event) };
    check_memory("zeEventCreate", 0, code)?;
    Ok(Handle(event))
}

/// Resets an event that no command uses any more. Returns whether the driver succeeded.
fn reset(context: &DriverContext, event: EventHandle) -> bool {
    let reset = context.driver.loader.zeEventHostReset;
    // SAFETY: an event from a pool of ours, which no command uses.
    log_failure("zeEventHostReset", unsafe { reset(event.0) })
}

fn destroy_event(context: &DriverContext, event: EventHandle) {
    let destroy = context.driver.loader.zeEventDestroy;
    // SAFETY: an event from a pool of ours. The callers are its last users.
    log_failure("zeEventDestroy", unsafe { destroy(event.0) });
}

fn destroy_pool(context: &DriverContext, pool: PoolHandle) {
    let destroy = context.driver.loader.zeEventPoolDestroy;
    // SAFETY: a pool of ours. The callers have destroyed its events.
    log_failure("zeEventPoolDestroy", unsafe { destroy(pool.0) });
}
