//! Entry points that replace the events of recorded commands.

use super::parts::{PartEvents, check_number};
use super::{CommandBuffer, RecordedCommand};
use crate::abi::boundary::{Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::Handle;
use crate::enqueue::WaitList;
use crate::event::{Event, Origin};
use crosshandle::EventOptions;
use unified_runtime_sys::{ur_command_t, ur_event_handle_t, ur_result_t};

/// The events for which a recorded command waits, and the event that it signals.
pub(super) struct CommandEvents {
    pub(super) of_part: std::sync::Arc<Lock<PartEvents>>,
    pub(super) wait_count: usize,
    pub(super) is_signalling: bool,
}

impl CommandBuffer {
    /// Creates an event that a command signals in each run. The event counts no signal yet, so it
    /// is complete before the first run.
    pub(super) fn create_event(&self) -> Result<crosshandle::Event> {
        let options = EventOptions::new()
            .shareable(false)
            .profiling(self.is_profiling);
        Ok(self.context.on(&self.device)?.create_event_with(options)?)
    }

    /// Returns a UR handle for an event that a command in this command buffer signals.
    pub(super) fn hand_out(&self, event: crosshandle::Event) -> ur_event_handle_t {
        let command = ur_command_t::UR_COMMAND_ENQUEUE_COMMAND_BUFFER_EXP;
        Event::hand_out(self.context.clone(), event, Origin::Recorded(command))
    }
}

entry_points! {
    /// Replaces the event that a command signals in later runs. Runs that were already enqueued
    /// still signal the previous event.
    pub(super) fn update_signal(command: Handle<RecordedCommand>, event: Out<ur_event_handle_t>) {
        let buffer = command.buffer()?;
        buffer.updatable()?;
        if !command.events.is_signalling {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                "this command was recorded without an event to signal",
            ));
        }
        let new = buffer.create_event()?;
        let replaced = command.events.of_part.lock().signal.replace(new.clone());
        drop(replaced);
        event.put(buffer.hand_out(new))
    }

    /// Replaces the events for which a command waits in later runs.
    pub(super) fn update_waits(
        command: Handle<RecordedCommand>,
        waits(count, first): WaitList,
    ) {
        command.buffer()?.updatable()?;
        let new = waits.iter().map(|event| event.inner().map(|_| event.to_ref()));
        let new = new.collect::<Result<Vec<_>>>()?;
        check_number(command.events.wait_count, new.len())?;
        if new.is_empty() {
            return Ok(());
        }
        // The replaced events are dropped after the lock is released, because dropping an event may
        // drop further objects.
        let replaced = std::mem::replace(&mut command.events.of_part.lock().waits, new);
        drop(replaced);
        Ok(())
    }
}
