//! Command lists.

use std::sync::{Arc, Mutex, PoisonError};

use level_zero_sys::*;

use crate::call::{Few, INVALID_ARGUMENT, Result, entry, present, read, read_all, write};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::device::Device;
use crate::device_info::QUEUE_GROUPS;
use crate::engine::{Engine, Submitted};
use crate::event::{Event, code};
use crate::handles::{self, Object};
use crate::ledger::Resource;
use crate::space::{Region, Use, UseCount};
use crate::wait::Deadline;
use crate::work::Work;

/// A command, which may be executed several times.
#[derive(Clone)]
pub(crate) struct Command {
    work: Work,
    waits: Few<Arc<Event>>,
    signal: Option<Arc<Event>>,
    regions: Few<Arc<Region>>,
}

impl Command {
    /// Prepares the command for one execution. Later waits are for its signal.
    pub(crate) fn submit(self) -> Submitted {
        let mut uses: Few<Use> = self
            .regions
            .iter()
            .map(|region| region.use_count.take())
            .collect();
        let events = self.waits.iter().chain(&self.signal);
        uses.extend(events.map(|event| event.use_count.take()));
        uses.extend(self.work.uses());
        Submitted {
            waits: self.waits.iter().map(|event| event.wait()).collect(),
            work: self.work,
            signal: self.signal.map(|event| event.signal()),
            uses,
            regions: self.regions,
        }
    }
}

#[derive(Default)]
struct Recorded {
    commands: Vec<Command>,
    closed: bool,
}

/// How a list treats appended commands.
enum Mode {
    /// Commands are executed as they are appended.
    Immediate { engine: Engine, synchronous: bool },
    /// Commands are recorded for a queue.
    Regular(Mutex<Recorded>),
}

pub(crate) struct List {
    context: Arc<Context>,
    /// The context's handle as an address.
    named_context: usize,
    device: Arc<Device>,
    /// Whether the list's queue group runs kernels.
    computes: bool,
    in_order: bool,
    mode: Mode,
    /// Counts the queues that use the list.
    pub(crate) use_count: UseCount,
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
        if let (Some(event), Mode::Immediate { .. }, true) = (&signal, &self.mode, self.in_order) {
            event.count();
        }
        let command = Command {
            work,
            waits,
            signal,
            regions,
        };
        match &self.mode {
            Mode::Immediate {
                engine,
                synchronous,
            } => {
                engine.submit(command.submit());
                match synchronous {
                    true => code(engine.wait(Deadline::NEVER)),
                    false => Ok(()),
                }
            }
            Mode::Regular(recorded) => {
                let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
                if recorded.closed {
                    return Err(INVALID_ARGUMENT);
                }
                recorded.commands.push(command);
                Ok(())
            }
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
        let wanted = match self.mode {
            Mode::Immediate { .. } => ZE_EVENT_COUNTER_BASED_FLAG_IMMEDIATE,
            Mode::Regular(_) => ZE_EVENT_COUNTER_BASED_FLAG_NON_IMMEDIATE,
        };
        match event.flags & wanted {
            0 => Err(INVALID_ARGUMENT),
            _ => Ok(()),
        }
    }

    /// Returns the commands of a closed regular list, for a queue to execute.
    pub(crate) fn commands(&self) -> Result<Vec<Command>> {
        let Mode::Regular(recorded) = &self.mode else {
            return Err(INVALID_ARGUMENT);
        };
        let recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
        match recorded.closed {
            true => Ok(recorded.commands.clone()),
            false => Err(INVALID_ARGUMENT),
        }
    }

    fn is_in_use(&self) -> bool {
        match &self.mode {
            Mode::Immediate { engine, .. } => !engine.is_idle(),
            Mode::Regular(_) => self.use_count.is_used(),
        }
    }
}

/// Checks the number of a queue group, and returns whether that group runs kernels.
pub(crate) fn check_group(ordinal: u32) -> Result<bool> {
    let group = QUEUE_GROUPS.get(ordinal as usize).ok_or(INVALID_ARGUMENT)?;
    Ok(group & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE != 0)
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
        let computes = check_group(desc.commandQueueGroupOrdinal)?;
        write(list, handles::create(Arc::new(List {
            context,
            named_context,
            device,
            computes,
            in_order: desc.flags & ZE_COMMAND_LIST_FLAG_IN_ORDER != 0,
            mode: Mode::Regular(Mutex::default()),
            use_count: UseCount::default(),
        }))?)
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
        let computes = check_group(desc.ordinal)?;
        let mode = Mode::Immediate {
            engine: Engine::new(device.clone())?,
            synchronous: desc.mode == ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS,
        };
        write(list, handles::create(Arc::new(List {
            context,
            named_context,
            device,
            computes,
            in_order: desc.flags & ZE_COMMAND_QUEUE_FLAG_IN_ORDER != 0,
            mode,
            use_count: UseCount::default(),
        }))?)
    }

    fn zeCommandListDestroy(list: ze_command_list_handle_t) {
        let list = handles::take::<List, _>(list, |_| Ok(()))?;
        if list.is_in_use() {
            misuse(Check::DestroyInUse, "the list still has commands to execute");
        }
        Ok(())
    }

    fn zeCommandListClose(list: ze_command_list_handle_t) {
        let list = handles::get::<List, _>(list)?;
        let Mode::Regular(recorded) = &list.mode else {
            return Err(INVALID_ARGUMENT);
        };
        recorded.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        Ok(())
    }

    fn zeCommandListReset(list: ze_command_list_handle_t) {
        let list = handles::get::<List, _>(list)?;
        let Mode::Regular(recorded) = &list.mode else {
            return Err(INVALID_ARGUMENT);
        };
        if list.is_in_use() {
            misuse(Check::DestroyInUse, "the list is still executed");
        }
        *recorded.lock().unwrap_or_else(PoisonError::into_inner) = Recorded::default();
        Ok(())
    }

    fn zeCommandListIsImmediate(list: ze_command_list_handle_t, to: *mut ze_bool_t) {
        let list = handles::get::<List, _>(list)?;
        write(to, ze_bool_t::from(matches!(list.mode, Mode::Immediate { .. })))
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
        let Mode::Immediate { engine, .. } = &list.mode else {
            return Err(INVALID_ARGUMENT);
        };
        code(engine.wait(Deadline::after(timeout)))
    }
}
