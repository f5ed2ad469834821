//! Entry points for waits, barriers and signals. They submit commands that do no work.

use super::submission::{Submission, WaitList};
use crate::abi::boundary::{MaybeIn, MaybeOut, entry_points};
use crate::abi::failure::Failure;
use crate::abi::object::Handle;
use crate::event::reusable::SignalledAgain;
use crate::ipc::queue_events::with_attached;
use crate::queue::Queue;
use crosshandle::Command;
use unified_runtime_sys::{
    UR_EXP_ENQUEUE_EXT_FLAG_LOW_POWER_EVENTS_SUPPORT, UR_EXP_ENQUEUE_EXT_FLAGS_MASK, ur_command_t,
    ur_event_handle_t, ur_exp_enqueue_ext_properties_t,
};

const BARRIER: ur_command_t = ur_command_t::UR_COMMAND_EVENTS_WAIT_WITH_BARRIER;

entry_points! {
    pub(super) fn events_wait(
        queue: Handle<Queue>,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let submission = Submission::new(queue, waits, event)?.after_list_or_all();
        submission.submit(ur_command_t::UR_COMMAND_EVENTS_WAIT, Command::marker(), false)
    }

    pub(super) fn events_wait_with_barrier(
        queue: Handle<Queue>,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let submission = Submission::new(queue, waits, event)?.after_list_or_all();
        with_attached(queue, || submission.before_later().submit(BARRIER, Command::marker(), false))
    }

    pub(super) fn events_wait_with_barrier_ext(
        queue: Handle<Queue>,
        properties: MaybeIn<ur_exp_enqueue_ext_properties_t>,
        waits(count, first): WaitList,
        event: SignalledAgain,
    ) {
        let flags = properties.map_or(0, |properties| properties.flags);
        if flags & UR_EXP_ENQUEUE_EXT_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let (place, again) = event;
        let submission = Submission::new(queue, waits, place)?;
        if let Some(event) = again {
            return submission.signal(event);
        }
        let submission = submission
            .after_list_or_all()
            .before_later()
            .low_power(flags & UR_EXP_ENQUEUE_EXT_FLAG_LOW_POWER_EVENTS_SUPPORT != 0);
        with_attached(queue, || submission.submit(BARRIER, Command::marker(), false))
    }
}
