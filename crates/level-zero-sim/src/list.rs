//! Command lists. Immediate lists execute commands as they are appended. Other lists record
//! commands, and a command queue executes them.

use std::sync::{Arc, Mutex, PoisonError};

use level_zero_sys::*;

use crate::call::{
    Few, INVALID_ARGUMENT, Result, UNSUPPORTED_ENUMERATION, UNSUPPORTED_FEATURE, entry, present,
    read, read_all, write,
};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::device::Device;
use crate::device_info::QUEUE_GROUPS;
use crate::engine::{Engine, Submitted};
use crate::event::{Event, code};
use crate::handles::{self, Object};
use crate::ledger::Resource;
use crate::space::{Region, Use};
use crate::wait::Deadline;
use crate::work::Work;

pub(crate) struct List {
    context: Arc<Context>,
    /// The context's handle as an address.
    named_context: usize,
    device: Arc<Device>,
    /// Whether the list's queue group runs kernels.
    computes: bool,
    in_order: bool,
    kind: Kind,
}

enum Kind {
    Immediate(Engine),
    Recorded(Mutex<Recorded>),
}

/// The commands of a list that is not immediate.
#[derive(Default)]
struct Recorded {
    commands: Vec<(Work, Few<Arc<Region>>)>,
    is_closed: bool,
}

impl Object for List {
    const NAME: &'static str = "command list";

