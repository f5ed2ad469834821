//! Commands that do nothing but wait, keep order, and signal.

use super::Submission;
use crate::boundary::enter;
use crate::event::reusable;
use crate::failure::Failure;
use crosshandle::Command;
use unified_runtime_sys::{
    UR_EXP_ENQUEUE_EXT_FLAG_LOW_POWER_EVENTS_SUPPORT, UR_EXP_ENQUEUE_EXT_FLAGS_MASK, ur_command_t,
    ur_event_handle_t, ur_exp_enqueue_ext_properties_t, ur_queue_handle_t, ur_result_t,
};

const BARRIER: ur_command_t = ur_command_t::UR_COMMAND_EVENTS_WAIT_WITH_BARRIER;

/// Waits for the list, or, if that is empty, for all that was submitted before.
fn after_list_or_all(count: u32) -> Command {
    if count == 0 {
        Command::marker().after_earlier()
    } else {
        Command::marker()
    }
}

pub(super) unsafe extern "C" fn events_wait(
    queue: ur_queue_handle_t,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
        let command = after_list_or_all(count);
        submission.submit(ur_command_t::UR_COMMAND_EVENTS_WAIT, command, false)
    })
}

pub(super) unsafe extern "C" fn events_wait_with_barrier(
    queue: ur_queue_handle_t,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
        let command = after_list_or_all(count).before_later();
        submission.submit(BARRIER, command, false)
    })
}

pub(super) unsafe extern "C" fn events_wait_with_barrier_ext(
    queue: ur_queue_handle_t,
    properties: *const ur_exp_enqueue_ext_properties_t,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes null or properties.
        let flags = unsafe { properties.as_ref() }.map_or(0, |properties| properties.flags);
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
        if flags & UR_EXP_ENQUEUE_EXT_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        // SAFETY: the caller passes null or a place with a handle, null, or what it had before; an
        // event that is alive stays so during this call.
        let again = unsafe { event.as_ref().and_then(|event| reusable::find(*event)) };
        if let Some(event) = again {
            return submission.signal(event);
        }
        let command = after_list_or_all(count).before_later();
        submission
            .low_power(flags & UR_EXP_ENQUEUE_EXT_FLAG_LOW_POWER_EVENTS_SUPPORT != 0)
            .submit(BARRIER, command, false)
    })
}
