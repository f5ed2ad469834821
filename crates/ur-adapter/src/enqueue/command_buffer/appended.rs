//! The arguments that all recording calls of command buffers share.

use crate::abi::boundary::{Argument2, Call, OutPointer, list};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{HandleList, Ref};
use crate::event::Event;
use unified_runtime_sys::{
    ur_event_handle_t, ur_exp_command_buffer_command_handle_t, ur_exp_command_buffer_sync_point_t,
    ur_result_t,
};

/// The arguments that all recording calls share: what the command waits for, and where the caller
/// wants the results.
pub(super) struct Appended<'a> {
    pub(super) after: &'a [ur_exp_command_buffer_sync_point_t],
    pub(super) sync_point: Option<OutPointer<'a, ur_exp_command_buffer_sync_point_t>>,
    pub(super) command: Option<OutPointer<'a, ur_exp_command_buffer_command_handle_t>>,
    /// The events for which the command waits in each run.
    pub(super) waits: Vec<Ref<Event>>,
    /// The memory for the event that the command signals in each run.
    pub(super) event: Option<OutPointer<'a, ur_event_handle_t>>,
}

impl<'a> Appended<'a> {
    /// Collects the arguments of a recording call.
    ///
    /// # Errors
    /// Returns `GRAPH_INTERNAL_EVENT` if a wait event belongs to a captured command.
    pub(super) fn new(
        after: &'a [ur_exp_command_buffer_sync_point_t],
        waits: &HandleList<'_, Event>,
        sync_point: Option<OutPointer<'a, ur_exp_command_buffer_sync_point_t>>,
        event: Option<OutPointer<'a, ur_event_handle_t>>,
        command: Option<OutPointer<'a, ur_exp_command_buffer_command_handle_t>>,
    ) -> Result<Self> {
        let waits = waits
            .iter()
            .map(|event| event.inner().map(|_| event.to_ref()));
        Ok(Self {
            after,
            sync_point,
            command,
            waits: waits.collect::<Result<_>>()?,
            event,
        })
    }
}

/// An argument of an entry point: the sync points of the commands that precede the new command.
pub(super) struct SyncPoints;

impl Argument2 for SyncPoints {
    type A = u32;
    type B = *const ur_exp_command_buffer_sync_point_t;
    type Value<'a> = &'a [ur_exp_command_buffer_sync_point_t];

    unsafe fn read<'a>(count: u32, first: Self::B, _call: &'a Call) -> Result<Self::Value<'a>> {
        if first.is_null() != (count == 0) {
            return Err(Failure::of(
                ur_result_t::UR_RESULT_ERROR_INVALID_COMMAND_BUFFER_SYNC_POINT_WAIT_LIST_EXP,
            ));
        }
        // SAFETY: the caller upholds this function's contract.
        unsafe { list(first, count as usize) }
    }
}

/// Defines entry points that each record one command.
///
/// Write each function without the arguments that all recording entry points share. These are the
/// command buffer, whose name precedes the functions, and the arguments after the command's own
/// ones. The body creates the command.
macro_rules! appends {
    ($buffer:ident; $(fn $name:ident($($arguments:tt)*) $body:block)*) => {
        $crate::abi::boundary::entry_points! {$(
            pub(in crate::enqueue::command_buffer) fn $name(
                $buffer: $crate::abi::object::Handle<$crate::enqueue::command_buffer::CommandBuffer>,
                $($arguments)*
                after(after_count, first_after):
                    $crate::enqueue::command_buffer::appended::SyncPoints,
                waits(wait_count, first_wait): $crate::enqueue::WaitList,
                sync_point: $crate::abi::boundary::MaybeOut<
                    ::unified_runtime_sys::ur_exp_command_buffer_sync_point_t,
                >,
                event: $crate::abi::boundary::MaybeOut<::unified_runtime_sys::ur_event_handle_t>,
                command: $crate::abi::boundary::MaybeOut<
                    ::unified_runtime_sys::ur_exp_command_buffer_command_handle_t,
                >,
            ) {
                let appended = $crate::enqueue::command_buffer::appended::Appended::new(
                    after, &waits, sync_point, event, command,
                )?;
                let recorded: $crate::abi::failure::Result<::crosshandle::Command> = $body;
                $buffer.append(recorded?, None, appended)
            }
        )*}
    };
}

pub(super) use appends;
