//! Events of both kinds, and the operations that they have in common.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use level_zero_sys::*;

use crate::call::{
    DEVICE_LOST, INVALID_ARGUMENT, NOT_READY, Result, UNSUPPORTED_FEATURE, entry, present, read,
    write,
};
use crate::checks::{Check, misuse};
use crate::context::Context;
use crate::counter::Counter;
use crate::device::any_lost;
use crate::event_pool::Pool;
use crate::handles::{self, Object};
use crate::ipc::Exported;
use crate::ledger::Resource;
use crate::slot::Slot;
use crate::space::UseCount;
use crate::wait::{Deadline, Waited};

/// The state of an event, by its kind.
pub(crate) enum State {
    Counter(Counter),
    Slot(Slot),
}

/// The origin of an event, which decides how the program ends it.
pub(crate) enum Source {
    /// The event was created without a pool. The program destroys it.
    Created {
        /// The descriptor that the event's handles refer to, once the event is exported.
        exported: Mutex<Option<Exported>>,
    },
    /// The event was opened from a handle. The program closes it.
    Opened,
    /// The event belongs to a pool, which outlives it. The program destroys it.
    Pooled { pool: Arc<Pool> },
}

pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    pub(crate) state: Arc<State>,
    pub(crate) source: Source,
    /// The `ze_event_counter_based_flags_t` of a counter-based event.
    pub(crate) flags: u32,
    /// Whether a pooled event that cannot be shared acts as a counter. As in Intel's driver, the
    /// first signal from an in-order list turns it into a counter permanently.
    pub(crate) counts: Counts,
    pub(crate) use_count: UseCount,
}

/// Whether an in-order list has signalled a pooled event.
#[derive(Default)]
pub(crate) struct Counts {
    ever: AtomicBool,
    since_reset: AtomicBool,
}

impl Object for Event {
    const NAME: &'static str = "event";

    fn resource(&self) -> Resource {
        match self.source {
            Source::Created { .. } => Resource::CounterEvent,
            Source::Opened => Resource::OpenedEvent,
            Source::Pooled { .. } => Resource::PooledEvent,
        }
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

impl Event {
    pub(crate) fn is_counter_based(&self) -> bool {
        matches!(*self.state, State::Counter(_))
    }

    /// Creates a wait for the signal that is currently the latest.
    pub(crate) fn wait(&self) -> Wait {
        let number = match &*self.state {
            State::Counter(counter) => counter.latest(),
            State::Slot(_) => 0,
        };
        Wait {
            state: self.state.clone(),
            number,
        }
    }

    /// Notes that an immediate in-order list is about to signal the event.
    pub(crate) fn count(&self) {
        let is_plain = matches!(&self.source, Source::Pooled { pool } if !pool.is_shared);
        if is_plain {
            self.counts.ever.store(true, Ordering::Release);
            self.counts.since_reset.store(true, Ordering::Release);
        }
    }

    /// Checks that a list may wait for the event. A counter must have been signalled first.
    pub(crate) fn can_be_waited_for(&self) -> Result<()> {
        let Counts { ever, since_reset } = &self.counts;
        match ever.load(Ordering::Acquire) && !since_reset.load(Ordering::Acquire) {
            true => Err(INVALID_ARGUMENT),
            false => Ok(()),
        }
    }

    /// Creates a new signal. Later waits are for this signal.
    pub(crate) fn signal(&self) -> Signal {
        let number = match &*self.state {
            State::Counter(counter) => counter.issue(),
            State::Slot(_) => 0,
        };
        Signal {
            state: self.state.clone(),
            number,
        }
    }
}

pub(crate) struct Wait {
    state: Arc<State>,
    number: u64,
}

impl Wait {
    pub(crate) fn block(&self, deadline: Deadline, gone: impl Fn() -> bool) -> Waited {
        match &*self.state {
            State::Counter(counter) => counter.wait(self.number, deadline, gone),
            State::Slot(slot) => slot.wait(deadline, gone),
        }
    }
}

/// A signal, which the driver completes once.
pub(crate) struct Signal {
    state: Arc<State>,
    number: u64,
}

impl Signal {
    pub(crate) fn complete(self, gone: impl Fn() -> bool) {
        match &*self.state {
            State::Counter(counter) => counter.complete(self.number, gone),
            State::Slot(slot) => slot.complete(),
        }
    }
}

/// Converts the outcome of a host's wait to a result code.
pub(crate) fn code(waited: Waited) -> Result<()> {
    match waited {
        Waited::Done => Ok(()),
        Waited::TimedOut => Err(NOT_READY),
        Waited::Gone => Err(DEVICE_LOST),
    }
}

/// Returns the flag of a pooled event. The host can set a flag, but not a counter.
fn slot(event: &Event) -> Result<&Slot> {
    match &*event.state {
        State::Slot(slot) => Ok(slot),
        State::Counter(_) => Err(UNSUPPORTED_FEATURE),
    }
}

entry! {
    fn zeEventCreate(
        pool: ze_event_pool_handle_t,
        desc: *const ze_event_desc_t,
        event: *mut ze_event_handle_t,
    ) {
        let pool = handles::get::<Pool, _>(pool)?;
        let desc = read(desc)?;
        present(event)?;
        if desc.index >= pool.count {
            return Err(INVALID_ARGUMENT);
        }
        write(event, handles::create(Arc::new(Event {
            context: pool.context.clone(),
            state: Arc::new(State::Slot(Slot::default())),
            flags: 0,
            source: Source::Pooled { pool },
            counts: Counts::default(),
            use_count: UseCount::default(),
        }))?)
    }

    fn zeEventDestroy(event: ze_event_handle_t) {
        let event = handles::take::<Event, _>(event, |event| match event.source {
            Source::Opened => {
                let what = "the event was opened from a handle, and is to be closed";
                misuse(Check::WrongClose, what);
                Err(INVALID_ARGUMENT)
            }
            _ => Ok(()),
        })?;
        event.use_count.check("the event");
        Ok(())
    }

    fn zeEventHostSignal(event: ze_event_handle_t) {
        let event = handles::get::<Event, _>(event)?;
        let slot = slot(&event)?;
        if event.counts.ever.load(Ordering::Acquire) {
            return Err(UNSUPPORTED_FEATURE);
        }
        slot.complete();
        Ok(())
    }

    fn zeEventHostReset(event: ze_event_handle_t) {
        let event = handles::get::<Event, _>(event)?;
        slot(&event)?.reset();
        event.counts.since_reset.store(false, Ordering::Release);
        Ok(())
    }

    fn zeEventHostSynchronize(event: ze_event_handle_t, timeout: u64) {
        let event = handles::get::<Event, _>(event)?;
        code(event.wait().block(Deadline::after(timeout), any_lost))
    }

    fn zeEventQueryStatus(event: ze_event_handle_t) {
        let event = handles::get::<Event, _>(event)?;
        code(event.wait().block(Deadline::after(0), any_lost))
    }
}