    fn resource(&self) -> Resource {
        Resource::List
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

impl List {
    /// Appends a command that uses `regions`. The event handles are arguments of an entry point.
    pub(crate) fn append(
        &self,
        work: Work,
        regions: Few<Arc<Region>>,
        signal: ze_event_handle_t,
        waits: (u32, *mut ze_event_handle_t),
    ) -> Result<()> {
        self.device.check()?;
        let signal = handles::get_optional::<Event, _>(signal)?;
        if let Some(event) = &signal {
            self.can_signal(event)?;
        }
        let waits = read_all(waits.1.cast_const(), waits.0)?;
        let waits = waits.into_iter().map(handles::get::<Event, _>);
        let waits = waits.collect::<Result<Few<_>>>()?;
        waits
            .iter()
            .try_for_each(|event| event.can_be_waited_for())?;
        let engine = match &self.kind {
            Kind::Immediate(engine) => engine,
            Kind::Recorded(recorded) => {
                // No client of this driver records events in such a list.
                if signal.is_some() || !waits.is_empty() {
                    return Err(UNSUPPORTED_FEATURE);
                }
                let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
                if recorded.is_closed {
                    return Err(INVALID_ARGUMENT);
                }
                recorded.commands.push((work, regions));
                return Ok(());
            }
        };
        if let (Some(event), true) = (&signal, self.in_order) {
            event.count();
        }
        let mut uses = uses_of(&regions);
        let events = waits.iter().chain(&signal);
        uses.extend(events.map(|event| event.use_count.take()));
        uses.extend(work.uses());
        engine.submit(Submitted {
            waits: waits.iter().map(|event| event.wait()).collect(),
            work,
            signal: signal.map(|event| event.signal()),
            uses,
            regions,
        });
        Ok(())
    }

    /// Executes the recorded commands.
    pub(crate) fn execute(&self, device: &Arc<Device>, engine: &Engine) -> Result<()> {
        let Kind::Recorded(recorded) = &self.kind else {
            return Err(INVALID_ARGUMENT);
        };
        let recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
        if !recorded.is_closed || !Arc::ptr_eq(&self.device, device) {
            return Err(INVALID_ARGUMENT);
        }
        for (work, regions) in &recorded.commands {
            let mut uses = uses_of(regions);
            uses.extend(work.uses());
            engine.submit(Submitted {
                waits: Few::new(),
                work: work.clone(),
                signal: None,
                uses,
                regions: regions.clone(),
            });
        }
        Ok(())
    }

    /// Returns the engine of an immediate list.
    fn engine(&self) -> Result<&Engine> {
        match &self.kind {
            Kind::Immediate(engine) => Ok(engine),
            Kind::Recorded(_) => Err(INVALID_ARGUMENT),
        }
    }

    /// Returns whether the list runs kernels on this device.
    pub(crate) fn computes_on(&self, device: &Arc<Device>) -> bool {
        self.computes && Arc::ptr_eq(&self.device, device)
    }

    fn can_signal(&self, event: &Event) -> Result<()> {
        if !event.is_counter_based() {
            return Ok(());
        }
        if !self.in_order {
            let what = "a counter-based event is signalled from lists in order only";
            misuse(Check::OutOfOrderSignal, what);
            return Err(INVALID_ARGUMENT);
        }
        match event.flags & ZE_EVENT_COUNTER_BASED_FLAG_IMMEDIATE {
            0 => Err(INVALID_ARGUMENT),
            _ => Ok(()),
        }
    }
}

/// Marks memory as used while the result lives.
fn uses_of(regions: &[Arc<Region>]) -> Few<Use> {
    regions
        .iter()
        .map(|region| region.use_count.take())
        .collect()
}

entry! {
    fn zeCommandListCreate(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        desc: *const ze_command_list_desc_t,
        list: *mut ze_command_list_handle_t,
    ) {
        let named_context = context.expose_provenance();
        let (context, device) = pair(context, device)?;
        let desc = read(desc)?;
        present(list)?;
        let group = QUEUE_GROUPS.get(desc.commandQueueGroupOrdinal as usize);
        let group = group.ok_or(INVALID_ARGUMENT)?;
        write(list, handles::create(Arc::new(List {
            context,
            named_context,
            device,
            computes: group & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE != 0,
            in_order: true,
            kind: Kind::Recorded(Mutex::default()),
        }))?)
    }

    fn zeCommandListClose(list: ze_command_list_handle_t) {
        let list = handles::get::<List, _>(list)?;
        let Kind::Recorded(recorded) = &list.kind else {
            return Err(INVALID_ARGUMENT);
        };
        recorded.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        Ok(())
    }

    fn zeCommandListCreateImmediate(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        desc: *const ze_command_queue_desc_t,
        list: *mut ze_command_list_handle_t,
    ) {
        let named_context = context.expose_provenance();
        let (context, device) = pair(context, device)?;
        let desc = read(desc)?;
        present(list)?;
        let group = QUEUE_GROUPS.get(desc.ordinal as usize).ok_or(INVALID_ARGUMENT)?;
        if desc.mode == ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS {
            return Err(UNSUPPORTED_ENUMERATION);
        }
        write(list, handles::create(Arc::new(List {
            context,
            named_context,
            kind: Kind::Immediate(Engine::new(device.clone())?),
            device,
            computes: group & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE != 0,
            in_order: desc.flags & ZE_COMMAND_QUEUE_FLAG_IN_ORDER != 0,
        }))?)
    }

    fn zeCommandListDestroy(list: ze_command_list_handle_t) {
        let list = handles::take::<List, _>(list, |_| Ok(()))?;
        if list.engine().is_ok_and(|engine| !engine.is_idle()) {
            misuse(Check::DestroyInUse, "the list still has commands to execute");
        }
        Ok(())
    }

    fn zeCommandListIsImmediate(list: ze_command_list_handle_t, to: *mut ze_bool_t) {
        let list = handles::get::<List, _>(list)?;
        write(to, matches!(list.kind, Kind::Immediate(_)).into())
    }

    fn zeCommandListGetContextHandle(
        list: ze_command_list_handle_t,
        to: *mut ze_context_handle_t,
    ) {
        let list = handles::get::<List, _>(list)?;
        write(to, std::ptr::with_exposed_provenance_mut(list.named_context))
    }

    fn zeCommandListHostSynchronize(list: ze_command_list_handle_t, timeout: u64) {
        let list = handles::get::<List, _>(list)?;
        code(list.engine()?.wait(Deadline::after(timeout)))
    }
}
