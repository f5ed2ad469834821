//! Counter-based events, which are created without a pool and have handles of their own.

use std::sync::{Arc, Mutex, PoisonError};

use level_zero_sys::*;

use crate::call::{
    INVALID_ARGUMENT, INVALID_ENUMERATION, INVALID_SYNCHRONIZATION_OBJECT, Result, entry, present,
    read, write,
};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::counter::Counter;
use crate::event::{Counts, Event, Source, State};
use crate::handles;
use crate::ipc::{Exported, Kind, Wire};
use crate::memory::count_allocation;
use crate::space::UseCount;
use crate::switches::switches;

const FLAGS: ze_event_counter_based_flags_t =
    LISTS | ZE_EVENT_COUNTER_BASED_FLAG_HOST_VISIBLE | ZE_EVENT_COUNTER_BASED_FLAG_IPC;
const SCOPES: ze_event_scope_flags_t = 0x7;
const LISTS: ze_event_counter_based_flags_t =
    ZE_EVENT_COUNTER_BASED_FLAG_IMMEDIATE | ZE_EVENT_COUNTER_BASED_FLAG_NON_IMMEDIATE;

fn is_desc(stype: ze_structure_type_t) -> bool {
    stype == ze_structure_type_t::ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC
        || stype == ZEX_STRUCTURE_COUNTER_BASED_EVENT_DESC
}

pub(crate) fn create(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    desc: *const ze_event_counter_based_desc_t,
    to: *mut ze_event_handle_t,
) -> Result<()> {
    let (context, _) = pair(context, device)?;
    let desc = read(desc)?;
    present(to)?;
    let scopes = desc.signal | desc.wait;
    if !is_desc(desc.stype) || desc.flags & !FLAGS != 0 || scopes & !SCOPES != 0 {
        return Err(INVALID_ENUMERATION);
    }
    let shared = desc.flags & ZE_EVENT_COUNTER_BASED_FLAG_IPC != 0;
    count_allocation()?;
    let mut flags = desc.flags;
    if flags & LISTS == 0 {
        flags |= ZE_EVENT_COUNTER_BASED_FLAG_IMMEDIATE;
    }
    let event = Event {
        context,
        state: Arc::new(State::Counter(Counter::new(shared)?)),
        source: Source::Created {
            exported: Mutex::new(None),
        },
        flags,
        counts: Counts::default(),
        use_count: UseCount::default(),
    };
    write(to, handles::create(Arc::new(event))?)
}

pub(crate) fn export(
    event: ze_event_handle_t,
    to: *mut ze_ipc_event_counter_based_handle_t,
) -> Result<()> {
    let event = handles::get::<Event, _>(event)?;
    present(to)?;
    let (State::Counter(counter), Source::Created { exported }) = (&*event.state, &event.source)
    else {
        return Err(INVALID_ARGUMENT);
    };
    if event.flags & ZE_EVENT_COUNTER_BASED_FLAG_IPC == 0 {
        return Err(INVALID_ARGUMENT);
    }
    // A handle that contains only a snapshot needs a signal to refer to.
    let is_snapshot = switches().missing("event_updates");
    if is_snapshot && counter.latest() == 0 {
        return Err(INVALID_ARGUMENT);
    }
    let latest = if is_snapshot { counter.latest() } else { 0 };
    let mut exported = exported.lock().unwrap_or_else(PoisonError::into_inner);
    if exported.is_none() {
        *exported = Some(Exported::new(counter.segment()?)?);
    }
    let exported = exported.as_ref().ok_or(INVALID_ARGUMENT)?;
    exported.check()?;
    let wire = Wire::new(Kind::CounterEvent, exported, latest, event.flags);
    let data = wire.into_bytes();
    write(to, ze_ipc_event_counter_based_handle_t { data })
}

pub(crate) fn import(
    context: ze_context_handle_t,
    handle: ze_ipc_event_counter_based_handle_t,
    to: *mut ze_event_handle_t,
) -> Result<()> {
    let context = handles::get::<Context, _>(context)?;
    present(to)?;
    let wire = Wire::read(handle.data, Kind::CounterEvent)?;
    let segment = wire.open(Kind::CounterEvent)?;
    let snapshot = switches().missing("event_updates").then_some(wire.size);
    let counter = Counter::open(&segment, snapshot)?;
    let event = Event {
        context,
        state: Arc::new(State::Counter(counter)),
        source: Source::Opened,
        flags: wire.flags,
        counts: Counts::default(),
        use_count: UseCount::default(),
    };
    write(to, handles::create(Arc::new(event))?)
}

pub(crate) fn close(event: ze_event_handle_t) -> Result<()> {
    let event = handles::take::<Event, _>(event, |event| match event.source {
        Source::Opened => Ok(()),
        _ => {
            misuse(
                Check::WrongClose,
                "the event was created here, and is to be destroyed",
            );
            Err(INVALID_SYNCHRONIZATION_OBJECT)
        }
    })?;
    event.use_count.check("the event");
    Ok(())
}

entry! {
    fn zeEventCounterBasedCreate(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        desc: *const ze_event_counter_based_desc_t,
        event: *mut ze_event_handle_t,
    ) {
        create(context, device, desc, event)
    }

    fn zeEventCounterBasedGetIpcHandle(
        event: ze_event_handle_t,
        handle: *mut ze_ipc_event_counter_based_handle_t,
    ) {
        export(event, handle)
    }

    fn zeEventCounterBasedOpenIpcHandle(
        context: ze_context_handle_t,
        handle: ze_ipc_event_counter_based_handle_t,
        event: *mut ze_event_handle_t,
    ) {
        import(context, handle, event)
    }

    fn zeEventCounterBasedCloseIpcHandle(event: ze_event_handle_t) {
        close(event)
    }
}
